"""No wait is endless, and whoever waited in vain says for whom; a wrong call is an error and never a wrong sum."""

from __future__ import annotations

import mmap
import re
import signal
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Outcome, Rank, left_in_shared_memory, run_ranks, shared_memory, start_ranks

import pcie_allreduce
from pcie_allreduce import _C
from pcie_allreduce.plan import MAILBOX_OFFSET
from pcie_allreduce.transport import ALGORITHM_CODES

TIMEOUT = 2.0
MARGIN = 1.0  # seconds beyond the deadline in which every rank must have raised


@dataclass(frozen=True)
class Failure:
    """How a rank's call failed. Times are of the clock that all processes of a machine share."""

    kind: str
    message: str
    missing: tuple[int, ...]
    rank: int
    stage: str
    call: int
    begun: float
    raised: float
    poisoned: bool


def failing_call(me: Rank, comm: Any, x: torch.Tensor) -> Failure | None:
    """One call; what it raised, if it did. Its output must then be NaN."""
    out = torch.zeros_like(x)
    begun = time.monotonic()
    try:
        comm.all_reduce(x, out=out)
        comm.check()
        if x.is_cuda:
            torch.cuda.synchronize()
            comm.check()
        return None
    except pcie_allreduce.PcieAllReduceError as error:
        raised = time.monotonic()
        missing = tuple(getattr(error, "missing", ()))
        rank, stage, call = (getattr(error, name, None) for name in ("rank", "stage", "call"))
        poisoned = bool(out.isnan().all())
        return Failure(type(error).__name__, str(error), missing, rank, stage, call, begun, raised, poisoned)  # type: ignore[arg-type]


# A rank that dies or stops


def until_it_fails(me: Rank, victim: int, again: bool) -> tuple[Failure, Failure | None, float]:
    comm = me.communicator(max_bytes=1 << 16, timeout=TIMEOUT, warmup_timeout=TIMEOUT)
    x = torch.full((7168,), float(me.rank), dtype=torch.bfloat16, device=me.device)
    for call in range(1_000_000):
        failure = failing_call(me, comm, x)
        if failure is not None:
            break
        if call == 100:
            me.tell("looping")
    assert failure is not None, "nothing failed"
    begun = time.monotonic()
    later = failing_call(me, comm, x)
    took = time.monotonic() - begun
    comm.close()
    if again:
        works_among_survivors(me, victim)
    return failure, later, took


def works_among_survivors(me: Rank, victim: int) -> None:
    dist.destroy_process_group()
    survivors = [rank for rank in range(me.world) if rank != victim]
    store = dist.PrefixStore("survivors", me.store)
    dist.init_process_group("gloo", store=store, rank=survivors.index(me.rank), world_size=len(survivors))
    group = dist.group.WORLD
    with pcie_allreduce.Communicator(group, me.device, max_bytes=1 << 16, timeout=20.0, warmup_timeout=20.0) as comm:
        x = torch.full((1000,), float(me.rank), device=me.device)
        for _ in range(20):
            assert bool((comm.all_reduce(x) == sum(survivors)).all())


def judge_death(outcomes: list[Outcome], victim: int, since: float) -> None:
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.kind == "returned", outcome.text
        failure, later, took = outcome.value
        assert failure.kind == "AllReduceTimeout", failure
        assert failure.missing == (victim,), failure
        assert f"rank {victim}" in failure.message, failure
        assert failure.rank == outcome.rank, failure
        assert failure.stage, failure
        assert failure.call > 100, failure
        assert failure.raised - since <= TIMEOUT + MARGIN, f"raised after {failure.raised - since:.2f} s"
        assert failure.poisoned, "the output of a failed call must be NaN"
        assert later is not None, "a failed communicator must go on failing"
        assert later.missing == (victim,), "a failed communicator must go on failing"
        assert later.poisoned, f"a later call took {took:.2f} s"
        assert took < 0.5, f"a later call took {took:.2f} s"


