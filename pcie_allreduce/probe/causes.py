"""What is usually behind a finding, as owners of such machines have found out; `pcie-allreduce doctor` looks for it."""

from __future__ import annotations

CHANGED = (
    "usually the IOMMU translates peers' addresses (iommu=pt ends it), or a driver says yes to P2P that it does not do"
)
MISSING = (
    "usually ACS or the IOMMU turns peers' stores away (clear ACS redirection, iommu=pt), as in virtual machines, or "
    "the BAR is too small"
)
SLOW = (
    "usually the driver stages P2P through system memory (RMForceP2PType, or no RMPcieP2PType=2, in "
    "NVreg_RegistryDwords)"
)
COLLAPSE = (
    "usually a switch that sends posted writes to two root complexes at once; loads do not suffer, and neither do "
    "stores that stay below it"
)
NARROW = "usually fewer lanes or an older generation of PCIe on the way"
NO_IPC = "usually ranks in different containers (--ipc=host and one PID namespace for all)"
NO_P2P = "usually the GPUs or the driver have no P2P (GeForce without a patched driver), or a virtual machine hides it"
BUSY = "CPU ranks have no links: usually other processes take the cores"
FAULTY = "CPU ranks have no links: usually the memory is faulty"


def of(finding: str, device: str) -> str:
    """CPU ranks have neither switches nor an IOMMU between them."""
    if device == "cpu":
        return FAULTY if finding == CHANGED else BUSY
    return finding


def of_problem(problem: str) -> str | None:
    """Of a set-up that failed, in the words of CUDA or of this package."""
    if "IPC" in problem or "shared memory" in problem:
        return NO_IPC
    return NO_P2P if "P2P" in problem and "switched off" not in problem else None
