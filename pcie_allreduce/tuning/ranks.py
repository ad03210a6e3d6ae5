"""What one rank does: every candidate is a communicator that is given a table of one step, so what is timed is what a
user's call costs, the fallback's way through the communicator included.

Launch shapes are each rank's own affair, but all ranks must measure the same candidates: rank 0's list counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pcie_allreduce.bench.backends.base import Seat
from pcie_allreduce.bench.backends.catalogue import Job
from pcie_allreduce.bench.backends.make import make
from pcie_allreduce.bench.backends.ours import Ours
from pcie_allreduce.bench.backends.torch_distributed import TorchDistributed
from pcie_allreduce.bench.case import Case, Message, Tell
from pcie_allreduce.bench.inputs import DTYPES, workload
from pcie_allreduce.bench.settings import ITEM_BYTES, Settings
from pcie_allreduce.plan import MAX_THREADS, WARP, Plan, Step, candidates
from pcie_allreduce.tuning.decision import Candidate


def measure(seat: Seat, settings: Settings, jobs: Sequence[Job], tell: Tell) -> None:
    """Tells the "ladder" (key of the cache, candidates of each size), then one "row" for each of them in order."""
    largest = max(settings.sizes)
    others = [make(job, seat, largest) for job in jobs if job.backend != "pcie_allreduce"]
    fallback = next((other for other in others if isinstance(other, TorchDistributed)), None)
    inputs = workload(settings)
    backends = [Ours(seat, "auto", largest, fallback)]
    ladder = _of_rank_0(seat, [list_candidates(backends[0], seat, settings, size) for size in settings.sizes])
    tell(Message("ladder", (backends[0].cache_key, ladder)))
    for nbytes, listed in zip(settings.sizes, ladder, strict=True):
        while len(backends) < len(listed):
            backends.append(Ours(seat, "auto", largest, fallback))
        x = _tensor(seat, settings, nbytes)
        for backend, candidate in zip(backends, listed, strict=False):
            backend.plan(x, candidate.step)
        labels = [Job("candidate", candidate.label) for candidate in listed]
        case = Case(settings, seat, inputs, settings.modes[0], nbytes, tell)
        case.measure(list(zip(labels, backends, strict=False)), judge_first=True)
    seat.barrier()
    for each in (*backends, *others):
        each.close()


def list_candidates(ours: Ours, seat: Seat, settings: Settings, nbytes: int) -> list[Candidate]:
    """Every algorithm that "auto" may choose, with the plan's threads, half and twice as many; and the fallback."""
    x, item = _tensor(seat, settings, nbytes), ITEM_BYTES[settings.dtype]
    untuned = ours.plan(x, None)
    on_gpu = seat.device.type != "cpu"
    steps: dict[Plan, Step] = {}
    for name in candidates(seat.world, True):
        own = ours.plan(x, Step(item, nbytes, name))
        if own is None or own.algorithm != name:  # it does not serve or does not fit
            continue
        steps[own] = Step(item, nbytes, name)
        for threads in (own.threads // 2, own.threads * 2) if on_gpu else ():
            step = Step(item, nbytes, name, _launchable(threads))
            plan = ours.plan(x, step)
            assert plan is not None  # as with its own threads
            steps.setdefault(plan, step)
    listed = [
        Candidate(step, plan.algorithm, (plan.blocks, plan.threads) if on_gpu else None, plan == untuned)
        for plan, step in steps.items()
    ]
    if ours.has_fallback:
        listed.append(Candidate(Step(item, nbytes, fallback=True), "none"))
    return listed


def _launchable(threads: int) -> int:
    return max(WARP, min(MAX_THREADS, -(-threads // WARP) * WARP))


def _tensor(seat: Seat, settings: Settings, nbytes: int) -> torch.Tensor:
    dtype = DTYPES[settings.dtype]
    return torch.empty(nbytes // dtype.itemsize, dtype=dtype, device=seat.device)


def _of_rank_0(seat: Seat, value: list[list[Candidate]]) -> list[list[Candidate]]:
    first: list[list[Candidate]] = seat.gather(value)[0]
    return first
