"""The two executors behind one face: who computes, and where the mailbox lies."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from . import _C
from .errors import SetupError
from .faults import ALGORITHMS
from .fused_plan import Shape
from .plan import MAX_THREADS, TRANSPORTS, WARP, candidates, owners_of, waiting_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .fused import FusedCall
    from .fused_plan import FusedPlan
    from .plan import Plan
    from .rendezvous import Member

DTYPE_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NAMES = {"push": "peer", "staged": "host", "pull": "pull"}  # of transports, to users; "peer" of CPU ranks is "cpu"
SWITCHED_OFF = "P2P is switched off by PCIE_ALLREDUCE_P2P=0"
ALGORITHM_CODES = {name: code for code, name in ALGORITHMS.items()}


class Transport(ABC):
    """One rank's end of the mailboxes."""

    name: str
    max_blocks: int  # of one launch
    area_packs: int  # of one phase of a slab
    memory_bytes: int  # of a rank's slab
    fused_algorithms: tuple[str, ...]  # with residual and RMSNorm
    shapes: tuple[Shape, ...] | None  # of fused launches; None: nothing is launched
    _channel: Any

    @abstractmethod
    def collective(self, x: torch.Tensor, out: torch.Tensor, plan: Plan) -> bool:
        """Starts (GPU) or performs (CPU) the call; True when the channel has a fault to report.

        An all-reduce, where the plan's algorithm is one; a reduce-scatter or an all-gather, where it has that name:
        then x or out is a chunk of the other.
        """

    @abstractmethod
    def all_reduce_add_rms_norm(self, call: FusedCall, plan: FusedPlan) -> bool:
        """The same of a fused all-reduce, whose memory is aligned."""

    @abstractmethod
    def close(self, patience: float) -> bool:
        """Lets go of all memory; False when some is kept because a peer may still use it."""

    def handle(self) -> bytes:
        handle: bytes = self._channel.handle()
        return handle

    def open(self, handles: Sequence[bytes]) -> None:
        self._channel.open(handles)

    def set_islands(self, first: Iterable[int]) -> None:
        self._channel.set_islands(sum(1 << rank for rank in first))

    def set_sum_copies(self, copies: int, own: int) -> None:
        """Where ranks meet in host memory: how often an owner writes its sums, and which copy this rank reads."""
        self._channel.set_sum_copies(copies, own)

    def forget_names(self) -> None:
        self._channel.forget_names()

    def measure(self, experiment: Sequence[int], deadline: float) -> list[tuple[int, ...]]:
        """The results of an experiment of csrc/protocol/probe.h, given by its words."""
        results: list[tuple[int, ...]] = self._channel.measure(experiment, deadline)
        return results

    def fault(self) -> dict[str, Any] | None:
        fault: dict[str, Any] | None = self._channel.fault()
        return fault

    def waits(self) -> list[tuple[int, float, float]]:
        waits: list[tuple[int, float, float]] = self._channel.waits()
        return waits

    def greet(self, rank: int, world_size: int, deadline: float) -> None:
        """Exchanges known bytes with every peer; raises with the pairs that failed."""
        words = self._channel.exchange(deadline)
        told = []
        for peer in range(world_size):
            verdict = words[peer * _C.GREETING_PACKS : (peer + 1) * _C.GREETING_PACKS]
            if peer != rank and 2 in verdict:
                told.append(f"rank {peer} to rank {rank}: bytes did not arrive within {deadline:g} s")
            elif peer != rank and 3 in verdict:
                told.append(f"rank {peer} to rank {rank}: bytes arrived changed")
        if told:
            raise SetupError("; ".join(told))


class CpuTransport(Transport):
    """CPU ranks in shared memory, by the protocol of GPUs with the same transport."""

    max_blocks = 1

    def __init__(
        self, rank: int, world_size: int, area_packs: int, timeout: float, warmup_timeout: float, transport: str
    ) -> None:
        self.name = "cpu" if transport == "push" else NAMES[transport]
        self.fused_algorithms = () if transport != "push" else ("one_shot", "two_shot", "island")
        self.shapes = None
        crowded = world_size > len(os.sched_getaffinity(0))
        code = TRANSPORTS.index(transport)
        self._channel = _C.CpuChannel(rank, world_size, area_packs, timeout, warmup_timeout, code, crowded)

    def collective(self, x: torch.Tensor, out: torch.Tensor, plan: Plan) -> bool:
        failed: bool = self._channel.collective(
            x.data_ptr(), out.data_ptr(), _chunk_bytes(x, out), ALGORITHM_CODES[plan.algorithm], DTYPE_CODES[x.dtype]
        )
        return failed

    def all_reduce_add_rms_norm(self, call: FusedCall, plan: FusedPlan) -> bool:
        failed: bool = self._channel.all_reduce_add_rms_norm(
            call.x.data_ptr(),
            call.residual_out.data_ptr(),
            call.x.nbytes,
            call.hidden,
            call.norm(),
            ALGORITHM_CODES[plan.algorithm],
            DTYPE_CODES[call.x.dtype],
        )
        return failed

    def close(self, patience: float) -> bool:
        self._channel.close()
        return True


