"""Islands of published and odd machines, the override, the snapshot as JSON, and a driver that tells little."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pcie_allreduce import nvml
from pcie_allreduce.topology import Gpu, Link, Snapshot, decide_islands, parse_islands

PIX, PXB, PHB, NODE, SYS = (
    Link.SINGLE_SWITCH,
    Link.MULTIPLE_SWITCHES,
    Link.HOST_BRIDGE,
    Link.NODE,
    Link.SYSTEM,
)


def machine(world: int, link: Callable[[int, int], Link | None]) -> Snapshot:
    ranks = range(world)
    links = tuple(tuple(Link.SAME_GPU if a == b else link(min(a, b), max(a, b)) for b in ranks) for a in ranks)
    return Snapshot(tuple(Gpu(f"GPU-{rank}") for rank in ranks), links, (("ok",) * world,) * world)


def grouped(world: int, size: int, inside: Link, across: Link) -> Snapshot:
    return machine(world, lambda a, b: inside if a // size == b // size else across)


def pairs_over_two_sockets(a: int, b: int) -> Link:
    return PIX if a // 2 == b // 2 else NODE if a // 4 == b // 4 else SYS


HALVES = (frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7}))
FOUND = {
    "4+4 behind a CPU": (grouped(8, 4, PIX, PHB), HALVES, "4 + 4 ranks, inside over one PCIe switch (PIX) or nearer"),
    "two sockets, root ports": (grouped(8, 4, PHB, SYS), HALVES, "across over the link between NUMA nodes (SYS)"),
    "switch pairs over two sockets": (machine(8, pairs_over_two_sockets), HALVES, "inside over several host bridges"),
    "trees of switches": (machine(8, lambda a, b: (PIX if a // 2 == b // 2 else PXB) if a // 4 == b // 4 else SYS),
                          HALVES, "inside over several PCIe switches"),
    "interleaved": (machine(8, lambda a, b: PIX if a % 2 == b % 2 else SYS),
                    (frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7})), "4 + 4"),
    "2+2": (grouped(4, 2, PIX, NODE), (frozenset({0, 1}), frozenset({2, 3})), "2 + 2"),
    "3+3": (grouped(6, 3, PHB, SYS), (frozenset({0, 1, 2}), frozenset({3, 4, 5})), "3 + 3"),
    "NVLink bridges": (grouped(4, 2, Link.NVLINK, PHB), (frozenset({0, 1}), frozenset({2, 3})), "inside over NVLink"),
    "four ranks on each of two GPUs": (grouped(8, 4, Link.SAME_GPU, PIX), HALVES, "across over one PCIe switch (PIX)"),
}  # fmt: skip
NONE = {
    "one switch": (grouped(8, 8, PIX, PIX), "all 8 ranks reach each other over one PCIe switch (PIX) or nearer"),
    "one CPU": (grouped(8, 8, PHB, PHB), "all 8 ranks reach each other over a host bridge of the CPU (PHB) or nearer"),
    "5+3": (machine(8, lambda a, b: PIX if (a < 5) == (b < 5) else SYS), "joined as 5 + 3, not two equal groups"),
    "four pairs": (grouped(8, 2, PIX, PHB), "joined as 2 + 2 + 2 + 2, not two equal groups"),
    "1+3": (machine(4, lambda a, b: SYS if a == 0 else PIX), "joined as 1 + 3, not two equal groups"),
    "two ranks": (grouped(2, 1, PIX, SYS), "2 ranks do not make two equal groups of at least 2"),
    "seven ranks": (grouped(7, 4, PIX, SYS), "7 ranks do not make two equal groups"),
    "ranks that share two NVLink GPUs": (grouped(8, 4, Link.SAME_GPU, Link.NVLINK), "over NVLink or nearer"),
    "one unknown pair": (machine(8, lambda a, b: None if (a, b) == (2, 5) else PIX if a // 4 == b // 4 else SYS),
                         "the link between ranks 2 and 5 is not known"),
    "an NVLink ring in each half": (
        machine(8, lambda a, b: Link.NVLINK if a // 4 == b // 4 and (a - b) % 4 != 2 else SYS),
        "over NVLink they are joined as 4 + 4, some only through a third"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_islands_are_found(name: str) -> None:
    snapshot, islands, reason = FOUND[name]
    decision = decide_islands(snapshot)
    assert decision.islands == islands
    assert reason in decision.reason


@pytest.mark.parametrize("name", NONE)
def test_no_islands_and_why(name: str) -> None:
    snapshot, reason = NONE[name]
    decision = decide_islands(snapshot)
    assert decision.islands is None
    assert reason in decision.reason


def test_islands_follow_a_renumbering_of_the_ranks() -> None:
    order = [3, 6, 0, 5, 1, 7, 2, 4]
    whole = machine(8, lambda a, b: pairs_over_two_sockets(*sorted((order[a], order[b]))))
    first = {rank for rank in range(8) if (order[rank] < 4) == (order[0] < 4)}
    assert decide_islands(whole).islands == (frozenset(first), frozenset(range(8)) - first)


@pytest.mark.parametrize(
    ("text", "world", "first"),
    [
        ("0-3|4-7", 8, {0, 1, 2, 3}),
        ("0,2,4,6|1,3,5,7", 8, {0, 2, 4, 6}),
        (" 4-7 | 0-3 ", 8, {0, 1, 2, 3}),
        ("0-1,5|2-4", 6, {0, 1, 5}),
    ],
)
def test_an_override_is_taken(text: str, world: int, first: set[int]) -> None:
    islands = parse_islands(text, world)
    assert islands == (frozenset(first), frozenset(range(world)) - first)
    decision = decide_islands(grouped(world, world, PIX, PIX), text)
    assert decision.islands == islands
    assert decision.reason == f"PCIE_ALLREDUCE_ISLANDS says {text!r}"


def test_an_override_may_say_none() -> None:
    assert decide_islands(FOUND["4+4 behind a CPU"][0], "none").islands is None


@pytest.mark.parametrize(
    ("text", "world", "sentence"),
    [
        ("0-3", 8, "has 1 groups; two are needed"),
        ("0-1|2-3|4-5", 6, "has 3 groups; two are needed"),
        ("0-3|4-7", 6, r"names ranks \[0, 1, 2, 3, 4, 5, 6, 7\]; each of the ranks 0 to 5 must be named once"),
        ("0-3|3-6", 8, r"names ranks \[0, 1, 2, 3, 3, 4, 5, 6\]; each of the ranks 0 to 7"),
        ("0-4|5-7", 8, "has 5 and 3 ranks; equally many"),
        ("0|1", 2, "has 1 and 1 ranks; equally many, at least 2"),
        ("0-3|4-x", 8, "'4-x' is neither a rank nor a range"),
        ("0-3|-4", 8, "'-4' is neither a rank nor a range"),
        ("|", 8, "'' is neither a rank nor a range"),
    ],
)
def test_a_wrong_override_is_refused_with_value_and_limit(text: str, world: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        parse_islands(text, world)
    assert repr(text) in str(caught.value)


def test_a_snapshot_survives_json() -> None:
    snapshot = replace(
        FOUND["switch pairs over two sockets"][0],
        gpus=tuple(Gpu(f"GPU-{rank}", "00000000:3B:00.0", 0, "RTX", 120, 5, 16, 5, 16) for rank in range(8)),
        driver="580.95.05",
    )
    assert Snapshot.from_dict(json.loads(json.dumps(snapshot.to_dict()))) == snapshot
    nothing = Snapshot.unknown(("", ""), "CPU ranks")
    assert Snapshot.from_dict(json.loads(json.dumps(nothing.to_dict()))) == nothing


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"gpus": [{"uuid": "a"}], "links": [["same_gpu"]]},
        {"gpus": [{"uuid": "a", "colour": 1}], "links": [["same_gpu"]], "p2p": [["ok"]]},
        {"gpus": [{"uuid": "a"}], "links": [["telepathy"]], "p2p": [["ok"]]},
        {"gpus": [{"uuid": "a"}], "links": [[]], "p2p": [["ok"]]},
        {"gpus": [{"uuid": "a"}], "links": [[7]], "p2p": [["ok"]]},
    ],
)
def test_what_is_no_snapshot_is_a_value_error(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not a snapshot|not a matrix"):
        Snapshot.from_dict(data)


class NvmlError(Exception):
    pass


def fake_nvml(monkeypatch: pytest.MonkeyPatch, **replaced: Any) -> types.ModuleType:
    """Four GPUs in two switches over two sockets; GPU 3 answers nothing about its PCIe link."""

    def width(handle: int) -> int:
        if handle == 3:
            raise NvmlError("Not Supported")
        return 16

    def mig_mode(handle: int) -> list[int]:
        if handle == 2:
            raise NvmlError("Not Supported")
        return [int(handle == 1), 0]  # now, and after a reset

    def by_uuid(uuid: str) -> int:
        if uuid not in uuids:
            raise NvmlError("Not Found")
        return uuids.index(uuid)

    uuids = [f"GPU-{index}" for index in range(4)]
    module = types.ModuleType("pynvml")
    functions: dict[str, Any] = {
        "NVMLError": NvmlError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: module.__dict__.__setitem__("closed", True),
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlDeviceGetCount": lambda: 4,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetUUID": lambda handle: uuids[handle],
        "nvmlDeviceGetPciInfo": lambda handle: types.SimpleNamespace(busId=f"0000FFFF:{handle:02X}:00.0"),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (12, 0),
        "nvmlDeviceGetName": lambda _: "RTX",
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 1,
        "nvmlDeviceGetCurrPcieLinkWidth": width,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetBAR1MemoryInfo": lambda _: types.SimpleNamespace(bar1Total=128 * 2**30),
        "nvmlDeviceGetMigMode": mig_mode,
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: 10 if a // 2 == b // 2 else 50,
        "nvmlDeviceGetP2PStatus": lambda a, b, what: 5 if what == 2 else 0 if a // 2 == b // 2 else 3,
        **replaced,
    }
    module.__dict__.update(functions)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_the_driver_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_nvml(monkeypatch)
    snapshot = nvml.read(["2", "GPU-0", "3"])  # torch tells a UUID without the prefix
    assert [gpu.uuid for gpu in snapshot.gpus] == ["GPU-2", "GPU-0", "GPU-3"]
    assert snapshot.links[0] == (Link.SAME_GPU, Link.SYSTEM, Link.SINGLE_SWITCH)
    assert snapshot.p2p[0] == ("ok", "the path between the host bridges does not support it", "ok")
    assert snapshot.gpus[0] == Gpu("GPU-2", "0000FFFF:02:00.0", None, "RTX", 120, 1, 16, 5, 16, 128 * 2**30)
    assert snapshot.gpus[2].pcie_width is None
    assert [gpu.mig for gpu in nvml.read().gpus] == [False, True, None, False]
    assert snapshot.driver == "580.95.05"
    assert module.closed
    assert decide_islands(nvml.read()).islands == (frozenset({0, 1}), frozenset({2, 3}))


def test_nvlink_and_a_shared_gpu_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, nvmlDeviceGetP2PStatus=lambda a, b, what: 0)
    snapshot = nvml.read(["GPU-0", "GPU-0", "GPU-1"])
    assert snapshot.links[0] == (Link.SAME_GPU, Link.SAME_GPU, Link.NVLINK)


def test_a_gpu_that_the_driver_does_not_show_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch)
    snapshot = nvml.read(["GPU-0", "GPU-1", "GPU-8", "GPU-9"])
    assert snapshot.gpus[2] == Gpu("GPU-8")
    assert snapshot.links[2] == (None, None, Link.SAME_GPU, None)
    assert decide_islands(snapshot).reason == "the link between ranks 0 and 2 is not known"


def test_cpu_ranks_share_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch)
    assert nvml.read(["", ""]).links[0] == (Link.SAME_GPU, None)


def test_without_nvml_or_driver_nothing_is_known_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NvmlError("Driver Not Loaded")

    fake_nvml(monkeypatch, nvmlInit=refuse)
    snapshot = nvml.read([f"GPU-{rank}" for rank in range(4)])
    assert snapshot.problem == "the NVIDIA driver does not answer: Driver Not Loaded"
    assert decide_islands(snapshot).reason.endswith(
        "is not known (the NVIDIA driver does not answer: Driver Not Loaded)"
    )
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.read(["a"]).problem == "nvidia-ml-py is not installed"


def test_sysfs_writes_a_pci_domain_shorter() -> None:
    assert nvml.sysfs_name("00000000:3B:00.0") == "0000:3b:00.0"
