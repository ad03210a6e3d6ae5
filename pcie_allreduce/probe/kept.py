"""Measurements between runs, in the cache: of exactly these GPUs, links, driver and version."""

from __future__ import annotations

import os
from pathlib import Path

from pcie_allreduce import cache
from pcie_allreduce.probe.measurements import Measurements
from pcie_allreduce.topology import Snapshot

SECTION = "probe"


def key_for(snapshot: Snapshot, islands: str | None, version: str, layout: int) -> cache.Key:
    """With P2P switched off it is another machine."""
    what = "probe without P2P" if os.environ.get("PCIE_ALLREDUCE_P2P") == "0" else "probe"
    return cache.key_for(snapshot, what, islands, version, layout)


def load(key: cache.Key) -> tuple[Measurements | None, str]:
    """And where they lie, or why there are none."""
    found = cache.load(key, SECTION)
    if found.value is None:
        return None, found.reason
    try:
        measured = Measurements.from_dict(found.value)
        return (
            (measured, found.reason) if measured.world == key.world else (None, f"{found.reason} is of another group")
        )
    except ValueError as error:
        return None, f"{found.reason}: {error}"


def save(key: cache.Key, measured: Measurements) -> Path | None:
    """None where nothing can be written: the next start then measures again."""
    try:
        return cache.save(key, SECTION, measured.to_dict())
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
