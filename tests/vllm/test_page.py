"""docs/vllm.md names the versions that the tests read, and the settings and lines that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from published import VERSIONS

from pcie_allreduce.integrations import settings, vllm, vllm_group

PAGE = Path(__file__).parents[2] / "docs" / "vllm.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the tests run without the repository around them")


def test_the_versions_are_those_that_are_read() -> None:
    row = re.search(r"^\| what is taken for granted.*?\| ([\d., ]+) \|", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    assert row[1].split(", ") == VERSIONS


def test_what_it_names_exists() -> None:
    text = PAGE.read_text()
    assert vllm.SEAM in text
    assert all(variable in text for variable in vllm_group.ASKED_FIRST.values())
    known = {value for name, value in vars(settings).items() if name.isupper() and isinstance(value, str)}
    assert {settings.ENABLE, settings.REQUIRE} <= set(re.findall(r"\bPCIE_ALLREDUCE\w*", text)) <= known
