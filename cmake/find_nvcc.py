"""Whether to compile GPU code, and with which nvcc.

A machine with an NVIDIA driver must never end up with a CPU-only build that nobody asked for: the all-reduce would run,
slowly, on the wrong processor. So a driver without nvcc is an error, and only an explicit wish makes it a CPU build.
CMake and make both run this file; it needs the standard library alone.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

NO_NVCC = (
    "This machine has an NVIDIA driver but no nvcc (looked in CUDACXX, PATH, CUDA_HOME and PyPI's nvidia-cuda-nvcc), "
    "so GPU code cannot be compiled: get nvcc from PyPI with `PCIE_ALLREDUCE_CPU_ONLY=1 pip install '.[cuda-build]'` "
    "and then repeat this build, or set PCIE_ALLREDUCE_CPU_ONLY=1 to build for CPU ranks alone."
)
ASKED_FOR_CPU = "PCIE_ALLREDUCE_CPU_ONLY was set at build time"
NOTHING_HERE = "the machine that built it had neither nvcc nor an NVIDIA driver"


@dataclass(frozen=True)
class Choice:
    """At most one is set: the compiler, why the build is for CPU ranks alone, or why it cannot go on."""

    nvcc: Path | None = None
    cpu_only: str = ""
    error: str = ""


def choose(env: Mapping[str, str], packages: list[Path]) -> Choice:
    """`packages`: folders in which pip installs."""
    if is_on(env.get("PCIE_ALLREDUCE_CPU_ONLY", "")):
        return Choice(cpu_only=ASKED_FOR_CPU)
    named = env.get("CUDACXX", "")
    if named and not shutil.which(named, path=env.get("PATH", "")):
        return Choice(error=f"CUDACXX is {named}, which is not a program that can be run.")
    nvcc = next(candidates(env, packages), None)
    if nvcc:
        return Choice(nvcc=nvcc)
    return Choice(error=NO_NVCC) if has_driver(env) else Choice(cpu_only=NOTHING_HERE)


def candidates(env: Mapping[str, str], packages: list[Path]) -> Iterator[Path]:
    path = env.get("PATH", "")
    home = Path(env.get("CUDA_HOME") or env.get("CUDA_PATH") or "/usr/local/cuda")
    wheels = [toolkit / "bin" / "nvcc" for folder in packages for toolkit in sorted(folder.glob("nvidia/cu[0-9]*"))]
    for name in (env.get("CUDACXX", ""), "nvcc", str(home / "bin" / "nvcc"), *map(str, wheels)):
        found = shutil.which(name, path=path) if name else None
        if found:
            yield Path(found).absolute()


def has_driver(env: Mapping[str, str]) -> bool:
    """PCIE_ALLREDUCE_ASSUME_DRIVER (0 or 1) answers instead of the machine, where one builds for another."""
    assumed = env.get("PCIE_ALLREDUCE_ASSUME_DRIVER", "")
    if assumed:
        return is_on(assumed)
    if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi", path=env.get("PATH", "")):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "off", "no", "false")


def package_folders() -> list[Path]:
    """Where this interpreter imports from, and where it installs: pip's isolated builds hide the second."""
    folders = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return [Path(folder) for folder in dict.fromkeys(folders) if folder]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", action="store_true", help="only print 1 or 0: is there an NVIDIA driver?")
    if parser.parse_args().driver:
        print(int(has_driver(os.environ)))
        return 0
    choice = choose(os.environ, package_folders())
    print(choice.nvcc or "")
    print(choice.error or choice.cpu_only, file=sys.stderr)
    return 1 if choice.error else 0


if __name__ == "__main__":
    sys.exit(main())
