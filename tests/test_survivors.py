"""One rank goes wrong, in every way that a program can. The others are told in time and by name, nothing is left, and a
new communicator works in the same processes. GPUs: one process a GPU."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks import Outcome, Rank, left_in_shared_memory, shared_memory, start_ranks
from test_failure import MARGIN, TIMEOUT, Failure, failing_call, works_among_survivors

import pcie_allreduce

if TYPE_CHECKING:
    from collections.abc import Callable

CULPRIT = 1
BEFORE = 5  # calls that go well
ENDS = ("killed", "exits", "dies of a signal handler")  # of the culprit's process


def x_of(me: Rank, dtype: torch.dtype = torch.float32, elements: int = 512) -> torch.Tensor:
    return torch.ones(elements, dtype=dtype, device=me.device)


def is_killed(me: Rank, comm: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits(me: Rank, comm: Any) -> None:
    """The end of an interpreter, which runs its exit handlers, with a live communicator and peers that wait."""
    time.sleep(0.3)
    atexit._run_exitfuncs()
    os._exit(0)


def dies_of_a_signal(me: Rank, comm: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def is_late(me: Rank, comm: Any) -> None:
    time.sleep(TIMEOUT + MARGIN)
    again(me, comm)


def skips_a_call(me: Rank, comm: Any) -> None:
    """It believes that it has made the call, and waits for something else."""
    time.sleep(TIMEOUT + MARGIN)


def calls_with_another_size(me: Rank, comm: Any) -> None:
    again(me, comm, x_of(me, elements=513))


def calls_with_another_dtype(me: Rank, comm: Any) -> None:
    again(me, comm, x_of(me, torch.bfloat16, 1024))


def closes(me: Rank, comm: Any) -> None:
    comm.close()


def raises_after_capture(me: Rank, comm: Any) -> None:
    """Between the capture of a graph and its replay; whoever catches it closes the communicator."""
    x, graph = x_of(me), torch.cuda.CUDAGraph()
    with contextlib.suppress(ZeroDivisionError), comm:
        with comm.capture(), torch.cuda.graph(graph):
            comm.all_reduce(x)
        _ = 1 / 0


def again(me: Rank, comm: Any, x: torch.Tensor | None = None) -> None:
    """The culprit itself is not served either, at the latest in its second call."""
    assert any(failing_call(me, comm, x_of(me) if x is None else x) is not None for _ in range(2))


TROUBLES: dict[str, tuple[Callable[[Rank, Any], None], tuple[str, ...]]] = {
    "killed": (is_killed, ("AllReduceTimeout",)),
    "exits": (exits, ("ClosedError", "AllReduceTimeout")),
    "dies of a signal handler": (dies_of_a_signal, ("AllReduceTimeout",)),
    "late": (is_late, ("AllReduceTimeout",)),
    "skips a call": (skips_a_call, ("AllReduceTimeout",)),
    "other size": (calls_with_another_size, ("CallMismatch",)),
    "other dtype": (calls_with_another_dtype, ("CallMismatch",)),
    "closes": (closes, ("ClosedError",)),
    "raises after capture": (raises_after_capture, ("ClosedError",)),
}


def replayed(me: Rank, comm: Any) -> Failure | None:
    """A survivor's replay of the graph that all have captured."""
    x, graph = x_of(me), torch.cuda.CUDAGraph()
    with comm.capture(), torch.cuda.graph(graph):
        y = comm.all_reduce(x)
    begun = time.monotonic()
    try:
        graph.replay()
        torch.cuda.synchronize()
        comm.check()
    except pcie_allreduce.PcieAllReduceError as error:
        said, poisoned = (type(error).__name__, str(error)), bool(y.isnan().all())
        return Failure(*said, (), me.rank, "", 0, begun, time.monotonic(), poisoned)
    return None


def live(me: Rank, trouble: str, transport: str) -> Failure | None:
    comm = me.communicator(transport=transport, max_bytes=4096, timeout=TIMEOUT, warmup_timeout=TIMEOUT)
    for _ in range(BEFORE):
        assert failing_call(me, comm, x_of(me)) is None
    me.meet()
    if me.rank == CULPRIT:
        TROUBLES[trouble][0](me, comm)
        failure = None
    else:
        call = replayed if trouble == "raises after capture" else lambda me, comm: failing_call(me, comm, x_of(me))
        failure = call(me, comm)
    if trouble in ENDS:
        comm.close()
        if me.world > 2:
            works_among_survivors(me, CULPRIT)
    else:
        me.meet()
        comm.close()
        with me.communicator(max_bytes=4096) as fresh:
            assert fresh.all_reduce(x_of(me))[0].item() == me.world
            me.meet()
    return failure


def judge(outcomes: list[Outcome], trouble: str) -> None:
    for outcome in outcomes:
        if outcome.rank == CULPRIT:
            assert outcome.kind == ("died" if trouble in ENDS else "returned"), outcome.text
            continue
        assert outcome.kind == "returned", outcome.text
        failure = outcome.value
        assert failure is not None, "it was given a sum that no rank may have"
        assert failure.kind in TROUBLES[trouble][1], failure
        assert f"rank {CULPRIT}" in failure.message, failure
        assert failure.kind != "AllReduceTimeout" or failure.missing == (CULPRIT,), failure
        assert failure.raised - failure.begun <= TIMEOUT + MARGIN, failure
        assert failure.poisoned, failure


SLOW = pytest.mark.slow


@pytest.mark.parametrize("transport", ["auto", pytest.param("host", marks=SLOW), pytest.param("pull", marks=SLOW)])
@pytest.mark.parametrize("trouble", [name for name in TROUBLES if name != "raises after capture"])
def test_every_survivor_is_told_in_time_and_by_name(trouble: str, transport: str, device: str) -> None:
    before = shared_memory()
    with start_ranks(3 if device == "cpu" else 2, live, trouble, transport, device=device) as ranks:
        judge(ranks.collect(60), trouble)
    assert left_in_shared_memory(before) == set()


@pytest.mark.gpu
def test_an_exception_between_capture_and_replay_is_told_to_the_others() -> None:
    with start_ranks(2, live, "raises after capture", "auto", device="cuda") as ranks:
        judge(ranks.collect(60), "raises after capture")
