"""All-reduce for GPUs that talk over PCIe, and for CPU ranks. Importing starts nothing and needs no GPU.

The names below are imported when they are first used: `pcie-allreduce info` must work where torch cannot be imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .communicator import Communicator, PeerStats
    from .errors import AllReduceTimeout, CallMismatch, ClosedError, PcieAllReduceError, SetupError

_HOMES = {
    "AllReduceTimeout": "errors",
    "CallMismatch": "errors",
    "ClosedError": "errors",
    "Communicator": "communicator",
    "PcieAllReduceError": "errors",
    "PeerStats": "communicator",
    "SetupError": "errors",
}

__all__ = [
    "AllReduceTimeout",
    "CallMismatch",
    "ClosedError",
    "Communicator",
    "PcieAllReduceError",
    "PeerStats",
    "SetupError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
