"""One communicator's life in one process: what it says of itself, what it refuses and why, how it ends."""

from __future__ import annotations

import gc
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks import Rank, left_in_shared_memory, run_ranks, shared_memory, start_ranks

import pcie_allreduce
from pcie_allreduce import _C, lifetime

if TYPE_CHECKING:
    from collections.abc import Callable


def ones(me: Rank, elements: int = 8, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(elements, dtype=dtype, device=me.device)


def works(me: Rank, comm: Any, elements: int = 100) -> None:
    assert bool((comm.all_reduce(ones(me, elements)) == comm.world_size).all())


def raised(kind: type[BaseException] | tuple[type[BaseException], ...], call: Any, *parts: object) -> str:
    """The message of the exception that call() must raise; it must have every part in it."""
    try:
        result = call()
    except kind as error:
        message = str(error)
    else:
        raise AssertionError(f"{result!r} was returned, expected an error that says {parts}")
    missing = [str(part) for part in parts if str(part) not in message]
    assert not missing, f"{message!r} does not say {missing}"
    return message


# What it says of itself


def describes_itself(me: Rank) -> tuple[int, int]:
    with me.communicator(max_bytes=1 << 16) as comm:
        assert (comm.rank, comm.world_size) == (me.rank, me.world)
        assert torch.device(comm.device) == torch.device(me.device)
        assert comm.transport in (("cpu",) if me.device == "cpu" else ("peer", "host"))
        assert comm.max_bytes == 1 << 16
        assert comm.calls == 0
        text = repr(comm)
        for part in (f"rank {me.rank}", str(me.world), me.device, comm.transport):
            assert part in text, text
        x = ones(me)
        assert comm.supports(x)
        assert comm.why_not(x) is None
        assert comm.algorithm_for(x) != "none"
        works(me, comm)
        assert comm.calls == 1
        comm.check()
        return comm.max_bytes, comm.memory_bytes


@pytest.mark.parametrize("world", [2, 8])
def test_it_describes_itself(world: int, device: str) -> None:
    for _, memory in run_ranks(world, describes_itself, device=device):
        assert 3 * (world - 1) * (1 << 16) <= memory <= 4 << 20  # stated, and what 64 KB may cost at eight ranks


def default_size(me: Rank) -> int:
    with me.communicator() as comm:
        for size in (43_008, 57_344):  # three and four rows of the workload
            assert comm.supports(ones(me, size // 2, torch.bfloat16))
        works(me, comm)
        return int(comm.max_bytes)


def test_the_default_size_serves_the_workload(device: str) -> None:
    assert len(set(run_ranks(2, default_size, device=device))) == 1


# What it refuses, and why


def refusals(me: Rank) -> None:
    with me.communicator(max_bytes=4096) as comm:
        columns = torch.ones(8, 8, device=me.device).t()
        large = ones(me, 1025)
        other = torch.ones(8, device="meta")
        cases: list[tuple[Any, type[Exception], tuple[object, ...]]] = [
            (columns, ValueError, ("contiguous", (1, 8))),
            (ones(me, 16)[::2], ValueError, ("contiguous", (2,))),
            (ones(me, dtype=torch.int32), TypeError, ("int32", "float16", "bfloat16", "float32")),
            (ones(me, dtype=torch.float64), TypeError, ("float64", "float16", "bfloat16", "float32")),
            (large, ValueError, (4100, 4096)),
            (ones(me, 2049, torch.float16), ValueError, (4098, 4096)),
            (other, ValueError, ("meta", me.device)),
            (ones(me).requires_grad_(), ValueError, ("grad",)),
        ]
        for x, kind, parts in cases:
            assert not comm.supports(x)
            assert comm.algorithm_for(x) == "none"
            why = comm.why_not(x)
            assert why, f"{why!r} does not say {parts}"
            assert all(str(part) in why for part in parts), f"{why!r} does not say {parts}"
            message = raised(kind, lambda x=x: comm.all_reduce(x), *parts)
            assert why in message
        for thing in ([1.0, 2.0], None, 3.0):
            raised(TypeError, lambda given=thing: comm.all_reduce(given), type(thing).__name__)
        assert comm.calls == 0
        works(me, comm)
        exact = ones(me, 1024)  # the limit itself is served
        assert comm.supports(exact)
        assert bool((comm.all_reduce(exact) == me.world).all())


def bad_outputs(me: Rank) -> None:
    with me.communicator(max_bytes=4096) as comm:
        x = ones(me, 8)
        buffer = torch.ones(40, device=me.device)
        cases: list[tuple[torch.Tensor, Any, tuple[object, ...]]] = [
            (ones(me, 9), ValueError, (8, 9)),
            (ones(me, 8).reshape(2, 4), ValueError, ("(8,)", "(2, 4)")),
            (ones(me, 8, torch.float16), (TypeError, ValueError), ("float16", "float32")),
            (ones(me, 16)[::2], ValueError, ("contiguous",)),
            (torch.ones(8, device="meta"), ValueError, ("meta", me.device)),
        ]
        for out, kind, parts in cases:
            raised(kind, lambda out=out: comm.all_reduce(x, out=out), "out", *parts)
        # An output that covers the input in part would be overwritten while it is still read.
        raised(ValueError, lambda: comm.all_reduce(buffer[:16], out=buffer[4:20]), "overlap")
        assert bool((buffer == 1).all())
        assert comm.calls == 0
        touching = comm.all_reduce(buffer[:16], out=buffer[16:32])
        assert bool((touching == me.world).all())
        assert bool((buffer[:16] == 1).all())
        assert bool((buffer[32:] == 1).all())


def test_arguments_are_refused_with_value_and_limit(device: str) -> None:
    run_ranks(2, refusals, device=device)


def test_outputs_are_refused_with_value_and_limit(device: str) -> None:
    run_ranks(2, bad_outputs, device=device)


def another_device(me: Rank) -> None:
    with me.communicator(max_bytes=4096) as comm:
        x = torch.ones(8)  # on the CPU
        why = comm.why_not(x)
        assert why
        assert "cpu" in why
        assert me.device in why
        raised(ValueError, lambda: comm.all_reduce(x), "cpu", me.device)
        works(me, comm)


@pytest.mark.gpu
def test_a_cpu_tensor_on_a_gpu_communicator_is_refused() -> None:
    run_ranks(2, another_device, device="cuda")


def bad_constructions(me: Rank) -> None:
    """The same mistake on every rank; nobody waits for anybody."""
    cases: list[tuple[dict[str, Any], tuple[object, ...]]] = [
        ({"max_bytes": 0}, ("max_bytes", 0)),
        ({"max_bytes": -16}, ("max_bytes", -16)),
        ({"max_bytes": 1 << 40}, ("max_bytes", 1 << 40)),
        ({"timeout": 0.0}, ("timeout", 0)),
        ({"timeout": -1.0}, ("timeout", -1)),
        ({"timeout": float("nan")}, ("timeout", "nan")),
        ({"timeout": float("inf"), "warmup_timeout": float("inf")}, ("timeout", "inf")),
        ({"warmup_timeout": 0.0}, ("warmup_timeout", 0)),
        ({"transport": "pigeon"}, ("transport", "pigeon")),
        ({"transport": "peer"}, ("transport", "peer")),
        ({"algorithm": "guess"}, ("algorithm", "guess")),
        ({"device": "tpu"}, ("tpu",)),
        ({"device": "meta"}, ("meta",)),
    ]
    for options, parts in cases:
        raised((ValueError, pcie_allreduce.SetupError), lambda given=options: me.communicator(**given), *parts)
    with me.communicator() as comm:
        works(me, comm)


def test_bad_options_are_refused_with_their_value() -> None:
    run_ranks(2, bad_constructions)


# The fallback


def through_fallback(me: Rank) -> None:
    with me.communicator(max_bytes=4096, fallback=me.group) as comm:
        large = torch.full((5000,), float(me.rank + 1), device=me.device)
        expected = me.world * (me.world + 1) // 2
        assert comm.algorithm_for(large) == "none"
        assert "4096" in (comm.why_not(large) or "")
        calls = comm.calls
        y = comm.all_reduce(large)
        assert bool((y == expected).all()), "the input was changed"
        assert bool((large == me.rank + 1).all()), "the input was changed"
        assert comm.calls == calls, "what the fallback reduced is not ours"
        out = torch.full_like(large, float("nan"))
        assert comm.all_reduce(large, out=out).data_ptr() == out.data_ptr()
        assert bool((out == expected).all())
        comm.all_reduce(large, out=large)
        assert bool((large == expected).all())
        doubles = torch.full((7,), 0.5, dtype=torch.float64, device=me.device)
        assert bool((comm.all_reduce(doubles) == 0.5 * me.world).all())
        whole = torch.full((7,), me.rank, dtype=torch.int64, device=me.device)
        assert bool((comm.all_reduce(whole) == me.world * (me.world - 1) // 2).all())
        columns = torch.arange(12.0, device=me.device).reshape(3, 4).t()
        assert bool((comm.all_reduce(columns) == me.world * columns).all())
        works(me, comm)
        assert comm.calls == calls + 1
        misfit = torch.zeros(2, 8, dtype=torch.float16, device=me.device)  # a caller's mistake, not a thing to serve
        raised((ValueError, TypeError), lambda: comm.all_reduce(ones(me, 8), out=misfit), "out", "(2, 8)")
        raised((ValueError, TypeError), lambda: comm.all_reduce(ones(me, 8), out=misfit[0]), "out", "float16")
        assert not misfit.any()
        works(me, comm)


def test_what_is_not_supported_goes_to_the_fallback() -> None:
    run_ranks(3, through_fallback)


# The end


def closed(me: Rank) -> None:
    comm = me.communicator(max_bytes=4096)
    works(me, comm)
    comm.close()
    comm.close()
    x = ones(me)
    raised(pcie_allreduce.ClosedError, lambda: comm.all_reduce(x), "closed")
    raised(pcie_allreduce.ClosedError, comm.check, "closed")
    assert not comm.supports(x)
    assert "closed" in (comm.why_not(x) or "")
    assert "closed" in repr(comm)
    assert mappings() == []


def closed_by_an_exception(me: Rank) -> None:
    with pytest.raises(KeyError), me.communicator(max_bytes=4096) as comm:
        raise KeyError("in the body")
    raised(pcie_allreduce.ClosedError, lambda: comm.all_reduce(ones(me)), "closed")
    with me.communicator(max_bytes=4096) as again:
        works(me, again)


def one_closes_early(me: Rank) -> tuple[str, float]:
    comm = me.communicator(max_bytes=4096, timeout=15.0)
    works(me, comm)
    if me.rank == 1:
        comm.close()
        return "", 0.0
    begun = time.monotonic()

    def call() -> None:
        float(comm.all_reduce(ones(me)).sum())  # a GPU's call fails behind its start
        comm.check()

    message = raised(pcie_allreduce.ClosedError, call, "rank 1", "closed")
    comm.close()
    return message, time.monotonic() - begun


def test_a_closed_communicator_says_so(device: str) -> None:
    run_ranks(2, closed, device=device)


def test_leaving_by_an_exception_closes() -> None:
    run_ranks(2, closed_by_an_exception)


def test_a_peer_that_closed_is_named_at_once(device: str) -> None:
    for _, waited in run_ranks(3, one_closes_early, device=device):
        assert waited < 5.0, f"waited {waited:.1f} s for a rank that had said goodbye"


def open_descriptors() -> list[Path]:
    return [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]


def resources() -> tuple[int, int, int]:
    gc.collect()
    return len(open_descriptors()), len(mappings()), threading.active_count()


def one_after_another(me: Rank, count: int) -> None:
    before: tuple[int, int, int] | None = None
    me.meet()  # a first barrier opens files: torch looks at the GPUs then
    for turn in range(count):
        comm = me.communicator(max_bytes=1 << 16)
        works(me, comm)
        if turn % 2:
            comm.close()
        del comm  # without close: the memory must go all the same
        if turn == 3:
            before = resources()
    me.meet()
    assert before is not None
    after = resources()
    told = f"descriptors, mappings, threads: {before}, {after}; open are {sorted(map(os.readlink, open_descriptors()))}"
    assert all(b <= a for a, b in zip(before, after, strict=True)), told


def test_communicators_one_after_another_leave_nothing() -> None:
    before = shared_memory()
    run_ranks(3, one_after_another, 20)
    assert left_in_shared_memory(before) == set()


def mappings() -> list[str]:
    """The lines of this process's memory map that are the package's shared memory."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "pcie_allreduce-" in line]


def nothing_stays_in_the_file_system(me: Rank) -> list[str]:
    with me.communicator(max_bytes=4096) as comm:
        mapped = {line.split()[5] for line in mappings()}
        me.meet()
        works(me, comm)
        return sorted(mapped)


def test_shared_memory_has_no_name_once_all_ranks_have_it() -> None:
    """Unlinked names cannot outlive a crash; every rank has mapped its own slab and its peers'."""
    for mapped in run_ranks(3, nothing_stays_in_the_file_system):
        assert len(mapped) == 3, mapped
        assert not [path for path in mapped if Path(path).exists()]


# Processes and threads


def in_child(work: Callable[[], str]) -> tuple[int, Callable[[], str]]:
    """Forks; the child says what work() returns or raises. Gives its pid and a function that awaits its word."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:
            said = f"raised {type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)

    def said() -> str:
        with os.fdopen(reader) as pipe:
            words = pipe.read()
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child ended with status {status}"
        return words

    return child, said


def forked(me: Rank) -> str:
    """A child tries to call, closes and collects, while its parent goes on."""
    with me.communicator(max_bytes=4096) as comm:
        works(me, comm)

        def child() -> str:
            refused = raised(pcie_allreduce.PcieAllReduceError, lambda: comm.all_reduce(ones(me)), "fork")
            comm.close()
            return refused

        _, said = in_child(child)
        for _ in range(50):
            works(me, comm)
        words = said()
        works(me, comm)
        return words


def forked_and_forgotten(me: Rank) -> str:
    """A child drops its copy after it has taken new memory, which may lie where the parent's mailboxes do."""
    kept = [me.communicator(max_bytes=1 << 18)]
    works(me, kept[0])

    def child() -> str:
        maps = [mmap.mmap(-1, 1 << 14) for _ in range(500)]
        for turn, taken in enumerate(maps):
            taken[:] = bytes([turn % 251]) * len(taken)
        kept.clear()
        gc.collect()
        wrong = [turn for turn, taken in enumerate(maps) if taken[:] != bytes([turn % 251]) * len(taken)]
        return f"{len(wrong)} wrong"

    _, said = in_child(child)
    words = said()
    works(me, kept[0])
    kept[0].close()
    return words


def test_a_forked_child_is_refused_and_does_not_disturb_its_parent() -> None:
    for said in run_ranks(2, forked):
        assert "fork" in said
        assert "raised" not in said


def test_a_forked_child_may_drop_its_copy() -> None:
    assert run_ranks(2, forked_and_forgotten) == ["0 wrong"] * 2


# The pause: gloo's own thread lets go of a collective's tensors some time behind it, and torch aborts where the
# interpreter has ended meanwhile.
PROGRAM = """
import sys, time, torch, torch.distributed as dist, pcie_allreduce
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
kept = pcie_allreduce.Communicator(dist.group.WORLD, "cpu", timeout=20.0, warmup_timeout=20.0)
assert kept.all_reduce(torch.ones(16))[0].item() == 2.0
dist.barrier()
time.sleep(0.5)
"""


def test_a_program_may_end_without_closing(tmp_path: Path) -> None:
    """Fresh interpreters, as a launcher starts them, that end with a live communicator and a live group."""
    before = shared_memory()
    environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/", env=environment
        )
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=90)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    said = [re.sub(r"^\[Gloo\] Rank .*\n", "", words) for words in said]  # torch 2.9's gloo says that it is connected
    assert [(rank.returncode, words) for rank, words in zip(ranks, said, strict=True)] == [(0, "")] * 2
    assert left_in_shared_memory(before) == set()


def second_thread(me: Rank) -> str:
    """Rank 1 is late, so that rank 0 is inside its call when its second thread comes."""
    with me.communicator(max_bytes=4096) as comm:
        works(me, comm)
        if me.rank == 1:
            time.sleep(1.5)
            works(me, comm, 8)
            works(me, comm)
            return ""
        said: list[BaseException] = []
        results: list[torch.Tensor] = []
        inside = threading.Thread(target=lambda: results.append(comm.all_reduce(ones(me))))
        inside.start()
        time.sleep(0.5)
        begun = time.monotonic()
        try:
            comm.all_reduce(ones(me))
        except Exception as error:  # judged below
            said.append(error)
        waited = time.monotonic() - begun
        inside.join(20)
        assert said, said
        assert isinstance(said[0], pcie_allreduce.PcieAllReduceError | RuntimeError), said
        assert waited < 0.5, "the second call waited instead of being refused"
        assert bool((results[0] == me.world).all()), "the first call was disturbed"
        other: list[None] = []
        thread = threading.Thread(target=lambda: other.append(works(me, comm)))  # one after another is fine
        thread.start()
        thread.join(20)
        assert other == [None]
        return str(said[0])


def test_a_second_thread_inside_a_call_is_refused() -> None:
    assert "thread" in run_ranks(2, second_thread)[0]


def closed_from_another_thread(me: Rank) -> str:
    """Rank 0 closes while its other thread waits in a call: refused, or the call fails; memory must not vanish."""
    comm = me.communicator(max_bytes=4096, timeout=3.0, warmup_timeout=3.0)
    works(me, comm)
    said: list[str] = []
    if me.rank == 0:

        def call() -> None:
            try:
                works(me, comm)
                said.append("served")
            except Exception as error:
                said.append(type(error).__name__)

        inside = threading.Thread(target=call)
        inside.start()
        time.sleep(0.5)
        try:
            comm.close()
            said.append("closed")
        except RuntimeError as error:
            said.append(f"refused: {error}")
        inside.join(10)
    me.meet()
    comm.close()
    return ", ".join(said)


def test_closing_under_a_call_in_another_thread_is_no_crash() -> None:
    with start_ranks(2, closed_from_another_thread) as ranks:
        outcomes = ranks.collect(30)
    assert [outcome.kind for outcome in outcomes] == ["returned"] * 2, outcomes
    assert len(outcomes[0].value.split(", ")) == 2


def interrupted_elsewhere(me: Rank) -> int:
    """The interpreter goes on while a rank waits in a call: other Python threads must not stand still."""
    with me.communicator(max_bytes=4096) as comm:
        works(me, comm)
        ticks = 0
        done = threading.Event()

        def tick() -> None:
            nonlocal ticks
            while not done.wait(0.02):
                ticks += 1

        thread = threading.Thread(target=tick)
        thread.start()
        if me.rank == 1:
            time.sleep(1.0)
        works(me, comm)
        done.set()
        thread.join()
        return ticks


def test_other_threads_run_while_a_call_waits() -> None:
    assert min(run_ranks(2, interrupted_elsewhere)) >= 10


def ends_in_a_loop(me: Rank) -> None:
    comm = me.communicator(max_bytes=4096)
    cycle: list[Any] = [comm]
    cycle.append(cycle)  # only the collector finds it
    works(me, comm)


def test_a_forgotten_communicator_in_a_cycle_is_harmless() -> None:
    with start_ranks(2, ends_in_a_loop) as ranks:
        assert [outcome.kind for outcome in ranks.collect(60)] == ["returned"] * 2


def closed_before_its_turn(me: Rank) -> None:
    """As by another thread, between the look at the arguments and the call itself."""
    comm = me.communicator(max_bytes=4096)
    works(me, comm)
    me.meet()
    empty_like = torch.empty_like

    def closes(x: torch.Tensor) -> torch.Tensor:
        comm.close()
        return empty_like(x)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "empty_like", closes)
        with pytest.raises(pcie_allreduce.ClosedError):
            comm.all_reduce(ones(me))


def test_a_call_that_finds_it_closed_says_so() -> None:
    run_ranks(2, closed_before_its_turn)


def closed_by_a_signal_handler(me: Rank) -> None:
    """Rank 0 waits in a call when the handler runs, on the same thread."""
    comm = me.communicator(max_bytes=4096)
    works(me, comm)
    if me.rank == 0:
        signal.signal(signal.SIGALRM, lambda number, frame: comm.close())
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(RuntimeError, match="within a call of the same thread"):
            comm.all_reduce(ones(me))
    me.meet()
    comm.close()


def test_close_within_a_call_is_refused_and_does_not_wait_for_itself() -> None:
    run_ranks(2, closed_by_a_signal_handler)


def test_an_interrupt_during_the_first_exchange_is_raised() -> None:
    own, peer = (_C.CpuChannel(rank, 2, 512, 2.0, 2.0, 0, True) for rank in (0, 1))
    own.open([own.handle(), peer.handle()])

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    kept = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        own.exchange(2.0)
    signal.signal(signal.SIGALRM, kept)
    own.close()
    peer.close()


def test_what_is_collected_while_another_thread_captures_is_kept() -> None:
    class Transport:
        closed = False

        def close(self, patience: float) -> bool:
            self.closed = True
            return True

    during, after = Transport(), Transport()
    with lifetime.capturing():
        thread = threading.Thread(target=lifetime._let_go, args=(during,))
        thread.start()
        thread.join()
    lifetime._let_go(after)  # type: ignore[arg-type]
    assert (during.closed, after.closed) == (False, True)
    lifetime._kept.remove(during)  # type: ignore[arg-type]


def negated_view(me: Rank) -> None:
    """Its memory holds 1.0, and -1.0 is its value."""
    with me.communicator(max_bytes=4096) as comm:
        x = torch.tensor([1.0 + 1.0j]).conj().imag
        with pytest.raises(ValueError, match="negated view"):
            comm.all_reduce(x)
        assert comm.all_reduce(x.resolve_neg()).item() == -me.world


def test_a_negated_view_is_refused() -> None:
    run_ranks(2, negated_view)
