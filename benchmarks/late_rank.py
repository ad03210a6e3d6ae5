"""What a call takes on a rank that comes late to every call, while its peers have been waiting for it.

    python benchmarks/late_rank.py --late 0,5,20,100,500 --json FILE           # two GPUs
    PCIE_ALLREDUCE_P2P=0 python benchmarks/late_rank.py                        # through host memory
    python benchmarks/late_rank.py --device cpu --ranks 2                      # CPU ranks

Ranks are never quite together in a server, and a peer that waits must not hold up the one that it waits for. The last
rank spins on its GPU for so many microseconds in front of every call (`torch.cuda._sleep`; a CPU rank counts time), all
in one CUDA graph, behind a barrier and an untimed replay as in `pcie-allreduce bench`. `us_median` is that rank's time
a call less that of a graph that spins alone; nothing it needs is late, so it should not depend on how late the rank is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.backends.base import Seat
from pcie_allreduce.bench.backends.catalogue import Job, Pass
from pcie_allreduce.bench.backends.ours import Ours
from pcie_allreduce.bench.case import Message, Tell
from pcie_allreduce.bench.execution import EagerRun, GraphRun, make_pairs
from pcie_allreduce.bench.procedure import PAIRS, Counts, GpuClock, HostClock, time_repeat
from pcie_allreduce.bench.ranks import run_pass
from pcie_allreduce.bench.settings import Request, Settings, settle

COUNTS = Counts(calls=20, lead_in=20, replays=12, warmup=PAIRS)
CYCLES = 1800  # of a GPU's clock in a microsecond, about: what it spins is timed
SIZES = (14336, 43008, 131072, 524288, 1048576)


class Late(Ours):
    """Ours, `late` microseconds behind; without `calls` only late."""

    def spin(self, device: torch.device, late: float, calls: bool = True) -> Late:
        self._spin, self._calls = spinner(device, late), calls
        return self

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        self._spin()
        if self._calls:
            super().launch(source, output)


def spinner(device: torch.device, late: float) -> Callable[[], None]:
    def count() -> None:
        end = time.perf_counter() + late * 1e-6
        while time.perf_counter() < end:
            pass

    if device.type == "cpu" or not late:
        return count
    return lambda: torch.cuda._sleep(round(late * CYCLES))


def measure(seat: Seat, settings: Settings, jobs: Sequence[Job], tell: Tell) -> None:
    """What a rank does; the lateness travels as the jobs' names."""
    ours = Late(seat, settings.algorithms[0], max(settings.sizes))
    on_gpu = seat.device.type == "cuda"
    is_late = seat.rank == seat.world - 1

    def timed(nbytes: int, late: float, calls: bool = True) -> list[float]:
        """Microseconds a call on this rank, a median for each repeat."""
        elements = nbytes // 2
        pairs = make_pairs(PAIRS, elements, torch.bfloat16, seat.device)
        for pair in pairs:
            pair.source.fill_(seat.rank + 1)
        backend = ours.spin(seat.device, late if is_late else float(not calls), calls)  # a graph must hold something
        run = (GraphRun if on_gpu else EagerRun)(backend, pairs, COUNTS)
        watch = GpuClock() if on_gpu else HostClock()
        medians = [statistics.median(time_repeat(run, watch, seat.barrier, COUNTS)) for _ in range(settings.repeats)]
        ours.check()
        wanted = seat.world * (seat.world + 1) / 2
        assert not calls or all(bool((pair.output == wanted).all()) for pair in pairs), "a wrong sum"
        run.close()
        return medians

    for job in jobs:
        late = float(job.algorithm)
        alone = seat.gather(statistics.median(timed(min(settings.sizes), late, calls=False)) if late else 0.0)[-1]
        for nbytes in settings.sizes:
            times = [us - alone for us in seat.gather(timed(nbytes, late))[-1]]
            tell(Message("row", {"late_us": round(alone, 1), "bytes": nbytes, "transport": ours.transport,
                                 "us_median": round(statistics.median(times), 3), "us_min": round(min(times), 3),
                                 "us_max": round(max(times), 3)}))  # fmt: skip
    seat.barrier()
    ours.close()


def main() -> None:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(",")))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="default: as many as there are GPUs")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="bytes, of bf16")
    parser.add_argument("--late", type=numbers, default=(0, 5, 20, 100, 500), help="microseconds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    options = parser.parse_args()
    here = environment.machine()
    request = Request(ranks=options.ranks, device=options.device, sizes=options.sizes, repeats=options.repeats)
    settings = settle(request, here)
    stamp = environment.stamp(settings, here)
    stamp["method"] = (__doc__ or "").rpartition("\n\n")[2].strip()
    for other in ("input", "not_run"):
        del stamp[other]
    rows: list[dict[str, Any]] = []

    def hear(message: Message) -> None:
        if message.kind == "facts":
            environment.add_rank_facts(stamp, message.value)
        elif message.kind == "row":
            rows.append(message.value)
            row = message.value
            print(f"{row['late_us']:7.1f} us late, {row['bytes']:>9,} B: {row['us_median']:8.2f} us "
                  f"({row['us_min']:.2f} to {row['us_max']:.2f})", flush=True)  # fmt: skip

    print(stamp["label"])
    run_pass(settings, Pass({}, tuple(Job("pcie_allreduce", str(late)) for late in options.late)), hear, body=measure)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"environment": stamp, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
