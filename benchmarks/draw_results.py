"""Draws the pictures of the pages from benchmarks/results/*.json into docs/pictures/ (extra `plot`).

    python benchmarks/draw_results.py

Each names in its description the digest of the file that it was drawn from, by which a test finds one that is stale.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

from pcie_allreduce.bench.rows import Document
from pcie_allreduce.plots.latency import draw_bench
from pcie_allreduce.topology import Gpu, Link, Snapshot

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "pictures"
LINKS = {"h200x2-ranks2": Link.NVLINK}  # what lies between the GPUs, for the prediction
MODE = "graph"


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    for name, link in LINKS.items():
        draw(name, link)
    return 0


def draw(name: str, link: Link) -> None:
    whole = Document.read(RESULTS / f"{name}.json")
    document = replace(whole, rows=[row for row in whole.rows if row.mode == MODE])
    gpus = len(document.environment["gpus"])
    links = tuple(tuple(Link.SAME_GPU if a == b else link for b in range(gpus)) for a in range(gpus))
    snapshot = Snapshot(tuple(Gpu(f"GPU-{index}") for index in range(gpus)), links, (("ok",) * gpus,) * gpus)
    draw_bench(document, snapshot, str(PICTURES / f"{name}.svg"), origin(name))


def origin(name: str) -> str:
    digest = hashlib.sha256((RESULTS / f"{name}.json").read_bytes()).hexdigest()
    return f"drawn from benchmarks/results/{name}.json, sha256 {digest}"


if __name__ == "__main__":
    sys.exit(main())
