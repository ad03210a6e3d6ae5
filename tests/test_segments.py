"""Shared memory of CPU ranks: nobody else's, nothing forged, and nothing left."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from ranks import Rank, left_in_shared_memory, run_ranks, shared_memory, start_ranks

import pcie_allreduce
from pcie_allreduce import _C

if TYPE_CHECKING:
    from collections.abc import Iterator

AREA = 24
NOBODY = 65534


def channel(rank: int, area_packs: int = AREA) -> _C.CpuChannel:
    return _C.CpuChannel(rank, 2, area_packs, 1.0, 1.0, False, True)


def path_of(each: _C.CpuChannel) -> Path:
    return Path("/dev/shm" + each.handle().decode())


@pytest.fixture
def pair() -> Iterator[tuple[_C.CpuChannel, _C.CpuChannel]]:
    both = channel(0), channel(1)
    yield both
    for each in both:
        each.close()


def test_a_segment_is_its_users_alone(pair: tuple[_C.CpuChannel, _C.CpuChannel]) -> None:
    status = path_of(pair[0]).stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_uid == os.geteuid()
    assert len(path_of(pair[0]).name) == len("pcie_allreduce-") + 32, "128 bits that nobody can guess"
    assert path_of(pair[0]) != path_of(pair[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_open_it(pair: tuple[_C.CpuChannel, _C.CpuChannel]) -> None:
    code = "import os, sys; os.setuid(int(sys.argv[2])); os.open(sys.argv[1], os.O_RDWR)"
    command = [sys.executable, "-c", code, str(path_of(pair[0])), str(NOBODY)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "PermissionError" in run.stderr


@pytest.mark.parametrize(
    ("handle", "told"),
    [
        (b"", "is not one of this package"),
        (b"/another-0123", "is not one of this package"),
        (b"/pcie_allreduce-/../../etc/passwd", "is not one of this package"),
        (b"/pcie_allreduce-" + b"0" * 32, "No such file or directory"),
        (b"/pcie_allreduce-" + b"0" * 4000, "opening a peer's shared memory"),
    ],
)
def test_a_forged_handle_is_refused(pair: tuple[_C.CpuChannel, _C.CpuChannel], handle: bytes, told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        pair[0].open([pair[0].handle(), handle])


def test_a_stale_handle_is_refused(pair: tuple[_C.CpuChannel, _C.CpuChannel]) -> None:
    handles = [each.handle() for each in pair]
    pair[1].close()
    with pytest.raises(RuntimeError, match=r"opening a peer's shared memory /pcie_allreduce-.*: No such file"):
        pair[0].open(handles)


def test_too_few_handles_are_refused(pair: tuple[_C.CpuChannel, _C.CpuChannel]) -> None:
    with pytest.raises(IndexError):
        pair[0].open([pair[0].handle()])


def test_another_size_is_refused(pair: tuple[_C.CpuChannel, _C.CpuChannel]) -> None:
    other = channel(1, 2 * AREA)
    told = f"has {_C.slab_bytes(2 * AREA, False)} bytes, expected {_C.slab_bytes(AREA, False)}"
    with pytest.raises(RuntimeError, match=told):
        pair[0].open([pair[0].handle(), other.handle()])
    other.close()


def test_another_mode_is_refused(pair: tuple[_C.CpuChannel, _C.CpuChannel]) -> None:
    path_of(pair[1]).chmod(0o644)
    with pytest.raises(RuntimeError, match=r"with mode 420, expected user \d+ and mode 384 \(0600\)"):
        pair[0].open([each.handle() for each in pair])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_segment_is_refused(pair: tuple[_C.CpuChannel, _C.CpuChannel]) -> None:
    os.chown(path_of(pair[1]), NOBODY, NOBODY)
    with pytest.raises(RuntimeError, match=f"belongs to user {NOBODY}"):
        pair[0].open([each.handle() for each in pair])


def test_a_link_is_refused(pair: tuple[_C.CpuChannel, _C.CpuChannel]) -> None:
    link = Path("/dev/shm/pcie_allreduce-" + "f" * 32)
    link.symlink_to(path_of(pair[1]))
    try:
        with pytest.raises(RuntimeError, match="Too many levels of symbolic links"):
            pair[0].open([pair[0].handle(), b"/" + link.name.encode()])
    finally:
        link.unlink()


def other_layout(me: Rank) -> str:
    real = _C.build_info
    if me.rank == 1:
        _C.build_info = lambda: {**real(), "layout": 10_000}
    try:
        with pytest.raises(pcie_allreduce.SetupError) as caught:
            me.communicator()
        return str(caught.value)
    finally:
        _C.build_info = real


def test_another_layout_is_refused() -> None:
    for said in run_ranks(2, other_layout):
        assert said == f"the ranks' mailbox layouts differ (rank 0: {_C.build_info()['layout']}, rank 1: 10000)"


# Ranks that are all killed


def run_until_killed(me: Rank) -> None:
    with me.communicator(max_bytes=4096) as comm:
        x = torch.ones(64)
        comm.all_reduce(x)
        me.tell("running")
        while True:
            comm.all_reduce(x)


def test_nothing_is_left_of_ranks_that_were_all_killed() -> None:
    before = shared_memory()
    with start_ranks(3, run_until_killed) as ranks:
        ranks.await_told("running")
        for rank in range(3):
            ranks.kill(rank)
        assert [outcome.kind for outcome in ranks.collect(30)] == ["died"] * 3
    assert left_in_shared_memory(before) == set()


KILLED_IN_SETUP = """
import os, signal
from pcie_allreduce import _C
made = _C.CpuChannel(0, 2, 24, 1.0, 1.0, False, True)
print(made.handle().decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def abandoned(tmp_path: Path) -> Path:
    """The segment of a rank that was killed before its peers had opened it."""
    command = [sys.executable, "-c", KILLED_IN_SETUP]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert run.returncode == -signal.SIGKILL, run.stderr
    path = Path("/dev/shm" + run.stdout.strip())
    assert path.exists()
    return path


def test_the_next_start_removes_what_killed_ranks_have_left(tmp_path: Path) -> None:
    left, young, foreign = abandoned(tmp_path), abandoned(tmp_path), Path("/dev/shm/another-program")
    living = channel(1)
    foreign.write_bytes(b"")
    try:
        for path in (left, path_of(living), foreign):
            os.utime(path, (0, 0))
        channel(0).close()
        assert not left.exists()
        assert path_of(living).exists(), "its process lives"
        assert young.exists(), "its process may be about to lock it"
        assert foreign.exists(), "it is not ours"
    finally:
        living.close()
        foreign.unlink()
        young.unlink()
