"""The public face: one object a group and device, made together by all ranks."""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import chunks, fp8, lifetime, ops
from .construction import CLOSE_PATIENCE, Wishes, agree, describe, device_of
from .errors import ClosedError, PcieAllReduceError
from .faults import fault_error
from .fused import FusedCall, add_rms_norm, checked
from .fused_plan import FusedPlan, choose_fused
from .plan import Plan, Tuned, chunks_plan, step_for
from .probe.decision import steps
from .probing import build, plan_call
from .rendezvous import Rendezvous, plain_errors
from .transport import DTYPE_CODES
from .watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .watcher import Callback

logger = logging.getLogger("pcie_allreduce")


@dataclass(frozen=True)
class PeerStats:
    """How late one peer was, as this rank saw it. Seconds from when this rank began to wait."""

    rank: int
    calls: int
    waited: float
    worst: float


class Communicator:
    """All-reduces small tensors over the ranks of a group on one machine.

    Sums are made in float32 in rank order and rounded once; every rank gets the same bits, and a sum of zero is +0.0.

    Args:
        group: any torch.distributed group that can move bytes (gloo will do); 2 to 8 ranks. None: the default group.
        device: "cpu", or the CUDA device of this rank, such as "cuda:3".
        fallback: a group that can reduce on this device. Serves what this one does not; without it, that raises. With
            it, a machine that cannot be served gives a communicator all the same: see `verdict`.
        max_bytes: the largest tensor served, in bytes. It sizes the mailbox: see `memory_bytes`.
        timeout: seconds that one call may wait for its peers, after the warm-up.
        warmup_timeout: the same for the first 1,000 calls, or until the first replay of a CUDA graph.
        transport: "auto", "cpu", "peer" (GPU memory by P2P), "host" (host memory, where GPUs cannot write to each
            other) or "pull" (GPUs read from each other, where writes to peers collapse). "auto" takes the last two
            where they are needed, and says so; with CPU ranks they are for tests without a GPU.
        algorithm: "auto", "one_shot", "two_shot" or "island" (two groups of equally many GPUs, found in the topology or
            named in PCIE_ALLREDUCE_ISLANDS, such as "0-3|4-7").
        probe: whether the machine's links are measured, or a short look confirms what was measured before, to decide
            how ranks meet (transport "auto" alone). None: PCIE_ALLREDUCE_PROBE says it, else GPUs are, CPU ranks not.

    Raises:
        SetupError: on every rank, with the same reason, when any rank cannot take part.

    `verdict` tells how the ranks meet and why; its `transport` is "fallback" where the fallback serves everything.

    One call at a time, on one stream at a time: a call on another stream is ordered behind the last one by an event,
    but not behind a graph that was replayed since: the host sees no replay. Graphs that hold calls must not be replayed
    concurrently.
    """

    def __init__(
        self,
        group: Any,
        device: str | torch.device,
        *,
        fallback: Any = None,
        max_bytes: int | None = None,
        timeout: float = 30.0,
        warmup_timeout: float = 600.0,
        transport: str = "auto",
        algorithm: str = "auto",
        probe: bool | None = None,
    ) -> None:
        self._closed: str | None = "could not be set up"
        rendezvous = Rendezvous(group)
        self.rank = rendezvous.rank
        self.world_size = rendezvous.world_size
        self.calls = 0
        self._fallback = fallback
        self._turn = threading.Lock()
        self._caller: int | None = None  # the thread that has it
        self._memory = threading.Lock()  # so that close() does not unmap what stats() reads in another thread
        wishes = Wishes(device, max_bytes, timeout, warmup_timeout, transport, algorithm, fallback is not None, probe)
        with plain_errors():
            member = rendezvous.stage("checking the arguments", lambda: describe(wishes, self.rank, self.world_size))
            members, survey = agree(rendezvous, member)
            self._transport, self._survey, self.verdict = build(rendezvous, members, survey, fallback)
        self.device = device_of(member)
        self.max_bytes = member.max_bytes
        self._algorithm = algorithm
        self._plans: dict[tuple[int, torch.dtype], Plan | None] = {}
        self._left_to_fallback: set[tuple[int, torch.dtype]] = set()  # a subset of the plans
        self.cache_key = self._survey.table.key
        self.tuned = self._survey.table.steps or steps(self.verdict.compared)
        if self.rank == 0:
            self._say_how()
        self.transport = self._transport.name
        self.memory_bytes = self._transport.memory_bytes
        lifetime.begin(self, self._transport)
        self._key = ops.register(self)
        self._closed = None

    def _say_how(self) -> None:
        level = logging.WARNING if self.verdict.findings or self.verdict.transport == "fallback" else logging.INFO
        logger.log(level, "%s", self.verdict.line)
        if self.verdict.transport != "fallback":
            logger.info("%s", self._survey.table.origin)

    def why_not(self, x: torch.Tensor) -> str | None:
        """Why x is not served by this communicator itself, with the value and the limit; None when it is."""
        refusal = self._refusal(x)
        return None if refusal is None else str(refusal)

    def supports(self, x: torch.Tensor) -> bool:
        """Whether x is served by this communicator itself, and not by the fallback or an error."""
        return self._refusal(x) is None

    def algorithm_for(self, x: torch.Tensor) -> str:
        """Name of the algorithm that serves x; "none" where the fallback or an error does."""
        plan = self.plan_for(x)
        return "none" if plan is None else plan.algorithm

    def plan_for(self, x: torch.Tensor) -> Plan | None:
        """The algorithm, equal on all ranks, and this rank's launch shape; None where algorithm_for says "none"."""
        return self._plan(x) if self.supports(x) and x.numel() > 0 else None

    def replan(self, tuned: Tuned) -> None:
        """Takes this table in place of what the cache had, to measure it. On all ranks, between the same calls of each;
        CUDA graphs keep what they were captured with."""
        self.tuned = tuned
        self._plans.clear()
        self._left_to_fallback.clear()

    def _plan(self, x: torch.Tensor) -> Plan | None:
        key = (x.nbytes, x.dtype)
        if key not in self._plans:
            self._plans[key] = plan_call(self._transport, self._survey, self.world_size, x, self._algorithm, self.tuned)
            step = step_for(self.tuned, x.nbytes, x.element_size()) if self._algorithm == "auto" else None
            if self._fallback is not None and step is not None and step.fallback:
                self._left_to_fallback.add(key)
        return self._plans[key]

    def _refusal(self, x: torch.Tensor, what: str = "the tensor") -> Exception | None:
        return self._unfit(x) or self._unserved(x, what) or _wants_grad(x)

    def _unfit(self, x: torch.Tensor) -> Exception | None:
        if self._closed is not None:
            return ClosedError(f"the communicator {self._closed}")
        if not isinstance(x, torch.Tensor):
            return TypeError(f"a torch.Tensor is needed, not {type(x).__name__}")
        if x.device != self.device:
            return ValueError(f"the tensor is on {x.device}; this communicator serves {self.device}")
        if x.dtype not in DTYPE_CODES:
            return TypeError(f"dtype {x.dtype} is not served; float16, bfloat16 and float32 are")
        if not x.is_contiguous():
            return ValueError(f"the tensor is not contiguous: shape {tuple(x.shape)}, strides {x.stride()}")
        if x.is_neg():  # its memory holds the values that it has not
            return ValueError("the tensor is a negated view of complex numbers; x.resolve_neg() is served")
        return None

    def _unserved(self, x: torch.Tensor, what: str) -> Exception | None:
        if x.nbytes > self.max_bytes:
            return ValueError(f"{what} has {x.nbytes} bytes; this communicator's max_bytes is {self.max_bytes}")
        if self.transport == "fallback":
            return ValueError(f"the fallback serves everything, because {self.verdict.reason}")
        if x.numel() > 0 and self._plan(x) is None:
            return ValueError(
                f"algorithm {self._algorithm!r} does not serve {x.nbytes} bytes of {x.dtype} in this mailbox"
            )
        if (x.nbytes, x.dtype) in self._left_to_fallback:  # by _plan
            return ValueError(f"for {x.nbytes} bytes of {x.dtype} the fallback was measured to be faster")
        return None

    def all_reduce(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """The sum of x over all ranks, on every rank.

        Args:
            x: contiguous float16, bfloat16 or float32 tensor of any shape on this communicator's device, at most
                `max_bytes` bytes; the same shape and dtype on all ranks. Not changed, unless out is x.
            out: where to put the result (same shape, dtype and device, contiguous); may be x. By default a new tensor.

        Returns:
            out.

        Raises:
            ValueError, TypeError: the tensor cannot be served and there is no fallback. Nothing was sent.
            AllReduceTimeout, CallMismatch: a peer did not take part. CPU: of this call; GPU: of an earlier one, since
                kernels report while they run. The communicator can not be used any more.
            ClosedError: the communicator was closed.
        """
        if torch.compiler.is_compiling():
            return self._traced(x, out)
        refusal = self._refusal(x)
        if out is not None and isinstance(x, torch.Tensor):
            _check_out(x, out)
        if refusal is not None:
            return self._served_elsewhere(x, out, refusal)
        if out is None:
            out = torch.empty_like(x)
        if x.numel() == 0:  # launches nothing and advances nothing, on every rank
            return out
        plan = self._plan(x)
        assert plan is not None  # or it had been refused
        self._perform(partial(self._transport.collective, x, out, plan), out)
        return out

    def reduce_scatter(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """This rank's chunk of the sum of x over all ranks.

        Sums are made in float32 in rank order and rounded once, as those of all_reduce are; but by island that adds the
        partial sums of two islands, and may differ in the last bit.

        It moves half of what an all-reduce moves where ranks write into each other's memory; elsewhere it is one. The
        fallback serves it where it would serve all_reduce(x).

        Args:
            x: as for all_reduce, (world_size * n, ...): a chunk for each rank, in rank order. Not changed, but where
                out is this rank's chunk of it.
            out: where to put the result ((n, ...), x's dtype and device, contiguous). By default a new tensor.

        Returns:
            out.

        Raises:
            As all_reduce. The fallback must be a group that can reduce-scatter on this device.
        """
        if torch.compiler.is_compiling():
            return _into(ops.reduce_scatter(x, self._key), out)
        out = chunks.scattered(x, out, self.world_size, self.rank)
        refusal = self._refusal(x)
        if refusal is not None:
            chunks.reduce_scatter(out, x.detach().contiguous(), group=self._fallback_for(refusal))
        elif x.numel() > 0 and self._survey.figures.transport != "push":
            try:
                out.copy_(self.all_reduce(x).view(self.world_size, *out.shape)[self.rank])
            except PcieAllReduceError:
                out.fill_(float("nan"))
                raise
        elif x.numel() > 0:
            self._perform_on_chunks("reduce_scatter", x, out)
        return out

    def all_gather(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """The chunks x of all ranks in rank order, on every rank.

        Values are handed on as they are, but that a -0.0 may become 0.0 (the same on all ranks), and that a NaN may
        become another NaN where ranks do not write into each other's memory: there it is an all-reduce. The fallback
        serves it where it would serve an all-reduce of all chunks together.

        Args:
            x: contiguous float16, bfloat16 or float32 tensor (n, ...) on this communicator's device; the chunks of all
                ranks have at most `max_bytes` bytes; the same shape and dtype on all ranks. Not changed.
            out: where to put the result ((world_size * n, ...), x's dtype and device, contiguous); x may be this rank's
                chunk of it. By default a new tensor.

        Returns:
            out.

        Raises:
            As all_reduce. The fallback must be a group that can all-gather on this device.
        """
        if torch.compiler.is_compiling():
            return _into(ops.all_gather(x, self._key), out)
        out = chunks.gathered(x, out, self.world_size, self.rank)
        refusal = self._unfit(x) or self._refusal(out, "what is gathered") or _wants_grad(x)
        if refusal is not None:
            chunks.all_gather(out, x.detach().contiguous(), group=self._fallback_for(refusal))
        elif x.numel() > 0 and self._survey.figures.transport != "push":
            self.all_reduce(chunks.spread_out(x, self.world_size, self.rank), out=out)
        elif x.numel() > 0:
            self._perform_on_chunks("all_gather", x, out)
        return out

    def _perform_on_chunks(self, collective: str, x: torch.Tensor, out: torch.Tensor) -> None:
        nbytes = min(x.nbytes, out.nbytes)
        plan = chunks_plan(collective, self.world_size, nbytes, self._transport.max_blocks)
        self._perform(partial(self._transport.collective, x, out, plan), out)

    def _perform(self, start: Callable[[], bool], *outs: torch.Tensor) -> None:
        if not self._turn.acquire(blocking=False):
            self._require_open()
            raise RuntimeError("another thread is inside a call of this communicator; one call at a time is served")
        self._caller = threading.get_ident()
        try:
            self._require_open()  # another thread may have closed it since the arguments were looked at
            if start():
                for out in outs:
                    out.fill_(float("nan"))
                self.check()
            self.calls += 1
        finally:
            self._caller = None
            self._turn.release()

    def all_reduce_add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        out: torch.Tensor | None = None,
        residual_out: torch.Tensor | None = None,
        weight_bias: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of x over all ranks, added to the residual, and the RMSNorm of that, on every rank.

        total = residual + sum of x over the ranks, in float32, in rank order, the residual last
        residual_out = total, rounded once to the dtype
        normed = residual_out * rsqrt(mean(residual_out^2) + eps) * (weight + weight_bias)

        The mean is that of the rounded residual_out over the last dimension, as a norm of its own would see it; it, the
        scale and the products are float32, multiplied in the written order and rounded once. All ranks get the same
        bits if they give the same residual and weight. A zero is +0.0.

        Where `supports_fused` says no, the all-reduce comes first, ours or the fallback's, and the norm behind it: then
        the sum is rounded to the dtype before the residual is added.

        Args:
            x: contiguous float16, bfloat16 or float32 tensor (..., hidden) on this communicator's device; the same
                shape and dtype on all ranks.
            residual: as x; the same on all ranks, which is not checked.
            weight: (hidden,), of x's dtype; the same on all ranks, which is not checked.
            eps: added to the mean square.
            out: where to put normed (as x, contiguous); may be x. By default a new tensor.
            residual_out: where to put the new residual (as x, contiguous); may be residual. By default a new tensor.
            weight_bias: added to the weight; 1.0 for models that store weight - 1.

        Returns:
            (normed, residual_out).

        Raises:
            As all_reduce; CallMismatch also where ranks have rows of other lengths.
        """
        if torch.compiler.is_compiling():
            return self._traced_fused(x, residual, weight, eps, out, residual_out, weight_bias)
        call = checked(x, residual, weight, eps, weight_bias, out, residual_out)
        self._serve_fused(call)
        return call.normed, call.residual_out

    def all_reduce_add_rms_norm_quant(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        scale: torch.Tensor | float | None = None,
        group_size: int | None = None,
        out: torch.Tensor | None = None,
        scale_out: torch.Tensor | None = None,
        residual_out: torch.Tensor | None = None,
        weight_bias: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """all_reduce_add_rms_norm with normed as FP8 (torch.float8_e4m3fn) and float32 scales: normed is about
        quantised * scales. Either one scale is given for all, or each group of 128 elements of a row gets its own.

        scale:      quantised = normed * (1 / scale)
        group_size: scales = max(largest |normed| of the group, 1e-10) / 448, and quantised = normed * (448 / largest)

        normed is not rounded to x's dtype on the way: it stays float32, as do the factors, and the product is rounded
        once, to nearest even. What is beyond +-448 then becomes +-448, infinities too; NaN stays NaN, and counts in no
        scale. All ranks get the same bits, of scales too. In a call that fails, quantised is NaN.

        Where `supports_fused` with this group_size says no, it happens behind the all-reduce, as for
        all_reduce_add_rms_norm.

        Args:
            x, residual, weight, eps, residual_out, weight_bias: as for all_reduce_add_rms_norm.
            scale: one float32 on x's device, positive. The value of a tensor on a GPU is not looked at by the host. A
                number is served too; a GPU then fills such a tensor first, in a launch of its own.
            group_size: 128, and hidden is a multiple of it; the same on all ranks.
            out: where to put quantised (as x, but torch.float8_e4m3fn; contiguous); must not be in x's memory.
            scale_out: where to put the scales of groups: float32 (..., hidden / 128), contiguous. Scales by columns or
                aligned for TMA, and scales that are powers of two (ue8m0), are not written.

        Returns:
            (quantised, scales, residual_out); scales is the given scale, or float32 (..., hidden / 128).

        Raises:
            As all_reduce_add_rms_norm; ValueError also where hidden is not whole groups or the scale is not positive.
        """
        how = fp8.checked(x, scale, group_size, scale_out)
        if torch.compiler.is_compiling():
            given = None if how.grouped else how.scales
            results = ops.all_reduce_add_rms_norm_quant(x, residual, weight, eps, weight_bias, given, self._key)
            normed, scales, total = map(_into, results, (out, scale_out, residual_out))
            return normed, scales if given is None else given, total
        call = checked(x, residual, weight, eps, weight_bias, out, residual_out, how)
        self._serve_fused(call)
        return call.normed, how.scales, call.residual_out

    def _serve_fused(self, call: FusedCall) -> None:
        self._require_open()
        try:
            self._fuse(call)
        except PcieAllReduceError:
            for result in call.results:
                result.fill_(float("nan"))
            raise

    def _fuse(self, call: FusedCall) -> None:
        plan = self.fused_plan_for(call.x, fp8.GROUP if call.fp8 is not None and call.fp8.grouped else None)
        if plan is None:  # which all_reduce serves, or refuses
            add_rms_norm(self.all_reduce(call.x, out=call.room), call)
        elif call.is_aligned():
            self._perform(partial(self._transport.all_reduce_add_rms_norm, call, plan))
        else:
            aligned = call.aligned()
            self._perform(partial(self._transport.all_reduce_add_rms_norm, aligned, plan))
            call.normed.copy_(aligned.normed)
            call.residual_out.copy_(aligned.residual_out)

    def supports_fused(self, x: torch.Tensor, group_size: int | None = None) -> bool:
        """Whether all_reduce_add_rms_norm serves x (..., hidden) in one step; else it takes two. With a group_size, the
        same of all_reduce_add_rms_norm_quant. Equal on all ranks."""
        return self.fused_plan_for(x, group_size) is not None

    def fused_plan_for(self, x: torch.Tensor, group_size: int | None = None) -> FusedPlan | None:
        """Algorithm and launch shape of a fused call; None where supports_fused says no."""
        if self._refusal(x) is not None or x.numel() == 0 or x.dim() == 0:
            return None
        hidden = x.shape[-1]
        if group_size is not None and (group_size != fp8.GROUP or hidden % group_size != 0):
            return None
        return choose_fused(
            self.world_size,
            x.numel() // hidden,
            hidden,
            x.element_size(),
            self._survey.islands is not None,
            self._survey.figures,
            self._transport.area_packs,
            self._transport.fused_algorithms,
            self._transport.shapes,
            self._algorithm,
            self.tuned,
            1 if group_size is None else group_size,
        )

    def _traced_fused(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None,
        residual_out: torch.Tensor | None,
        weight_bias: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, total = ops.all_reduce_add_rms_norm(x, residual, weight, eps, weight_bias, self._key)
        return _into(normed, out), _into(total, residual_out)

    def _traced(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if out is None:
            result: torch.Tensor = ops.all_reduce(x, self._key)
            return result
        if out is x:
            ops.all_reduce_(x, self._key)
        else:
            ops.all_reduce_out(x, out, self._key)
        return out

    def _fallback_for(self, refusal: Exception) -> Any:
        if self._fallback is None or isinstance(refusal, ClosedError):
            raise refusal
        return self._fallback

    def _served_elsewhere(self, x: torch.Tensor, out: torch.Tensor | None, refusal: Exception) -> torch.Tensor:
        fallback = self._fallback_for(refusal)
        if not isinstance(x, torch.Tensor):
            raise refusal
        if out is not None and x.is_contiguous():  # another x may lie in the same memory in another order
            result = out.copy_(x.detach())
        else:
            result = x.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(result, group=fallback)
        return result if out is None or result is out else out.copy_(result)

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Surrounds the capture of a CUDA graph. Nothing has to be registered or prepared: it only checks first."""
        self.check()
        with lifetime.capturing():
            yield

    def check(self) -> None:
        """Raises what a kernel or a call has reported, if anything; costs about a microsecond."""
        self._require_open()
        fault = self._transport.fault()
        if fault is not None:
            raise fault_error(fault, self.rank, self.world_size)

    def stats(self) -> tuple[PeerStats, ...]:
        """How long this rank has waited for each rank to begin its calls; its own entry is all zero.

        Counted by the kernels themselves, graph replays included; may be read while they run.
        """
        with self._memory:
            self._require_open()
            return tuple(PeerStats(rank, *wait) for rank, wait in enumerate(self._transport.waits()))

    def watch(self, callback: Callback | None = None, *, interval: float = 0.2, abort: bool = False) -> Watcher:
        """Looks for faults from a thread, since no Python runs while a CUDA graph replays.

        A fault is logged and given to `callback` (on that thread), once, at most `interval` seconds after its report;
        with `abort` the process then ends by SIGABRT. Returns the watcher; `stop()` ends it.
        """
        self._require_open()
        return Watcher(self.check, callback, interval, abort)

    def _require_open(self) -> None:
        if self._closed is not None:
            raise ClosedError(f"the communicator {self._closed}")

    def close(self) -> None:
        """Lets go of all memory. No collective: peers that still wait for this rank raise ClosedError. Idempotent.

        GPUs: waits for the device, and up to 5 s for the peers to let go of this rank's memory, too.
        """
        if self._caller == threading.get_ident():
            raise RuntimeError("close() within a call of the same thread, as from a signal handler, cannot wait for it")
        with self._turn, self._memory:  # a call in another thread ends first, by its deadline at the latest
            if self._closed is not None:
                return
            self._closed = "was closed"
        lifetime.end(self)
        if not self._transport.close(CLOSE_PATIENCE):
            logger.warning(
                "rank %d keeps its %d bytes on %s until the process ends: a peer has not closed and may still use them",
                self.rank, self.memory_bytes, self.device,
            )  # fmt: skip

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._closed is None else f", {self._closed}"
        return (
            f"Communicator(rank {self.rank} of {self.world_size}, {self.device}, transport {self.transport}, max_bytes "
            f"{self.max_bytes}, memory_bytes {self.memory_bytes}{state})"
        )


def _wants_grad(x: torch.Tensor) -> Exception | None:
    if x.requires_grad and torch.is_grad_enabled():
        return ValueError("the tensor requires grad, and gradients are not recorded: use torch.no_grad()")
    return None


def _into(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype:  # which a copy would broadcast or convert
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}; the result is {result.dtype} {tuple(result.shape)}")
    return out.copy_(result)


def _check_out(x: torch.Tensor, out: torch.Tensor) -> None:
    chunks.check_room(out, tuple(x.shape), x)
    apart = abs(out.data_ptr() - x.data_ptr())
    if 0 < apart < x.nbytes:
        raise ValueError(f"out and x overlap: {apart} bytes lie between their starts, and each has {x.nbytes}")
