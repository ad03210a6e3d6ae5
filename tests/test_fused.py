"""All-reduce, residual and RMSNorm in one call, against float64, and bit for bit among the ranks."""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks import Rank, run_ranks
from reference import DTYPES, SHORT, make_parts, to_bits

import pcie_allreduce

if TYPE_CHECKING:
    from collections.abc import Iterator

EPS = 1e-6
ISLANDS = {4: "0-1|2-3", 6: "0-2|3-5", 8: "0,2,4,6|1,3,5,7"}  # by ranks
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=SHORT.get)
Tensors = tuple[torch.Tensor, ...]


def operands(me: Rank, rows: int, hidden: int, dtype: torch.dtype, kind: str = "normal", seed: int = 0) -> Tensors:
    """Every rank's x, and the residual and weight that all have; on the CPU."""
    *parts, residual, weight = make_parts(kind, me.world + 2, rows * hidden, dtype, seed)
    return (*(part.reshape(rows, hidden) for part in (*parts, residual)), weight[:hidden])


def exact(parts: Tensors, residual: torch.Tensor, weight: torch.Tensor, bias: float = 0.0) -> Tensors:
    """The definition in float64, rounded nowhere."""
    total = residual.double() + sum((part.double() for part in parts), torch.zeros_like(residual, dtype=torch.float64))
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + EPS)
    return total * scale * (weight.double() + bias), total


def units(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How many numbers of got's type lie between it and the expected value, rounded to that type."""

    def place(x: torch.Tensor) -> torch.Tensor:
        bits = x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int16).long()
        top = 31 if x.dtype == torch.float32 else 15
        magnitude = bits & ((1 << top) - 1)
        return torch.where(bits < 0, -magnitude, magnitude)

    return (place(got.cpu()) - place(expected.to(got.dtype))).abs()


def accumulated(parts: Tensors, residual: torch.Tensor) -> torch.Tensor:
    """What float32 sums may be off by, where terms cancel."""
    return (len(parts) + 1) * 2.0**-24 * (residual.double().abs() + sum(part.double().abs() for part in parts))


def judge(me: Rank, got: Tensors, parts: Tensors, residual: torch.Tensor, weight: torch.Tensor, bias: float) -> None:
    normed, total = (tensor.cpu() for tensor in got)
    expected, expected_total = exact(parts, residual, weight, bias)
    ulp = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 0.0}[total.dtype]
    allowed = expected_total.abs() * ulp * (1 + 2.0**-10) + accumulated(parts, residual) + 2.0**-25
    off = (total.double() - expected_total).abs() - allowed
    assert float(off.max()) <= 0, f"residual_out is {float(off.max())} beyond one rounding"
    if normed.dtype == torch.float32:
        assert torch.allclose(normed.double(), expected, rtol=2e-5, atol=2e-6)
    else:
        # What cancels in the sum is off by more units than it has, whoever sums in float32.
        clear = expected_total.abs() > 2.0**-8
        apart = units(normed, expected)[clear]
        assert int(apart.max()) <= 2
        assert float((apart <= 1).float().mean()) >= 0.999
    everybody = me.gather([to_bits(tensor).tobytes() for tensor in (normed, total)])
    assert everybody == [everybody[0]] * me.world, "ranks differ"


def random_values(me: Rank, shapes: list[tuple[int, int]], dtype: torch.dtype, options: dict[str, Any]) -> None:
    fused = 0
    with me.communicator(max_bytes=1 << 20, **options) as comm:
        for turn, (rows, hidden) in enumerate(shapes):
            *parts, residual, weight = operands(me, rows, hidden, dtype, seed=turn)
            mine, into, scale = (tensor.to(me.device, copy=True) for tensor in (parts[me.rank], residual, weight))
            if not comm.supports_fused(mine):  # two-shot's size, or too much for ranks that share a GPU
                assert me.device.startswith("cuda") and me.world > 2
                continue
            fused += 1
            bias = float(turn % 2)
            got = comm.all_reduce_add_rms_norm(mine, into, scale, EPS, weight_bias=bias)
            judge(me, got, tuple(parts), residual, weight, bias)
            assert torch.equal(mine.cpu(), parts[me.rank]), "x was changed"
            assert torch.equal(into.cpu(), residual), "residual was changed"
        comm.check()
        assert comm.calls == fused > 0  # what ranks that share a GPU can hold at once is all that is fused there