@pytest.mark.parametrize(("world", "victim"), [(2, 0), (3, 1), (8, 3)])
def test_a_killed_rank_is_named_by_every_other(world: int, victim: int) -> None:
    before = shared_memory()
    with start_ranks(world, until_it_fails, victim, world > 2) as ranks:
        ranks.await_told("looping")
        since = time.monotonic()
        ranks.kill(victim)
        outcomes = ranks.collect(60)
        assert outcomes[victim].kind == "died"
        judge_death(outcomes, victim, since)
    assert left_in_shared_memory(before) == set()


def test_a_stopped_rank_is_named_and_fails_when_it_goes_on() -> None:
    """It must neither hang nor hand out sums that the others never had."""
    victim = 1
    with start_ranks(3, until_it_fails, victim, False) as ranks:
        ranks.await_told("looping")
        since = time.monotonic()
        ranks.kill(victim, signal.SIGSTOP)
        time.sleep(TIMEOUT + MARGIN)
        resumed = time.monotonic()
        ranks.kill(victim, signal.SIGCONT)
        outcomes = ranks.collect(60)
    judge_death(outcomes, victim, since)
    assert outcomes[victim].kind == "returned", outcomes[victim].text
    failure, later, _ = outcomes[victim].value
    assert failure.kind == "AllReduceTimeout", failure
    assert later is not None, failure
    assert failure.raised - resumed <= TIMEOUT + MARGIN


def all_but_one_call(me: Rank, silent: tuple[int, ...]) -> Failure | None:
    """The silent ranks stay alive and do nothing."""
    comm = me.communicator(max_bytes=1 << 16, timeout=TIMEOUT, warmup_timeout=TIMEOUT)
    x = torch.ones(100, device=me.device)
    failure = None if me.rank in silent else failing_call(me, comm, x)
    me.meet()
    comm.close()
    return failure


@pytest.mark.parametrize(("world", "silent"), [(2, (0,)), (4, (1, 2)), (8, (7,))])
def test_a_silent_rank_is_missing_within_the_deadline(world: int, silent: tuple[int, ...], device: str) -> None:
    for rank, failure in enumerate(run_ranks(world, all_but_one_call, silent, device=device)):
        if rank in silent:
            continue
        assert failure.kind == "AllReduceTimeout", failure
        assert failure.poisoned, failure
        assert failure.missing, failure
        assert set(failure.missing) <= set(silent), failure
        stated = re.search(r"waited (\d+\.\d) s", failure.message)
        assert stated, failure.message
        assert TIMEOUT <= float(stated[1]) <= TIMEOUT + MARGIN, failure.message
        assert re.search(rf"ranks? {silent[0]}\b", failure.message), failure.message
        assert TIMEOUT - 0.1 <= failure.raised - failure.begun <= TIMEOUT + MARGIN


def a_little_late(me: Rank, pause: float) -> None:
    with me.communicator(max_bytes=1 << 16, timeout=TIMEOUT, warmup_timeout=TIMEOUT) as comm:
        for late in range(me.world):
            if me.rank == late:
                time.sleep(pause)
            x = torch.full((3000,), float(me.rank + late), dtype=torch.float16, device=me.device)
            expected = me.world * late + me.world * (me.world - 1) // 2
            assert bool((comm.all_reduce(x) == expected).all())
        comm.check()


def test_a_rank_late_by_less_than_the_deadline_is_served(device: str) -> None:
    run_ranks(3, a_little_late, 0.6 * TIMEOUT, device=device)


