"""docs/sglang.md quotes what the adapter costs from the result file, and from nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = "benchmarks/results/adapter/cpu-ranks2.json"


def test_the_page_quotes_the_result_file() -> None:
    rows = json.loads((ROOT / RESULT).read_text())["rows"]
    python, above = ([row[name] for row in rows] for name in ("python_us", "above_us"))
    page = " ".join((ROOT / "docs" / "sglang.md").read_text().split())
    assert f"](../{RESULT})" in page
    assert f"In eager mode {max(python):.1f} microseconds" in page
    assert f"differed by {min(above):.1f} to {max(above):.1f} microseconds" in page
