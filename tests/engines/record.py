"""What the contracts said of each version and what was exercised in it: the file that the tables are made from."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import sglang_groups
from .contract import Seam
from .sglang_seams import SEAMS
from .source import Tree

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "benchmarks" / "results" / "engines" / "sglang.json"
VERSIONS = ("0.5.9", "0.5.11", "0.5.13", "0.5.19", "0.5.23")  # and the newest
# Tests that are about one version without having it in their names.
FIXED = {
    "test_the_flag_serves_the_same_tokens_and_a_rank_that_stops_is_named": "0.5.23",
    "test_the_old_sglang_serves_them_by_our_launcher_and_a_rank_that_is_killed_is_named": "0.5.9",
}


def contracts(folder: Path) -> dict[str, Any]:
    """What a version's sources say: of each seam, and of each group whether it would get a custom all-reduce."""
    tree = Tree(folder)
    return {
        "seams": {seam.name: asdict(seam.look(tree)) for seam in SEAMS},
        "groups": sglang_groups.served(tree),
    }


def outcomes(junit: Path) -> dict[str, str]:
    """`file.py::test[parameters]` -> passed, failed or skipped."""
    told = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        states = {child.tag for child in case}
        state = "failed" if states & {"failure", "error"} else "skipped" if "skipped" in states else "passed"
        told[f"{case.attrib['classname'].split('.')[-1]}.py::{case.attrib['name']}"] = state
    return told


def of_version(version: str, told: dict[str, str]) -> dict[str, str]:
    """Of the tests that a seam names, by name without parameters: failed where any was for this version, else passed
    where any was; tests that were skipped are left out."""
    named = {test for seam in SEAMS for test in seam.tests}
    found: dict[str, str] = {}
    for name, state in told.items():
        test, _, parameters = name.partition("[")
        about = FIXED.get(test.split("::")[1]) or (version if version in parameters.rstrip("]").split("-") else None)
        if test in named and about == version and state != "skipped":
            found[test] = "failed" if "failed" in (state, found.get(test)) else "passed"
    return dict(sorted(found.items()))


def exercised(seam: Seam, tests: dict[str, str]) -> str:
    """Of a version's tests: passed where one has and none failed, failed where any has, else skipped."""
    states = {tests[test] for test in seam.tests if test in tests}
    return next((state for state in ("failed", "passed") if state in states), "skipped")


def read() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {"versions": {}}


def write(document: dict[str, Any]) -> None:
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(document, indent=1) + "\n")
