"""Named link figures, and which of them an unmeasured machine is taken for.

Every value says where it is from, because most of the machines that they stand for were never at hand: `measured` by
this project, `published` by others, `fitted` to points that are named, or `assumed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pcie_allreduce.plan import LinkFigures
from pcie_allreduce.topology import Link, Snapshot

KINDS = ("measured", "published", "fitted", "assumed")


class Figure(NamedTuple):
    value: float | None
    kind: str
    source: str


@dataclass(frozen=True)
class Preset:
    """A kind of machine. `islands`: its ranks form two islands where their number allows it; `transport`: plan's."""

    name: str
    title: str
    islands: bool
    known: Mapping[str, Figure]
    transport: str = "push"
    sum_copies: int = 1

    @property
    def figures(self) -> LinkFigures:
        values = {name: figure.value for name, figure in self.known.items()}
        return LinkFigures(**values, transport=self.transport, sum_copies=self.sum_copies)  # type: ignore[arg-type]

    def with_figures(self, **known: Figure) -> Preset:
        return replace(self, known={**self.known, **known})


_H200 = "two H200"
_SUM = Figure(2000.0, "assumed", "a GPU reads its slots from its own second-level cache")
_UNUSED = Figure(1e6, "assumed", "no traffic is modelled there")
_KERNEL = {
    "launch_us": Figure(0.55, "measured", f"empty kernel in a graph, {_H200}"),
    "base_us": Figure(0.24, "fitted", f"one-shot at 1,024 B over 2 ranks, 1.93 us, {_H200}"),
    "stage_us": Figure(0.4, "fitted", f"1,024 B over 8 ranks, two-shot 4.95, island 4.38 us, emulated on {_H200}"),
    "source_us": Figure(0.1, "assumed", f"emulated ranks share a GPU; theirs, 0.15 to 0.2 at 1,024 B, on {_H200}"),
}
_SWITCH_US = Figure(0.68, "published", "one way behind one switch, 0.63-0.73 us")
_CPU_US = Figure(1.08, "published", "one way through a CPU, 1.04-1.12 us")
_GEN5 = {
    **_KERNEL,
    "inside_us": _SWITCH_US,
    "across_us": _CPU_US,
    "egress_gbps": Figure(47.5, "published", "GPU stores over PCIe 5 x16, 45-50 GB/s"),
    "uplink_gbps": Figure(50.0, "published", "a x16 uplink or a socket link, 46-54 GB/s"),
    "sum_gbps": _SUM,
    "read_us": Figure(4.98, "fitted", "b12x's pull one-shot over 8 GPUs, 10.0 us at 12 KB and 31.9 us at 96 KB"),
    "read_gbps": Figure(27.5, "fitted", "the same two points"),
}
_NO_PULL = {
    "read_us": Figure(None, "assumed", "pull is not modelled there"),
    "read_gbps": Figure(None, "assumed", "pull is not modelled there"),
}
_SOCKET_US = Figure(1.3, "assumed", "one way between sockets: no figure was found")
_NVLINK = {
    **_KERNEL,
    "inside_us": Figure(0.64, "measured", f"store to poll over NVLink, {_H200}"),
    "across_us": Figure(0.64, "measured", f"store to poll over NVLink, {_H200}"),
    "egress_gbps": Figure(348.0, "measured", f"coalesced 16-byte stores over NVLink, {_H200}"),
    "uplink_gbps": _UNUSED,
    "sum_gbps": _SUM,
    **_NO_PULL,
}
_EMULATED = {
    **_NVLINK,
    "egress_gbps": Figure(150.0, "fitted", f"one-shot over 8 ranks, 4.6 us at 43,008 B and 29.6 at 524,288 B, {_H200}"),
}
_CROWD = "3 and 8 ranks at 1 to 43 KB on two busy cores"
_CPU = {
    "launch_us": Figure(0.0, "assumed", "a call is a function call"),
    "base_us": Figure(1.0, "assumed", "Python and the extension module"),
    "stage_us": Figure(15.0, "fitted", _CROWD),
    "source_us": Figure(4.0, "fitted", _CROWD),
    "inside_us": Figure(0.2, "assumed", "a cache line from core to core"),
    "across_us": Figure(0.2, "assumed", "a cache line from core to core"),
    "egress_gbps": Figure(1.8, "fitted", f"half of the cost of a byte, {_CROWD}"),
    "uplink_gbps": _UNUSED,
    "sum_gbps": Figure(1.8, "fitted", f"the other half, {_CROWD}"),
    **_NO_PULL,
}


def _halved(preset: Preset) -> Preset:
    """The same machine with PCIe 4."""
    rates = {name: preset.known[name] for name in ("egress_gbps", "uplink_gbps", "read_gbps")}
    half = {
        name: Figure(rate.value / 2, "assumed", f"half of PCIe 5's ({rate.source})")
        for name, rate in rates.items()
        if rate.value is not None
    }
    title = preset.title.replace("PCIe 5", "PCIe 4")
    return replace(preset, name=preset.name.replace("pcie5", "pcie4"), title=title).with_figures(**half)


