"""SGLang's own kernel for FP8 by groups of 128, run by Triton's interpreter: `group_quant.py NORMED RESULT`, files."""

from __future__ import annotations

import sys

import torch
from sglang.kernels.ops.quantization import fp8_kernel

GROUP = 128


def main(source: str, to: str) -> None:
    normed = torch.load(source)
    codes = torch.empty_like(normed, dtype=torch.float8_e4m3fn)
    scales = torch.empty((*normed.shape[:-1], normed.shape[-1] // GROUP))
    limit = fp8_kernel.fp8_max
    kernel = fp8_kernel._per_token_group_quant_8bit
    kernel[(scales.numel(),)](normed, codes, scales, GROUP, GROUP, 1e-10, bit8_min=-limit, bit8_max=limit, BLOCK=GROUP)
    torch.save((codes, scales), to)
    print('RESULT [{"done": true}]')


if __name__ == "__main__":
    main(*sys.argv[1:])
