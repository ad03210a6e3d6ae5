"""One family of exceptions. Bad arguments are ValueError and TypeError, as everywhere in Python."""

from __future__ import annotations

from typing import Any


class PcieAllReduceError(RuntimeError):
    """Base of everything that this package raises of its own."""


class SetupError(PcieAllReduceError):
    """A communicator could not be made. Raised on every rank of the group, with the same reason."""


class ClosedError(PcieAllReduceError):
    """The communicator was closed, by this rank or by a peer that is still needed."""


class CallMismatch(PcieAllReduceError):
    """Two ranks made different calls: another size, dtype or algorithm, or one of them has missed a call."""


class AllReduceTimeout(PcieAllReduceError):
    """A call waited longer than its deadline. The communicator can not be used any more.

    Attributes:
        rank: this rank.
        missing: the ranks whose data did not come.
        stage: the step of the algorithm that waited, e.g. "gather".
        call: number of the call on this communicator, from 0.
    """

    def __init__(self, message: str, *, rank: int, missing: tuple[int, ...], stage: str, call: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.missing = missing
        self.stage = stage
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return _timeout, (str(self), self.rank, self.missing, self.stage, self.call)


def _timeout(message: str, rank: int, missing: tuple[int, ...], stage: str, call: int) -> AllReduceTimeout:
    return AllReduceTimeout(message, rank=rank, missing=missing, stage=stage, call=call)
