"""All-reduce, residual, RMSNorm and FP8 in one call, against float64, and bit for bit among the ranks."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks import Rank, run_ranks
from reference import DTYPES, SHORT, to_bits
from test_fused import EPS, accumulated, exact, operands

import pcie_allreduce

if TYPE_CHECKING:
    from collections.abc import Callable

FP8 = torch.float8_e4m3fn
VALUES = torch.arange(127, dtype=torch.uint8).view(FP8).double()  # of all positive codes, in their order
LEAST = 1e-10 / 448  # the scale of a group of zeros
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=SHORT.get)
Tensors = tuple[torch.Tensor, ...]
WAYS: list[dict[str, Any]] = [{"group_size": 128}, {"scale": 0.0625}]


MIDDLES = (VALUES[1:] + VALUES[:-1]) / 2
ROUNDED = 4e-6  # relative: what float32 may be off before it is rounded to FP8


def nearest(values: torch.Tensor) -> torch.Tensor:
    """Of float64 values, the signed place of the nearest code among all, ties to even."""
    magnitude = values.abs().contiguous()
    below, above = torch.searchsorted(MIDDLES, magnitude), torch.searchsorted(MIDDLES, magnitude, right=True)
    place = torch.where(below % 2 == 0, below, above)  # they differ at a middle alone
    return torch.where(values < 0, -place, place)


def wrong_codes(quantised: torch.Tensor, expected: torch.Tensor) -> int:
    """How many codes are not the nearest to float64's value, where float32 can tell which that is. In the middle of two
    codes, which 16-bit values of a group often are to each other, it cannot."""
    apart = (places(quantised) - nearest(expected)).abs()
    assert int(apart.max()) <= 1
    odd = expected[apart != 0].abs()
    return int(((odd.unsqueeze(-1) - MIDDLES).abs().amin(-1) > ROUNDED * odd).sum()) if odd.numel() else 0


def places(quantised: torch.Tensor) -> torch.Tensor:
    code = quantised.cpu().view(torch.uint8).long()
    return torch.where(code >= 128, 128 - code, code)


def judge(me: Rank, got: Tensors, parts: Tensors, residual: torch.Tensor, weight: torch.Tensor, way: Any) -> None:
    quantised, scales, total = (tensor.cpu() for tensor in got)
    assert quantised.dtype == FP8
    assert scales.dtype == torch.float32
    _, expected_total = exact(parts, residual, weight)
    ulp = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 0.0}[total.dtype]
    summed = (expected_total - residual.double()).abs()  # rounded too, where the norm comes behind
    allowed = (expected_total.abs() + summed) * ulp * 1.01 + accumulated(parts, residual) + 2.0**-24
    assert bool(((total.double() - expected_total).abs() <= allowed).all())
    wide = total.double()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.double()
    if "scale" in way:
        assert scales.tolist() == [way["scale"]]
        expected = normed / way["scale"]
    else:
        groups = normed.unflatten(-1, (-1, 128))
        exact_scales = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
        assert scales.shape == exact_scales.shape[:-1]
        assert torch.allclose(scales.double(), exact_scales.squeeze(-1), rtol=ROUNDED, atol=0)
        expected = (groups / exact_scales).flatten(-2)
    assert wrong_codes(quantised, expected) == 0
    everybody = me.gather([quantised.view(torch.uint8).numpy().tobytes(), *(to_bits(t).tobytes() for t in got[1:])])
    assert everybody == [everybody[0]] * me.world, "ranks differ"


def random_values(me: Rank, shapes: list[tuple[int, int]], dtype: torch.dtype, options: dict[str, Any]) -> None:
    with me.communicator(max_bytes=1 << 20, **options) as comm:
        for turn, (rows, hidden) in enumerate(shapes):
            *parts, residual, weight = operands(me, rows, hidden, dtype, seed=turn)
            mine, into, scale = (tensor.to(me.device, copy=True) for tensor in (parts[me.rank], residual, weight))
            for way in WAYS:
                if "group_size" in way and hidden % 128:
                    continue
                if not comm.supports_fused(mine, way.get("group_size")):
                    assert me.device.startswith("cuda") and me.world > 2
                got = comm.all_reduce_add_rms_norm_quant(mine, into, scale, EPS, **way)
                judge(me, got, tuple(parts), residual, weight, way)
                assert torch.equal(mine.cpu(), parts[me.rank]), "x was changed"
                assert torch.equal(into.cpu(), residual), "residual was changed"
        comm.check()


SHAPES = [(1, 7168), (3, 7168), (5, 4096), (7, 128), (2, 16384), (3, 5120), (1, 8), (11, 24), (40, 384)]


@dtypes
@pytest.mark.parametrize("world", [2, 4, 8])
def test_random_values_against_float64(world: int, dtype: torch.dtype, device: str) -> None:
    run_ranks(world, random_values, SHAPES, dtype, {}, device=device)


@pytest.mark.parametrize("world", [5, 8])
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_every_algorithm(algorithm: str, world: int, device: str) -> None:
    """By five ranks no part of a row of 7,168 is whole groups: then GPUs quantise behind a two-shot."""
    run_ranks(world, random_values, SHAPES, torch.bfloat16, {"algorithm": algorithm}, device=device)


def as_in_steps(me: Rank) -> None:
    """The residual is that of the call that does not quantise, and quantising its float32 norm gives the same codes."""
    with me.communicator(max_bytes=1 << 18) as comm:
        *parts, residual, weight = (tensor.to(me.device) for tensor in operands(me, 3, 7168, torch.float32))
        normed, total = comm.all_reduce_add_rms_norm(parts[me.rank], residual, weight, EPS, weight_bias=1.0)
        by_one = comm.all_reduce_add_rms_norm_quant(parts[me.rank], residual, weight, EPS, scale=0.125, weight_bias=1.0)
        by_groups = comm.all_reduce_add_rms_norm_quant(
            parts[me.rank], residual, weight, EPS, group_size=128, weight_bias=1.0
        )
        groups = normed.unflatten(-1, (-1, 128))
        largest = groups.abs().amax(-1, keepdim=True)
        inverse = torch.full_like(largest, 448.0) / largest
        expected = (groups * inverse).flatten(-2).clamp(-448, 448).to(FP8)
        assert torch.equal(by_one[2], total)
        assert torch.equal(by_groups[2], total)
        assert torch.equal(places(by_one[0]), places((normed * 8).clamp(-448, 448).to(FP8)))
        assert torch.equal(places(by_groups[0]), places(expected))


@pytest.mark.parametrize("world", [2, 8])
def test_it_is_the_norm_of_the_other_call_quantised(world: int, device: str) -> None:
    run_ranks(world, as_in_steps, device=device)


def odd_values(me: Rank, fused: bool) -> None:
    """Groups of zeros, numbers beyond FP8's, NaN and infinities; also by what comes behind an all-reduce."""
    with me.communicator(max_bytes=1 << 18, transport="auto" if fused else "host") as comm:
        x = torch.zeros((4, 256), device=me.device)
        x[0, 130] = -3.0
        x[1] = 1.0
        if me.rank == 0:
            x[2, 5] = math.nan
        weight = torch.ones(256, device=me.device)
        weight[7], weight[8], weight[200] = math.inf, 1e-30, math.nan
        call = comm.all_reduce_add_rms_norm_quant
        assert comm.supports_fused(x, 128) is fused
        assert not comm.supports_fused(x, 64) and not comm.supports_fused(x[:, :200].contiguous(), 128)
        residual = torch.zeros_like(x)
        quantised, scales, _ = (tensor.cpu() for tensor in call(x, residual, weight, EPS, group_size=128))
        values, codes = quantised.float(), quantised.view(torch.uint8)
        assert scales[3].tolist() == pytest.approx([LEAST, LEAST], rel=1e-6)
        assert int(codes[3, :7].count_nonzero()) == 0, "zeros, all +0.0"
        assert scales[0].tolist()[1] == pytest.approx(16 / 448, rel=1e-5)
        assert float(values[0, 130]) == -448
        assert bool(values[2].isnan().all()), "its mean is NaN"
        assert math.isinf(scales[1, 0])
        assert bool(values[1, 7].isnan())
        assert bool(values[:, 200].isnan().all())
        assert scales[1, 1] == pytest.approx(1 / 448, rel=1e-5), "NaN counts in no scale"
        assert bool((values[1, 128:200] == 448).all())
        by_one, scale, _ = call(x, residual, weight, EPS, scale=torch.full((1,), 2.0**-10, device=me.device))
        values = by_one.cpu().float()
        assert float(scale) == 2.0**-10
        assert bool((values[1, :7] == 448).all()), "what is too large saturates"
        assert float(values[1, 7]) == 448, "infinities too"
        assert float(values[1, 8]) == 0
        assert bool(values[:, 200].isnan().all())


