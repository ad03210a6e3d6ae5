"""One rank of a soak: plays its rounds and judges every result by sums of integers that it computes itself."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import pcie_allreduce
from pcie_allreduce.bench.backends.base import Seat
from pcie_allreduce.soak.plan import HARMLESS, IN_CHUNKS, KILLED, LARGEST_BYTES, TOO_LATE, Call, Round

MARGIN = 1.0  # seconds beyond the deadline in which a failure must be told
POOL = 1 << 20  # whole numbers of which every input is a piece
HIGHEST = 8  # of them: eight ranks' sums are exact in bfloat16


@dataclass
class Counts:
    """What one rank has seen. Bytes are of payload, of one rank."""

    rounds: int = 0
    calls: int = 0
    replays: int = 0
    bytes: int = 0
    wrong: int = 0


class Player:
    def __init__(self, seat: Seat, deadline: float, complain: Callable[[str], None]) -> None:
        self.counts = Counts()
        self._seat = seat
        self._deadline = deadline
        self._complain = complain
        generator = torch.Generator().manual_seed(POOL)
        size = POOL + max(LARGEST_BYTES)
        pool = torch.randint(-HIGHEST, HIGHEST + 1, (size,), generator=generator, dtype=torch.int32)
        self._pool = pool.to(seat.device)

    def play(self, round_: Round) -> bool:
        """One round; False when it killed a rank, so that these processes have to end."""
        options = {"max_bytes": round_.max_bytes, "algorithm": round_.algorithm, "transport": round_.transport}
        deadlines = {"timeout": self._deadline, "warmup_timeout": self._deadline}
        comm = pcie_allreduce.Communicator(self._seat.gloo, self._seat.device, **options, **deadlines)  # type: ignore[arg-type]
        harmless = round_.trouble in HARMLESS
        for index, call in enumerate(round_.calls if harmless else round_.calls[: round_.at]):
            if index == round_.at and round_.trouble == "late" and self._is_culprit(round_):
                time.sleep(round_.pause)
            self._call(comm, round_, index, call)
        if self._seat.device.type == "cuda":
            self._replay(comm, round_)
        if not harmless:
            self._fail(comm, round_)
        self.counts.rounds += 1
        if round_.trouble == KILLED:
            return False
        self._seat.barrier()
        comm.close()
        return True

    def _is_culprit(self, round_: Round) -> bool:
        return self._seat.rank == round_.culprit

    def _operands(self, round_: Round, index: int, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's input and what it must get: sums of all ranks' inputs, or these."""
        dice = random.Random(f"{round_.seed}/{index}")
        starts = [dice.randrange(POOL) for _ in range(self._seat.world)]
        given = call.elements // self._seat.world if call.collective == "all_gather" else call.elements
        pieces = [self._pool[start : start + given] for start in starts]
        whole = torch.cat(pieces) if call.collective == "all_gather" else torch.stack(pieces).sum(0)
        expected = self._own(whole) if call.collective == "reduce_scatter" else whole
        return pieces[self._seat.rank].to(call.dtype), expected.to(call.dtype)

    def _own(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.view(self._seat.world, -1)[self._seat.rank]

    def _call(self, comm: pcie_allreduce.Communicator, round_: Round, index: int, call: Call) -> None:
        x, expected = self._operands(round_, index, call)
        out = None
        if index % 3 == 0:  # in place
            if call.collective == "all_gather":
                out = torch.zeros_like(expected)
                x = self._own(out).copy_(x)
            else:
                out = self._own(x) if call.collective == "reduce_scatter" else x
        self._judge(getattr(comm, call.collective)(x, out=out), expected, round_)
        self.counts.calls += 1
        self.counts.bytes += call.nbytes

    def _judge(self, got: torch.Tensor, expected: torch.Tensor, round_: Round) -> None:
        bits = torch.int32 if got.dtype == torch.float32 else torch.int16  # the sign of a zero counts
        if not torch.equal(got.view(bits), expected.view(bits)):
            self.counts.wrong += 1
            self._complain(f"round {round_.seed}: a wrong result of {got.numel()} x {got.dtype}")

    def _replay(self, comm: pcie_allreduce.Communicator, round_: Round) -> None:
        operands = [self._operands(round_, 0, call) for call in round_.graph]
        inputs = [torch.zeros_like(x) for x, _ in operands]
        outputs = [torch.zeros_like(expected) for _, expected in operands]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream()
        with comm.capture(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for call, x, out in zip(round_.graph, inputs, outputs, strict=True):
                getattr(comm, call.collective)(x, out=out)
        for replay in range(round_.replays):
            indices = range(1000 * (replay + 1), 1000 * (replay + 1) + len(inputs))
            operands = [self._operands(round_, i, call) for i, call in zip(indices, round_.graph, strict=True)]
            for x, (given, _) in zip(inputs, operands, strict=True):
                x.copy_(given)
            if replay == 0 and round_.trouble == "late" and self._is_culprit(round_):
                time.sleep(round_.pause)
            graph.replay()
            stream.synchronize()
            comm.check()
            for out, (_, expected) in zip(outputs, operands, strict=True):
                self._judge(out, expected, round_)
            self.counts.replays += 1
            self.counts.calls += len(inputs)
            self.counts.bytes += sum(call.nbytes for call in round_.graph)
        graph.reset()

    def _fail(self, comm: pcie_allreduce.Communicator, round_: Round) -> None:
        """The trouble, and whether every rank is told of it as it must be."""
        call = round_.calls[round_.at]
        if self._is_culprit(round_):
            if round_.trouble == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            if round_.trouble == "closes":
                comm.close()
                return
            if round_.trouble == "too_late":
                time.sleep(self._deadline + TOO_LATE)
            if round_.trouble == "other_size":
                step = self._seat.world if call.collective in IN_CHUNKS else 1
                fits = call.nbytes + step * call.dtype.itemsize <= round_.max_bytes
                call = replace(call, elements=call.elements + step if fits else call.elements - step)
        begun = time.monotonic()
        error = self._error_of(comm, round_, call) or self._error_of(comm, round_, call)  # data of one call may be here
        took = time.monotonic() - begun
        if error is None or took > self._deadline + MARGIN or not self._names(error, round_):
            self._complain(
                f"round {round_.seed}: rank {round_.culprit} {round_.trouble}; told after {took:.1f} s: {error}"
            )

    def _error_of(self, comm: pcie_allreduce.Communicator, round_: Round, call: Call) -> Exception | None:
        x, expected = self._operands(round_, round_.at, call)
        out = torch.zeros_like(expected)
        try:
            getattr(comm, call.collective)(x, out=out)
            if x.is_cuda:
                torch.cuda.synchronize()
            comm.check()
        except pcie_allreduce.PcieAllReduceError as error:
            if round_.trouble != "other_size" and not bool((out.isnan() | (out == expected)).all()):
                self.counts.wrong += 1
                self._complain(f"round {round_.seed}: a failed call left something else than NaN or its sum")
            return error
        return None

    def _names(self, error: Exception, round_: Round) -> bool:
        if self._is_culprit(round_) and round_.trouble == "too_late":
            return isinstance(error, pcie_allreduce.AllReduceTimeout)
        if isinstance(error, pcie_allreduce.AllReduceTimeout):
            return round_.trouble in ("too_late", KILLED) and error.missing == (round_.culprit,)
        kind = pcie_allreduce.ClosedError if round_.trouble == "closes" else pcie_allreduce.CallMismatch
        return isinstance(error, kind) and f"rank {round_.culprit}" in str(error)
