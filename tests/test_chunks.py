"""Reduce-scatter and all-gather: the two halves of an all-reduce, with the same sums, the same waits and the same
mailboxes, between all-reduces and alone."""

from __future__ import annotations

import hashlib
import random
import re
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Rank, run_ranks, start_ranks
from reference import DTYPES, Bits, Guarded, difference, expected_sum, from_bits, make_parts, to_bits, widened
from test_failure import MARGIN, TIMEOUT, Failure

import pcie_allreduce

WORLDS = range(2, 9)
LENGTHS = (1, 2, 3, 5, 7, 8, 9, 16, 31, 63, 64, 65, 1021, 3584)  # of a chunk, in elements
MAX_BYTES = 1 << 17
worlds = pytest.mark.parametrize("world", WORLDS)


def zeros_positive(bits: Bits, dtype: torch.dtype) -> Bits:
    return np.where(widened(bits, dtype) == 0, bits.dtype.type(0), bits)


def of_rank(bits: Bits, me: Rank) -> Bits:
    return bits.reshape(me.world, -1)[me.rank]


def scattered_every_way(me: Rank, kind: str) -> str:
    """Each type and length into a new tensor, a given one and this rank's chunk of the input; gathered again behind it,
    so that a digest of what all ranks then have can be compared. Every second length lies at odd addresses."""
    digest = hashlib.sha256()
    with me.communicator(max_bytes=MAX_BYTES) as comm:
        for dtype in DTYPES:
            for seed, elements in enumerate(LENGTHS):
                what = f"{me.world} chunks of {elements} x {dtype}"
                parts = make_parts(kind, me.world, me.world * elements, dtype, seed)
                expected = of_rank(expected_sum(parts), me)
                given = Guarded(me.world * elements, dtype, me.device, seed % 2)
                out = Guarded(elements, dtype, me.device, seed % 2)
                x = given.holding(parts[me.rank])
                fresh = comm.reduce_scatter(x)
                assert comm.reduce_scatter(x, out=out.tensor) is out.tensor
                assert (to_bits(x) == to_bits(parts[me.rank])).all(), f"{what}: the input was changed"
                own = x.view(me.world, elements)[me.rank]
                comm.reduce_scatter(x, out=own)
                others = [rank for rank in range(me.world) if rank != me.rank]
                kept = to_bits(x.view(me.world, elements)[others])
                assert (kept == to_bits(parts[me.rank].view(me.world, elements)[others])).all(), what
                for way, result in {"fresh": fresh, "out": out.tensor, "in place": own}.items():
                    problem = difference(result, expected)
                    assert problem is None, f"{what}, {way}: {problem}"
                assert given.intact(), f"{what}: wrote outside its input"
                assert out.intact(), f"{what}: wrote outside its output"
                whole = comm.all_gather(fresh)
                assert difference(whole, expected_sum(parts)) is None, what
                digest.update(to_bits(whole).tobytes())
    return digest.hexdigest()


def gathered_every_way(me: Rank, kind: str) -> str:
    """Each type and length into a new tensor, a given one, and with the input in it. An all-reduce may change a NaN."""
    digest = hashlib.sha256()
    with me.communicator(max_bytes=MAX_BYTES) as comm:
        for dtype in DTYPES:
            for seed, elements in enumerate(LENGTHS):
                what = f"{me.world} chunks of {elements} x {dtype}"
                parts = make_parts(kind, me.world, elements, dtype, seed)
                expected = zeros_positive(to_bits(torch.cat(parts)), dtype)
                given = Guarded(elements, dtype, me.device, seed % 2)
                out = Guarded(me.world * elements, dtype, me.device, seed % 2)
                x = given.holding(parts[me.rank])
                fresh = comm.all_gather(x)
                assert comm.all_gather(x, out=out.tensor) is out.tensor
                assert (to_bits(x) == to_bits(parts[me.rank])).all(), f"{what}: the input was changed"
                in_place = torch.full_like(out.tensor, 3.0)
                own = in_place.view(me.world, elements)[me.rank].copy_(x)
                comm.all_gather(own, out=in_place)
                for way, result in {"fresh": fresh, "out": out.tensor, "in place": in_place}.items():
                    got = zeros_positive(to_bits(result), dtype)
                    if comm.transport in ("cpu", "peer"):
                        assert (got == expected).all(), f"{what}, {way}"
                    problem = difference(from_bits(got, dtype), expected)
                    assert problem is None, f"{what}, {way}: {problem}"
                assert out.intact(), f"{what}: wrote outside its output"
                digest.update(to_bits(fresh).tobytes())
    return digest.hexdigest()