@pytest.mark.parametrize("fused", [True, False])
def test_zeros_nan_and_infinities(fused: bool, device: str) -> None:
    run_ranks(2, odd_values, fused, device=device)


def places_of_results(me: Rank, offset: int) -> None:
    """Given outputs, aligned or not, the residual in place."""
    with me.communicator(max_bytes=1 << 18) as comm:
        *parts, residual, weight = operands(me, 3, 4096, torch.bfloat16)

        def placed(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            room = torch.zeros(values.numel() + 16, dtype=torch.float32, device=me.device).to(dtype)
            return room[offset : offset + values.numel()].view(values.shape)

        x, into, factor = (placed(t, t.dtype).copy_(t) for t in (parts[me.rank], residual, weight))
        out, scale_out = placed(residual, FP8), placed(torch.empty(3, 32), torch.float32)
        for way in ({"group_size": 128, "scale_out": scale_out}, {"scale": 0.5}):
            plain = {name: value for name, value in way.items() if name != "scale_out"}
            expected = comm.all_reduce_add_rms_norm_quant(x, residual.to(me.device), factor, EPS, **plain)
            into.copy_(residual)
            got = comm.all_reduce_add_rms_norm_quant(x, into, factor, EPS, out=out, residual_out=into, **way)
            assert got[0] is out
            assert got[2] is into
            for one, other in zip(got, expected, strict=True):
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        assert torch.equal(x.cpu(), parts[me.rank])


@pytest.mark.parametrize("offset", [0, 1])
def test_given_outputs(offset: int, device: str) -> None:
    run_ranks(2, places_of_results, offset, device=device)


def reported(comm: Any, call: Callable[[], Any]) -> None:
    """On GPUs a call's fault comes up once it has run."""
    call()
    if comm.device.type == "cuda":
        torch.cuda.synchronize()
    comm.check()


def missing_rank(me: Rank) -> None:
    """Rank 1 makes no call: the others get NaN in everything that the call writes, now and later."""
    comm = me.communicator(max_bytes=1 << 18, timeout=1.0, warmup_timeout=1.0)
    if me.rank != 1:
        x = torch.ones((3, 7168), device=me.device)
        outs = {"out": torch.zeros_like(x, dtype=FP8), "residual_out": torch.zeros_like(x)}
        scale_out = torch.zeros((3, 56), device=me.device)
        guard = torch.zeros_like(x, dtype=torch.uint8)  # allocated behind `out`, to be left alone
        for way in ({"group_size": 128, "scale_out": scale_out}, {"scale": 1.0}):
            with pytest.raises(pcie_allreduce.AllReduceTimeout, match="rank 1 is missing"):
                reported(comm, lambda way=way: comm.all_reduce_add_rms_norm_quant(x, x, x[0], EPS, **outs, **way))
            assert all(bool(out.float().isnan().all()) for out in outs.values())
            assert bool(scale_out.isnan().all())
            assert not guard.any()
            for out in outs.values():
                out.zero_()
    me.meet()
    comm.close()


@pytest.mark.parametrize("world", [2, 3])
def test_a_failed_call_gives_nan_in_all(world: int, device: str) -> None:
    run_ranks(world, missing_rank, device=device)


def bad_arguments(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 18) as comm:
        x = torch.ones((4, 256), device=me.device)
        good: dict[str, Any] = {"residual": x.clone(), "weight": x[0].clone(), "eps": EPS}
        scales = torch.empty((4, 2), device=me.device)
        groups = {"group_size": 128}
        for wrong, said in (
            ({}, "scale or group_size must be given, and not both"),
            ({"scale": 1.0, **groups}, "scale or group_size must be given, and not both"),
            ({"group_size": 64}, "group_size is 64; groups of 128 elements are served"),
            ({"scale": 0.0}, "scale is 0.0; it must be positive"),
            ({"scale": -1.0}, "scale is -1.0; it must be positive"),
            ({"scale": math.nan}, "scale is nan; it must be positive"),
            ({"scale": 1e39}, "scale is 1e+39; it must be positive, and a normal float32 number"),
            ({"scale": torch.ones(2, device=me.device)}, "scale is torch.float32 (2,)"),
            ({"scale": torch.ones(1, dtype=torch.float64, device=me.device)}, "scale is torch.float64 (1,)"),
            ({"scale": 1.0, "scale_out": scales}, "scale_out is for the scales of groups"),
            ({**groups, "scale_out": scales[:3]}, "scale_out is torch.float32 (3, 2)"),
            ({**groups, "scale_out": scales.int()}, "it must be torch.float32 (4, 2)"),
            ({**groups, "scale_out": scales.t().contiguous().t()}, "scales are written row by row"),
            ({**groups, "out": torch.empty_like(x)}, "it must be torch.float8_e4m3fn (4, 256)"),
            ({**groups, "out": x.view(torch.uint8)[:, :256].view(FP8)}, "out is not contiguous"),
            ({**groups, "out": x.view(-1).view(FP8)[:1024].view(4, 256)}, "out and x overlap"),
            ({**groups, "weight": torch.ones(255, device=me.device)}, "weight is torch.float32 (255,)"),
        ):
            with pytest.raises(ValueError, match=re.escape(said)):
                comm.all_reduce_add_rms_norm_quant(x, **{**good, **wrong})
        if me.device == "cpu":
            with pytest.raises(ValueError, match=r"scale is 0\.0; it must be positive"):
                comm.all_reduce_add_rms_norm_quant(x, **good, scale=torch.zeros(1))
        rows = x[:, :192].contiguous()
        with pytest.raises(
            ValueError, match=re.escape("x is (4, 192); its last dimension must be whole groups of 128")
        ):
            comm.all_reduce_add_rms_norm_quant(rows, rows.clone(), rows[0].clone(), EPS, **groups)
        with pytest.raises(TypeError, match=r"x must be a torch\.Tensor, not NoneType"):
            comm.all_reduce_add_rms_norm_quant(None, **good, **groups)
        quantised, _, total = comm.all_reduce_add_rms_norm_quant(x, **good, **groups)  # nothing of the above was sent
        assert comm.calls == 1
        assert bool((total == me.world + 1).all())
        assert bool((quantised.float() == 448).all())
        empty = comm.all_reduce_add_rms_norm_quant(x[:0], x[:0].clone(), x[0].clone(), EPS, **groups)
        assert [tuple(tensor.shape) for tensor in empty] == [(0, 256), (0, 2), (0, 256)]


def test_bad_arguments(device: str) -> None:
    run_ranks(2, bad_arguments, device=device)


def separately(me: Rank) -> None:
    """What is not fused is quantised behind an all-reduce, the fallback's too."""
    with me.communicator(max_bytes=1 << 16, fallback=me.group if me.device == "cpu" else None) as comm:
        shapes = [(3, 63), (1, 16384 + 128)] + ([(64, 2048)] if me.device == "cpu" else [])
        for turn, (rows, hidden) in enumerate(shapes):
            *parts, residual, weight = operands(me, rows, hidden, torch.bfloat16, seed=turn)
            mine, into, scale = (tensor.to(me.device, copy=True) for tensor in (parts[me.rank], residual, weight))
            for way in WAYS if hidden % 128 == 0 else WAYS[1:]:
                assert not comm.supports_fused(mine, way.get("group_size"))
                got = comm.all_reduce_add_rms_norm_quant(mine, into, scale, EPS, **way)
                judge(me, got, tuple(parts), residual, weight, way)


def test_what_is_not_fused(device: str) -> None:
    run_ranks(2, separately, device=device)


def compiled(me: Rank) -> None:
    """One operator without a break, whose shapes and types are known without running it."""
    with me.communicator(max_bytes=1 << 18) as comm:
        one = torch.full((1,), 0.5, device=me.device)
        for way in ({"group_size": 128}, {"scale": one}):

            def layer(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, way: Any = way) -> Tensors:
                return comm.all_reduce_add_rms_norm_quant(x * 2, residual, weight, EPS, residual_out=residual, **way)

            x = torch.full((3, 256), float(me.rank + 1), device=me.device)
            weight = torch.linspace(0.5, 1.5, 256, device=me.device)
            got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, torch.zeros_like(x), weight)
            expected = layer(x, torch.zeros_like(x), weight)
            for tensor, other in zip(got, expected, strict=True):
                assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
                assert torch.equal(tensor.view(torch.uint8), other.view(torch.uint8))
        operator = torch.ops.pcie_allreduce.all_reduce_add_rms_norm_quant.default
        for scale in (None, one):
            arguments = (x, torch.zeros_like(x), weight, EPS, 0.0, scale, comm._key)
            checks = ("test_schema", "test_faketensor", "test_autograd_registration")
            assert set(torch.library.opcheck(operator, arguments, test_utils=checks).values()) == {"SUCCESS"}


