"""FP8 by groups is what SGLang's own kernel makes of the same norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import launch
import pytest
import torch
from ranks import Rank, run_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sglang

EPS = 1e-6
GROUP = 128


def quantised(me: Rank, normed_file: str) -> tuple[bytes, list[float]]:
    """By two calls of the same operands: the norm in float32, to a file, and the quantised one."""
    random = torch.Generator().manual_seed(7)
    *parts, residual = torch.randn((me.world + 1, 3, 7168), generator=random)
    residual[1, :GROUP] = -sum(parts)[1, :GROUP]  # a group of zeros, or of what float32 leaves of them
    weight = torch.linspace(0.5, 1.5, 7168)
    with me.communicator(max_bytes=1 << 18) as comm:
        normed, _ = comm.all_reduce_add_rms_norm(parts[me.rank], residual, weight, EPS)
        codes, scales, _ = comm.all_reduce_add_rms_norm_quant(parts[me.rank], residual, weight, EPS, group_size=GROUP)
    if me.rank == 0:
        torch.save(normed, normed_file)
    return codes.view(torch.uint8).numpy().tobytes(), scales.flatten().tolist()


def test_codes_and_scales_are_those_of_its_kernel(tmp_path: Path) -> None:
    source, result = tmp_path / "normed.pt", tmp_path / "result.pt"
    code_bytes, our_scales = run_ranks(2, quantised, str(source))[0]
    launch.results("group_quant.py", {"TRITON_INTERPRET": "1"}, str(source), str(result))
    normed, (codes, scales) = torch.load(source), torch.load(result)
    assert torch.allclose(torch.tensor(our_scales), scales.flatten(), rtol=3e-7, atol=0)  # it divides by 448

    ours = torch.frombuffer(bytearray(code_bytes), dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(normed.shape)
    exact = (normed.unflatten(-1, (-1, GROUP)) / scales.unsqueeze(-1)).flatten(-2).abs()
    assert torch.equal(ours.float().sign(), codes.float().sign())
    ours, theirs = ours.float().abs(), codes.float().abs()
    # The interpreter of Triton 3.9 loses what is carried into the exponent: what is rounded up to a power of two comes
    # out as half of it. GPUs do not.
    carried = (torch.frexp(ours)[0] == 0.5) & (exact < ours) & (theirs == ours / 2)
    middle = ((ours + theirs) / 2 - exact).abs() <= 1e-6 * exact
    assert int(((ours != theirs) & ~carried & ~middle).sum()) == 0
    assert float((ours == theirs).float().mean()) > 0.97
