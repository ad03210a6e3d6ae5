"""What was exercised is read from a run of tests; the tables are made of what was recorded, and the page has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines import record, table
from engines.contract import Seam, fits
from engines.sglang_seams import SEAMS

PAGE = record.ROOT / "docs" / "engines.md"
GROUPS = next(seam for seam in SEAMS if seam.name == "`init_model_parallel_group`")

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.sglang.test_routing" name="test_cpu_tensors_are_served_up_to_the_limit[0.5.23]"/>
<testcase classname="tests.sglang.test_groups" name="test_groups_are_served_as_sglang_would[0.5.23-context]"/>
<testcase classname="tests.sglang.test_routing" name="test_cpu_tensors_are_served_up_to_the_limit[0.5.9]"/>
<testcase classname="tests.sglang.test_groups" name="test_groups_are_served_as_sglang_would[0.5.9-context]">
 <failure message="no"/></testcase>
<testcase classname="tests.sglang.test_routing" name="test_cpu_tensors_are_served_up_to_the_limit[0.5.11]">
 <skipped message="not here"/></testcase>
<testcase classname="tests.sglang.test_server"
 name="test_the_flag_serves_the_same_tokens_and_a_rank_that_stops_is_named"/>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("version", "state"), [("0.5.23", "passed"), ("0.5.9", "failed"), ("0.5.11", "skipped"), ("0.5.13", "skipped")]
)
def test_a_seam_is_exercised_in_a_version_if_a_test_has_passed_and_none_failed(
    version: str, state: str, tmp_path: Path
) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    told = record.outcomes(tmp_path / "junit.xml")
    assert len(told) == 6
    assert record.exercised(GROUPS, record.of_version(version, told)) == state


def test_a_test_of_one_version_counts_for_that_alone(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    told = record.outcomes(tmp_path / "junit.xml")
    seam = next(seam for seam in SEAMS if seam.name == "SIGQUIT ends the server")
    states = [record.exercised(seam, record.of_version(version, told)) for version in ("0.5.23", "0.5.9")]
    assert states == ["passed", "skipped"]


def test_every_test_that_a_seam_names_is_there() -> None:
    for name in {test for seam in SEAMS for test in seam.tests}:
        file, function = name.split("::")
        assert f"def {function}(" in (record.ROOT / "tests" / "sglang" / file).read_text(), name


STATES = {
    "ran": ("fits", "passed"),
    "read": ("fits", "skipped"),
    "lacks": ("refused", "skipped"),
    "gone": ("broken", "passed"),
    "wrong": ("fits", "failed"),
}


def made() -> list[Seam]:
    return [Seam(name, (), lambda tree: fits(), (f"test_{name}",)) for name in STATES]


def document() -> dict[str, Any]:
    """Two versions; in the first, each test has ended as its seam's name says."""
    seams = {name: {"state": state, "detail": f"why {name}"} for name, (state, _) in STATES.items()}
    tests = {f"test_{name}": state for name, (_, state) in STATES.items() if state != "skipped"}
    head = {"newest": "2.0", "date": "2026-01-02", "exercised": "2026-01-01", "environment": "CPU ranks"}
    old = {"seams": seams, "groups": {"tp": True, "pp": False}, "tests": tests}
    return {**head, "versions": {"1.0": old, "2.0": {"seams": seams, "groups": {"tp": True}, "tests": {}}}}


def test_cells() -> None:
    told = table.render(document(), made())
    assert "| seam | 1.0 | 2.0 (newest) |" in told
    assert "| ran | exercised | checked |" in told
    assert "| read | checked | checked |" in told
    assert "| lacks | refused (1) | refused (1) |" in told
    assert "\n1. why lacks\n" in told
    assert "| gone | **broken**: why gone | **broken**: why gone |" in told
    assert "| wrong | **broken**: its tests fail | checked |" in told
    assert "| `tp` | served | served |" in told
    assert "| `pp` | SGLang's own |  |" in told


def test_only_the_tables_of_a_page_change() -> None:
    told = record.read()
    page = "Before.\n<!-- engines:begin -->\nold\n<!-- engines:end -->\nAfter.\n"
    put = table.put(page, told)
    assert put.startswith("Before.\n<!-- engines:begin -->\nContracts of 20")
    assert put.endswith("|\n<!-- engines:end -->\nAfter.\n")
    assert table.put(put, told) == put


@pytest.mark.skipif(not PAGE.exists(), reason="the tests run without the repository around them")
def test_the_page_has_the_tables_of_what_was_recorded() -> None:
    """`python tests/engines_matrix.py` writes both."""
    told = record.read()
    assert table.put(PAGE.read_text(), told) == PAGE.read_text()
    assert set(record.VERSIONS) <= set(told["versions"])
    assert told["newest"] in told["versions"]
    for version in told["versions"].values():
        assert list(version["seams"]) == [seam.name for seam in SEAMS]
    assert "**broken**" not in PAGE.read_text().partition("<!-- engines:begin -->")[2]