SHAPES = [(1, 7168), (3, 7168), (8, 7168), (5, 4096), (7, 8), (2, 16384), (3, 5120), (1, 8), (11, 24), (2, 8192)]


@dtypes
@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_random_values_against_float64(world: int, dtype: torch.dtype, device: str) -> None:
    run_ranks(world, random_values, SHAPES, dtype, {}, device=device)


@dtypes
@pytest.mark.parametrize("world", [3, 8])
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_every_algorithm(algorithm: str, world: int, dtype: torch.dtype, device: str) -> None:
    run_ranks(world, random_values, SHAPES, dtype, {"algorithm": algorithm}, device=device)


@contextlib.contextmanager
def islands(me: Rank) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if me.world in ISLANDS:
            patch.setenv("PCIE_ALLREDUCE_ISLANDS", ISLANDS[me.world])
        yield


def random_values_by_island(me: Rank, dtype: torch.dtype) -> None:
    with islands(me):
        random_values(me, SHAPES, dtype, {"algorithm": "island"})


@pytest.mark.parametrize(
    ("world", "dtype"), [(4, torch.bfloat16), (6, torch.float32), (8, torch.bfloat16), (8, torch.float32)]
)
def test_islands(world: int, dtype: torch.dtype, device: str) -> None:
    run_ranks(world, random_values_by_island, dtype, device=device)


def integers(me: Rank, rows: int, hidden: int, dtype: torch.dtype) -> None:
    """Sums of integers are exact, so every bit of residual_out is known; rows of equal squares have a known scale."""
    with me.communicator(max_bytes=1 << 20) as comm:
        for turn in range(7):
            sign = (torch.arange(rows * hidden).reshape(rows, hidden) * 7 + turn) % 2 * 2 - 1
            x = (sign * (me.rank + 1)).to(dtype).to(me.device)
            residual = (sign * 3).to(dtype).to(me.device)
            weight = (torch.arange(hidden) % 5).to(dtype).to(me.device)
            normed, total = comm.all_reduce_add_rms_norm(x, residual, weight, 0.0)
            whole = 3 + me.world * (me.world + 1) // 2
            assert torch.equal(total.cpu(), (sign * whole).to(dtype)), f"turn {turn}"
            expected = (sign * (torch.arange(hidden) % 5)).to(dtype)
            assert torch.allclose(normed.cpu().float(), expected.float(), rtol=2.0**-7), f"turn {turn}"


@dtypes
@pytest.mark.parametrize("world", [2, 3, 8])
def test_integers(world: int, dtype: torch.dtype, device: str) -> None:
    run_ranks(world, integers, 3, 1024, dtype, device=device)


def in_place(me: Rank, offset: int) -> None:
    """As engines call it: the residual is updated, and the norm takes the place of the input."""
    with me.communicator(max_bytes=1 << 20) as comm:
        *parts, residual, weight = operands(me, 3, 7168, torch.bfloat16)

        def placed(values: torch.Tensor) -> torch.Tensor:
            room = torch.empty(values.numel() + 8, dtype=values.dtype, device=me.device)
            return room[offset : offset + values.numel()].view(values.shape).copy_(values)

        x, into, scale = placed(parts[me.rank]), placed(residual), placed(weight)
        expected = comm.all_reduce_add_rms_norm(x, into, scale, EPS)
        for _ in range(3):
            x.copy_(parts[me.rank])
            into.copy_(residual)
            normed, total = comm.all_reduce_add_rms_norm(x, into, scale, EPS, out=x, residual_out=into)
            assert normed is x
            assert total is into
            assert torch.equal(x, expected[0])
            assert torch.equal(into, expected[1])


@pytest.mark.parametrize("offset", [0, 1])
def test_in_place_and_unaligned(offset: int, device: str) -> None:
    run_ranks(2, in_place, offset, device=device)


def zeros(me: Rank) -> None:
    """A zero comes out as +0.0, whatever zeros go in, and a row of zeros has no division by zero."""
    with me.communicator(max_bytes=1 << 16) as comm:
        for dtype in DTYPES:
            x = torch.full((2, 64), -0.0, dtype=dtype, device=me.device)
            got = comm.all_reduce_add_rms_norm(x, x.clone(), torch.ones(64, dtype=dtype, device=me.device), EPS)
            for tensor in got:
                assert not to_bits(tensor).any()


