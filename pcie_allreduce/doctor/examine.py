"""Every check, in the order in which a person would look; the worst comes first in the answer."""

from __future__ import annotations

from collections.abc import Callable

from pcie_allreduce.doctor import between, hardware, process, software
from pcie_allreduce.doctor.box import Box
from pcie_allreduce.doctor.finding import Finding, Level

CHECKS: tuple[Callable[[Box], list[Finding]], ...] = (
    software.check_build,
    software.check_driver,
    software.check_torch,
    hardware.check_gpus,
    hardware.check_mig,
    hardware.check_link_width,
    hardware.check_link_generation,
    hardware.check_p2p,
    hardware.check_geforce,
    hardware.check_distance,
    hardware.check_bar1,
    between.check_acs,
    between.check_iommu,
    between.check_module,
    process.check_numa,
    process.check_shared_memory,
    process.check_namespaces,
    process.check_visible_devices,
    process.check_nccl,
    process.check_own_settings,
    process.check_allocator,
)


def examine(box: Box) -> tuple[Finding, ...]:
    found = [finding for check in CHECKS for finding in check(box)]
    return tuple(sorted(found, key=lambda finding: -finding.level))


def exit_code(findings: tuple[Finding, ...]) -> int:
    return int(any(finding.level is Level.PROBLEM for finding in findings))
