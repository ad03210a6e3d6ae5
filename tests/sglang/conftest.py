"""Tests of what stands between SGLang and this package. Those that need SGLang skip where it is not installed
(`make test-sglang` makes an environment that has it); the adapter's own run everywhere."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

# Not by the folder's name, as pytest's pythonpath would have it: here that is the engine's.
sys.path.append(str(Path(__file__).parent))
import launch
import routing
import tiny_models

NEW = "0.5.23"
OLD = "0.5.9"  # unpacked into a folder; it shares all else with NEW


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


@pytest.fixture(scope="session", params=list(dict.fromkeys([NEW, OLD, *launch.folders()])))
def installed(request: pytest.FixtureRequest) -> launch.Installed:
    """The version that is installed, the old one, and what else was unpacked."""
    if request.param == NEW:
        spec = find_spec("sglang")
        assert spec is not None and spec.submodule_search_locations
        return launch.Installed(NEW, Path(spec.submodule_search_locations[0]).parent, {})
    if request.param not in launch.folders():
        pytest.skip(f"SGLang {request.param} is not here; make test-sglang unpacks it and names it in SGLANG_FOLDERS")
    folder = launch.folders()[request.param]
    return launch.Installed(request.param, Path(folder), launch.old_environment(folder))


@pytest.fixture(scope="session")
def old_sglang() -> str:
    if OLD not in launch.folders():
        pytest.skip(f"SGLang {OLD} is not here; make test-sglang unpacks it and names its folder in SGLANG_FOLDERS")
    return launch.folders()[OLD]


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_target(tmp_path_factory.mktemp("models") / "two_layers", layers=2, gain=1.7)


@pytest.fixture(scope="session")
def twelve_layers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_target(tmp_path_factory.mktemp("models") / "twelve_layers", layers=12, gain=0.65)


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_draft(tmp_path_factory.mktemp("models") / "draft")


@pytest.fixture(scope="session")
def results(installed: launch.Installed, two_layers: str) -> routing.Results:
    limit = {"PCIE_ALLREDUCE_MAX_BYTES": str(routing.LIMIT)}
    return launch.results("routing_ranks.py", {**installed.variables, **limit}, two_layers)
