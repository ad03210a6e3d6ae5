"""Tables of what the probe would measure on boxes that were published, and on two that were at hand.

Latencies, rates and the figures of NCCL are as published for eight GPUs over PCIe Gen5, unless a line says otherwise:
one way 0.63-0.73 us behind one switch and 1.04-1.12 us through a CPU; stores 45-50 GB/s; a x16 uplink or a socket's
link 46-54 GB/s, which four ranks share with 4/7 of what they send; loads at 28 GB/s while all eight read. What was
published for one pair stands for all of its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pcie_allreduce.probe import Compared, Measurements, Traffic

T = TypeVar("T")

SWITCH_US, CPU_US = 0.68, 1.08
STORES, LOADS, LOADS_TOGETHER = 47.5, 40.0, 28.0
HOST_US, HOST_STORES = 1.67, 52.5  # two H200 over their PCIe 5 x16 links, measured


def matrix(world: int, value: Callable[[int, int], T], own: T | None = None) -> tuple[tuple[T | None, ...], ...]:
    return tuple(tuple(own if a == b else value(a, b) for b in range(world)) for a in range(world))


def traffic(
    world: int, us: Callable[[int, int], float], stores: float = STORES, together: float = STORES, **changes: object
) -> Traffic:
    made = Traffic(
        arrived=matrix(world, lambda a, b: "ok", "ok"),
        latency_us=matrix(world, us),
        push_gbps=matrix(world, lambda a, b: stores),
        pull_gbps=matrix(world, lambda a, b: LOADS),
        push_together_gbps=(together,) * world,
        pull_together_gbps=(min(LOADS_TOGETHER, together),) * world,
        pulled=matrix(world, lambda a, b: "ok"),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def host(world: int) -> Traffic:
    """Each GPU has its own link to the host's memory."""
    return traffic(world, lambda a, b: HOST_US, HOST_STORES, HOST_STORES)


def box(direct: Traffic, world: int = 8, **changes: object) -> Measurements:
    made = Measurements("cuda", "peer", world, 1, direct, host(world))
    return replace(made, **changes)  # type: ignore[arg-type]


def across(a: int, b: int) -> bool:
    return (a < 4) != (b < 4)


def switch() -> Measurements:
    """Eight GPUs behind one switch."""
    return box(traffic(8, lambda a, b: SWITCH_US))


def four_and_four() -> Measurements:
    """Two switches, each behind an uplink of 50 GB/s that 16/7 of a rank's stores cross."""
    return box(traffic(8, lambda a, b: CPU_US if across(a, b) else SWITCH_US, together=50 * 7 / 16))


def interleaved() -> Measurements:
    """The same with even ranks on one switch and odd ones on the other."""
    return box(traffic(8, lambda a, b: CPU_US if (a + b) % 2 else SWITCH_US, together=50 * 7 / 16))


def collapse(stores: float = 2.7) -> Measurements:
    """Broadcom PEX890xx behind EPYC Turin, Microchip behind Threadripper: stores of one switch to two root complexes
    fall from 37-52 to 2.7-7 GB/s while reads keep their speed."""
    direct = four_and_four().direct
    return box(replace(direct, push_together_gbps=(stores,) * 8, pull_together_gbps=(LOADS_TOGETHER,) * 8))


def mailbox() -> Measurements:
    """The driver stages P2P: 242 us for a call that takes 17, two passes one after the other."""
    return box(traffic(8, lambda a, b: 242 / 2, stores=3.0, together=1.0))


def wrong_data() -> Measurements:
    """club-3090#922, pytorch#84803: the driver says yes to P2P, and bytes are wrong."""
    told = "arrived changed (word 3 of 1,024 bytes is 0x00000000 instead of 0x9e3779b1)"
    return box(Traffic(arrived=matrix(8, lambda a, b: told, "ok")))


def hang() -> Measurements:
    """NVIDIA/nccl#1999, vllm#42063: the first collective hangs."""
    return box(Traffic(arrived=matrix(8, lambda a, b: "did not arrive within 2 s (of 16 bytes)", "ok")))


def no_p2p(world: int = 8) -> Measurements:
    """4090 and 5090 with the driver as it comes."""
    problem = (
        "checking P2P failed: rank 0: no P2P between cuda:0 and cuda:1 (rank 1's GPU): the driver says that they "
        "cannot reach each other's memory"
    )
    return box(Traffic(problem=problem), world)


def containers() -> Measurements:
    """pytorch#165685, vllm#55906: CUDA IPC is denied between containers."""
    return box(
        Traffic(
            problem="mapping the peers' mailboxes failed: rank 1: opening a peer's GPU memory by CUDA IPC: "
            "cudaErrorInvalidResourceHandle: invalid resource handle"
        )
    )


def one_bad_pair() -> Measurements:
    """A healthy switch on which bytes from rank 5 to rank 2 are lost, and only those."""
    lost = {(5, 2): "did not arrive within 2 s (of 1,024 bytes)"}
    return box(Traffic(arrived=matrix(8, lambda a, b: lost.get((a, b), "ok"), "ok")))


def mixed() -> Measurements:
    """Seven of eight on one switch, the eighth in a slot of four lanes on the CPU."""
    far = traffic(8, lambda a, b: CPU_US if 7 in (a, b) else SWITCH_US)
    return box(replace(far, push_gbps=matrix(8, lambda a, b: 11.5 if 7 in (a, b) else STORES)))


def two_h200() -> Measurements:
    """NVLink between them; measured by this project's prototypes."""
    direct = traffic(2, lambda a, b: 0.64, stores=201.0, together=201.0)
    compared = (Compared(14336, 1.99, 7.25), Compared(131072, 2.43, 7.10))
    return box(direct, 2, fallback="nccl", compared=compared)


def slower_than_nccl() -> Measurements:
    """wiki 2026-04-25, two sockets: NCCL ahead at every size; that page tells of tokens alone (113 and 20 a second), so
    the times are in their ratio."""
    compared = tuple(Compared(nbytes, 24.5 * 113 / 20, 24.5) for nbytes in (14336, 131072, 1048576))
    return replace(four_and_four(), fallback="nccl", compared=compared)