@worlds
@pytest.mark.parametrize("kind", ["integers", "mixed"])
def test_a_chunk_is_that_of_the_all_reduce(world: int, kind: str, device: str) -> None:
    assert len(set(run_ranks(world, scattered_every_way, kind, device=device))) == 1


@worlds
@pytest.mark.parametrize("kind", ["integers", "patterns"])
def test_everyone_gets_every_chunk_bit_for_bit(world: int, kind: str, device: str) -> None:
    assert len(set(run_ranks(world, gathered_every_way, kind, device=device))) == 1


def over(me: Rank, transport: str, job: Any, kind: str) -> Any:
    return job(replace(me, options={"transport": transport}), kind)


@pytest.mark.parametrize("transport", ["host", "pull"])
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize(
    ("job", "kind"), [(scattered_every_way, "mixed"), (gathered_every_way, "patterns")], ids=["scatter", "gather"]
)
def test_they_are_all_reduces_where_nothing_is_pushed(
    world: int, job: Any, kind: str, transport: str, device: str
) -> None:
    assert len(set(run_ranks(world, over, transport, job, kind, device=device))) == 1


def walk(me: Rank, steps: list[tuple[str, int]], late: range) -> None:
    """All three collectives in one order on all ranks, sizes up and down, ranks late in turn."""
    with me.communicator(max_bytes=MAX_BYTES) as comm:
        for call, (collective, elements) in enumerate(steps):
            if call in late and me.rank == call % me.world:
                time.sleep(0.02)
            pattern = torch.arange(me.world * elements) % 13 + call % 7
            total = pattern * me.world + me.world * (me.world - 1) // 2
            x = (pattern + me.rank).to(torch.bfloat16).to(me.device)
            own = slice(me.rank * elements, (me.rank + 1) * elements)
            if collective == "all_reduce":
                got, expected = comm.all_reduce(x), total
            elif collective == "reduce_scatter":
                out = torch.full((elements,), float("nan"), dtype=x.dtype, device=me.device)
                got, expected = comm.reduce_scatter(x, out=out), total[own]
            else:
                got = comm.all_gather(x[own].clone())
                expected = pattern + torch.arange(me.world).repeat_interleave(elements)
            problem = difference(got, to_bits(expected.to(x.dtype)))
            assert problem is None, f"call {call}, {collective} of {elements}: {problem}"
        assert comm.calls == len(steps)


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_all_three_share_the_mailboxes(world: int, device: str) -> None:
    choose = random.Random(world)
    names = ["all_reduce", "reduce_scatter", "all_gather"]
    steps = [(choose.choice(names), choose.choice([1, 8, 9, 500, choose.randrange(1, 4000)])) for _ in range(150)]
    run_ranks(world, walk, steps, range(0, 150, 17), device=device)


def awkward(me: Rank) -> None:
    with me.communicator(max_bytes=4096) as comm:
        for shape in ((2, 7), (4, 3, 5), (2,)):
            x = torch.ones((me.world * shape[0], *shape[1:]), device=me.device)
            assert comm.reduce_scatter(x).shape == shape
            assert comm.all_gather(comm.reduce_scatter(x)).shape == x.shape
        before = comm.calls
        assert comm.reduce_scatter(torch.empty(0, 7, device=me.device)).shape == (0, 7)
        assert comm.all_gather(torch.empty(3, 0, device=me.device)).shape == (3 * me.world, 0)
        assert comm.calls == before, "an empty call launches nothing"


def test_every_shape_and_nothing_are_served(device: str) -> None:
    run_ranks(3, awkward, device=device)


# Who fails


