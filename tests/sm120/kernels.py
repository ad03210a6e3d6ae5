"""The compiled kernels of the installed module, or of a cubin: code as nvdisasm reads it, resources as cuobjdump tells.

Both tools come from PyPI, so that the code can be checked where there is no CUDA installation.
"""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from find_nvcc import package_folders
from sm120.sass import Kernel, read_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ELEMENTS = {"7Float32": "float32", "8IeeeHalf": "float16", "9BrainHalf": "bfloat16"}
SHARES = ("one pack", "packs", "elements")  # what a lane has to do at most, as csrc/cuda/launch.h counts them
# Of a function in an anonymous namespace: run_<algorithm><Element, ranks, share>, and of a fused one whether it has
# clusters, as the compiler spells it. Where owners are fused, it is always for lanes of one pack, in clusters.
MANGLED = re.compile(
    r"run_([a-z_]+?)I\w*?(7Float32|8IeeeHalf|9BrainHalf)E*Li(\d)E(?:L\w*?5ShareE([012])E(?:Lb([01])E)?|E)"
)
USAGE = re.compile(
    r"Function (?P<name>\S+?):\s+REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:\d+ LOCAL:(?P<local>\d+)"
)


@dataclass(frozen=True)
class Variant:
    algorithm: str
    dtype: str
    world: int
    share: str
    clustered: bool = False  # of a fused kernel: blocks of a cluster share rows

    @property
    def fused(self) -> bool:
        return self.algorithm.startswith("fused")

    def __str__(self) -> str:
        return f"{self.algorithm} {self.dtype} x{self.world} {self.share}{' clustered' if self.clustered else ''}"


@dataclass(frozen=True)
class Compiled:
    kernel: Kernel
    registers: int
    stack: int  # bytes a thread, as is `local`
    local: int


def tool(name: str) -> Path | None:
    wheels = [folder / "nvidia" for folder in package_folders()]
    found = [program for wheel in wheels for program in sorted(wheel.glob(f"cu1*/bin/{name}"))]
    return found[0] if found else None


def run(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def extract(module: Path, folder: Path) -> list[Path]:
    """SM120's cubins of a module, written into `folder`. Empty where it has none."""
    cuobjdump = tool("cuobjdump")
    assert cuobjdump is not None
    run([cuobjdump, "-xelf", "sm_120", module], folder)
    return sorted(folder.glob("*.sm_120.cubin"))


def read(cubins: list[Path], folder: Path) -> dict[str, Compiled]:
    """By mangled name."""
    with ThreadPoolExecutor() as pool:
        return {name: kernel for part in pool.map(lambda cubin: _read(cubin, folder), cubins) for name, kernel in part}


def _read(cubin: Path, folder: Path) -> list[tuple[str, Compiled]]:
    cuobjdump, nvdisasm = tool("cuobjdump"), tool("nvdisasm")
    assert cuobjdump is not None
    assert nvdisasm is not None
    usage = {found["name"]: found for found in USAGE.finditer(run([cuobjdump, "-res-usage", cubin], folder))}
    code = read_kernels(run([nvdisasm, "-c", cubin], folder))
    return [(name, _compiled(kernel, usage[name])) for name, kernel in code.items()]


def _compiled(kernel: Kernel, usage: re.Match[str]) -> Compiled:
    return Compiled(kernel, int(usage["registers"]), int(usage["stack"]), int(usage["local"]))


def variant_of(mangled: str) -> Variant | None:
    """None for a kernel that is no all-reduce."""
    found = MANGLED.search(mangled)
    if found is None:
        return None
    algorithm, element, ranks, share, clustered = found.groups()
    world = int(ranks) * (2 if algorithm.endswith("island") else 1)  # island's parameter is half the ranks
    return Variant(algorithm, ELEMENTS[element], world, SHARES[int(share or 0)], share is None or clustered == "1")


def by_variant(compiled: dict[str, Compiled]) -> dict[Variant, Compiled]:
    variants = {variant_of(name): kernel for name, kernel in compiled.items()}
    return {variant: kernel for variant, kernel in variants.items() if variant is not None}


def compile_cubin(nvcc: Path, source: Path, include: Path, cubin: Path, *flags: str) -> Path:
    """For SM120, with the flags that CMake passes for a release."""
    release = ["-std=c++20", "-O3", "-DNDEBUG", *flags]
    run([nvcc, *release, "-I", include, "-arch=sm_120", "-cubin", "-o", cubin, source], cubin.parent)
    return cubin
