"""One sick machine a row, from what users of such machines reported: which finding it gives, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doctor import boxes
from doctor.boxes import DIRECT, HEALTHY, NO_GPU, TRANSLATED, WORLD, environment, found, gpus, keys, matrix, without_p2p

from pcie_allreduce import _C
from pcie_allreduce.doctor.box import Box, Bridge
from pcie_allreduce.doctor.examine import examine, exit_code
from pcie_allreduce.doctor.finding import Finding, Level
from pcie_allreduce.doctor.process import SHARED_BYTES_A_RANK
from pcie_allreduce.plan import area_packs_for
from pcie_allreduce.topology import Link, Snapshot

SOCKETS = replace(HEALTHY.topology, links=matrix(Link.SINGLE_SWITCH, Link.SYSTEM, Link.SAME_GPU))
TWO_NODES = gpus(replace(HEALTHY, node_cpus=((0, "0-31"), (1, "32-63"))), only=5, numa_node=1)
GEFORCE = gpus(name="NVIDIA GeForce RTX 5090")
LOST = found(gpus=(), driver_error="GPU is lost", torch_gpus=8)
ACS = tuple(boxes.path(index, 0x1D) for index in range(WORLD))
CLOSED = tuple(tuple(Bridge(bridge.address) for bridge in boxes.path(index)) for index in range(WORLD))
SMALL_SHM = replace(HEALTHY, shm_bytes=64 * 2**20, shm_free=64 * 2**20)
WARNING, PROBLEM = Level.WARNING, Level.PROBLEM

SICK: dict[str, tuple[Box, Level, str, str]] = {
    "no driver, but GPUs": (replace(NO_GPU, nvidia_devices=8), PROBLEM, "driver", "The PCI bus has 8 NVIDIA GPU(s)"),
    "old driver": (found(driver="570.86.10"), PROBLEM, "driver", "needs 580.65.06 or newer"),
    "a GPU is lost": (LOST, PROBLEM, "driver", "GPU is lost"),
    "CPU build on a GPU machine": (found(cuda=False, cuda_archs=()), PROBLEM, "build", "no GPU code"),
    "built for other GPUs": (found(cuda_archs=(121,)), PROBLEM, "build", "GPU 7 is sm_120"),
    "torch without CUDA": (found(torch_cuda=None), PROBLEM, "torch", "built without CUDA"),
    "torch sees fewer": (found(torch_gpus=4), WARNING, "torch", "torch sees 4 of 8 GPUs"),
    "two kinds of GPU": (gpus(only=3, name="NVIDIA RTX 6000 Ada", sm=89), WARNING, "GPUs", "of several kinds"),
    "MIG": (gpus(only=2, mig=True), PROBLEM, "MIG", "On for GPU 2"),
    "a bad riser": (gpus(only=6, pcie_width=4), PROBLEM, "link width", "GPU 6 x4 of x16"),
    "half a slot": (gpus(only=6, pcie_width=8), WARNING, "link width", "GPU 6 x8 of x16"),
    "one link is slow": (gpus(only=1, pcie_generation=3), WARNING, "link generation", "GPU 1 at 3 of 5, the others"),
    "stock driver, GeForce": (replace(GEFORCE, topology=without_p2p("not supported")), WARNING, "P2P",
                              "None for 56 of 56 pairs, 0 to 1, 0 to 2, 0 to 3 and 53 more: not supported"),
    "one pair, one way": (replace(HEALTHY, topology=without_p2p("disabled by a driver setting", (4, 2))), WARNING,
                          "P2P", "1 of 56 pairs, 4 to 2: disabled by a driver setting"),
    "a pair is not told": (replace(HEALTHY, topology=without_p2p(None, (4, 2))), WARNING, "P2P", "does not tell"),
    "patched driver (club-3090#922)": (GEFORCE, WARNING, "patched driver", "deliver wrong bytes"),
    "two sockets (20 tok/s, not 113)": (replace(HEALTHY, topology=SOCKETS, module=None), WARNING, "distance", "NUMA"),
    "small BAR1": (gpus(bar1_bytes=256 * 2**20), WARNING, "BAR1", "256 MiB for 98,304 MiB"),
    "ACS": (replace(HEALTHY, paths=ACS), WARNING, "ACS", "set in 8 port(s) of switches (0000:03:00.0"),
    "IOMMU, GPUs on the CPU": (replace(HEALTHY, topology=DIRECT, module=None, iommu=("DMA",) * WORLD), PROBLEM, "IOMMU",
                               "addresses of GPUs 0, 1, 2, 3, 4, 5, 6, 7"),
    "IOMMU, one switch": (replace(HEALTHY, iommu=("DMA-FQ",) * WORLD), WARNING, "IOMMU", "started with iommu=pt"),
    "staged by the driver (242 us)": (keys("ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=0"), PROBLEM, "module",
                                      "staged through the driver's mailbox"),
    "the mailbox is the default": (keys("RMForceP2PType=1"), PROBLEM, "module", "staged"),
    "perhaps staged": (keys("", DIRECT), WARNING, "module", "Over several host bridges of a NUMA node (NODE)"),
    "forced": (keys("ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2"), WARNING, "module", "forced (ForceP2P=0x11"),
    "writes off": (keys("ForceP2P=0x1;x=y"), PROBLEM, "module", "writes from GPU to GPU are switched off"),
    "far CPUs": (replace(TWO_NODES, allowed_cpus="0-31"), WARNING, "NUMA", "CPUs 0-31, none of the node of GPU 5"),
    "no node": (gpus(TWO_NODES, only=0, numa_node=None), WARNING, "NUMA", "to which GPU 0 belongs"),
    "docker's /dev/shm": (SMALL_SHM, WARNING, "shared memory", "64 MiB, 64 MiB free"),
    "docker's /dev/shm, no P2P": (replace(SMALL_SHM, topology=without_p2p("not supported")), PROBLEM, "shared memory",
                                  "8 ranks"),
    "own namespaces (pytorch#165685)": (replace(HEALTHY, own_ipc=True, container="/.dockerenv is there"), WARNING,
                                        "namespaces", "A container (/.dockerenv is there) with IPC namespace"),
    "a GPU that is not there": (environment(CUDA_VISIBLE_DEVICES="0,8,1"), PROBLEM, "visible GPUs", "names 8"),
    "hidden": (environment(CUDA_VISIBLE_DEVICES=""), PROBLEM, "visible GPUs", "hides every GPU"),
    "twice": (environment(CUDA_VISIBLE_DEVICES="1,1"), PROBLEM, "visible GPUs", "names a GPU twice"),
    "NCCL without P2P": (environment(NCCL_P2P_DISABLE="1"), WARNING, "NCCL and CUDA", "NCCL_P2P_DISABLE=1"),
    "NCCL near only": (environment(NCCL_P2P_LEVEL="PIX"), WARNING, "NCCL and CUDA", "NCCL_P2P_LEVEL=PIX"),
    "NCCL without LL": (environment(NCCL_PROTO="Simple"), WARNING, "NCCL and CUDA", "LL is the protocol"),
    "NCCL not LL": (environment(NCCL_PROTO="^LL,LL128"), WARNING, "NCCL and CUDA", "LL is the protocol"),
    "blocking launches": (environment(CUDA_LAUNCH_BLOCKING="1"), WARNING, "NCCL and CUDA", "waits for every kernel"),
    "own P2P switch": (environment(PCIE_ALLREDUCE_P2P="0"), WARNING, "own settings", "through the host's memory"),
}  # fmt: skip
ALONGSIDE = {
    "no driver, but GPUs": set(),
    "stock driver, GeForce": set(),
    "docker's /dev/shm, no P2P": {"P2P"},
}
WELL = {
    "idle links": gpus(pcie_generation=1),
    "NCCL with LL": environment(NCCL_PROTO="LL,LL128,Simple", NCCL_P2P_LEVEL="SYS"),
    "NCCL without Simple": environment(NCCL_PROTO="^Simple"),
    "some GPUs": environment(CUDA_VISIBLE_DEVICES="3,2"),
    "expandable segments": environment(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    "redirects of a root port": replace(HEALTHY, paths=tuple(path[2:] for path in HEALTHY.paths)),
    "ACS is not to be seen": replace(HEALTHY, paths=CLOSED),
    "no IOMMU": replace(HEALTHY, iommus=0, iommu=(None,) * WORLD),
    "two nodes": TWO_NODES,
}


def bad(box: Box) -> list[Finding]:
    return [finding for finding in examine(box) if finding.level > Level.OK]


def test_a_healthy_machine_has_nothing_but_ok() -> None:
    assert bad(HEALTHY) == []
    assert exit_code(examine(HEALTHY)) == 0
    topics = {finding.topic for finding in examine(HEALTHY)}
    assert topics >= {"build", "driver", "GPUs", "P2P", "ACS", "IOMMU", "BAR1", "module", "shared memory"}


@pytest.mark.parametrize("name", SICK)
def test_a_sick_machine(name: str) -> None:
    box, level, topic, evidence = SICK[name]
    findings = bad(box)
    hits = [finding for finding in findings if evidence in finding.evidence]
    assert [(hit.topic, hit.level) for hit in hits] == [(topic, level)], findings
    assert hits[0].remedy or name == "torch sees fewer"
    assert {finding.topic for finding in findings} - {topic} == ALONGSIDE.get(name, set())
    assert exit_code(examine(box)) == (level is PROBLEM)


@pytest.mark.parametrize("name", WELL)
def test_what_is_no_sickness(name: str) -> None:
    assert bad(WELL[name]) == []


@pytest.mark.parametrize("paths", [CLOSED, (CLOSED[0], *HEALTHY.paths[1:])], ids=["no bridge", "not every bridge"])
def test_bits_that_cannot_be_read_are_not_called_clear(paths: tuple[tuple[Bridge, ...], ...]) -> None:
    assert "ACS" not in {finding.topic for finding in examine(replace(HEALTHY, paths=paths))}


def test_a_machine_without_gpus_is_warned_of_and_no_more() -> None:
    assert {finding.topic for finding in bad(NO_GPU)} == {"driver"}
    assert "Only CPU ranks can run here" in bad(NO_GPU)[0].evidence
    assert exit_code(examine(NO_GPU)) == 0


def test_a_machine_may_have_several_problems_and_the_worst_come_first() -> None:
    findings = examine(TRANSLATED)
    levels = [finding.level for finding in findings]
    assert levels == sorted(levels, reverse=True)
    problems = {finding.topic for finding in findings if finding.level is PROBLEM}
    assert problems == {"ACS", "IOMMU", "module"}


def test_expandable_segments_are_said_not_to_matter() -> None:
    told = [finding for finding in examine(WELL["expandable segments"]) if finding.topic == "allocator"]
    assert [finding.level for finding in told] == [Level.OK]
    assert "does not matter here" in told[0].evidence


def test_what_was_not_seen_is_neither_well_nor_ill() -> None:
    """GPUs of which the driver tells nothing, on a machine of which the kernel tells nothing."""
    blind = Box(HEALTHY.found, Snapshot.unknown(tuple(gpu.uuid for gpu in HEALTHY.topology.gpus), "no answer"))
    assert {finding.topic for finding in bad(blind)} == {"P2P"}
    topics = {finding.topic for finding in examine(blind)}
    assert topics == {"P2P", "build", "driver", "torch", "GPUs", "NCCL and CUDA"}


def test_the_shared_memory_that_is_asked_for_is_what_eight_ranks_take() -> None:
    takes = _C.slab_bytes(area_packs_for(WORLD, 2 * 2**20), True)
    assert 0.9 * SHARED_BYTES_A_RANK < takes <= SHARED_BYTES_A_RANK
