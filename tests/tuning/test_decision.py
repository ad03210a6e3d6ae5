"""What a measurement leads to: what is clearly quicker replaces, what is not does not, and nothing measured is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.documents import NCCL, OURS

from pcie_allreduce.plan import Step, step_for
from pcie_allreduce.tuning.decision import SIZES, Candidate, Choice, Measured, decide, table


def ours(us: float, algorithm: str, threads: int | None = None, untuned: bool = False, nbytes: int = 43008) -> Measured:
    step = Step(2, nbytes, algorithm, threads)
    candidate = Candidate(step, algorithm, (8, threads or 128), untuned)
    return Measured(candidate, replace(OURS, algorithm=algorithm, us_median=us))


def fallback(us: float, nbytes: int = 43008) -> Measured:
    return Measured(Candidate(Step(2, nbytes, fallback=True), "none"), replace(NCCL, us_median=us))


def test_what_is_clearly_quicker_replaces_the_untuned_plan() -> None:
    choice = decide([ours(10.0, "one_shot", untuned=True), ours(9.6, "two_shot"), ours(8.0, "two_shot", 64)])
    assert choice.chosen.candidate.label == "two_shot 8x64"
    assert choice.step == Step(2, 43008, "two_shot", 64)
    assert choice.gain_percent == pytest.approx(20)
    assert choice.to_dict()["untuned_over_best"] == 1.25


@pytest.mark.parametrize("us", [9.7, 9.9, 10.0, 11.0])
def test_three_percent_are_noise(us: float) -> None:
    choice = decide([ours(us, "two_shot", 64), ours(10.0, "one_shot", untuned=True)])
    assert choice.chosen is choice.untuned
    assert choice.step == Step(2, 43008)  # the cost model goes on choosing
    assert choice.gain_percent == 0
    assert choice.best.us == min(us, 10.0)  # and what was found is told all the same


def test_more_than_three_percent_are_not() -> None:
    assert decide([ours(9.69, "two_shot"), ours(10.0, "one_shot", untuned=True)]).step.algorithm == "two_shot"


def test_the_fallback_must_clearly_beat_the_best_of_ours_and_leaves_it_in_the_step() -> None:
    mine = [ours(10.0, "one_shot", untuned=True), ours(8.0, "two_shot", 64)]
    assert decide([*mine, fallback(7.8)]).step == Step(2, 43008, "two_shot", 64)
    choice = decide([*mine, fallback(6.0)])
    assert choice.chosen.candidate.label == "fallback"
    assert choice.step == Step(2, 43008, "two_shot", 64, fallback=True)
    assert choice.gain_percent == pytest.approx(40)
    assert choice.to_dict()["untuned_over_best"] == 1.25  # of ours: a plan cannot choose what is not ours
    assert decide([mine[0], fallback(6.0)]).step == Step(2, 43008, "auto", None, fallback=True)


def chosen(nbytes: int, algorithm: str, threads: int | None = None) -> Choice:
    if algorithm == "auto":
        return decide([ours(5.0, "one_shot", untuned=True, nbytes=nbytes)])
    return decide([ours(9.0, "one_shot", untuned=True, nbytes=nbytes), ours(5.0, algorithm, threads, nbytes=nbytes)])


def test_a_table_holds_between_its_sizes_and_joins_what_is_equal() -> None:
    choices = [chosen(16384, "two_shot", 64), chosen(1024, "auto"), chosen(4096, "auto"), chosen(65536, "two_shot", 64)]
    assert table(choices) == (Step(2, 8192), Step(2, 65536, "two_shot", 64))
    assert table([chosen(1024, "two_shot", 64), chosen(4096, "two_shot", 128)]) == (
        Step(2, 2048, "two_shot", 64),
        Step(2, 4096, "two_shot", 128),
    )


def test_below_the_smallest_size_that_was_measured_the_cost_model_goes_on() -> None:
    """Or what was best at a megabyte, the fallback perhaps, would serve the calls of a verify pass."""
    large = decide([ours(10.0, "one_shot", untuned=True, nbytes=1 << 20), fallback(6.0, nbytes=1 << 20)])
    steps = table([large])
    assert steps == (Step(2, (1 << 20) - 1), Step(2, 1 << 20, fallback=True))
    for nbytes in (16, 1024, 43008):
        step = step_for(steps, nbytes, 2)
        assert step is not None and (step.algorithm, step.fallback) == ("auto", False)
    assert table([chosen(16384, "two_shot", 64)]) == (Step(2, 16383), Step(2, 16384, "two_shot", 64))
    assert table([chosen(16384, "auto")]) == (Step(2, 16384),)


def test_below_the_ladders_first_size_its_choice_holds() -> None:
    assert table([chosen(SIZES[0], "two_shot", 64)]) == (Step(2, SIZES[0], "two_shot", 64),)
    assert table([chosen(16, "two_shot", 64)]) == (Step(2, 16, "two_shot", 64),)


def test_the_document_has_every_candidate_with_its_times() -> None:
    told = decide([ours(10.0, "one_shot", untuned=True), fallback(12.0)]).to_dict()
    assert [(each["backend"], each["algorithm"], each["blocks"], each["threads"]) for each in told["candidates"]] == [
        ("pcie_allreduce", "one_shot", 8, 128),
        ("nccl", "none", None, None),
    ]
    assert [(each["us_median"], each["untuned"], each["exact"]) for each in told["candidates"]] == [
        (10.0, True, True),
        (12.0, False, True),
    ]