def test_compiled_without_a_break(device: str) -> None:
    run_ranks(2, compiled, device=device, timeout=180)


def in_graph(me: Rank, rows: int, hidden: int, dtype: torch.dtype) -> None:
    """Replays give what the same calls give one by one."""
    with me.communicator(max_bytes=1 << 20) as comm:
        x = torch.zeros((rows, hidden), dtype=dtype, device=me.device)
        residual = torch.zeros_like(x)
        weight = torch.linspace(0.5, 1.5, hidden, device=me.device).to(dtype)
        one = torch.full((1,), 0.25, device=me.device)

        def calls() -> list[Tensors]:
            ways: tuple[dict[str, Any], ...] = ({"group_size": 128}, {"scale": one})
            return [comm.all_reduce_add_rms_norm_quant(x, residual, weight, EPS, **way) for way in ways]

        graph = torch.cuda.CUDAGraph()
        with comm.capture(), torch.cuda.graph(graph):
            seen = calls()
        for turn in range(5):
            *parts, into, _ = operands(me, rows, hidden, dtype, seed=turn)
            x.copy_(parts[me.rank])
            residual.copy_(into)
            graph.replay()
            torch.cuda.synchronize()
            for got, expected, way in zip(seen, calls(), ({"group_size": 128}, {"scale": 0.25}), strict=True):
                for tensor, other in zip(got, expected, strict=True):
                    assert torch.equal(tensor.view(torch.uint8), other.view(torch.uint8)), f"replay {turn}"
                judge(me, got, tuple(parts), into, weight.cpu(), way)
        comm.check()