_PCIE5 = (
    Preset("pcie5-switch", "GPUs behind one PCIe 5 switch, or a tree of switches", False, _GEN5),
    Preset("pcie5-cpu", "GPUs on root ports of one CPU, PCIe 5", False, {**_GEN5, "inside_us": _CPU_US}),
    Preset("pcie5-4+4", "two PCIe 5 switches, each behind its uplink to the CPU", True, _GEN5),
    Preset(
        "pcie5-dual-socket",
        "GPUs on root ports of two CPUs, PCIe 5",
        True,
        {**_GEN5, "inside_us": _CPU_US, "across_us": _SOCKET_US},
    ),
)
PRESETS = {
    preset.name: preset
    for preset in (
        *_PCIE5,
        *map(_halved, _PCIE5),
        Preset("nvlink", "GPUs with NVLink to each other", False, _NVLINK),
        Preset("emulated", "several ranks a GPU, the GPUs with NVLink: for tests", False, _EMULATED),
        Preset("cpu", "CPU ranks in shared memory", False, _CPU),
    )
}


_STAGED = {
    **_GEN5,
    "inside_us": Figure(1.67, "measured", f"store to poll in host memory over PCIe 5 x16, {_H200}"),
    "across_us": Figure(1.67, "measured", f"store to poll in host memory over PCIe 5 x16, {_H200}"),
    "egress_gbps": Figure(52.5, "measured", f"stores to host memory, {_H200}"),
    "uplink_gbps": _UNUSED,
    "read_us": Figure(1.3, "assumed", "a look behind the hint that it will find"),
    "read_gbps": Figure(51.0, "measured", f"loads from host memory, {_H200}"),
}


def staged_preset_for(snapshot: Snapshot) -> Preset:
    """Slabs in host memory: ranks that share a GPU share its link. CPU ranks: their figures, both ways."""
    uuids = [gpu.uuid for gpu in snapshot.gpus]
    if not any(uuids):
        reads = {"read_us": _CPU["inside_us"], "read_gbps": _CPU["sum_gbps"]}
        return Preset("host-cpu", "CPU ranks as GPUs without P2P", False, {**_CPU, **reads}, transport="staged")
    sharing = max(uuids.count(uuid) for uuid in uuids)
    preset = Preset("host-pcie5", "GPUs through host memory, PCIe 5 x16 each", False, _STAGED, "staged", sharing)
    shared = {
        name: preset.known[name]._replace(value=(preset.known[name].value or 0) / sharing)
        for name in ("egress_gbps", "read_gbps")
    }
    return preset.with_figures(**shared)


def pull_preset_for(snapshot: Snapshot) -> Preset:
    """The machine that it is taken for, its ranks reading from each other."""
    preset = replace(preset_for(snapshot, False), transport="pull")
    if preset.known["read_us"].value is not None:
        return preset
    way = preset.known["inside_us"].value or 0.0
    return preset.with_figures(
        read_us=Figure(4 * way, "assumed", "a fence, a flag's way, and the first read's, there and back"),
        read_gbps=preset.known["egress_gbps"]._replace(kind="assumed", source="as fast as stores"),
    )


def preset_for(snapshot: Snapshot, islands: bool) -> Preset:
    """What a machine is taken for before it is measured. CPU ranks: a snapshot of GPUs without UUID.

    Where the driver did not tell, the slower thing is assumed: a way through the CPU, but PCIe 5 at full width.
    """
    uuids = [gpu.uuid for gpu in snapshot.gpus]
    if not any(uuids):
        return PRESETS["cpu"]
    farthest = snapshot.farthest()
    if len(set(uuids)) < len(uuids):
        return PRESETS["emulated"]
    if farthest is not None and farthest <= Link.NVLINK:
        return PRESETS["nvlink"]
    return _narrowed(PRESETS[f"pcie{_generation(snapshot)}-{_way(farthest, islands)}"], snapshot)


def _way(farthest: Link | None, islands: bool) -> str:
    if islands:
        return "dual-socket" if farthest == Link.SYSTEM else "4+4"
    return "switch" if farthest is not None and farthest <= Link.MULTIPLE_SWITCHES else "cpu"


def _generation(snapshot: Snapshot) -> int:
    told = [gpu.pcie_max_generation for gpu in snapshot.gpus if gpu.pcie_max_generation]
    return 4 if told and min(told) <= 4 else 5


def _narrowed(preset: Preset, snapshot: Snapshot) -> Preset:
    """For links of fewer than 16 lanes, by the narrowest: width does not change with load, as the generation does."""
    widths = [gpu.pcie_width for gpu in snapshot.gpus if gpu.pcie_width]
    if not widths or min(widths) >= 16:
        return preset
    known = {}
    for name in ("egress_gbps", "read_gbps"):
        value, _, source = preset.known[name]
        if value is not None:
            known[name] = Figure(value * min(widths) / 16, "assumed", f"{min(widths)} of 16 lanes ({source})")
    return preset.with_figures(**known)