def calls_until_it_fails(me: Rank, victim: int, collective: str, transport: str) -> Failure:
    comm = me.communicator(max_bytes=1 << 16, timeout=TIMEOUT, warmup_timeout=TIMEOUT, transport=transport)
    x = torch.full((me.world * 900,), float(me.rank), dtype=torch.bfloat16, device=me.device)
    x = x if collective == "reduce_scatter" else x[:900]
    for call in range(1_000_000):
        out = torch.zeros(900 if collective == "reduce_scatter" else me.world * 900, dtype=x.dtype, device=me.device)
        begun = time.monotonic()
        try:
            getattr(comm, collective)(x, out=out)
            comm.check()
        except pcie_allreduce.PcieAllReduceError as error:
            missing = tuple(getattr(error, "missing", ()))
            raised, poisoned = time.monotonic(), bool(out.isnan().all())
            comm.close()
            return Failure(type(error).__name__, str(error), missing, me.rank, "", call, begun, raised, poisoned)
        if call == 100:
            me.tell("looping")
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize(("world", "victim", "transport"), [(2, 0, "auto"), (4, 3, "auto"), (3, 1, "host")])
def test_a_killed_rank_is_named_by_every_other(world: int, victim: int, transport: str, collective: str) -> None:
    with start_ranks(world, calls_until_it_fails, victim, collective, transport) as ranks:
        ranks.await_told("looping")
        since = time.monotonic()
        ranks.kill(victim)
        outcomes = ranks.collect(60)
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.kind == "returned", outcome.text
        failure = outcome.value
        assert (failure.kind, failure.missing) == ("AllReduceTimeout", (victim,)), failure
        assert (collective if transport == "auto" else "shot") in failure.message, failure
        assert failure.poisoned, failure
        assert failure.raised - since <= TIMEOUT + MARGIN, failure