@pytest.mark.gpu
@dtypes
@pytest.mark.parametrize("world", [2, 8])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 7168), (8, 7168), (5, 4096), (2, 16384)])
def test_in_a_graph(world: int, rows: int, hidden: int, dtype: torch.dtype) -> None:
    run_ranks(world, in_graph, rows, hidden, dtype, device="cuda")


def shapes_agree(me: Rank, algorithm: str, shapes: list[tuple[int, int, int]], dtype: torch.dtype) -> None:
    """No launch shape changes a bit: groups lie within warps in every one."""
    from pcie_allreduce import fp8
    from pcie_allreduce.fused import checked
    from pcie_allreduce.fused_plan import FusedPlan

    with me.communicator(max_bytes=1 << 20) as comm:
        *parts, residual, weight = (tensor.to(me.device) for tensor in operands(me, 4, 7168, dtype))
        x = parts[me.rank]
        for way in WAYS:
            seen = []
            for teams, cluster, threads in shapes:
                how = fp8.checked(x, way.get("scale"), way.get("group_size"), None)
                call = checked(x, residual, weight, EPS, 0.0, None, None, how)
                assert not comm._transport.all_reduce_add_rms_norm(call, FusedPlan(algorithm, teams, cluster, threads))
                torch.cuda.synchronize()
                comm.check()
                seen.append((call.normed, how.scales, call.residual_out))
            for shape, results in zip(shapes, seen, strict=True):
                for tensor, other in zip(results, seen[0], strict=True):
                    assert torch.equal(tensor.view(torch.uint8), other.view(torch.uint8)), str(shape)
            judge(me, seen[0], tuple(part.cpu() for part in parts), residual.cpu(), weight.cpu(), way)


