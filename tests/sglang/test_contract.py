"""The versions that are here are as docs/engines.md says: what the contracts find in their sources was recorded."""

from __future__ import annotations

import launch
import pytest
from engines import record

pytestmark = pytest.mark.sglang


def test_the_contracts_say_what_was_recorded(installed: launch.Installed) -> None:
    """After a change of SGLang's version, or of a contract, `python tests/engines_matrix.py` writes the record anew."""
    recorded = record.read()["versions"][installed.version]
    found = record.contracts(installed.folder)
    assert found["seams"] == recorded["seams"]
    assert found["groups"] == recorded["groups"]