def test_negative_zeros(device: str) -> None:
    run_ranks(2, zeros, device=device)


def mixed(me: Rank) -> None:
    """Plain and fused calls in turn, of changing sizes, a rank late now and then."""
    with me.communicator(max_bytes=1 << 18) as comm:
        for turn in range(60):
            hidden = (7168, 8, 4096, 64, 1024)[turn % 5]
            rows = 1 + turn % 4
            if turn % 11 == me.rank:
                time.sleep(0.02)
            x = torch.full((rows, hidden), float(me.rank + 1), device=me.device)
            whole = me.world * (me.world + 1) // 2
            if turn % 3 == 0:
                assert bool((comm.all_reduce(x) == whole).all()), f"turn {turn}"
                continue
            weight = torch.full((hidden,), 2.0, device=me.device)
            normed, total = comm.all_reduce_add_rms_norm(x, torch.full_like(x, float(turn)), weight, 0.0)
            assert bool((total == whole + turn).all()), f"turn {turn}"
            assert torch.allclose(normed, torch.full_like(normed, 2.0)), f"turn {turn}"
        comm.check()


@pytest.mark.parametrize("world", [2, 3, 8])
def test_plain_and_fused_calls_in_turn(world: int, device: str) -> None:
    run_ranks(world, mixed, device=device)


def missing_rank(me: Rank) -> tuple[str, bool, bool]:
    """Rank 1 makes no call: the others get NaN in both results, now and later."""
    comm = me.communicator(max_bytes=1 << 18, timeout=1.0, warmup_timeout=1.0)
    message, first, later = "", True, True
    if me.rank != 1:
        x = torch.ones((3, 7168), device=me.device)
        outs = torch.zeros_like(x), torch.zeros_like(x)
        caught = False
        for turn in range(2):
            try:
                comm.all_reduce_add_rms_norm(x, x, x[0], EPS, out=outs[0], residual_out=outs[1])
                if x.is_cuda:
                    torch.cuda.synchronize()
                comm.check()
            except pcie_allreduce.AllReduceTimeout as error:
                caught, message = True, str(error)
            poisoned = all(bool(out.isnan().all()) for out in outs)
            first, later = (poisoned, later) if turn == 0 else (first, poisoned)
            for out in outs:
                out.zero_()
        assert caught
    me.meet()
    comm.close()
    return message, first, later


@pytest.mark.parametrize("world", [2, 3])
def test_a_failed_call_gives_nan_in_both(world: int, device: str) -> None:
    for rank, (message, first, later) in enumerate(run_ranks(world, missing_rank, device=device)):
        if rank != 1:
            assert "rank 1 is missing" in message
            assert first, "the failed call"
            assert later, "a later call"


