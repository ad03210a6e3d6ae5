"""vLLM itself cannot be installed for these tests: its wheel is for CUDA alone. So its published files are read, its
communication layer is run by itself, and the rest is driven through a stand-in of its shape."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from published import Published

version_of = functools.cache(Published)


@pytest.fixture
def published(request: pytest.FixtureRequest) -> Published:
    """The files of the version that the test is parametrized with; skips where they cannot be had."""
    return version_of(request.param)
