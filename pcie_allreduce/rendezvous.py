"""Ranks set up together or not at all.

Each stage of the set-up runs on every rank and ends with an exchange of verdicts, so that no rank ever uses what
another has failed to provide, and all raise the same sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from .errors import SetupError

if TYPE_CHECKING:
    from .probe import Verdict

T = TypeVar("T")


class Refused(SetupError):
    """All ranks have agreed that it cannot be: they are still in step, and may go on to something else."""

    def __init__(self, reason: str, verdict: Verdict | None = None) -> None:
        super().__init__(reason)
        self.verdict = verdict


@contextmanager
def plain_errors() -> Iterator[None]:
    """Callers see a SetupError, and not what of it matters in here alone."""
    try:
        yield
    except Refused as refusal:
        raise SetupError(str(refusal)) from refusal.__cause__


@dataclass(frozen=True)
class Member:
    """What each rank tells the others before anything is allocated."""

    version: str
    layout: int
    host: str  # the boot id: the same in all containers of a machine
    hostname: str
    device: str  # "cpu" or "cuda"
    device_index: int
    device_id: str  # the GPU's UUID, "" for the CPU
    max_bytes: int
    area_packs: int
    transport: str
    algorithm: str
    fallback: bool  # whether there is one
    probe: bool | None
    timeout: float
    warmup_timeout: float


# What must be equal on all ranks, and how a person calls it.
_AGREED = {
    "version": "package versions",
    "layout": "mailbox layouts",
    "host": "hosts",
    "device": "kinds of device",
    "max_bytes": "max_bytes",
    "area_packs": "mailbox sizes",
    "transport": "transports",
    "algorithm": "algorithms",
    "fallback": "fallback groups",
    "probe": "wishes to probe",
    "timeout": "timeouts",
    "warmup_timeout": "warm-up timeouts",
}


def disagreement(members: Sequence[Member]) -> str | None:
    """The first thing that the members must agree on and do not, as a sentence; None when all agree."""
    for field in fields(Member):
        values = [getattr(member, field.name) for member in members]
        if field.name in _AGREED and len(set(values)) > 1:
            shown = [member.hostname for member in members] if field.name == "host" else values
            told = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(shown))
            return f"the ranks' {_AGREED[field.name]} differ ({told})"
    return None


class Rendezvous:
    """Exchange of small Python objects over a torch.distributed group that can move bytes."""

    def __init__(self, group: Any) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise SetupError("torch.distributed is not initialised: call init_process_group first")
        self._group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        if self.rank < 0:
            raise SetupError("this process is not a member of the given group")

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank."""
        values: list[Any] = [None] * self.world_size
        try:
            dist.all_gather_object(values, value, group=self._group)
        except RuntimeError as error:  # a rank died, or did not come within the group's own timeout
            raise SetupError(f"the ranks could not exchange their set-up over the given group: {error}") from error
        return values

    def stage(self, name: str, work: Callable[[], T]) -> T:
        """Runs `work` on every rank and returns its value once all have succeeded; else all raise Refused."""
        result: T | None = None
        reason: str | None = None
        try:
            result = work()
        except Exception as error:  # every failure of a rank must reach the others, whatever it is
            reason = f"{error}" or type(error).__name__
        reasons = self.gather(reason)
        failed = [(rank, why) for rank, why in enumerate(reasons) if why is not None]
        if failed:
            told = "; ".join(f"rank {rank}: {why}" for rank, why in _by_reason(failed))
            raise Refused(f"{name} failed: {told}")
        return result  # type: ignore[return-value]  # every rank succeeded, so this one did


def _by_reason(failed: list[tuple[int, str]]) -> list[tuple[str, str]]:
    """Ranks with the same reason share one mention."""
    ranks: dict[str, list[int]] = {}
    for rank, why in failed:
        ranks.setdefault(why, []).append(rank)
    return [(", ".join(map(str, members)), why) for why, members in ranks.items()]
