"""The script that times a rank that comes late, on CPU ranks: that it runs to its end, and what its file holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "late_rank.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the tests run without the repository around them")


def test_the_late_rank_s_own_time_is_told(tmp_path: Path) -> None:
    path = tmp_path / "late" / "cpu.json"
    command = [
        sys.executable,
        "-P",
        str(SCRIPT),
        "--device",
        "cpu",
        "--ranks",
        "2",
        "--repeats",
        "1",
        "--json",
        str(path),
    ]
    done = subprocess.run(
        [*command, "--sizes", "1024,43008", "--late", "0,3000"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" us late, ") == 4
    document = json.loads(path.read_text())
    assert document["environment"]["kind"] == "cpu" and "comes" not in document["environment"]["method"]
    rows = {(round(row["late_us"], -3), row["bytes"]): row["us_median"] for row in document["rows"]}
    assert list(rows) == [(0, 1024), (0, 43008), (3000, 1024), (3000, 43008)]
    assert all(0 < us < 2000 for us in rows.values())  # without the 3000 that its peer waits
