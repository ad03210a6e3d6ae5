"""The script that times a rank that comes late, on CPU ranks: that it runs to its end, and what its file holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import require

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "late_rank.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the tests run without the repository around them")


def timed(path: Path, *options: str, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-P", str(SCRIPT), "--ranks", "2", "--repeats", "1", "--json", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(path.read_text())
    assert done.stdout.count(" us late, ") == len(document["rows"])
    return document


def test_the_late_rank_s_own_time_is_told(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--sizes", "1024,43008", "--late", "0,3000"]
    document = timed(tmp_path / "late" / "cpu.json", *options)
    assert document["environment"]["kind"] == "cpu" and "What a call takes" not in document["environment"]["method"]
    at_once, late = document["rows"][:2], document["rows"][2:]
    assert [row["bytes"] for row in at_once] == [row["bytes"] for row in late] == [1024, 43008]
    assert all(row["late_us"] == 0 and row["us_median"] > 0 for row in at_once)
    assert all(row["late_us"] > 2990 and row["us_median"] < row["late_us"] / 2 for row in late)  # less what it spins


@pytest.mark.gpu
def test_through_host_memory_it_is_not_held_up_by_who_waits(tmp_path: Path) -> None:
    """Blocks that looked at one word in host memory, each for itself, made 41 us of 8 here."""
    require(2, "cuda")
    document = timed(tmp_path / "late.json", "--sizes", "57344", "--late", "0,100", PCIE_ALLREDUCE_P2P="0")
    at_once, late = document["rows"]
    assert late["late_us"] > 50 and late["us_median"] < 2 * at_once["us_median"]
