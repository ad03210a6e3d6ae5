"""Measurements between runs, in the cache: of exactly these GPUs, links, driver and version."""

from __future__ import annotations

import os
from pathlib import Path

from pcie_allreduce import cache
from pcie_allreduce.probe import decision
from pcie_allreduce.probe.measurements import Measurements
from pcie_allreduce.topology import Snapshot
from pcie_allreduce.transport import SWITCHED_OFF

SECTION = "probe"
WITHOUT_P2P = "probe without P2P"
DRIVER_SAYS_NO = "no P2P between "  # transport.why_no_p2p


def key_for(snapshot: Snapshot, islands: str | None, version: str, layout: int) -> cache.Key:
    """With P2P switched off it is another machine."""
    what = WITHOUT_P2P if os.environ.get("PCIE_ALLREDUCE_P2P") == "0" else "probe"
    return cache.key_for(snapshot, what, islands, version, layout)


def load(key: cache.Key) -> tuple[Measurements | None, str]:
    """And where they lie, or why there are none that this start may go by."""
    found = cache.load(key, SECTION)
    if found.value is None:
        return None, found.reason
    try:
        measured = Measurements.from_dict(found.value)
    except ValueError as error:
        return None, f"{found.reason}: {error}"
    if (measured.device, measured.world) != (key.device, key.world):
        return None, f"{found.reason} is of another group"
    passing = may_have_passed(key, measured)
    return (measured, found.reason) if passing is None else (None, f"{found.reason}: it may have passed that {passing}")


def may_have_passed(key: cache.Key, measured: Measurements) -> str | None:
    """What was wrong with the direct way then and need not be now: a verdict on it must not outlive it.

    That there is no P2P, as the driver or the key has it, is so for good; and so are stores that were seen to collapse.
    """
    problem = measured.direct.problem or ""
    if DRIVER_SAYS_NO in problem or (SWITCHED_OFF in problem and key.transport == WITHOUT_P2P):
        return None
    return next(iter(decision.failures(measured)), None)


def save(key: cache.Key, measured: Measurements) -> Path | None:
    """None where nothing can be written: the next start then measures again."""
    try:
        return cache.save(key, SECTION, measured.to_dict())
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