def two_deadlines(me: Rank) -> Failure | None:
    """Rank 0 is late by 2 s at first, which the warm-up allows, and again after a thousand calls."""
    comm = me.communicator(max_bytes=4096, timeout=1.0, warmup_timeout=20.0)
    x = torch.ones(10, device=me.device)
    for call in range(1001):
        if me.rank == 0 and call == 3:
            time.sleep(2.0)
        assert comm.all_reduce(x)[0].item() == me.world
    if me.rank == 0:
        time.sleep(3.0)
    failure = failing_call(me, comm, x)
    if failure is None:  # the late rank found its peer's data there, and may complete this call, but none after it
        failure = failing_call(me, comm, x)
    comm.close()
    return failure


def test_the_longer_deadline_ends_with_the_warm_up(device: str) -> None:
    late, waiting = run_ranks(2, two_deadlines, device=device)
    assert waiting is not None
    assert waiting.missing == (0,), waiting
    assert waiting.raised - waiting.begun <= 1.0 + MARGIN
    assert late is not None, "the late rank was given sums that its peer never had"
    assert late.kind == "AllReduceTimeout", late
    assert late.raised - late.begun <= 1.0 + MARGIN, late


# Ranks that make different calls


def different_calls(me: Rank, odd: int, sizes: tuple[int, int], dtypes: tuple[torch.dtype, torch.dtype]) -> Any:
    """Two calls in step, then rank `odd` makes another one; whatever is raised may be so up to the call after."""
    comm = me.communicator(max_bytes=1 << 16, timeout=TIMEOUT, warmup_timeout=TIMEOUT)
    which = int(me.rank == odd)
    for _ in range(2):
        comm.all_reduce(torch.ones(64, device=me.device))
    x = torch.ones(sizes[which], dtype=dtypes[which], device=me.device)
    failure = failing_call(me, comm, x)
    later = failing_call(me, comm, x)
    me.meet()
    comm.close()
    return failure, later


HALF, BRAIN, FLOAT = torch.float16, torch.bfloat16, torch.float32
DIFFERENT: dict[str, tuple[tuple[int, int], tuple[torch.dtype, torch.dtype], tuple[str, ...]]] = {
    "sizes": ((512, 768), (HALF, HALF), ("1024", "1536")),
    "one element more": ((512, 513), (HALF, HALF), ("1024", "1026")),
    "within one pack": ((1, 2), (FLOAT, FLOAT), ("4", "8")),
    "types of equal bytes": ((512, 512), (HALF, BRAIN), ("float16", "bfloat16")),
    "types of equal elements": ((512, 512), (FLOAT, BRAIN), ("float32", "bfloat16")),
    "types of equal bytes, other counts": ((256, 512), (FLOAT, BRAIN), ("float32", "bfloat16")),
    "very different sizes": ((1, 16000), (HALF, HALF), ("2", "32000")),
}


@pytest.mark.parametrize("case", DIFFERENT)
@pytest.mark.parametrize(("world", "odd"), [(2, 1), (3, 0), (5, 3)])
def test_different_calls_are_an_error_on_every_rank(world: int, odd: int, case: str, device: str) -> None:
    sizes, dtypes, parts = DIFFERENT[case]
    results = run_ranks(world, different_calls, odd, sizes, dtypes, device=device)
    failures = [failure for failure, _ in results]
    for rank, (failure, later) in enumerate(results):
        assert failure is not None, f"rank {rank} was given a sum: {failures}"
        assert failure.kind in ("CallMismatch", "AllReduceTimeout"), failure
        assert failure.poisoned, failure
        assert failure.raised - failure.begun <= TIMEOUT + MARGIN, failure
        assert later is not None, "a failed communicator must go on failing"
        assert later.poisoned, "a failed communicator must go on failing"
    told = [failure.message for failure in failures if failure.kind == "CallMismatch"]
    assert any(all(part in message for part in parts) for message in told), f"{told}: none says {parts}"
    for message in told:
        assert not re.search(r"rank (\d) made another call than rank \1\b", message), message


