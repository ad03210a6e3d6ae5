"""The script that measures the host's memory, on CPU ranks: that it runs to its end and that its file holds it all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pcie_allreduce import _C
from pcie_allreduce.plan import TRANSPORTS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "host_facts.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the tests run without the repository around them")


@pytest.mark.slow
def test_cpu_ranks_run_through_it(tmp_path: Path) -> None:
    path = tmp_path / "facts" / "cpu.json"
    command = [sys.executable, "-P", str(SCRIPT), "--device", "cpu", "--ranks", "3", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    facts = json.loads(path.read_text())
    assert facts["environment"]["kind"] == "cpu" and "Torn stores" in facts["environment"]["method"]
    assert facts["traffic"]["problem"] is None and min(facts["traffic"]["push_together_gbps"]) > 0
    assert min(facts["poll_ns"].values()) > 0
    assert list(facts["fence_ns"]) == ["0", "1", "8", "32"]
    assert all(ns > 0 for fence in facts["fence_ns"].values() for ns in fence.values())
    torn = facts["torn"]
    assert torn["looks"] >= torn["changes"] >= 5 * 256 and torn["unfinished"] == 0
    slab = _C.slab_bytes(_C.PROBE_AREA_PACKS, TRANSPORTS.index("staged"))
    assert [4096 * sum(pages.values()) for pages in facts["placement"]] == [slab] * 3
