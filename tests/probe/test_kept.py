"""Between runs: what a next start may go by, and that no file stops it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from probe import boxes

from pcie_allreduce import cache
from pcie_allreduce.probe import Measurements, Traffic, kept
from pcie_allreduce.topology import Gpu, Link, Snapshot
from pcie_allreduce.transport import SWITCHED_OFF, why_no_p2p

OFF = Traffic(problem=f"checking P2P failed: rank 0, 1: {SWITCHED_OFF}")


@pytest.fixture(autouse=True)
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PCIE_ALLREDUCE_CACHE", str(tmp_path))
    monkeypatch.delenv("PCIE_ALLREDUCE_P2P", raising=False)
    return tmp_path


def key(world: int) -> cache.Key:
    gpus = tuple(Gpu(f"GPU-{rank}", f"0000:0{rank}:00.0", rank, "A GPU", 120) for rank in range(world))
    links = boxes.matrix(world, lambda a, b: Link.SINGLE_SWITCH, Link.SAME_GPU)
    return kept.key_for(Snapshot(gpus, links, boxes.matrix(world, lambda a, b: "ok", "ok")), None, "0.1.0", 2)


def read_changed() -> Measurements:
    direct = replace(boxes.collapse().direct, pulled=boxes.matrix(8, lambda a, b: "were read changed"))
    return boxes.box(direct)


def no_memory() -> Measurements:
    return boxes.box(Traffic(problem="allocating the mailbox failed: rank 3: cudaErrorMemoryAllocation: out of memory"))


@pytest.mark.parametrize(
    ("box", "passing"),
    [
        (boxes.switch, None),
        (boxes.mixed, None),
        (boxes.slower_than_nccl, None),
        (boxes.collapse, None),
        (boxes.no_p2p, None),
        (no_memory, "allocating the mailbox failed: rank 3: "),
        (boxes.containers, "mapping the peers' mailboxes failed: rank 1: "),
        (boxes.hang, "rank 0 to rank 1: bytes did not arrive within 2 s"),
        (boxes.one_bad_pair, "rank 5 to rank 2: bytes did not arrive within 2 s"),
        (boxes.wrong_data, "rank 0 to rank 1: bytes arrived changed"),
        (boxes.mailbox, "rank 0 and rank 1: 121 us one way"),
        (read_changed, "rank 0 to rank 1: bytes were read changed"),
    ],
)
def test_no_start_goes_by_what_may_have_passed(box: Callable[[], Measurements], passing: str | None) -> None:
    path = kept.save(key(8), box())
    measured, reason = kept.load(key(8))
    if passing is None:
        assert (measured, reason) == (box(), str(path))
    else:
        assert measured is None
        assert reason.startswith(f"{path}: it may have passed that {passing}"), reason


def test_p2p_that_is_switched_off_stays_so_under_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank alone may have had the variable."""
    kept.save(key(2), boxes.box(OFF, 2))
    assert kept.load(key(2))[0] is None
    monkeypatch.setenv("PCIE_ALLREDUCE_P2P", "0")
    kept.save(key(2), boxes.box(OFF, 2))
    assert kept.load(key(2))[0] == boxes.box(OFF, 2)


def test_the_drivers_no_is_known_by_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"{index}"))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: False)
    members: Any = [SimpleNamespace(device_id=f"{index}") for index in range(2)]
    assert kept.DRIVER_SAYS_NO in str(why_no_p2p(torch.device("cuda", 0), members))


def edited(edit: Callable[[dict[str, Any]], Any]) -> Any:
    data = json.loads(json.dumps(boxes.two_h200().to_dict()))
    told = edit(data)
    return data if told is None else told


def nested() -> Any:
    value: Any = []
    for _ in range(600):
        value = [value]
    return value


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no object": lambda data: [1],
    "a text": lambda data: "probe",
    "nothing in it": lambda data: {},
    "another world": lambda data: data.update(world=3),
    "no world": lambda data: data.update(world="2"),
    "another device": lambda data: data.update(device="foo"),
    "a list for a device": lambda data: data.update(device=["cuda"]),
    "the other kind of ranks": lambda data: data.update(device="cpu", transport="cpu"),
    "another transport": lambda data: data.update(transport="host"),
    "sharing": lambda data: data.update(sharing=None),
    "no direct way": lambda data: data.update(direct=None),
    "an empty direct way": lambda data: data.update(direct={}),
    "host": lambda data: data.update(host={"x": 1}),
    "a problem": lambda data: data["direct"].update(problem=7),
    "a text for a latency": lambda data: data["direct"]["latency_us"][0].__setitem__(1, "0.7"),
    "a latency that is no number": lambda data: data["direct"]["latency_us"][0].__setitem__(1, float("nan")),
    "a latency beyond floats": lambda data: data["direct"]["latency_us"][0].__setitem__(1, 10**400),
    "no latencies": lambda data: data["direct"].update(latency_us=[]),
    "a latency for latencies": lambda data: data["direct"].update(latency_us=0.7),
    "numbers for what arrived": lambda data: data["direct"]["arrived"][1].__setitem__(0, 3),
    "a text for all that arrived": lambda data: data["direct"].update(arrived="ok"),
    "numbers for what was read": lambda data: data["direct"]["pulled"][1].__setitem__(0, 3),
    "a text for a rate": lambda data: data["host"]["push_gbps"][0].__setitem__(1, "fast"),
    "a text for a rate together": lambda data: data["host"]["push_together_gbps"].__setitem__(1, "fast"),
    "too few rates": lambda data: data["direct"]["pull_together_gbps"].pop(),
    "nested": lambda data: data["direct"].update(arrived=nested()),
    "half a comparison": lambda data: data.update(compared=[{"nbytes": 1}]),
    "no time of ours": lambda data: data["compared"][0].update(ours_us=None),
    "a text for a size": lambda data: data["compared"][0].update(nbytes="14336"),
    "sizes out of order": lambda data: data["compared"].reverse(),
    "compared with nothing": lambda data: data.update(fallback=None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_counts_as_none(damage: str) -> None:
    path = cache.save(key(2), kept.SECTION, edited(DAMAGE[damage]))
    measured, reason = kept.load(key(2))
    assert measured is None
    assert reason.startswith(f"{path}"), reason
    assert "these are no measurements" in reason or "is of another group" in reason, reason
