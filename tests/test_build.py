"""Which build one gets. A GPU machine must not end up with a CPU build in silence, and that needs no GPU to check."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from find_nvcc import ASKED_FOR_CPU, NO_NVCC, NOTHING_HERE, Choice, choose

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Variables with which neither nvcc nor a driver is found: an empty CUDA_HOME, a PATH of one empty folder."""
    return {"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path), "PCIE_ALLREDUCE_ASSUME_DRIVER": "0"}


def program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_driver_without_nvcc_is_an_error(bare: dict[str, str]) -> None:
    assert choose({**bare, "PCIE_ALLREDUCE_ASSUME_DRIVER": "1"}, []) == Choice(error=NO_NVCC)


def test_the_error_is_one_sentence_that_names_both_remedies() -> None:
    assert NO_NVCC.startswith("This machine has an NVIDIA driver but no nvcc ")
    assert "pip install '.[cuda-build]'" in NO_NVCC
    assert "PCIE_ALLREDUCE_CPU_ONLY=1" in NO_NVCC
    assert "\n" not in NO_NVCC


@pytest.mark.parametrize("driver", ["0", "1"])
def test_cpu_only_overrides_driver_and_nvcc(bare: dict[str, str], tmp_path: Path, driver: str) -> None:
    program(tmp_path / "bin" / "nvcc")
    env = {**bare, "PCIE_ALLREDUCE_ASSUME_DRIVER": driver, "PCIE_ALLREDUCE_CPU_ONLY": "1"}
    assert choose(env, []) == Choice(cpu_only=ASKED_FOR_CPU)


def test_neither_driver_nor_nvcc_is_a_cpu_build_that_knows_why(bare: dict[str, str]) -> None:
    assert choose(bare, []) == Choice(cpu_only=NOTHING_HERE)


def test_nvcc_is_used_where_there_is_no_driver(bare: dict[str, str], tmp_path: Path) -> None:
    nvcc = program(tmp_path / "bin" / "nvcc")
    assert choose(bare, []) == Choice(nvcc=nvcc)


def test_nvcc_is_looked_for_in_cudacxx_path_cuda_home_and_pypi(bare: dict[str, str], tmp_path: Path) -> None:
    packages = [tmp_path / "site-packages"]
    wheel = program(packages[0] / "nvidia" / "cu13" / "bin" / "nvcc")
    assert choose(bare, packages).nvcc == wheel
    home = program(tmp_path / "home" / "bin" / "nvcc")
    assert choose({**bare, "CUDA_HOME": str(tmp_path / "home")}, packages).nvcc == home
    path = program(tmp_path / "bin" / "nvcc")
    assert choose({**bare, "CUDA_HOME": str(tmp_path / "home")}, packages).nvcc == path
    named = program(tmp_path / "named")
    assert choose({**bare, "CUDACXX": str(named)}, packages).nvcc == named


def test_cudacxx_that_cannot_run_is_an_error(bare: dict[str, str]) -> None:
    choice = choose({**bare, "CUDACXX": "/nowhere/nvcc"}, [])
    assert choice == Choice(error="CUDACXX is /nowhere/nvcc, which is not a program that can be run.")


@pytest.mark.parametrize("command", ["bdist_wheel", "editable_wheel"])
def test_pip_ends_with_the_sentence_alone(command: str) -> None:
    env = {**os.environ, "PCIE_ALLREDUCE_CPU_ONLY": "", "CUDACXX": "/nowhere/nvcc"}
    pytest.importorskip("scikit_build_core")
    done = subprocess.run([sys.executable, "setup.py", command], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "CUDACXX is /nowhere/nvcc, which is not a program that can be run.\n"


def test_cmake_without_gpu_code(tmp_path: Path) -> None:
    done = configure(tmp_path, PCIE_ALLREDUCE_CPU_ONLY="1", PCIE_ALLREDUCE_NO_DEADLINE="1")
    assert f"GPU code: none ({ASKED_FOR_CPU})" in done.stdout
    rules = (tmp_path / "build.ninja").read_text()
    assert "PCIE_ALLREDUCE_WITH_CUDA" not in rules
    assert "-DPCIE_ALLREDUCE_NO_DEADLINE=1" in rules
    configure(tmp_path, PCIE_ALLREDUCE_CPU_ONLY="1")
    assert "-DPCIE_ALLREDUCE_NO_DEADLINE=1" not in (tmp_path / "build.ninja").read_text()


@pytest.mark.parametrize(
    ("archs", "sentence"),
    [
        ("90;120", "cannot compile for sm_120 (sm_100 and sm_120 need CUDA 12.8 or newer)"),
        ("sm_90", 'PCIE_ALLREDUCE_CUDA_ARCHS holds "sm_90"; it takes numbers like "80;120".'),
    ],
)
def test_cmake_refuses_architectures_that_cannot_be(tmp_path: Path, archs: str, sentence: str) -> None:
    old = program(tmp_path / "nvcc", "echo sm_80; echo sm_90")
    done = configure(tmp_path / "build", CUDACXX=str(old), PCIE_ALLREDUCE_CUDA_ARCHS=archs)
    assert done.returncode != 0
    assert sentence in done.stderr


def configure(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    pybind11 = pytest.importorskip("pybind11")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PCIE_ALLREDUCE")}
    python = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
    command = [cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), *python]
    return subprocess.run(command, env={**env, **variables}, capture_output=True, text=True, timeout=120, check=False)
