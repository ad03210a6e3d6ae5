"""Tests of what stands between SGLang and this package. Those that need SGLang skip where it is not installed
(`make test-sglang` makes an environment that has it); the adapter's own run everywhere."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

# Not by the folder's name, as pytest's pythonpath would have it: here that is the engine's.
sys.path.append(str(Path(__file__).parent))
import tiny_models

NEW = "0.5.23"
OLD_FOLDER = "SGLANG_059"  # names the folder into which 0.5.9 was unpacked; it shares all else with 0.5.23


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sglang: needs an environment with SGLang; skipped elsewhere")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        if version("sglang") == NEW:
            return
    except PackageNotFoundError:
        pass
    skip = pytest.mark.skip(reason=f"SGLang {NEW} is not installed here; make test-sglang makes an environment with it")
    for item in items:
        if item.get_closest_marker("sglang") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def old_sglang() -> str:
    folder = os.environ.get(OLD_FOLDER, "")
    if not folder:
        pytest.skip(f"SGLang 0.5.9 is not here; make test-sglang unpacks it and names its folder in {OLD_FOLDER}")
    return folder


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_target(tmp_path_factory.mktemp("models") / "two_layers", layers=2, gain=1.7)


@pytest.fixture(scope="session")
def twelve_layers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_target(tmp_path_factory.mktemp("models") / "twelve_layers", layers=12, gain=0.65)


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_draft(tmp_path_factory.mktemp("models") / "draft")
