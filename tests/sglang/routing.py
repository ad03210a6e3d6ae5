"""Reads what the cases of routing_ranks.py have led to."""

from __future__ import annotations

from typing import Any

LIMIT = 256 * 1024  # between the two sizes of the cases
Results = list[dict[str, Any]]  # one a rank, by case


def case(results: Results, name: str, **expected: Any) -> list[str]:
    """What both ranks must have seen of a case; returns what rank 0 logged."""
    for rank, result in enumerate(results):
        seen = {key: result[name].get(key) for key in expected}
        assert seen == expected, f"rank {rank}: {result[name]}"
    return list(results[0][name]["log"])


def has(lines: list[str], *parts: str) -> bool:
    return sum(all(part in line for part in parts) for line in lines) == 1
