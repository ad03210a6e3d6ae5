from __future__ import annotations

import os
from pathlib import Path

import pytest
from find_nvcc import candidates, package_folders
from sm120 import kernels
from sm120.kernels import Compiled, Variant

from pcie_allreduce import _C


@pytest.fixture(scope="session")
def disassembler() -> None:
    for name in ("cuobjdump", "nvdisasm"):
        if kernels.tool(name) is None:
            pytest.skip(f"there is no {name} here: pip install '.[test]' brings nvidia-cuda-{name}")


@pytest.fixture(scope="session")
def installed(disassembler: None, tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Compiled]:
    """Every all-reduce kernel of the installed module, as compiled for SM120."""
    build = _C.build_info()
    if not build["cuda"]:
        pytest.skip("the installed module was built for CPU ranks alone")
    if 120 not in build["cuda_archs"]:
        pytest.skip(f"the installed module was built for {build['cuda_archs']}, without 120")
    folder = tmp_path_factory.mktemp("sm120")
    return kernels.by_variant(kernels.read(kernels.extract(Path(_C.__file__), folder), folder))


@pytest.fixture(scope="session")
def nvcc() -> Path:
    found = next(candidates(os.environ, package_folders()), None)
    if found is None:
        pytest.skip("there is no nvcc here")
    return found
