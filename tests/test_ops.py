"""torch.compile sees an all-reduce as one operation whose shape and type it knows without running it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Rank, run_ranks
from reference import DTYPES, difference, to_bits

from pcie_allreduce import ClosedError


def layer(comm: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Dependent work before and behind two all-reduces, one of them of a tensor that is used again."""
    partial = x * weight
    summed = comm.all_reduce(partial)
    again = comm.all_reduce(summed + partial)
    return again.relu() - summed


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    """Rank processes outlive a test, and so would what torch compiled in them."""
    run_ranks(2, forget)


def forget(_: Rank) -> None:
    torch._dynamo.reset()


def compiled_equals_eager(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 16) as comm:
        compiled = torch.compile(lambda x, weight: layer(comm, x, weight), fullgraph=True, backend="aot_eager")
        for dtype in DTYPES:
            for rows in (1, 3):
                generator = torch.Generator().manual_seed(me.rank)
                x = torch.randn(rows, 129, generator=generator).to(dtype).to(me.device)
                weight = torch.full((129,), 1.5, dtype=dtype, device=me.device)
                eager, got = layer(comm, x, weight), compiled(x, weight)
                problem = difference(got, to_bits(eager))
                assert problem is None, f"{dtype} {rows}: {problem}"
        calls = comm.calls
        compiled(x, weight)
        assert comm.calls == calls + 2, "a compiled all-reduce was dropped, merged or run twice"


def test_a_compiled_graph_equals_eager(device: str) -> None:
    run_ranks(2, compiled_equals_eager, device=device, timeout=180)


def several_communicators(me: Rank) -> None:
    """One function compiled for one communicator after another, and for one made after the first was closed."""

    def body(comm: Any, x: torch.Tensor) -> torch.Tensor:
        return comm.all_reduce(x + 1)

    compiled = torch.compile(body, fullgraph=True, backend="aot_eager")
    x = torch.full((100,), float(me.rank), device=me.device)
    expected = me.world * (me.world + 1) // 2
    with me.communicator(max_bytes=4096) as one:
        assert bool((compiled(one, x) == expected).all())
        with me.communicator(max_bytes=4096) as two:
            for comm in (two, one, two):
                assert bool((compiled(comm, x) == expected).all())
            assert (one.calls, two.calls) == (2, 2), "a call went to the other communicator"
    with me.communicator(max_bytes=4096) as three:
        assert bool((compiled(three, x) == expected).all())
        assert three.calls == 1


def test_one_function_serves_several_communicators(device: str) -> None:
    run_ranks(2, several_communicators, device=device, timeout=180)


