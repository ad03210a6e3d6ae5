"""What a rank reported when it gave up, as an exception that reads like a sentence."""

from __future__ import annotations

from typing import Any

from .errors import AllReduceTimeout, CallMismatch, ClosedError, PcieAllReduceError

# Codes of csrc/protocol/wait.h and dispatch.h.
ALGORITHMS = {0: "none", 1: "one_shot", 2: "two_shot", 3: "island", 4: "reduce_scatter", 5: "all_gather"}
STAGES = {0: "signature", 1: "gather", 2: "scatter", 3: "cross"}
DTYPES = {0: "float32", 1: "float16", 2: "bfloat16"}
_NO_ROWS = 1
_MISMATCH, _CLOSED, _GONE, _INTERRUPTED = 2, 3, 4, 5


def fault_error(fault: dict[str, Any], rank: int, world_size: int) -> PcieAllReduceError:
    """The exception for a fault record of the extension module, seen by `rank`."""
    missing = tuple(peer for peer in range(world_size) if fault["missing"] >> peer & 1)
    algorithm, stage = ALGORITHMS.get(fault["algorithm"], "?"), STAGES.get(fault["stage"], "?")
    where = f"call {fault['call']} ({algorithm}, {stage})"
    told = "" if fault["reporter"] == rank else f"; rank {fault['reporter']} reported it"
    if fault["reason"] == _MISMATCH:
        return CallMismatch(_mismatch(fault, rank, missing, where) + told)
    if fault["reason"] == _CLOSED:
        return ClosedError(f"{_ranks(missing)} closed the communicator before {where} of rank {rank}{told}")
    message = f"rank {rank} waited {fault['waited']:.1f} s in {where}; {_missing(fault['reason'], missing)}{told}"
    return AllReduceTimeout(message, rank=rank, missing=missing, stage=stage, call=fault["call"])


def _missing(reason: int, missing: tuple[int, ...]) -> str:
    if reason == _GONE:
        return f"the process of {_ranks(missing)} has ended"
    if reason == _INTERRUPTED:
        return f"{_ranks(missing)} was interrupted while it waited"
    return f"{_ranks(missing)} {'is' if len(missing) == 1 else 'are'} missing"


def _mismatch(fault: dict[str, Any], rank: int, missing: tuple[int, ...], where: str) -> str:
    ours, theirs = _signature(fault["ours"]), _signature(fault["theirs"])
    if rank in missing:  # a peer found out first
        other = fault["reporter"]
        return f"rank {rank} made another call than rank {other} in {where}: {ours}; rank {other}: {theirs}"
    return f"{_ranks(missing)} made another call than rank {rank} in {where}: {theirs}; rank {rank}: {ours}"


def _signature(words: tuple[int, int, int, int]) -> str:
    call, nbytes, kind, row = words
    if kind >> 8 & 0xFF not in ALGORITHMS or kind & 0xFF not in DTYPES:
        return "not known"  # it has not arrived
    fused = "" if row == _NO_ROWS or row >> 16 else f" with RMSNorm over rows of {row}"
    return f"call {call}, {nbytes} bytes of {DTYPES[kind & 0xFF]} by {ALGORITHMS[kind >> 8 & 0xFF]}{fused}"


def _ranks(ranks: tuple[int, ...]) -> str:
    names = ", ".join(map(str, ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