def other_rows(me: Rank, plain: bool) -> str:
    comm = me.communicator(max_bytes=1 << 18)
    hidden = 3584 if me.rank == 0 else 7168
    x = torch.ones((2 * 7168 // hidden, hidden), device=me.device)
    try:
        if plain and me.rank == 0:
            comm.all_reduce(x)
        else:
            comm.all_reduce_add_rms_norm(x, x, x[0], EPS)
        if x.is_cuda:
            torch.cuda.synchronize()
        comm.check()
    except pcie_allreduce.CallMismatch as error:
        return str(error)
    finally:
        me.meet()
        comm.close()
    return "no error"


@pytest.mark.parametrize("plain", [False, True])
def test_other_rows_are_a_mismatch_that_names_both(plain: bool, device: str) -> None:
    for message in run_ranks(2, other_rows, plain, device=device):
        assert "rows of 7168" in message, message
        assert plain or "rows of 3584" in message, message
        assert "57344 bytes of float32 by one_shot" in message, message


def bad_arguments(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 18) as comm:
        x = torch.ones((4, 64), device=me.device)
        room = torch.ones(512, device=me.device)
        good = {"residual": x.clone(), "weight": x[0].clone(), "eps": EPS}
        for wrong, said in (
            ({"residual": x[:3]}, "residual is torch.float32 (3, 64)"),
            ({"residual": x.half()}, "residual is torch.float16"),
            ({"weight": torch.ones(63, device=me.device)}, "weight is torch.float32 (63,)"),
            ({"weight": x[:, 0].expand(64, 4)[:, 0]}, "weight is not contiguous"),
            ({"residual": x.t().contiguous().t()}, "residual is not contiguous"),
            ({"eps": -1.0}, "eps is -1.0"),
            ({"out": room[:256].view(4, 64), "residual_out": room[64:320].view(4, 64)}, "overlap"),
            ({"residual_out": x}, "residual_out and x overlap"),
        ):
            with pytest.raises(ValueError, match=re.escape(said)):
                comm.all_reduce_add_rms_norm(x, **{**good, **wrong})
        with pytest.raises(TypeError, match=r"residual must be a torch\.Tensor, not NoneType"):
            comm.all_reduce_add_rms_norm(x, None, x[0].clone(), EPS)
        normed, total = comm.all_reduce_add_rms_norm(x, **good)  # nothing of the above was sent
        assert bool((total == me.world + 1).all())
        assert torch.allclose(normed, torch.ones_like(normed))
        empty = comm.all_reduce_add_rms_norm(x[:0], x[:0].clone(), x[0].clone(), EPS)
        assert [tuple(tensor.shape) for tensor in empty] == [(0, 64)] * 2


def test_bad_arguments(device: str) -> None:
    run_ranks(2, bad_arguments, device=device)


def separately(me: Rank) -> None:
    """What is not fused goes through an all-reduce and a norm behind it, and so through the fallback too."""
    with me.communicator(max_bytes=1 << 16, fallback=me.group if me.device == "cpu" else None) as comm:
        shapes = [(3, 63), (2, 7)] + ([(64, 2048)] if me.device == "cpu" else [])
        for turn, (rows, hidden) in enumerate(shapes):
            *parts, residual, weight = operands(me, rows, hidden, torch.float32, seed=turn)
            mine, into, scale = (tensor.to(me.device, copy=True) for tensor in (parts[me.rank], residual, weight))
            assert not comm.supports_fused(mine)
            assert comm.fused_plan_for(mine) is None
            got = comm.all_reduce_add_rms_norm(mine, into, scale, EPS, out=mine, residual_out=into)
            judge(me, got, tuple(parts), residual, weight, 0.0)


def test_what_is_not_fused(device: str) -> None:
    run_ranks(2, separately, device=device)


def through_host_memory(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 18, transport="host") as comm:
        *parts, residual, weight = operands(me, 3, 4096, torch.float32)
        mine, into, scale = (tensor.to(me.device, copy=True) for tensor in (parts[me.rank], residual, weight))
        assert not comm.supports_fused(mine)
        got = comm.all_reduce_add_rms_norm(mine, into, scale, EPS)
        judge(me, got, tuple(parts), residual, weight, 0.0)


def test_through_host_memory_the_norm_comes_behind(device: str) -> None:
    run_ranks(2, through_host_memory, device=device)


def compiled(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 18) as comm:

        def layer(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Tensors:
            normed, residual = comm.all_reduce_add_rms_norm(x * 2, residual, weight, EPS, residual_out=residual)
            return normed + 1, residual

        x = torch.full((3, 64), float(me.rank + 1), device=me.device)
        weight = torch.ones(64, device=me.device)
        got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, torch.zeros_like(x), weight)
        into = torch.zeros_like(x)
        expected = layer(x, into, weight)
        for one, other in zip(got, expected, strict=True):
            assert torch.equal(one, other)
        assert bool((got[1] == me.world * (me.world + 1)).all())


def test_compiled_without_a_break(device: str) -> None:
    run_ranks(2, compiled, device=device, timeout=180)


def in_graph(me: Rank, rows: int, hidden: int, calls: int, replays: int, algorithm: str = "auto") -> None:
    """A chain of calls as engines make them, residual and norm in place; inputs change between replays, a rank is late
    now and then, and what the chain gives is what the same calls give one by one."""
    with islands(me), me.communicator(max_bytes=1 << 20, algorithm=algorithm) as comm:
        x = torch.zeros((rows, hidden), dtype=torch.bfloat16, device=me.device)
        residual = torch.zeros_like(x)
        weight = torch.linspace(0.5, 1.5, hidden, device=me.device).to(x.dtype)
        assert comm.supports_fused(x) or me.world > 2

        def chain() -> None:
            for _ in range(calls):
                comm.all_reduce_add_rms_norm(x, residual, weight, EPS, out=x, residual_out=residual)

        def fill(turn: int) -> None:
            *parts, into, _ = operands(me, rows, hidden, x.dtype, seed=turn)
            x.copy_(parts[me.rank])
            residual.copy_(into)

        graph = torch.cuda.CUDAGraph()
        with comm.capture(), torch.cuda.graph(graph):
            chain()
        for turn in range(replays):
            fill(turn)
            if turn % 5 == me.rank:
                torch.cuda._sleep(50_000_000)
            graph.replay()
            torch.cuda.synchronize()
            got = x.clone(), residual.clone()
            fill(turn)
            chain()
            assert torch.equal(got[0], x), f"replay {turn}"
            assert torch.equal(got[1], residual), f"replay {turn}"
            everybody = me.gather([to_bits(tensor).tobytes() for tensor in got])
            assert everybody == [everybody[0]] * me.world, f"replay {turn}: ranks differ"
        comm.check()


@pytest.mark.gpu
@pytest.mark.parametrize("world", [2, 8])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 7168), (3, 7168), (8, 7168), (5, 4096), (2, 16384), (3, 8)])
def test_in_a_graph(world: int, rows: int, hidden: int) -> None:
    run_ranks(world, in_graph, rows, hidden, 7, 10, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("world", ISLANDS)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 7168), (4, 7168), (3, 8)])
