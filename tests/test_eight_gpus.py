"""The script that owners of several GPUs run: here, that it says what it needs and leaves nothing behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "eight_gpus.sh"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the tests run without the repository around them")


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, folder], capture_output=True, text=True, timeout=120)


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
