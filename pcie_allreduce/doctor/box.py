"""A machine as the doctor sees it. Users send this file, so it names no host, network address or serial number.

What could not be read is None, and a sentence in `unseen` says why; no check takes None for an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pcie_allreduce.cli.findings import Findings, Gpu
from pcie_allreduce.topology import Snapshot

FORMAT = 1


@dataclass(frozen=True)
class Bridge:
    """One PCIe bridge above a GPU. `kind`: "root port", "upstream" or "downstream"; `acs`: its ACS control register."""

    address: str
    kind: str | None = None
    acs: int | None = None


@dataclass(frozen=True)
class Box:
    """`paths` and `iommu` go by GPU: the bridges from the GPU upwards; the kernel's type of its IOMMU domain."""

    found: Findings
    topology: Snapshot
    paths: tuple[tuple[Bridge, ...], ...] = ()
    iommu: tuple[str | None, ...] = ()
    iommus: int | None = None  # that the kernel uses
    nvidia_devices: int | None = None  # GPUs on the PCI bus, whether the driver answers or not
    kernel_words: tuple[str, ...] | None = None  # of the kernel's command line, those about PCIe and IOMMU
    module: Mapping[str, str] | None = None  # parameters of the NVIDIA kernel module
    node_cpus: tuple[tuple[int, str], ...] = ()
    allowed_cpus: str | None = None
    shm_bytes: int | None = None
    shm_free: int | None = None
    container: str | None = None  # how one sees that this is one
    own_ipc: bool | None = None
    own_pid: bool | None = None
    virtual: bool | None = None
    unseen: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold; `from_dict` makes the same box of it."""
        return {"format": FORMAT, **asdict(self), "topology": self.topology.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Box:
        """ValueError where data is no box, or one of another format."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ValueError(f"not a snapshot of `doctor --save-snapshot` in format {FORMAT}")
        fields = {name: value for name, value in data.items() if name != "format"}
        try:
            found = dict(fields["found"])
            found["gpus"] = tuple(Gpu(**gpu) for gpu in found["gpus"])
            found["cuda_archs"] = tuple(found["cuda_archs"])
            fields["found"] = Findings(**found)
            fields["topology"] = Snapshot.from_dict(fields["topology"])
            fields["paths"] = tuple(tuple(Bridge(**bridge) for bridge in path) for path in fields["paths"])
            fields["node_cpus"] = tuple((int(node), str(cpus)) for node, cpus in fields["node_cpus"])
            words = fields["kernel_words"]
            fields["kernel_words"] = None if words is None else tuple(words)
            fields["iommu"], fields["unseen"] = tuple(fields["iommu"]), tuple(fields["unseen"])
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a snapshot of a machine: {type(error).__name__}: {error}") from error


def cpu_numbers(text: str) -> frozenset[int]:
    """The kernel's lists of CPUs: "0-3,8" is 0, 1, 2, 3 and 8."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1))