ROWS_TO_TEAMS = [(4, 1, 448), (4, 7, 128), (2, 7, 128), (4, 8, 128), (1, 4, 224), (4, 2, 224), (4, 4, 128)]


@pytest.mark.gpu
@pytest.mark.parametrize("world", [2, 8])
def test_no_launch_shape_changes_a_bit(world: int) -> None:
    run_ranks(world, shapes_agree, "one_shot", ROWS_TO_TEAMS, torch.bfloat16, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "clusters"), [(torch.bfloat16, (4, 5, 8)), (torch.float32, (8,))], ids=SHORT.get)
def test_nor_does_one_of_two_shot(dtype: torch.dtype, clusters: tuple[int, ...]) -> None:
    run_ranks(8, shapes_agree, "two_shot", [(4, cluster, 256) for cluster in clusters], dtype, device="cuda")


def parts_of_no_groups(me: Rank) -> str:
    """By five ranks a part of 7,168 elements is 184 packs, of which a group has 16."""
    from pcie_allreduce import fp8
    from pcie_allreduce.fused import checked
    from pcie_allreduce.fused_plan import FusedPlan

    with me.communicator(max_bytes=1 << 20) as comm:
        x = torch.ones((1, 7168), dtype=torch.bfloat16, device=me.device)
        assert comm.fused_plan_for(x, 128) != FusedPlan("two_shot", 1, 8, 160)
        call = checked(x, x.clone(), x[0].clone(), EPS, 0.0, None, None, fp8.checked(x, None, 128, None))
        try:
            comm._transport.all_reduce_add_rms_norm(call, FusedPlan("two_shot", 1, 8, 160))
        except ValueError as error:
            return str(error)
    return "no error"


@pytest.mark.gpu
def test_a_part_that_is_no_whole_groups_is_refused() -> None:
    for message in run_ranks(5, parts_of_no_groups, device="cuda"):
        assert message == "parts of 184 packs of a row are no whole groups"
