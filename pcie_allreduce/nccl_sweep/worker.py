"""What one rank does: what the backend takes of the GPU's memory, then the benchmark's own cases.

Memory is what the driver says is gone between before the backend was made and after its first calls, less what torch's
allocator has taken in between: NCCL connects when it is first used, and loads its kernels then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pcie_allreduce.bench.backends.base import Backend, Seat
from pcie_allreduce.bench.backends.catalogue import Job
from pcie_allreduce.bench.backends.make import make
from pcie_allreduce.bench.case import Case, Message, Tell
from pcie_allreduce.bench.inputs import DTYPES, workload
from pcie_allreduce.bench.settings import ITEM_BYTES, Settings


def measure(seat: Seat, settings: Settings, jobs: Sequence[Job], tell: Tell) -> None:
    """Of the one job of this pass. Collective."""
    (job,) = jobs
    before = taken(seat.device)
    backend = make(job, seat, max(settings.sizes))
    _use(backend, settings, seat)
    after = taken(seat.device)
    memory = None if before is None or after is None else after - before
    known = [value for value in seat.gather(memory) if value is not None]
    tell(Message("memory", max(known) if known else None))
    inputs = workload(settings)
    for nbytes in settings.sizes:
        Case(settings, seat, inputs, settings.modes[0], nbytes, tell).measure([(job, backend)])
    seat.barrier()
    backend.close()


def taken(device: torch.device) -> int | None:
    """Bytes of the GPU that are in use, but for torch's; None for a CPU rank."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def _use(backend: Backend, settings: Settings, seat: Seat) -> None:
    """Each size a few times: another size may take another protocol, with buffers of its own."""
    dtype = DTYPES[settings.dtype]
    for nbytes in settings.sizes:
        source = torch.zeros(nbytes // ITEM_BYTES[settings.dtype], dtype=dtype, device=seat.device)
        for _ in range(3):
            backend.launch(source, torch.zeros_like(source))
    backend.check()
