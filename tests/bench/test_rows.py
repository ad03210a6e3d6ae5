"""The document that later readers rely on: these keys, these words, whole files only."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest
from bench.documents import FLOOR, NCCL, OURS, document

from pcie_allreduce.bench.rows import Document, Row

if TYPE_CHECKING:
    from pathlib import Path

KEYS = ["backend", "transport", "algorithm", "world", "gpus", "dtype", "bytes", "mode", "us_median", "us_min", "us_max"]
KEYS += ["replays", "repeats", "exact", "identical", "correctly_rounded", "fused", "rows", "hidden"]


def test_a_row_has_these_keys_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    document(OURS, FLOOR).write(path)
    data = json.loads(path.read_text())
    assert list(data) == ["environment", "rows"]
    assert [list(row) for row in data["rows"]] == [KEYS, KEYS]
    assert data["rows"][1]["exact"] is None
    assert list(path.parent.iterdir()) == [path]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    written = document(OURS, NCCL, FLOOR)
    written.write(path)
    assert Document.read(path) == written


@pytest.mark.parametrize(
    ("key", "word"), [("transport", "nvlink"), ("algorithm", "auto"), ("mode", "lazy"), ("dtype", "int8")]
)
def test_words_outside_the_vocabulary_are_refused(key: str, word: str) -> None:
    with pytest.raises(ValueError, match=f"{key} '{word}'"):
        replace(OURS, **{key: word})


@pytest.mark.parametrize("change", [{"us_median": None}, {"more": 1}])
def test_a_file_of_another_shape_is_refused_by_name(tmp_path: Path, change: dict[str, int | None]) -> None:
    path = tmp_path / "x.json"
    row = {**asdict(OURS), **change}
    path.write_text(json.dumps({"environment": {}, "rows": [{k: v for k, v in row.items() if v is not None}]}))
    with pytest.raises(ValueError, match=r"x\.json is not a benchmark result"):
        Document.read(path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    document(OURS).write(path)
    before = path.read_text()
    with pytest.raises(TypeError):
        Document({"bad": object()}, [Row(**asdict(OURS))]).write(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
