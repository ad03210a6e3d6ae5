"""The script that owners of several GPUs run: here, that it says what it needs and leaves nothing behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "eight_gpus.sh"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the tests run without the repository around them")


def run(folder: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, folder, *parts], capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="there are GPUs here")
def test_without_gpus_it_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    done = run(tmp_path / "out")
    assert done.returncode == 2
    assert "two GPUs at least are needed; torch sees " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_not_written_to(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs at least are needed")
def test_a_part_that_does_not_exist_is_an_error_and_the_others_are_run(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "info", "sock")
    assert done.returncode == 1
    assert "no part is called sock; there are topology info " in done.stderr
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["info.txt", "summary.txt"]
