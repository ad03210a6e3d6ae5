"""NCCL's settings for small messages, and a way through them that does not try all 540 combinations.

One knob after the other is turned, the best so far of the others kept. Quicker means by more than two runs of the same
code differ; among equally quick settings the one with less memory is better, since "fewer channels" may be all that
is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean
from typing import NamedTuple

from pcie_allreduce.tuning.decision import MARGIN


class Knob(NamedTuple):
    """Every variable is set to the value; None leaves NCCL to choose."""

    name: str
    variables: tuple[str, ...]
    values: tuple[str | None, ...]


KNOBS = (
    Knob("protocol", ("NCCL_PROTO",), (None, "LL", "LL128", "Simple")),
    Knob("algorithm", ("NCCL_ALGO",), (None, "Ring", "Tree")),
    Knob("P2P level", ("NCCL_P2P_LEVEL",), (None, "SYS", "LOC")),
    Knob("channels", ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), (None, "1", "2", "4", "8")),
    Knob("buffer", ("NCCL_BUFFSIZE",), (None, "1048576", "262144")),
)
Setting = tuple[str | None, ...]  # a value for each knob
AS_CHOSEN: Setting = (None,) * len(KNOBS)
VARIABLES = tuple(variable for knob in KNOBS for variable in knob.variables)


@dataclass(frozen=True)
class Outcome:
    """Of one setting: microseconds by size, and bytes of device memory of the rank with most; or why there is none."""

    setting: Setting
    us: tuple[tuple[int, float], ...] = ()
    memory: int | None = None
    failure: str = ""

    @property
    def mean_us(self) -> float:
        return geometric_mean([us for _, us in self.us])


Measure = Callable[[Setting], Outcome]


def environment(setting: Setting) -> dict[str, str]:
    """Variables of the rank processes."""
    pairs = zip(KNOBS, setting, strict=True)
    return {name: value for knob, value in pairs if value is not None for name in knob.variables}


def told(setting: Setting) -> str:
    return " ".join(f"{name}={value}" for name, value in environment(setting).items()) or "as NCCL chooses"


def better(new: Outcome, old: Outcome) -> bool:
    if new.failure or old.failure:
        return bool(old.failure) and not new.failure
    if new.mean_us < old.mean_us * (1 - MARGIN):
        return True
    frugal = new.memory is not None and old.memory is not None and new.memory < old.memory
    return frugal and new.mean_us <= old.mean_us * (1 + MARGIN)


def descend(measure: Measure, knobs: Sequence[Knob] = KNOBS) -> Iterator[Outcome]:
    """Knob by knob, from what NCCL chooses by itself."""
    best = measure((None,) * len(knobs))
    yield best
    for place, knob in enumerate(knobs):
        around = best.setting
        for value in knob.values[1:]:
            outcome = measure((*around[:place], value, *around[place + 1 :]))
            yield outcome
            best = outcome if better(outcome, best) else best


def everything(measure: Measure, knobs: Sequence[Knob] = KNOBS) -> Iterator[Outcome]:
    for setting in product(*(knob.values for knob in knobs)):
        yield measure(setting)


def count(way: str) -> int:
    """Settings that will be measured."""
    if way == "full":
        return len(list(product(*(knob.values for knob in KNOBS))))
    return 1 + sum(len(knob.values) - 1 for knob in KNOBS)


def best_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The first that none is better than."""
    best: Outcome | None = None
    for outcome in outcomes:
        if not outcome.failure and (best is None or better(outcome, best)):
            best = outcome
    return best