class GpuTransport(Transport):
    """GPUs that write into each other's memory ("push"), write into host memory that all read ("staged"), or read from
    each other ("pull")."""

    def __init__(
        self,
        device: torch.device,
        rank: int,
        world_size: int,
        area_packs: int,
        timeout: float,
        warmup_timeout: float,
        transport: str,
    ) -> None:
        self.name = NAMES[transport]
        self._device = device
        self._world_size = world_size
        code = TRANSPORTS.index(transport)
        self._channel = _C.GpuChannel(device.index, rank, world_size, area_packs, timeout, warmup_timeout, code)
        self.max_blocks = 0  # until share_gpu
        self.fused_algorithms = () if transport != "push" else candidates(world_size, islands=True)
        self.shapes = ()
        self._wide_threads = _C.max_wide_threads(world_size)

    def share_gpu(self, ranks_on_this_gpu: int) -> None:
        """Limits the launches so that every block which may wait at the same time on this GPU is resident at once, and
        room is left for whatever a rank must run before it can be there.

        Twice: a dependent grid already holds its slots while its predecessor ends.
        """
        resident = self._channel.resident_blocks(256)
        rearming = 1 if self.name == "host" else 0  # a block beside those that move data
        multiprocessors = torch.cuda.get_device_properties(self._device).multi_processor_count
        waiting = waiting_blocks(multiprocessors, ranks_on_this_gpu)
        self.max_blocks = min(_C.MAX_BLOCKS, resident // (2 * ranks_on_this_gpu), waiting) - rearming
        if self.max_blocks < 1:
            raise SetupError(
                f"{self._device} holds {resident} blocks of 256 threads at once, too few for {ranks_on_this_gpu} ranks "
                "that wait for each other on it"
            )
        if self.fused_algorithms:
            clusters = range(2, _C.MAX_CLUSTER + 1)
            launches = [("one_shot", 1, self._wide_threads)]
            for algorithm in self.fused_algorithms:
                warps = WARP * owners_of(algorithm, self._world_size)  # of every owner as many
                sizes: Iterable[int] = (128, 256) if algorithm == "one_shot" else range(warps, MAX_THREADS + 1, warps)
                launches += [(algorithm, cluster, threads) for threads in sizes for cluster in clusters]
            self.shapes = tuple(
                Shape(
                    cluster,
                    threads,
                    min(
                        self._resident_teams(algorithm, threads, cluster) // (2 * ranks_on_this_gpu), waiting // cluster
                    ),
                    algorithm,
                )
                for algorithm, cluster, threads in launches
            )

    def _resident_teams(self, algorithm: str, threads: int, cluster: int) -> int:
        teams: int = self._channel.resident_teams(ALGORITHM_CODES[algorithm], threads, cluster)
        return teams

    def collective(self, x: torch.Tensor, out: torch.Tensor, plan: Plan) -> bool:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        failed: bool = self._channel.collective(
            x.data_ptr(),
            out.data_ptr(),
            _chunk_bytes(x, out),
            ALGORITHM_CODES[plan.algorithm],
            DTYPE_CODES[x.dtype],
            plan.blocks,
            plan.threads,
            stream,
        )
        return failed

    def all_reduce_add_rms_norm(self, call: FusedCall, plan: FusedPlan) -> bool:
        failed: bool = self._channel.all_reduce_add_rms_norm(
            call.x.data_ptr(),
            call.residual_out.data_ptr(),
            call.x.nbytes,
            call.hidden,
            call.norm(),
            ALGORITHM_CODES[plan.algorithm],
            DTYPE_CODES[call.x.dtype],
            plan.teams,
            plan.cluster,
            plan.threads,
            torch.cuda.current_stream(self._device).cuda_stream,
        )
        return failed

    def close(self, patience: float) -> bool:
        freed: bool = self._channel.close(patience)
        return freed


class FallbackTransport(Transport):
    """No mailboxes: a communicator whose construction was refused, and whose fallback serves everything."""

    name = "fallback"
    max_blocks = area_packs = memory_bytes = 0
    fused_algorithms = ()
    shapes = None

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size

    def collective(self, x: torch.Tensor, out: torch.Tensor, plan: Plan) -> bool:
        raise RuntimeError("there are no mailboxes")

    def all_reduce_add_rms_norm(self, call: FusedCall, plan: FusedPlan) -> bool:
        raise RuntimeError("there are no mailboxes")

    def fault(self) -> None:
        return None

    def waits(self) -> list[tuple[int, float, float]]:
        return [(0, 0.0, 0.0)] * self._world_size

    def close(self, patience: float) -> bool:
        return True


def _chunk_bytes(x: torch.Tensor, out: torch.Tensor) -> int:
    """Of an all-reduce both are as large."""
    return min(x.nbytes, out.nbytes)


def why_no_p2p(device: torch.device, members: Sequence[Member]) -> str | None:
    """Why this GPU cannot write to a peer's, as the driver or the user has it. A peer's GPU that this process cannot
    see is left to the attempt: CUDA IPC reaches it all the same."""
    if os.environ.get("PCIE_ALLREDUCE_P2P") == "0":
        return SWITCHED_OFF
    visible = {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}
    for rank, member in enumerate(members):
        index = visible.get(member.device_id)
        if index in (None, device.index) or torch.cuda.can_device_access_peer(device.index, index):
            continue
        return (
            f"no P2P between {device} and cuda:{index} (rank {rank}'s GPU): the driver says that they cannot reach "
            "each other's memory"
        )
    return None
