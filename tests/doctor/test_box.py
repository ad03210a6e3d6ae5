"""Snapshots come back from JSON as they were, and what is none is refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from doctor.boxes import HEALTHY, NO_GPU, TRANSLATED

from pcie_allreduce.doctor.box import FORMAT, Box, cpu_numbers


@pytest.mark.parametrize("box", [HEALTHY, NO_GPU, TRANSLATED], ids=["healthy", "no GPU", "translated"])
def test_a_box_survives_json(box: Box) -> None:
    assert Box.from_dict(json.loads(json.dumps(box.to_dict()))) == box


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"found": None}, {"paths": [[{"colour": 1}]]}, {"topology": {}}, {"weather": "fine"}, {"iommu": 3}],
)
def test_what_is_no_box_is_a_value_error(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a snapshot"):
        Box.from_dict({**HEALTHY.to_dict(), **change})


def test_a_list_is_no_box() -> None:
    with pytest.raises(ValueError, match=f"format {FORMAT}"):
        Box.from_dict([])  # type: ignore[arg-type]


def test_lists_of_cpus() -> None:
    assert cpu_numbers("0-3,8\n") == {0, 1, 2, 3, 8}
    assert cpu_numbers("") == frozenset()
