"""One sentence of evidence, its level, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    OK = 0
    WARNING = 1
    PROBLEM = 2


@dataclass(frozen=True)
class Finding:
    level: Level
    topic: str
    evidence: str
    remedy: str = ""


def ok(topic: str, evidence: str, remedy: str = "") -> Finding:
    return Finding(Level.OK, topic, evidence, remedy)


def warning(topic: str, evidence: str, remedy: str = "") -> Finding:
    return Finding(Level.WARNING, topic, evidence, remedy)


def problem(topic: str, evidence: str, remedy: str = "") -> Finding:
    return Finding(Level.PROBLEM, topic, evidence, remedy)


def numbers(indices: Iterable[int]) -> str:
    """ "GPU 3" or "GPUs 0, 1, 3"."""
    told = [str(index) for index in indices]
    return f"GPU{'s' if len(told) > 1 else ''} {', '.join(told)}"


def pairs(found: list[tuple[int, int]]) -> str:
    """The first pairs and how many more there are."""
    told = ", ".join(f"{a} to {b}" for a, b in found[:3])
    return told if len(found) <= 3 else f"{told} and {len(found) - 3} more"
