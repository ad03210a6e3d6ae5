"""A `Snapshot` from the NVIDIA driver, through nvidia-ml-py and sysfs.

It is read where things are broken, too: in containers that show some of the GPUs, in MIG mode, without a driver. So
every fact is asked for by itself, and what is not answered is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pcie_allreduce.topology import Gpu, Link, Snapshot

T = TypeVar("T")

# nvidia-ml-py's own constant for reading is a tuple by mistake, so these are NVML's numbers.
_CAPS_WRITE, _CAPS_NVLINK, _STATUS_OK = 1, 2, 0
_STATUS = {
    0: "ok",
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the path between the host bridges does not support it",
    4: "disabled by a driver setting",
    5: "not supported",
}
# 0 is two GPUs on one board, which meet in a switch of that board.
_ANCESTORS = {
    0: Link.SINGLE_SWITCH,
    10: Link.SINGLE_SWITCH,
    20: Link.MULTIPLE_SWITCHES,
    30: Link.HOST_BRIDGE,
    40: Link.NODE,
    50: Link.SYSTEM,
}


def read(uuids: Sequence[str] | None = None) -> Snapshot:
    """The ranks' GPUs by UUID, as torch or NVML spells it; None: all GPUs that the driver shows. Never raises."""
    known = tuple(_spelled(uuid) for uuid in uuids or ())
    try:
        import pynvml
    except ImportError:
        return Snapshot.unknown(known, "nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Snapshot.unknown(known, f"the NVIDIA driver does not answer: {error}")
    try:
        return _Reader(pynvml).snapshot(known if uuids is not None else None)
    finally:
        pynvml.nvmlShutdown()


def sysfs_name(bus_id: str) -> str:
    """NVML writes a PCI domain with 8 digits, sysfs with 4: "00000000:3B:00.0" is "0000:3b:00.0"."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _spelled(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) or not uuid else f"GPU-{uuid}"


class _Reader:
    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def snapshot(self, uuids: tuple[str, ...] | None) -> Snapshot:
        nvml = self._nvml
        if uuids is None:
            count = self._ask(nvml.nvmlDeviceGetCount) or 0
            handles = [self._ask(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
            uuids = tuple(self._ask(nvml.nvmlDeviceGetUUID, handle) or "" for handle in handles)
        handles = [self._ask(nvml.nvmlDeviceGetHandleByUUID, uuid) for uuid in uuids]
        return Snapshot(
            gpus=tuple(self._gpu(uuid, handle) for uuid, handle in zip(uuids, handles, strict=True)),
            links=self._matrix(uuids, handles, self._link, Link.SAME_GPU),
            p2p=self._matrix(uuids, handles, self._p2p, "ok"),
            driver=self._ask(nvml.nvmlSystemGetDriverVersion),
        )

    def _ask(self, question: Callable[..., T], *about: Any) -> T | None:
        """The answer, or None where there is none or nothing to ask about."""
        if None in about:
            return None
        try:
            return question(*about)
        except self._nvml.NVMLError:
            return None

    def _gpu(self, uuid: str, handle: Any) -> Gpu:
        nvml = self._nvml
        pci = self._ask(nvml.nvmlDeviceGetPciInfo, handle)
        bus_id = None if pci is None else str(pci.busId)
        capability = self._ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        bar1 = self._ask(nvml.nvmlDeviceGetBAR1MemoryInfo, handle)
        mig = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        return Gpu(
            uuid=uuid,
            bus_id=bus_id,
            numa_node=None if bus_id is None else _numa_node(bus_id),
            name=self._ask(nvml.nvmlDeviceGetName, handle),
            sm=None if capability is None else 10 * capability[0] + capability[1],
            pcie_generation=self._ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            pcie_width=self._ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            pcie_max_generation=self._ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            pcie_max_width=self._ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            bar1_bytes=None if bar1 is None else int(bar1.bar1Total),
            mig=None if mig is None else bool(mig[0]),
        )

    @staticmethod
    def _matrix(
        uuids: tuple[str, ...], handles: list[Any], between: Callable[[Any, Any], T | None], same: T
    ) -> tuple[tuple[T | None, ...], ...]:
        """Ranks that share a GPU are known to, whatever the driver tells of it; ranks without one share none."""
        count = range(len(uuids))
        return tuple(
            tuple(
                same if a == b or (uuids[a] and uuids[a] == uuids[b]) else between(handles[a], handles[b])
                for b in count
            )
            for a in count
        )

    def _link(self, a: Any, b: Any) -> Link | None:
        if self._ask(self._nvml.nvmlDeviceGetP2PStatus, a, b, _CAPS_NVLINK) == _STATUS_OK:
            return Link.NVLINK
        level = self._ask(self._nvml.nvmlDeviceGetTopologyCommonAncestor, a, b)
        return None if level is None else _ANCESTORS.get(level)

    def _p2p(self, a: Any, b: Any) -> str | None:
        status = self._ask(self._nvml.nvmlDeviceGetP2PStatus, a, b, _CAPS_WRITE)
        return None if status is None else _STATUS.get(status, "unknown")


def _numa_node(bus_id: str) -> int | None:
    """None where the kernel says -1, "no node", or nothing."""
    try:
        node = int(Path(f"/sys/bus/pci/devices/{sysfs_name(bus_id)}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
