"""All-reduce for GPUs that talk over PCIe, and for CPU ranks. Importing starts nothing and needs no GPU."""

from .communicator import Communicator
from .errors import AllReduceTimeout, CallMismatch, ClosedError, PcieAllReduceError, SetupError

__all__ = ["AllReduceTimeout", "CallMismatch", "ClosedError", "Communicator", "PcieAllReduceError", "SetupError"]
