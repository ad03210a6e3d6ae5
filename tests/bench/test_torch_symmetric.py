"""torch's symmetric memory: what can be told without GPUs, and its sums where there are two that reach each other."""

from __future__ import annotations

import pytest
import torch

from pcie_allreduce.bench.backends.catalogue import plan
from pcie_allreduce.bench.backends.torch_symmetric import ALIGNED, OPS, _aligned
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.execution import make_pairs
from pcie_allreduce.bench.ranks import run_pass
from pcie_allreduce.bench.settings import Machine, Request, settle


@pytest.mark.parametrize("elements", [1, 7, 8, 9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_summed_is_whole_and_begins_with_what_was_asked_for(elements: int, dtype: torch.dtype) -> None:
    for buffer in make_pairs(1, elements, dtype, torch.device("cpu"))[0]:
        whole = _aligned(buffer)
        assert whole.data_ptr() == buffer.data_ptr()
        assert whole.nbytes % ALIGNED == 0
        assert 0 <= whole.nbytes - buffer.nbytes < ALIGNED
        assert whole.is_contiguous()


def test_the_operators_are_torchs() -> None:
    """Their names and arguments: torch declares them in builds without CUDA, too."""
    one_shot, two_shot = (getattr(torch.ops.symm_mem, name).default._schema for name in OPS.values())
    assert [argument.name for argument in one_shot.arguments] == ["input", "reduce_op", "group_name", "out"]
    assert [argument.name for argument in two_shot.arguments] == ["input", "reduce_op", "group_name"]
    assert two_shot.arguments[0].alias_info.is_write


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_sums_are_exact_in_graphs_and_calls(dtype: str) -> None:
    here = Machine(gpus=2, cuda_build=True, mps=False)
    request = Request(ranks=2, sizes=(1028, 1026, 14336)[:: 1 if dtype == "bf16" else 2], dtype=dtype, repeats=1)
    settings = settle(request, here)
    passes, _ = plan(["torch-symm-mem"], [], "cuda", ranks=2, gpus=2)
    heard: list[Message] = []
    run_pass(settings, passes[0], heard.append)
    if any(message.kind == "not run" for message in heard):
        pytest.skip(f"{next(message.value for message in heard if message.kind == 'not run')}")
    rows = [message.value for message in heard if message.kind == "row"]
    assert {row.algorithm for row in rows} == {"one_shot", "two_shot"}
    assert len(rows) == 2 * 2 * len(settings.sizes)
    assert all(row.exact for row in rows)