def compiled_into_output(me: Rank) -> None:
    with me.communicator(max_bytes=1 << 16) as comm:

        def body(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            comm.all_reduce(x, out=out)
            x = x * 2
            comm.all_reduce(x, out=x)
            return out + x

        compiled = torch.compile(body, fullgraph=True, backend="aot_eager")
        x = torch.full((100,), float(me.rank + 1), device=me.device)
        out = torch.full((100,), float("nan"), device=me.device)
        expected = me.world * (me.world + 1) // 2
        assert bool((compiled(x, out) == 3 * expected).all())
        assert bool((out == expected).all())
        assert bool((x == me.rank + 1).all())


def test_outputs_and_in_place_calls_compile(device: str) -> None:
    run_ranks(2, compiled_into_output, device=device, timeout=180)


def operation(comm: Any, device: str) -> tuple[Any, list[Any]]:
    """The operator and its arguments that stand for comm.all_reduce in a compiled graph."""
    found: list[tuple[Any, list[Any]]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        for node in graph.graph.nodes:
            if "pcie_allreduce" in str(node.target):
                found.append((node.target, [inputs[0] if isinstance(arg, torch.fx.Node) else arg for arg in node.args]))
        return graph.forward

    torch.compile(lambda x: comm.all_reduce(x), fullgraph=True, backend=backend)(torch.ones(3, 8, device=device))
    assert len(found) == 1, f"one all-reduce became {len(found)} operations of this package"
    return found[0]


def fakes(me: Rank) -> None:
    """Shape, type and device without a call, and also where sizes are symbols."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with me.communicator(max_bytes=1 << 16) as comm:
        operator, (_, *rest) = operation(comm, me.device)
        calls = comm.calls
        with FakeTensorMode():
            for dtype in DTYPES:
                x = torch.empty(3, 5, 7, dtype=dtype, device=me.device)
                y = operator(x, *rest)
                assert y is not x
                assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
                assert y.is_contiguous()
        assert comm.calls == calls
        compiled = torch.compile(lambda x: comm.all_reduce(x), fullgraph=True, backend="eager", dynamic=True)
        for rows in (2, 3, 5):
            assert bool((compiled(torch.ones(rows, 4, device=me.device)) == me.world).all())


def test_the_fake_kernel_gives_shape_and_type() -> None:
    run_ranks(2, fakes, timeout=180)


def traced_without_compile(me: Rank) -> None:
    """A tracer of another kind hands over a tensor without memory: a fake result or an error, never its address."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with me.communicator(max_bytes=4096) as comm:
        with FakeTensorMode():
            x = torch.empty(8, device=me.device)
            try:
                shape = comm.all_reduce(x).shape
            except (RuntimeError, TypeError, ValueError):
                shape = x.shape
            assert shape == x.shape
        assert comm.calls == 0
        assert bool((comm.all_reduce(torch.ones(8, device=me.device)) == me.world).all())


def test_a_tensor_without_memory_is_no_crash(device: str) -> None:
    run_ranks(2, traced_without_compile, device=device)


def passes_opcheck(me: Rank) -> dict[str, str]:
    """torch's own check of schema, fake kernel and dispatch."""
    with me.communicator(max_bytes=1 << 16) as comm:
        operator, args = operation(comm, me.device)
        checks = ("test_schema", "test_faketensor", "test_autograd_registration")
        return torch.library.opcheck(getattr(operator, "_opoverload", operator), tuple(args), test_utils=checks)


def test_the_operation_passes_torchs_own_check() -> None:
    for results in run_ranks(2, passes_opcheck, timeout=180):
        assert len(results) == 3
        assert set(results.values()) == {"SUCCESS"}, results


def refused_when_compiled(me: Rank) -> None:
    """What eager refuses, a compiled function refuses as well when it runs: nothing is reduced past the limit."""
    with me.communicator(max_bytes=4096) as comm:
        compiled = torch.compile(lambda x: comm.all_reduce(x), fullgraph=True, backend="aot_eager")
        with pytest.raises(ValueError, match="4096"):
            compiled(torch.ones(1025, device=me.device))
        with pytest.raises(TypeError, match="int64"):
            compiled(torch.ones(10, dtype=torch.int64, device=me.device))
        assert bool((compiled(torch.ones(10, device=me.device)) == me.world).all())
        comm.close()
        with pytest.raises(ClosedError):
            compiled(torch.ones(10, device=me.device))


def test_a_compiled_call_is_refused_as_an_eager_one_is() -> None:
    run_ranks(2, refused_when_compiled, timeout=180)


def gradients(me: Rank) -> str:
    """An all-reduce has no backward here: asking for one must be an error, not a gradient that is silently zero."""
    with me.communicator(max_bytes=1 << 16) as comm:
        x = torch.ones(8, device=me.device, requires_grad=True)
        with torch.no_grad():
            assert bool((comm.all_reduce(x) == me.world).all())
        assert bool((comm.all_reduce(x.detach()) == me.world).all())
        with torch.inference_mode():
            assert bool((comm.all_reduce(torch.ones(8, device=me.device)) == me.world).all())
        with pytest.raises((RuntimeError, NotImplementedError, ValueError)) as caught:
            comm.all_reduce(x).sum().backward()
        return str(caught.value)


def gradients_with_a_fallback(me: Rank) -> str:
    """The fallback has no backward either; a graph that ends there in silence would train on nothing."""
    with me.communicator(max_bytes=4096, fallback=me.group) as comm:
        x = torch.ones(8, device=me.device, requires_grad=True)
        with pytest.raises((RuntimeError, NotImplementedError, ValueError)) as caught:
            comm.all_reduce(x).sum().backward()
        return str(caught.value)


def test_gradients_are_refused_with_a_fallback_too() -> None:
    for message in run_ranks(2, gradients_with_a_fallback):
        assert "grad" in message, message


def test_gradients_are_refused_in_words(device: str) -> None:
    for message in run_ranks(2, gradients, device=device):
        assert "grad" in message or "autograd" in message, message