def test_islands_in_a_graph(world: int, rows: int, hidden: int) -> None:
    run_ranks(world, in_graph, rows, hidden, 7, 10, "island", device="cuda")


@pytest.mark.gpu
def test_a_whole_verify_pass_in_a_graph() -> None:
    run_ranks(2, in_graph, 3, 7168, 122, 10, device="cuda")


def planned(me: Rank) -> list[tuple[str, int, int, int]]:
    with me.communicator(max_bytes=1 << 20) as comm:
        rows = [torch.zeros((rows, 7168), dtype=torch.bfloat16, device=me.device) for rows in (1, 3, 4, 8)]
        plans = [comm.fused_plan_for(x) for x in rows]
    return [(plan.algorithm, plan.teams, plan.cluster, plan.threads) for plan in plans if plan is not None]


@pytest.mark.gpu
def test_a_row_is_spread_over_a_cluster_where_there_are_clusters() -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("this GPU has no clusters")
    assert run_ranks(2, planned, device="cuda")[0] == [("one_shot", rows, 7, 128) for rows in (1, 3, 4, 8)]


def shapes_agree(me: Rank, algorithm: str, shapes: list[tuple[int, int, int]]) -> None:
    """No launch shape changes a bit."""
    from pcie_allreduce.fused import checked
    from pcie_allreduce.fused_plan import FusedPlan

    with islands(me), me.communicator(max_bytes=1 << 20) as comm:
        *parts, residual, weight = (tensor.to(me.device) for tensor in operands(me, 4, 7168, torch.bfloat16))
        seen = []
        for teams, cluster, threads in shapes:
            call = checked(parts[me.rank], residual, weight, EPS, 0.0, None, None)
            assert not comm._transport.all_reduce_add_rms_norm(call, FusedPlan(algorithm, teams, cluster, threads))
            torch.cuda.synchronize()
            comm.check()
            seen.append((call.normed, call.residual_out))
        for (teams, cluster, threads), (normed, total) in zip(shapes, seen, strict=True):
            assert torch.equal(normed, seen[0][0]), f"{teams} x {cluster} x {threads}"
            assert torch.equal(total, seen[0][1]), f"{teams} x {cluster} x {threads}"
        judge(me, seen[0], tuple(part.cpu() for part in parts), residual.cpu(), weight.cpu(), 0.0)


ROWS_TO_TEAMS = [(4, 1, 448), (4, 7, 128), (2, 7, 128), (4, 8, 128), (1, 4, 224), (4, 2, 224), (4, 4, 128)]
PARTS_TO_TEAMS = [(4, 4, 256), (4, 5, 256), (4, 8, 256), (4, 4, 256)]
PARTS_OF_ISLANDS = {4: [(4, 7, 128), (4, 5, 192), (4, 4, 256)], 8: [(4, 7, 128), (4, 8, 128), (4, 4, 256), (4, 8, 256)]}