def one_call_skipped(me: Rank) -> Failure | None:
    """Rank 1 leaves out a call that no other size gives away; it must fail for want of partners, not be served."""
    comm = me.communicator(max_bytes=1 << 16, timeout=TIMEOUT, warmup_timeout=TIMEOUT)
    x = torch.ones(64, device=me.device)
    failure = None
    for call in range(5):
        if me.rank == 1 and call == 2:
            continue
        failure = failing_call(me, comm, x)
        if failure is not None:
            break
    me.meet()
    comm.close()
    return failure


def test_a_skipped_call_leaves_the_others_waiting_by_name() -> None:
    first, second = run_ranks(2, one_call_skipped)
    assert second is None or second.kind == "AllReduceTimeout"
    assert first is not None, first
    assert first.kind == "AllReduceTimeout", first
    assert first.missing == (1,), first


def failed_then_new(me: Rank) -> None:
    """A failed communicator beside a healthy one, then a new one over the same ranks."""
    healthy = me.communicator(max_bytes=4096)
    failed = me.communicator(max_bytes=4096, timeout=1.0, warmup_timeout=1.0)
    x = torch.ones(16, device=me.device)
    if me.rank != 0:
        assert failing_call(me, failed, x) is not None
    me.meet()
    assert healthy.all_reduce(x)[0].item() == me.world
    failed.close()
    with me.communicator(max_bytes=4096) as fresh:
        assert fresh.all_reduce(x)[0].item() == me.world
    assert healthy.all_reduce(x)[0].item() == me.world
    healthy.close()


def test_a_failure_stays_with_its_communicator(device: str) -> None:
    run_ranks(3, failed_then_new, device=device)


def interrupted(me: Rank) -> str:
    """Ctrl-C while a peer is missing: the call ends at the latest with its deadline and nothing is left undefined."""
    comm = me.communicator(max_bytes=4096, timeout=TIMEOUT, warmup_timeout=TIMEOUT)
    me.tell("ready")
    said = ""
    if me.rank == 0:
        try:
            comm.all_reduce(torch.ones(16))
            said = "served"
        except (KeyboardInterrupt, pcie_allreduce.PcieAllReduceError) as error:
            said = type(error).__name__
    me.meet()
    comm.close()
    return said


def test_an_interrupt_during_a_wait_ends_it_within_the_deadline() -> None:
    with start_ranks(2, interrupted) as ranks:
        ranks.await_told("ready")
        time.sleep(0.5)
        ranks.kill(0, signal.SIGINT)
        outcomes = ranks.collect(30)
    assert [outcome.kind for outcome in outcomes] == ["returned"] * 2, outcomes
    assert outcomes[0].value in ("KeyboardInterrupt", "AllReduceTimeout")


def test_an_interrupt_is_heeded_soon_however_long_the_peer_was_late() -> None:
    """A peer of which nothing comes but its signature, 2 s late."""
    own, peer = (_C.CpuChannel(rank, 2, 512, 20.0, 20.0, 0, True) for rank in (0, 1))
    own.open([own.handle(), peer.handle()])
    x, out = torch.ones(64), torch.empty(64)
    signature = struct.pack("<4I", 0, x.nbytes, _C.build_info()["layout"] << 16 | ALGORITHM_CODES["one_shot"] << 8, 1)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with Path(f"/dev/shm{own.handle().decode()}").open("r+b") as file, mmap.mmap(file.fileno(), 0) as slab:

        def comes() -> None:
            time.sleep(2.0)
            slab[MAILBOX_OFFSET : MAILBOX_OFFSET + 16] = signature

        late = threading.Thread(target=comes)
        kept = signal.signal(signal.SIGALRM, interrupt)
        late.start()
        signal.setitimer(signal.ITIMER_REAL, 2.5)
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            own.collective(x.data_ptr(), out.data_ptr(), x.nbytes, ALGORITHM_CODES["one_shot"], 0)
        took = time.monotonic() - begun
        signal.signal(signal.SIGALRM, kept)
        late.join()
    own.close()
    peer.close()
    assert 2.4 < took < 3.5
