"""Published versions of SGLang: which is the newest, the sources of one, and one that can be run. All by pip, and into
a folder that is no part of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

# Wheels for the Python and the platform that SGLang is made for, wherever this runs.
PLACE = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_34_x86_64", "--platform=any"]
# What SGLang, and transformers of that time, ask for by version, and what others cannot take the place of.
OF_ITS_OWN = {"sglang": ("transformers",), "transformers": ("huggingface-hub", "tokenizers")}
BELOW = ("httpx", "httpcore")  # which that huggingface-hub imports


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
        install = (python, "install", "--no-deps", "--upgrade", f"--target={folder}")
        _pip(*install, f"sglang=={version}")
        pins = _asked_for("sglang", folder)
        if pins and not pins[0].startswith("transformers==4."):  # 0.5.9 runs on the later one
            _pip(*install, *pins)
            _pip(*install, *_asked_for("transformers", folder), *BELOW)
            _say_torchvision_is_there(folder)
        (folder / "ready").touch()
    return folder


def _asked_for(name: str, folder: Path) -> list[str]:
    """What a distribution in the folder asks for, of what it is to have of its own."""
    found = next(iter(distributions(name=name, path=[str(folder)])))
    asked = [line.split(";")[0].strip() for line in found.requires or () if "extra ==" not in line]
    return [line for line in asked if re.split(r"[^\w-]", line)[0] in OF_ITS_OWN[name]]


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