def one_scatters(me: Rank) -> str:
    """Rank 0 gathers chunks of as many bytes as the others' have."""
    comm = me.communicator(max_bytes=1 << 16, timeout=TIMEOUT, warmup_timeout=TIMEOUT)
    x = torch.ones(me.world * 64, device=me.device)
    try:
        if me.rank == 0:
            comm.all_gather(x[:64])
        else:
            comm.reduce_scatter(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        comm.check()
        said = "served"
    except pcie_allreduce.PcieAllReduceError as error:
        said = str(error)
    me.meet()
    comm.close()
    return said


def test_another_collective_is_another_call(device: str) -> None:
    told = run_ranks(3, one_scatters, device=device)
    assert "served" not in told, told
    assert any("all_gather" in said and "reduce_scatter" in said for said in told), told


# What is refused, and who serves it then

REFUSED = {
    "rows that are no multiple of the ranks": ("reduce_scatter", lambda x: (x[:3], None), r"\(3,\).* the 2 ranks"),
    "a scalar": ("all_gather", lambda x: (x[0], None), "no dimension"),
    "an output of the input's shape": ("reduce_scatter", lambda x: (x, torch.empty_like(x)), r"\(8,\)"),
    "an output of another dtype": ("all_gather", lambda x: (x, torch.empty(32, dtype=torch.half)), "float16"),
    "an output in another chunk": ("reduce_scatter", lambda x: (x, x[4:12]), "16 bytes behind the start"),
    "more than max_bytes": ("all_gather", lambda x: (torch.ones(1000), None), "8000 bytes.*4096"),
    "int64": ("all_gather", lambda x: (x.long(), None), "int64"),
    "gaps": ("reduce_scatter", lambda x: (x.view(4, 4)[:, :2], None), "not contiguous"),
    "no tensor": ("reduce_scatter", lambda x: ([1.0], None), "list"),
}  # fmt: skip


def refused(me: Rank) -> dict[str, str]:
    told = {}
    with me.communicator(max_bytes=4096) as comm:
        for name, (collective, make, _) in REFUSED.items():
            x, out = make(torch.ones(16))
            with pytest.raises((ValueError, TypeError)) as raised:
                getattr(comm, collective)(x, out=out)
            told[name] = str(raised.value)
        assert comm.calls == 0
        assert bool((comm.reduce_scatter(torch.ones(16)) == me.world).all()), "nothing was lost"
    for collective in ("reduce_scatter", "all_gather"):
        with pytest.raises(pcie_allreduce.ClosedError):
            getattr(comm, collective)(torch.ones(16))
    return told


def test_bad_input_is_told_on_every_rank() -> None:
    for told in run_ranks(2, refused):
        for name, (_, _, pattern) in REFUSED.items():
            assert re.search(pattern, told[name]), f"{name}: {told[name]}"


def by_the_fallback(me: Rank) -> None:
    """What is too large, or of another dtype, or not contiguous."""
    with me.communicator(max_bytes=64, fallback=dist.group.WORLD) as comm:
        x = torch.arange(me.world * 50, dtype=torch.float32).view(2 * me.world, 25)
        total = x * me.world
        assert bool((comm.reduce_scatter(x) == total.view(me.world, 2, 25)[me.rank]).all())
        assert bool((comm.reduce_scatter(x.t().contiguous().t()) == total.view(me.world, 2, 25)[me.rank]).all())
        ids = torch.tensor([me.rank, 7 * me.rank])
        assert comm.all_gather(ids).tolist() == [n for rank in range(me.world) for n in (rank, 7 * rank)]
        assert comm.calls == 0
        assert comm.all_gather(torch.full((1,), float(me.rank))).tolist() == list(range(me.world))
        assert comm.calls == 1


def test_the_fallback_serves_the_rest() -> None:
    run_ranks(3, by_the_fallback)


# Graphs and compiled code


def replayed(me: Rank, elements: int, replays: int) -> None:
    """A chain of both, captured once; the input changes from replay to replay, the output is poisoned."""
    with me.communicator(max_bytes=MAX_BYTES) as comm:
        x = torch.zeros(me.world * elements, dtype=torch.bfloat16, device=me.device)
        graph = torch.cuda.CUDAGraph()
        with comm.capture(), torch.cuda.graph(graph):
            results = []
            carried = x
            for _ in range(5):
                chunk = comm.reduce_scatter(carried)
                whole = comm.all_gather(chunk + 1)
                results += [chunk, whole]
                carried = x + (whole - whole)
        for turn in range(replays):
            pattern = torch.arange(me.world * elements) % 5 + turn % 3
            x.copy_((pattern + me.rank).to(x.dtype))
            for result in results:
                result.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            total = pattern * me.world + me.world * (me.world - 1) // 2
            own = total.view(me.world, elements)[me.rank]
            for at, result in enumerate(results):
                expected = (own if at % 2 == 0 else total + 1).to(x.dtype)
                problem = difference(result, to_bits(expected))
                assert problem is None, f"replay {turn}, result {at}: {problem}"
        comm.check()


@pytest.mark.gpu
@pytest.mark.parametrize("elements", [8, 500, 2688, 7168])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_graphs_replay_them(world: int, elements: int) -> None:
    run_ranks(world, replayed, elements, 20, device="cuda")


def compiled(me: Rank) -> None:
    torch._dynamo.reset()
    with me.communicator(max_bytes=MAX_BYTES) as comm:

        def body(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            return comm.all_gather(comm.reduce_scatter(x * 2) + 1, out=out)

        run = torch.compile(body, fullgraph=True, backend="aot_eager")
        for rows in (1, 3):
            x = torch.full((rows * me.world, 33), float(me.rank + 1), device=me.device)
            out = torch.empty_like(x)
            assert bool((run(x, out) == me.world * (me.world + 1) + 1).all())
            assert bool((out == me.world * (me.world + 1) + 1).all())
        assert comm.calls == 4
        with pytest.raises((ValueError, RuntimeError), match="the result is"):  # not broadcast
            run(x, x.new_empty(2, *x.shape))


def test_compiled_code_has_them(device: str) -> None:
    run_ranks(2, compiled, device=device, timeout=180)


def compiled_for_any_shape(me: Rank, dynamic: bool | None) -> None:
    """The number by which compiled code knows its communicator is a symbol then, or when a second one comes."""
    torch._dynamo.reset()

    def body(comm: Any, x: torch.Tensor) -> torch.Tensor:
        return comm.all_gather(comm.reduce_scatter(x * 2))

    run = torch.compile(body, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (1, 3):
        with me.communicator(max_bytes=MAX_BYTES) as comm:
            x = torch.ones(rows * me.world, 5, device=me.device)
            assert bool((run(comm, x) == 2 * me.world).all())
            me.meet()


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_code_has_them_for_any_shape_and_communicator(dynamic: bool | None, device: str) -> None:
    run_ranks(2, compiled_for_any_shape, dynamic, device=device, timeout=180)
