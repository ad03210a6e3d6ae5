"""What a dotted path names is found in sources as an import would find it."""

from __future__ import annotations

from pathlib import Path

import pytest
from engines import miniature
from engines.source import Tree

FILES = {
    "engine/__init__.py": "from engine.state import *\n",
    "engine/state.py": "LIMIT = 3\n\ndef reduce(x, *, out=None): ...\n",
    "engine/layers.py": "from engine import reduce\nfrom engine.state import LIMIT, missing\n"
    "class Norm:\n    def __init__(self, size): ...\n    @staticmethod\n    def of(other): ...\n"
    "class Owed:\n    partial: int\n    group: int = 0\n",
}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("engine.state.LIMIT",), None),
        (("engine.layers.LIMIT",), None),  # from where it is imported
        (("engine.reduce", "x", "out"), None),  # with all others
        (("engine.layers.reduce", "x"), None),  # and from there
        (("engine.reduce", "y"), "has a engine.reduce that takes no y"),
        (("engine.layers.Norm", "size"), None),
        (("engine.layers.Norm.of", "other"), None),
        (("engine.layers.Norm.to",), "has no engine.layers.Norm.to"),
        (("engine.layers.Owed", "partial", "group"), None),
        (("engine.layers.Owed", "sum"), "has a engine.layers.Owed that takes no sum"),
        (("engine.layers.missing",), "has no engine.layers.missing"),
        (("engine.other.Norm",), "has no engine.other.Norm"),
        (("no_engine.Norm",), "has no no_engine.Norm"),
    ],
)
def test_paths(asked: tuple[str, ...], told: str | None, tmp_path: Path) -> None:
    assert Tree(miniature.write(tmp_path, FILES)).lacks(*asked) == told
