"""Every test may use rank processes; GPU twins of a test are parameters of it and skip with a reason where none is."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import pytest
import ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


os.environ["PCIE_ALLREDUCE_TUNED"] = "0"  # what was tuned on this machine must not decide what a test sees
os.environ["PCIE_ALLREDUCE_PROBE"] = "0"  # nor what was probed, and hundreds of communicators need no probe each


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs at least one NVIDIA GPU; skipped elsewhere")
    spec = importlib.util.find_spec("pcie_allreduce")
    if spec is None or importlib.util.find_spec("pcie_allreduce._C") is None:
        where = "not installed" if spec is None else f"found without its compiled module in {spec.origin}"
        raise pytest.UsageError(
            f"pcie_allreduce is {where}: install it (pip install '.[test]'), and run `pytest`, not `python -m pytest`, "
            "which would put the sources of the checkout before the installed package"
        )


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _rank_processes() -> Iterator[None]:
    yield
    ranks.close_pool()
