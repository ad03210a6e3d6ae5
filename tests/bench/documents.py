"""Made-up results for the tests of what reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pcie_allreduce.bench.rows import Document, Row

OURS = Row(
    backend="pcie_allreduce",
    transport="peer",
    algorithm="one_shot",
    world=2,
    gpus=2,
    dtype="bf16",
    bytes=43008,
    mode="graph",
    us_median=2.25,
    us_min=2.2,
    us_max=2.5,
    replays=36,
    repeats=3,
    exact=True,
    identical=True,
    correctly_rounded=True,
)
NCCL = replace(OURS, backend="nccl", transport="none", algorithm="none", us_median=7.5, us_min=7.4, us_max=7.6)
TUNED = replace(NCCL, backend="nccl-tuned", us_median=9.0)
FLOOR = replace(NCCL, backend="floor", us_median=0.75, exact=None, identical=None, correctly_rounded=None)


def document(*rows: Row, **environment: Any) -> Document:
    return Document(
        {
            "date": "2026-01-02T03:04:05+00:00",
            "kind": "measured",
            "label": "measured: 2 ranks, each with a GPU of its own",
            "commit": "0123456789abcdef0123",
            "driver": "580.1",
            "torch": "2.13.0",
            "cpu": {"model": "A CPU", "cores": 64},
            "gpus": [{"name": "A GPU"}, {"name": "A GPU"}],
            "nccl": {"version": "2.28.9"},
            "input": None,
            "not_run": {"b12x": "not installed", "vllm-custom": "not installed"},
            **environment,
        },
        list(rows),
    )
