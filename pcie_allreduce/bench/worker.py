"""The life of one rank process: meet the others, make the backends of this pass, work through its cases.

It must end whatever happens: with its own work, with an error that it tells the parent, or with the parent itself.
"""

from __future__ import annotations

import datetime
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from multiprocessing import parent_process
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.backends.base import Seat, Unavailable
from pcie_allreduce.bench.backends.catalogue import Job
from pcie_allreduce.bench.backends.make import make
from pcie_allreduce.bench.backends.ours import Ours
from pcie_allreduce.bench.case import Case, Message, Tell
from pcie_allreduce.bench.inputs import workload
from pcie_allreduce.bench.settings import Settings

MEETING_LIMIT = datetime.timedelta(seconds=120)


# What the ranks of a pass do once they have met. Collective; only rank 0 is heard.
Body = Callable[[Seat, Settings, Sequence[Job], Tell], None]


def main(
    body: Body,
    rank: int,
    settings: Settings,
    jobs: Sequence[Job],
    variables: Mapping[str, str],
    store_path: str,
    pipe: Connection,
) -> None:
    """Entry of the process. The last message is "done", or "failed" with a sentence and the traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its ranks, in order
    threading.Thread(target=follow_parent, daemon=True).start()
    os.environ.update(variables)
    try:
        run_rank(body, rank, settings, jobs, store_path, pipe.send)
        pipe.send(Message("done"))
    except BaseException as error:  # whatever it was, the parent must say it
        pipe.send(Message("failed", (f"{type(error).__name__}: {error}", traceback.format_exc())))
        os._exit(1)  # peers are lost: a tidy exit could wait for them


def run_rank(body: Body, rank: int, settings: Settings, jobs: Sequence[Job], store_path: str, tell: Tell) -> None:
    """Only rank 0 tells facts, steps and rows."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.ranks))
    if rank != 0:
        tell = _nothing
    with take_seat(rank, settings.ranks, settings.gpus, store_path) as seat, own_stream(seat.device):
        tell(Message("facts", environment.rank_facts(settings.gpus)))
        body(seat, settings, jobs, tell)


def measure(seat: Seat, settings: Settings, jobs: Sequence[Job], tell: Tell) -> None:
    """All cases of one pass."""
    inputs = workload(settings)
    backends = []
    for job in jobs:
        try:
            backends.append((job, make(job, seat, max(settings.sizes), settings.hidden)))
        except Unavailable as reason:
            tell(Message("not run", (job.backend, str(reason))))
    for _, backend in backends:
        if isinstance(backend, Ours) and backend.tuned:
            tell(Message("tuned", [asdict(step) for step in backend.tuned]))
    for mode in settings.modes:
        for nbytes in settings.sizes:
            Case(settings, seat, inputs, mode, nbytes, tell).measure(backends)
    seat.barrier()
    for _, backend in backends:  # not after an error: NCCL's way out could wait for ranks that are lost
        backend.close()


@contextmanager
def take_seat(rank: int, ranks: int, gpus: int, store_path: str) -> Iterator[Seat]:
    """This rank's device, and a group over all ranks."""
    device = torch.device("cpu")
    if gpus:
        device = torch.device("cuda", rank % gpus)
        torch.cuda.set_device(device)
    store = dist.FileStore(store_path, ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=MEETING_LIMIT)
    group = dist.group.WORLD
    assert group is not None
    yield Seat(rank, ranks, device, group)
    dist.destroy_process_group()


def own_stream(device: torch.device) -> torch.cuda.StreamContext | nullcontext[None]:
    """A stream of its own on a GPU, since the default stream cannot be captured."""
    return nullcontext() if device.type == "cpu" else torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def follow_parent() -> None:
    """Ends this process with the one that started it."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _nothing(message: Message) -> None:
    pass
