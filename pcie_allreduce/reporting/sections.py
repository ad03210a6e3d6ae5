"""What the page is made of. A command leaves NAME.txt, NAME.json and NAME.svg in the folder; what is there is not run
again, so that a command of a person's own choice can take the place of the standard one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

LIMIT = 900.0  # seconds that a command may take
QUICK = {"bench": ("--repeats", "1", "--sizes", "14336,43008"), "verify-cycle": ("--repeats", "1", "--rows", "1,3")}


@dataclass(frozen=True)
class Section:
    """`draws`: takes --plot; `ranks`: takes --device and --ranks."""

    name: str
    title: str
    draws: bool = True
    ranks: bool = True


SECTIONS = (
    Section("doctor", "What kernel, driver and environment say", draws=False, ranks=False),
    Section("probe", "What goes over the links, and how ranks should meet"),
    Section("bench", "All-reduces, timed and checked"),
    Section("verify-cycle", "What they are worth in a verify pass"),
)


@dataclass(frozen=True)
class Options:
    device: str = "auto"
    ranks: int | None = None
    quick: bool = False


def words(section: Section, options: Options, folder: Path) -> list[str]:
    """The command line behind `pcie-allreduce`."""
    found = [section.name, "--json", str(folder / f"{section.name}.json")]
    if section.draws and find_spec("matplotlib") is not None:
        found += ["--plot", str(folder / f"{section.name}.svg")]
    if section.ranks:
        found += ["--device", options.device]
        found += [] if options.ranks is None else ["--ranks", str(options.ranks)]
    return [*found, *(QUICK.get(section.name, ()) if options.quick else ())]


def run_sections(folder: Path, options: Options, say: Callable[[str], None]) -> None:
    """Runs what is not there yet, one after the other."""
    for section in SECTIONS:
        text = folder / f"{section.name}.txt"
        if text.exists():
            say(f"{section.name}: {text} is there already")
            continue
        say(f"{section.name}: running")
        text.write_text(output_of(words(section, options, folder), folder))


def output_of(command: Sequence[str], folder: Path) -> str:
    """What a command prints, behind its own line; its complaints too, where it does not end with 0."""
    line = "$ pcie-allreduce " + " ".join(command).replace(f"{folder}{os.sep}", "")
    variables = {**os.environ, "COLUMNS": "120", "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pcie_allreduce", *command],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env=variables,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{line}\nended after {LIMIT:.0f} s\n"
    complaints = f"{done.stderr}exit code {done.returncode}\n" if done.returncode else ""
    return f"{line}\n{done.stdout}{complaints}"
