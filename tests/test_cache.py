"""What was measured here is found again here and nowhere else, and no file can stop a start: it is told of instead."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pcie_allreduce import cache
from pcie_allreduce.cache import Key, key_for, load, load_tuned, path_for, save, save_tuned
from pcie_allreduce.plan import Step
from pcie_allreduce.topology import Gpu, Link, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = (Step(2, 8192, "one_shot", 64), Step(2, 1 << 20, "two_shot", None, fallback=True))


def gpu(rank: int, **known: Any) -> Gpu:
    about = {"name": "A GPU", "sm": 120, "pcie_generation": 1, "pcie_width": 16, "pcie_max_generation": 5, **known}
    return Gpu(f"GPU-secret-{rank}", f"0000:0{rank}:00.0", rank, **about)


def snapshot(**other: Any) -> Snapshot:
    near, same = Link.SINGLE_SWITCH, Link.SAME_GPU
    known = {"links": ((same, near), (near, same)), "p2p": (("ok", "ok"), ("ok", "ok")), "driver": "590.1", **other}
    return Snapshot(gpus=known.pop("gpus", (gpu(0), gpu(1))), **known)


def key(
    islands: str | None = None, version: str = "0.1.0", layout: int = 2, transport: str = "peer", **other: Any
) -> Key:
    return key_for(snapshot(**other), transport, islands, version, layout)


@pytest.fixture(autouse=True)
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PCIE_ALLREDUCE_CACHE", str(tmp_path / "a" / "cache"))
    return tmp_path / "a" / "cache"


def test_what_is_kept_is_found_again(where: Path) -> None:
    path = save_tuned(key(), STEPS)
    assert load_tuned(key()) == (STEPS, str(path))
    assert list(where.iterdir()) == [path]  # nothing temporary stays


def test_file_and_folder_are_this_users_alone(where: Path) -> None:
    path = save_tuned(key(), STEPS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(where.stat().st_mode) == 0o700


def test_nothing_tells_one_machine_of_a_kind_from_another() -> None:
    path = save_tuned(key(), STEPS)
    other = key(gpus=(replace(gpu(4), numa_node=1), gpu(5)))
    assert other == key()
    for secret in ("secret", "0000:", os.uname().nodename):
        assert secret not in path.read_text()
        assert secret not in path.name


def test_an_idle_link_is_the_same_link() -> None:
    """GPUs lower the generation of their links when they have nothing to do."""
    assert key(gpus=(gpu(0, pcie_generation=5), gpu(1, pcie_generation=5))) == key()


ELSEWHERE: dict[str, Callable[[], Key]] = {
    "gpus": lambda: key(gpus=(gpu(0), gpu(1, name="Another GPU"))),
    "links": lambda: key(links=((Link.SAME_GPU, Link.SYSTEM), (Link.SYSTEM, Link.SAME_GPU))),
    "p2p": lambda: key(p2p=(("ok", "not supported"), ("ok", "ok"))),
    "driver": lambda: key(driver="600.2"),
    "islands": lambda: key("none"),
    "version": lambda: key(version="0.2.0"),
    "layout": lambda: key(layout=3),
    "transport": lambda: key(transport="host"),
}


@pytest.mark.parametrize("field", ELSEWHERE)
@pytest.mark.parametrize("copied", [False, True], ids=["stale", "copied"])
def test_another_machine_or_version_is_ignored_and_the_field_is_named(field: str, copied: bool) -> None:
    here, there = key(), ELSEWHERE[field]()
    path = save_tuned(there, STEPS)
    if copied:  # a file that somebody has put in this one's place
        path = path.rename(path_for(here))
    tuned, reason = load_tuned(here)
    assert tuned is None
    assert reason.startswith(f"{path} was measured elsewhere ({field}: ")
    assert reason.count(" there, ") == 1
    assert load_tuned(there)[0] == (None if copied else STEPS)


def test_sm_and_width_are_part_of_a_gpu() -> None:
    assert key(gpus=(gpu(0), gpu(1, pcie_width=8))) != key()
    assert key(gpus=(gpu(0, sm=90), gpu(1))) != key()


def test_of_several_the_most_similar_is_told() -> None:
    save_tuned(key("none", driver="1", version="0.0.1"), STEPS)
    near = save_tuned(key(driver="580.1"), STEPS)
    (path_for(key()).parent / "cuda-2-0.json").write_text("{")
    assert load_tuned(key())[1] == f'{near} was measured elsewhere (driver: "580.1" there, "590.1" here)'


def test_what_holds_something_else_is_no_other_table(where: Path) -> None:
    """The probe keeps its files in the same folder."""
    save(key(transport="probe"), "probe", {"us": 2.5})
    assert load_tuned(key()) == (None, f"none for 2 ranks of this kind in {where}")
    save_tuned(key(driver="580.1"), STEPS)
    assert '(driver: "580.1" there, "590.1" here)' in load_tuned(key())[1]
    assert load(key(transport="probe", driver="1"), "probe").reason.count(" there, ") == 1


def test_of_none_the_folder_is_told(where: Path) -> None:
    assert load_tuned(key()) == (None, f"none for 2 ranks of this kind in {where}")
    unknown = snapshot(gpus=(Gpu(""), Gpu("")))
    save_tuned(key(), STEPS)
    assert load_tuned(key_for(unknown, "cpu", None, "0.1.0", 2))[1] == f"none for 2 ranks of this kind in {where}"


def entry(**other: Any) -> str:
    return json.dumps({"format": 1, "key": asdict(key()), "tuned": [asdict(step) for step in STEPS], **other})


DAMAGED = {
    "": "is damaged: it is not JSON",
    '{"format": 1, "key"': "is damaged: it is not JSON",
    "\udcff": "is damaged: it is not JSON",
    "[]": "is damaged: it has no format",
    '{"format": "1"}': "is damaged: it has no format",
    '{"format": 1}': "is damaged: it has no key",
    entry(key=None): "is damaged: it has no key",
    entry(format=2): "is of a newer version: format 2, and 1 is read here",
    entry(format=0): "is of an older version: format 0, and 1 is read here",
    entry(tuned=None): "has no 'tuned'",
    entry(tuned=7): "holds no tuned table",
    entry(tuned=[{}]): "holds no tuned table",
    entry(tuned=[{"dtype_bytes": 2, "up_to": 1024, "algorithm": "ring"}]): "holds no tuned table",
    entry(tuned=[{"dtype_bytes": 2, "up_to": 1024, "threads": 33}]): "holds no tuned table",
    entry(tuned=[{"dtype_bytes": 2, "up_to": 1e3}]): "holds no tuned table",
    entry(tuned=[{"dtype_bytes": 2, "up_to": size} for size in (4096, 1024)]): "holds no tuned table",
    entry(tuned=[{"dtype_bytes": 2, "up_to": 1024, "command": "x"}]): "holds no tuned table",
}


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_told_of_and_replaced(where: Path, text: str) -> None:
    where.mkdir(parents=True)
    path_for(key()).write_bytes(text.encode(errors="surrogateescape"))
    tuned, reason = load_tuned(key())
    assert tuned is None
    assert reason.startswith(f"{path_for(key())} {DAMAGED[text]}")
    save_tuned(key(), STEPS)
    assert load_tuned(key())[0] == STEPS


def test_what_cannot_be_read_is_told_of(where: Path) -> None:
    path_for(key()).mkdir(parents=True)
    assert load_tuned(key()) == (None, f"{path_for(key())} cannot be read (Is a directory)")


def test_a_folder_that_cannot_be_made_is_an_error_of_saving_alone(where: Path) -> None:
    where.parent.mkdir(parents=True)
    where.write_text("a file in the folder's place")
    assert load_tuned(key())[0] is None
    with pytest.raises(OSError, match="cache"):
        save_tuned(key(), STEPS)


def test_sections_do_not_disturb_each_other() -> None:
    save(key(), "probe", {"us": 2.5})
    assert load(key(), "tuned").value is None
    assert load_tuned(key())[1] == f"{path_for(key())} has no 'tuned'"
    save_tuned(key(), STEPS)
    assert load(key(), "probe").value == {"us": 2.5}


def test_tables_of_other_widths_stay() -> None:
    wide = (Step(4, 4096, "two_shot"),)
    save_tuned(key(), STEPS)
    save_tuned(key(), wide)
    assert load_tuned(key())[0] == (*STEPS, *wide)
    save_tuned(key(), STEPS[1:])
    assert load_tuned(key())[0] == (*STEPS[1:], *wide)


def test_cpu_ranks_are_known_by_their_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = snapshot(gpus=(Gpu(""), Gpu("")), driver="590.1")  # a driver says nothing about CPU ranks
    monkeypatch.setattr(cache, "cpu_model", lambda: "A CPU")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    here = key_for(ranks, "cpu", None, "0.1.0", 2)
    assert (here.device, here.cpu, here.cores, here.driver, here.gpus) == ("cpu", "A CPU", 3, None, [])
    save_tuned(here, STEPS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert "(cores: 3 there, 2 here)" in load_tuned(key_for(ranks, "cpu", None, "0.1.0", 2))[1]


def test_the_folder_is_the_users_choice(monkeypatch: pytest.MonkeyPatch, where: Path, tmp_path: Path) -> None:
    assert cache.folder() == where
    monkeypatch.delenv("PCIE_ALLREDUCE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "pcie_allreduce"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".cache" / "pcie_allreduce"
