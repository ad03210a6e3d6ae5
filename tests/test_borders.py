"""Borders between the layers, read from the sources: what a file may include or import is decided by where it lies."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "pcie_allreduce"
NATIVE = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"}
SKIPPED = {".git", "build", "dist", ".venv", "venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
ASM = re.compile(r"\b(?:asm|__asm|__asm__)\b")
TORCH_HEADER = re.compile(r"^(?:torch/|ATen/|c10/|caffe2/)")
CUDA_HEADER = re.compile(r"^(?:cuda|nv|cooperative_groups)")
PYTHON_HEADER = re.compile(r"^(?:Python\.h|pybind11/|nanobind/)")
# In two parts, so that this file does not contain what it looks for.
WORKPLACE = re.compile(r"(?<![\w./-])/(?:wor" r"k|tmp/tea" r"m)\b(?!-)")
ENGINES = {"sglang", "vllm"}


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def includes(text: str, forbidden: re.Pattern[str]) -> list[str]:
    return [header for header in INCLUDE.findall(without_comments(text)) if forbidden.search(header)]


def inline_assembly(text: str) -> list[str]:
    return ASM.findall(re.sub(r'"(?:\\.|[^"\\\n])*"', '""', without_comments(text)))


def imported(text: str) -> set[str]:
    """Top-level names of every import, wherever in the file it stands; relative ones as the package's."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add("pcie_allreduce" if node.level else (node.module or "").split(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            names.update(
                str(arg.value).split(".")[0] for arg in node.args if isinstance(arg, ast.Constant) and arg.value
            )
    return names


def offenders(files: Iterable[Path], find: Callable[[str], Iterable[str]]) -> list[str]:
    found = []
    for file in files:
        found += [f"{file.relative_to(ROOT)}: {hit}" for hit in sorted(set(find(file.read_text(errors="replace"))))]
    return found


def native(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in NATIVE)


def python(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def repository() -> list[Path]:
    """The files of the repository: as git tells, or all but build products where there is no git."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    files = (ROOT / name for name in listed if name)
    return sorted(file for file in files if file.is_file() and not SKIPPED & set(file.relative_to(ROOT).parts))


needs_sources = pytest.mark.skipif(not CSRC.is_dir(), reason="the tests run without the repository around them")


@needs_sources
def test_no_torch_header_in_native_code() -> None:
    assert native(CSRC)
    assert offenders(native(CSRC), lambda text: includes(text, TORCH_HEADER)) == []


@needs_sources
def test_assembly_stands_in_one_file() -> None:
    files = [file for file in native(CSRC) if file != CSRC / "cuda" / "ptx.cuh"]
    assert offenders(files, inline_assembly) == []


@needs_sources
@pytest.mark.parametrize("header", [TORCH_HEADER, CUDA_HEADER, PYTHON_HEADER], ids=["torch", "cuda", "python"])
def test_the_protocol_knows_no_machine(header: re.Pattern[str]) -> None:
    assert native(CSRC / "protocol")
    assert offenders(native(CSRC / "protocol"), lambda text: includes(text, header)) == []
    deeper = re.compile(r"^(?:cuda/|host/|fabric/)")
    assert offenders(native(CSRC / "protocol"), lambda text: includes(text, deeper)) == []


@needs_sources
def test_python_headers_stand_in_the_bindings_alone() -> None:
    files = [file for file in native(CSRC) if file != CSRC / "bindings.cpp"]
    assert offenders(files, lambda text: includes(text, PYTHON_HEADER)) == []


@needs_sources
def test_engines_are_imported_by_integrations_alone() -> None:
    files = [file for file in python(PACKAGE) if "integrations" not in file.relative_to(PACKAGE).parts]
    assert files
    assert offenders(files, lambda text: imported(text) & ENGINES) == []


@needs_sources
def test_the_plan_is_pure() -> None:
    files = [file for file in (PACKAGE / "plan.py",) if file.exists()]
    if not files:
        pytest.skip("there is no plan.py yet")
    assert offenders(files, lambda text: imported(text) & {"pcie_allreduce", "torch"}) == []


@needs_sources
def test_the_repository_stands_alone() -> None:
    """No path of a machine on which it was written."""
    files = repository()
    assert ROOT / "setup.py" in files
    assert offenders(files, lambda text: WORKPLACE.findall(text)) == []


def test_the_searches_find_what_they_look_for() -> None:
    planted = (
        '#include <torch/extension.h>\n  # include "cuda_runtime.h"\n#include <Python.h>\n#include "host/machine.h"\n'
    )
    assert includes(planted, TORCH_HEADER) == ["torch/extension.h"]
    assert includes(planted, CUDA_HEADER) == ["cuda_runtime.h"]
    assert includes(planted, PYTHON_HEADER) == ["Python.h"]
    assert includes("// #include <torch/extension.h>\n/* #include <ATen/ATen.h> */", TORCH_HEADER) == []
    assert inline_assembly('void f() { asm volatile("nop;"); } // asm') == ["asm"]
    assert inline_assembly('const char* text = "asm"; int chasm;') == []
    engine = "def f():\n    from sglang.srt import x\n    import importlib; importlib.import_module('vllm.core')\n"
    assert imported(engine) & ENGINES == ENGINES
    assert imported("# import sglang\ntext = 'import vllm'\nimport torch") == {"torch"}
    assert imported("from . import _C\nfrom .plan import Plan") == {"pcie_allreduce"}
    work, team = "/wor" + "k", "/tmp/tea" + "m"
    assert WORKPLACE.findall(f"see {work}/main/x, '{work}' and {team}/y") == [work, work, team]
    assert WORKPLACE.findall(f"network/main, docs{work}/x, {work}ing, {team}s, at work/") == []


IMPORT_PROBE = """
import os, sys, threading
import torch
threads = len(os.listdir("/proc/self/task"))
import pcie_allreduce
assert len(os.listdir("/proc/self/task")) == threads, "a thread was started"
assert threading.active_count() == 1, threading.enumerate()
assert not open(f"/proc/self/task/{os.getpid()}/children").read().split(), "a process was started"
assert not torch.cuda.is_initialized(), "CUDA was initialised"
maps = open("/proc/self/maps").read()
assert "pcie_allreduce-" not in maps, "shared memory was mapped"
assert not torch.distributed.is_initialized()
engines = {"sglang", "vllm"} & set(sys.modules)
assert not engines, engines
assert not any(name.startswith("pcie_allreduce.integrations") for name in sys.modules)
print("quiet")
"""


def test_importing_starts_nothing() -> None:
    command = [sys.executable, "-c", IMPORT_PROBE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("quiet"), done.stderr