@pytest.mark.gpu
@pytest.mark.parametrize("world", [2, 8])
def test_no_launch_shape_changes_a_bit(world: int) -> None:
    run_ranks(world, shapes_agree, "one_shot", ROWS_TO_TEAMS, device="cuda")


@pytest.mark.gpu
def test_nor_does_one_of_two_shot() -> None:
    run_ranks(8, shapes_agree, "two_shot", PARTS_TO_TEAMS, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("world", PARTS_OF_ISLANDS)
def test_nor_does_one_of_island(world: int) -> None:
    run_ranks(world, shapes_agree, "island", PARTS_OF_ISLANDS[world], device="cuda")


def fails_in_graph(me: Rank) -> None:
    """Rank 1 stops replaying: both results are NaN from that replay on, in every launch shape."""
    from pcie_allreduce.fused import checked
    from pcie_allreduce.fused_plan import FusedPlan

    plans = [FusedPlan("one_shot", 3, *shape) for shape in ((1, 448), (7, 128), (8, 128))]
    if me.world == 8:
        plans += [FusedPlan("two_shot", 3, *shape) for shape in ((4, 256), (8, 256))]
        plans += [FusedPlan("island", 3, *shape) for shape in ((7, 128), (4, 256))]
    for plan in plans:
        with islands(me):
            comm = me.communicator(max_bytes=1 << 18, timeout=1.0, warmup_timeout=1.0)
        x = torch.ones((3, 7168), dtype=torch.bfloat16, device=me.device)
        call = checked(x, x.clone(), x[0].clone(), EPS, 0.0, None, None)
        graph = torch.cuda.CUDAGraph()
        with comm.capture(), torch.cuda.graph(graph):
            comm._transport.all_reduce_add_rms_norm(call, plan)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((call.residual_out == me.world + 1).all())
        me.meet()
        if me.rank != 1:
            for _ in range(2):
                call.normed.zero_()
                call.residual_out.zero_()
                graph.replay()
                torch.cuda.synchronize()
                assert bool(call.normed.isnan().all()), str(plan)
                assert bool(call.residual_out.isnan().all()), str(plan)
            with pytest.raises(pcie_allreduce.AllReduceTimeout, match="rank 1 is missing"):
                comm.check()
        me.meet()
        comm.close()


@pytest.mark.gpu
@pytest.mark.parametrize("world", [2, 8])
def test_a_rank_missing_in_a_replay_gives_nan_in_both(world: int) -> None:
    run_ranks(world, fails_in_graph, device="cuda", timeout=120)


def nothing_stale(me: Rank, shift: int, transport: str) -> None:
    """Rank 1 makes no call. What was in the outputs must not pass for results, whichever way they would have come."""
    comm = me.communicator(max_bytes=1 << 18, timeout=1.0, warmup_timeout=1.0, transport=transport)
    if me.rank == 0:

        def filled(width: int = 1024, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            room = torch.full((2 * width + 8,), 7.0, dtype=torch.float32).to(dtype)
            return room[shift : shift + 2 * width].view(2, width)

        x, weight, sums = filled(), filled()[0], filled()
        normed, fp8, scales = filled(), filled(dtype=torch.float8_e4m3fn), filled(8, torch.float32)
        with pytest.raises(pcie_allreduce.AllReduceTimeout):
            comm.all_reduce_add_rms_norm(x, x, weight, EPS, out=normed, residual_out=sums)
        assert bool(normed.isnan().all()) and bool(sums.isnan().all())
        sums.fill_(7.0)
        with pytest.raises(pcie_allreduce.AllReduceTimeout):
            comm.all_reduce_add_rms_norm_quant(
                x, x, weight, EPS, group_size=128, out=fp8, scale_out=scales, residual_out=sums
            )
        assert all(bool(result.float().isnan().all()) for result in (fp8, scales, sums))
    me.meet()
    comm.close()


@pytest.mark.parametrize(("shift", "transport"), [(0, "auto"), (1, "auto"), (0, "host")])
def test_a_failed_call_leaves_nothing_stale(shift: int, transport: str) -> None:
    run_ranks(2, nothing_stale, shift, transport)
