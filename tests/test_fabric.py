"""The fabric is a checker, and a checker that finds nothing proves nothing: here it must find what was planted.

`make fabric`, a part of `make test`, builds the program and runs it over many schedules; without it these tests are
skipped.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

FABRIC = Path(__file__).parents[1] / "build" / "native" / "fabric"

pytestmark = pytest.mark.skipif(not FABRIC.exists(), reason=f"{FABRIC} is not built (make fabric builds it)")


def fabric(**given: object) -> subprocess.CompletedProcess[str]:
    words = [f"{key}={value}" for key, value in given.items()]
    return subprocess.run([FABRIC, *words], capture_output=True, text=True, timeout=280, check=False)


def test_every_planted_fault_is_found() -> None:
    names = [line.split()[0] for line in fabric(FAULT="list").stdout.splitlines()]
    assert len(names) > 20
    run = fabric(FAULT="all", SCHEDULES=500)
    rows = dict(re.findall(r"^\| `(\w+)`: .* \| (\d+|not within \d+) \|", run.stdout, re.MULTILINE))
    assert list(rows) == names
    missed = [name for name, seeds in rows.items() if not seeds.isdigit()]
    assert not missed, run.stdout
    assert run.returncode == 0, run.stdout
    assert run.stdout.splitlines()[-1].endswith(" violations=0"), "the models without their faults must be clean"


def test_a_fault_is_shrunk_told_and_replayed() -> None:
    first = fabric(FAULT="one_word_ready", SCHEDULES=20)
    assert first.returncode == 1
    shrunk = re.search(r"^shrunk to 2 ranks, 1 call, .*: wrong sum", first.stdout, re.MULTILINE)
    assert shrunk, first.stdout
    assert re.search(r"^  t=\d+  r\d\.b0\.t0 of call 0 puts .* -> mailbox of rank ", first.stdout, re.MULTILINE)
    assert re.search(r"^  t=\d+  r\d\.b0\.t0 of call 0 sees .*EMPTY.* from the first fill", first.stdout, re.MULTILINE)
    again = re.search(r"^again: make fabric (.*)$", first.stdout, re.MULTILINE)
    assert again
    given = dict(word.split("=") for word in again[1].split())
    second = fabric(**given)
    assert second.returncode == 1
    assert shrunk[0] in second.stdout, "the seed alone must give the same schedule"
    assert second.stdout == fabric(**given).stdout


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("SCHEDULES=many", "SCHEDULES=many is not a number"),
        ("FAULT=no_such", "there is no fault no_such"),
        ("ALGORITHM=ring", "there is no algorithm ring"),
        ("SPEED=9", "SPEED means nothing here"),
        ("--help", "--help is not KEY=value"),
    ],
)
def test_bad_arguments_are_told(word: str, message: str) -> None:
    run = subprocess.run([FABRIC, word], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert message in run.stderr
