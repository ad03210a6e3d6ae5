"""The object that an engine's group keeps as its custom all-reduce.

SGLang and vLLM ask it `should_custom_ar(x)` and, if yes, call `custom_all_reduce(x)` for a new tensor; graphs are
captured inside `capture()`. Graphs of verify, draft and draft-extend steps and of prefill share one object, and replay
on another stream than the one that captured them. It knows no engine, so tests drive it as an engine would.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ..communicator import Communicator
from ..errors import ClosedError, PcieAllReduceError, SetupError
from ..lifetime import in_capture
from ..rendezvous import Rendezvous
from ..transport import DTYPE_CODES
from ..watcher import Watcher
from .fusing import Fusing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .settings import Settings

logger = logging.getLogger(__name__)

INTERVAL = 0.2  # seconds between looks for a fault

# Held while any group's graphs are captured: until then CUDA allows no other thread of the process to copy from a GPU,
# which reading the kernels' counters does.
_capturing = threading.RLock()


class EngineAllReduce:
    """One group's all-reduce for an engine. Collective over the group; SetupError on every rank if it cannot be made.

    Args:
        group: a torch.distributed group that can move bytes (the engine's gloo group).
        device: this rank's device.
        name: how the log calls the group.
        settings: timeouts, sizes, and what a fault leads to.
        fallback: the engine's group that reduces on this device.
        every_size: serve tensors over `max_bytes` too, in pieces, so that the order of a sum never depends on its size.
        on_fault: called once, from any thread, with what a call or a kernel has reported.
    """

    def __init__(
        self,
        group: Any,
        device: torch.device,
        *,
        name: str,
        settings: Settings,
        fallback: Any = None,
        every_size: bool = False,
        on_fault: Callable[[PcieAllReduceError], None],
    ) -> None:
        self.disabled = self.original_disabled = False  # the engine reads the first and may set it
        self.name = name
        self.served = 0  # calls from Python; the replay of a graph is none
        self.declined = 0  # counted by who routes the rest: should_custom_ar must stay pure
        self.fuses = False  # set by who has the engine's layers ask should_fuse
        self.fused = 0  # of the calls that served counts
        self.gathers = False
        self.gathered = 0  # beside those that served counts
        self._every_size = every_size
        self._on_fault = on_fault
        self._faulted = self._closed = False
        self._log_seconds = settings.log_seconds
        self._reported = (0, 0, 0.0)
        self._counting = threading.Lock()
        wishes = Rendezvous(group).gather((settings.fused, settings.gather))  # the communicator agrees on all others
        if len(set(wishes)) > 1:
            told = ", ".join(f"rank {rank}: {fused} and {gather}" for rank, (fused, gather) in enumerate(wishes))
            raise SetupError(f"the ranks' PCIE_ALLREDUCE_FUSED and PCIE_ALLREDUCE_GATHER differ ({told})")
        self._comm = Communicator(
            group,
            device,
            fallback=fallback,
            max_bytes=settings.max_bytes,
            timeout=settings.timeout,
            warmup_timeout=settings.warmup_timeout,
            algorithm="two_shot" if every_size else "auto",  # "auto" may sum in another order for another size
        )
        if self._comm.transport == "fallback":  # nothing of ours is served: the engine does that better by itself
            self._comm.close()
            raise SetupError(self._comm.verdict.reason)
        self.fusing = Fusing(self._comm, name, settings.fused, every_size)
        self._watcher = Watcher(self._look, None, INTERVAL, abort=False)
        atexit.register(_close, weakref.ref(self))

    @property
    def communicator(self) -> Communicator:
        return self._comm

    def should_custom_ar(self, inp: torch.Tensor) -> bool:
        """Whether custom_all_reduce serves inp. Of its shape, dtype, device and contiguity alone, so that all ranks say
        the same. Not by `Communicator.supports`: Dynamo would compile its reasons anew for each refused shape."""
        return (
            not self.disabled
            and inp.dtype in DTYPE_CODES
            and inp.device == self._comm.device
            and inp.is_contiguous()
            and (self._every_size or inp.numel() * inp.element_size() <= self._comm.max_bytes)
        )

    def custom_all_reduce(self, inp: torch.Tensor) -> torch.Tensor:
        """The sum over the group, as a new tensor: eager, in warm-up and under capture alike."""
        before = self._comm.calls
        in_pieces = self._every_size and inp.nbytes > self._comm.max_bytes
        try:
            total = self._in_pieces(inp) if in_pieces else self._comm.all_reduce(inp)
        except PcieAllReduceError as error:
            self._fault(error)
            raise
        if self._comm.calls == before:  # left to the communicator's fallback, which is the engine's
            self.declined += 1
        else:
            self.served += 1
        return total

    def should_fuse(self, inp: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether fused_allreduce_rmsnorm serves these; as pure as should_custom_ar, for the same reasons."""
        return self.fuses and not self.disabled and self.fusing.serves(inp, residual, weight)

    def fused_allreduce_rmsnorm(
        self, inp: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, weight_bias: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(normed, residual + the sum over the group), as new tensors, of what should_fuse has said yes to."""
        if torch.compiler.is_compiling():  # one operator; numbers that change would be compiled anew for each value
            return self._comm.all_reduce_add_rms_norm(inp, residual, weight, eps, weight_bias=weight_bias)
        self.served += 1
        self.fused += 1
        try:
            return self._comm.all_reduce_add_rms_norm(inp, residual, weight, eps, weight_bias=weight_bias)
        except PcieAllReduceError as error:
            self._fault(error)
            raise

    def route_gathers(self) -> str | None:
        """The engine's all-gathers come to gather or gather_into from now on; or why they should not."""
        if self._comm.transport not in ("peer", "cpu"):
            return f"transport {self._comm.transport} would make all-reduces of them"
        self.gathers = True
        return None

    def gather(self, inp: torch.Tensor, dim: int) -> torch.Tensor | None:
        """The inp of all ranks side by side along dim, as a new tensor; None: the engine's, and counted as that."""
        if not -inp.dim() <= dim < inp.dim():
            return None  # for the engine to tell
        if inp.nbytes * self._comm.world_size > self._comm.max_bytes:  # asked before memory is taken for it
            self.declined += 1
            return None
        stacked = inp.new_empty((self._comm.world_size, *inp.shape))
        if not self.gather_into(inp, stacked):
            return None
        dim %= inp.dim()
        return stacked.movedim(0, dim).flatten(dim, dim + 1)

    def gather_into(self, inp: torch.Tensor, out: torch.Tensor) -> bool:
        """Fills out, whatever its shape is, with the inp of all ranks, one behind the other. False: the engine's, and
        counted as that. Of shape, dtype, device and contiguity alone, so that all ranks say the same."""
        if not (
            self.gathers
            and not self.disabled
            and inp.dim() > 0
            and inp.dtype == out.dtype
            and inp.device == out.device
            and inp.is_contiguous()
            and inp.numel() * self._comm.world_size == out.numel()
            and self._comm.supports(out)
        ):
            self.declined += 1
            return False
        self.gathered += 1
        try:
            self._comm.all_gather(inp, out=out.view(self._comm.world_size * inp.shape[0], *inp.shape[1:]))
        except PcieAllReduceError as error:
            self._fault(error)
            raise
        return True

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Around the capture of CUDA graphs; may be entered many times."""
        with _capturing, self._comm.capture():
            yield

    def close(self) -> None:
        """No collective inside; peers that still wait for this rank see that it has closed."""
        self._report()
        with self._counting:  # so that the watcher's thread is not at its counters when they go
            if self._closed:
                return
            self.disabled = self._closed = True
        self._watcher.stop()
        self._comm.close()

    def __del__(self) -> None:
        if not hasattr(self, "_watcher"):  # construction did not go through
            return
        if in_capture():  # as for the communicator, which then keeps what it has
            self._watcher.stop()
        else:
            self.close()

    def _in_pieces(self, inp: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(inp)
        size = self._comm.max_bytes // inp.element_size()
        for source, target in zip(torch.split(inp.view(-1), size), torch.split(out.view(-1), size), strict=True):
            self._comm.all_reduce(source, out=target)
        return out

    def _look(self) -> None:
        """Every 0.2 s, from the watcher's thread: while graphs replay, no call of ours would see a fault."""
        try:
            self._comm.check()
        except PcieAllReduceError as error:
            if not (self._closed and isinstance(error, ClosedError)):
                self._fault(error)
            return
        if time.monotonic() - self._reported[2] >= self._log_seconds:
            self._report()

    def _fault(self, error: PcieAllReduceError) -> None:
        if not self._faulted:
            self._faulted = True
            self._on_fault(error)

    def _report(self) -> None:
        with contextlib.suppress(ClosedError):  # its owner may have closed the communicator
            self._report_open()

    def _report_open(self) -> None:
        if self._comm.rank != 0 or not _capturing.acquire(blocking=False):
            return
        try:
            with self._counting:
                if self._closed:
                    return
                told = (self.served_with_replays(), self.declined)
        finally:
            _capturing.release()
        if told != self._reported[:2] and told[0] >= self._reported[0]:  # collected with us, the communicator says 0
            self._reported = (*told, time.monotonic())
            what = "all-reduces and all-gathers" if self.gathers else "all-reduces"
            served, declined = told
            logger.info(
                "pcie-allreduce: group %s served %d %s (%d went to the engine)", self.name, served, what, declined
            )

    def served_with_replays(self) -> int:
        """Calls that this rank has taken part in, as the kernels count them: replays of graphs included."""
        return max(peer.calls for peer in self._comm.stats())


def _close(reference: weakref.ref[EngineAllReduce]) -> None:
    adapter = reference()
    if adapter is not None:
        adapter.close()
