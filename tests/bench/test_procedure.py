"""How times become a number, on a clock that does what it is told."""

from __future__ import annotations

import pytest

from pcie_allreduce.bench.procedure import PAIRS, Counts, HostClock, Timing, counts_for, fold, time_repeat


class Clock:
    """Seconds that pass only when something says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Calls that take a set time each; whatever else happens takes long, so that timing it would show."""

    def __init__(self, clock: Clock, seconds: list[float], calls: int) -> None:
        self.clock, self.seconds, self.count = clock, iter(seconds), calls
        self.log: list[str] = []

    def restore(self) -> None:
        self._pass("restore", 100.0)

    def barrier(self) -> None:
        self._pass("barrier", 100.0)

    def lead_in(self) -> None:
        self._pass("lead_in", 100.0)

    def calls(self) -> None:
        self._pass("calls", next(self.seconds) * self.count)

    def _pass(self, what: str, seconds: float) -> None:
        self.log.append(what)
        self.clock.now += seconds


def test_a_replay_is_the_calls_alone_behind_barrier_and_lead_in() -> None:
    clock, counts = Clock(), Counts(calls=50, lead_in=2, replays=3, warmup=1)
    work = Work(clock, [2e-6, 3e-6, 7e-6], counts.calls)
    times = time_repeat(work, HostClock(clock), work.barrier, counts)
    assert times == pytest.approx([2.0, 3.0, 7.0])
    assert work.log == ["restore", "barrier", "lead_in", "calls"] * 3


def test_the_slowest_rank_counts_in_each_replay_and_medians_are_taken_of_these() -> None:
    # Each rank's own median is 1 and 2; the slowest of each replay are 9, 8, 2.
    one_repeat = [[[1.0, 8.0, 1.0]], [[9.0, 2.0, 2.0]]]
    assert fold(one_repeat) == Timing(us_median=8.0, us_min=8.0, us_max=8.0, replays=3, repeats=1)


def test_lowest_and_highest_are_of_the_repeats() -> None:
    rank = [[5.0, 5.0, 900.0], [7.0, 7.0, 1.0], [6.0, 6.0, 6.0]]
    assert fold([rank, rank]) == Timing(us_median=6.0, us_min=5.0, us_max=7.0, replays=3, repeats=3)


@pytest.mark.parametrize(
    "ranks", [[[[1.0]], [[1.0, 2.0]]], [[[1.0], [1.0, 2.0]]] * 2, [[[1.0]], [[1.0], [1.0]]], [[[]]], [[], []], []]
)
def test_ranks_that_measured_unequally_are_refused(ranks: list[list[list[float]]]) -> None:
    with pytest.raises(ValueError, match="equally many"):
        fold(ranks)


def test_a_graph_holds_the_calls_of_the_layers_of_one_verify_pass() -> None:
    counts = counts_for("cuda", "graph", 43008, 8)
    assert counts.calls == counts.lead_in == 122
    assert counts.replays == 36


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("nbytes", [2, 43008, 1 << 20])
def test_every_buffer_is_used_and_warmed(device: str, world: int, nbytes: int) -> None:
    counts = counts_for(device, "eager", nbytes, world)
    assert counts.calls >= PAIRS
    assert counts.warmup >= PAIRS
    assert counts.lead_in >= 1
    assert counts.replays >= 3
