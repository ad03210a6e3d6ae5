"""Published versions of SGLang: which is the newest, the sources of one, and one that can be run. All by pip, and into
a folder that is no part of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

# Wheels for the Python and the platform that SGLang is made for, wherever this runs.
PLACE = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_34_x86_64", "--platform=any"]
BESIDE = ("transformers",)  # pinned by a version of SGLang so that another cannot take its place
OF_THOSE = [
    "huggingface-hub<2",
    "tokenizers>=0.22,<=0.23.0",
    "httpx",
    "httpcore",
]  # what they, in turn, need of another


def newest() -> str:
    told = _pip(sys.executable, "index", "versions", "sglang", *PLACE)
    found = re.match(r"sglang \(([^)]+)\)", told)
    if found is None:
        raise RuntimeError(f"pip does not say which SGLang is the newest: {told[:200]}")
    return found[1]


def sources(version: str, cache: Path) -> Path:
    """The folder with the version's Python files; they are fetched if they are not there."""
    folder = cache / version
    if not (folder / "sglang").is_dir():
        _pip(sys.executable, "download", "--no-deps", f"--dest={cache}", *PLACE, f"sglang=={version}")
        (wheel,) = cache.glob(f"sglang-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            wanted = [name for name in names if name.startswith("sglang/") and name.endswith(".py")]
            archive.extractall(folder, wanted)
        wheel.unlink()
    return folder


def unpack(version: str, folder: Path, python: str) -> Path:
    """Puts a version into a folder, in which it runs on what the environment of `python` has besides."""
    if not (folder / "ready").exists():
        _pip(python, "install", "--no-deps", f"--target={folder}", f"sglang=={version}")
        pins = _pins(next(iter(distributions(name="sglang", path=[str(folder)]))))
        if pins:
            _pip(python, "install", "--no-deps", "--upgrade", f"--target={folder}", *pins, *OF_THOSE)
            _say_torchvision_is_there(folder)
        (folder / "ready").touch()
    return folder


def _pins(found: Distribution) -> list[str]:
    """Of those that cannot be shared, the version that it asks for. 0.5.9 runs on the later one of transformers."""
    wanted = [line.split(";")[0].strip() for line in found.requires or ()]
    pins = [line for line in wanted if re.fullmatch(rf"({'|'.join(BESIDE)})==\S+", line)]
    return [pin for pin in pins if not pin.startswith("transformers==4.")]


def _say_torchvision_is_there(folder: Path) -> None:
    """As tests/sglang/stubs/sitecustomize.py asks."""
    note = folder / "torchvision-0.99.0.dist-info"
    note.mkdir(exist_ok=True)
    (note / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.99.0\n")
    (note / "top_level.txt").write_text("torchvision\n")


def _pip(python: str, *arguments: str) -> str:
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout
