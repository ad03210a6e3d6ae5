"""The switch is an environment variable, because nothing else reaches every rank.

An engine starts its ranks with spawn and hands them its own arguments, which have no room for a field of ours; the
environment is inherited by children and grandchildren under any launcher.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

ENABLE = "PCIE_ALLREDUCE"
REQUIRE = "PCIE_ALLREDUCE_REQUIRE"
ON_FAULT = "PCIE_ALLREDUCE_ON_FAULT"
TIMEOUT = "PCIE_ALLREDUCE_TIMEOUT"
WARMUP_TIMEOUT = "PCIE_ALLREDUCE_WARMUP_TIMEOUT"
MAX_BYTES = "PCIE_ALLREDUCE_MAX_BYTES"
LOG_SECONDS = "PCIE_ALLREDUCE_LOG_SECONDS"
FUSED = "PCIE_ALLREDUCE_FUSED"
GATHER = "PCIE_ALLREDUCE_GATHER"


@dataclass(frozen=True)
class Settings:
    """How an engine is served.

    Attributes:
        enabled: whether engines are touched at all.
        require: a group that cannot be served fails the launch, instead of being left to the engine.
        on_fault: "abort" ends the process when a call has failed; "raise" leaves it to the next call to raise.
        timeout: seconds that one call may wait for its peers, after the warm-up.
        warmup_timeout: the same during the warm-up.
        max_bytes: the largest tensor served, in bytes; None: the communicator's default.
        log_seconds: the shortest time between two lines that tell the number of all-reduces served.
        fused: whether an all-reduce is fused with the residual and RMSNorm behind it; None: on GPUs.
        gather: whether all-gathers are served, too.
    """

    enabled: bool = False
    require: bool = False
    on_fault: str = "abort"
    timeout: float = 30.0
    warmup_timeout: float = 600.0
    max_bytes: int | None = None
    log_seconds: float = 60.0
    fused: bool | None = None
    gather: bool = False

    @classmethod
    def from_environment(cls) -> Settings:
        """Raises ValueError, with the variable and its value, for a value that means nothing."""
        require = _value(REQUIRE, _switch, False)
        return cls(
            enabled=require or _value(ENABLE, _switch, False),
            require=require,
            on_fault=_value(ON_FAULT, _fault_policy, "abort"),
            timeout=_value(TIMEOUT, float, 30.0),
            warmup_timeout=_value(WARMUP_TIMEOUT, float, 600.0),
            max_bytes=_value(MAX_BYTES, int, None),
            log_seconds=_value(LOG_SECONDS, float, 60.0),
            fused=_value(FUSED, _switch, None),
            gather=_value(GATHER, _switch, False),
        )


def _value(name: str, parse: Callable[[str], T], default: T) -> T:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{name} is {text!r}: {error}") from None


def _switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("1 or 0 is expected")


def _fault_policy(text: str) -> str:
    if text not in ("abort", "raise"):
        raise ValueError("abort or raise is expected")
    return text
