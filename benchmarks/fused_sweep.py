"""Which launch shape is best for all-reduce, residual and RMSNorm in one step: every shape in one run, in CUDA graphs.

    python benchmarks/fused_sweep.py --rows 1,3,4,8 --json sweep.json
    python benchmarks/fused_sweep.py --ranks 8 --clusters 1,2,4,7,8     # under the multi-process service
    python benchmarks/fused_sweep.py --ranks 8 --two-shot 1,2,4 --clusters 7 --packs 1
    PCIE_ALLREDUCE_ISLANDS="0-3|4-7" python benchmarks/fused_sweep.py --ranks 8 --island 4,7 --clusters 7 --packs 1

A shape is blocks that share a row (`cluster`) x threads that move data; threads are whole warps that give a lane
`packs` packs of its row. By two-shot and island (`--two-shot`, `--island`: clusters), a cluster has a row. Graphs of
122 calls over four rotating buffers, the slowest rank, the median over replays; all shapes of a case take turns, repeat
by repeat. Results are compared bit for bit with those of the first shape, since no shape may change them. The plain
all-reduce of the same bytes (`plain`) is timed beside them, and with a norm behind it (`behind`). A shape that this
machine cannot hold is told and left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.backends.base import Backend, Seat
from pcie_allreduce.bench.backends.catalogue import Job, Pass
from pcie_allreduce.bench.backends.ours import Ours
from pcie_allreduce.bench.backends.with_norm import EPS, Behind, Fused
from pcie_allreduce.bench.case import Message, Tell
from pcie_allreduce.bench.execution import GraphRun, make_pairs
from pcie_allreduce.bench.procedure import PAIRS, GpuClock, counts_for, fold, time_repeat
from pcie_allreduce.bench.ranks import run_pass
from pcie_allreduce.bench.settings import Machine, Request, Settings, settle
from pcie_allreduce.fused_plan import FusedPlan, part_packs
from pcie_allreduce.plan import owners_of

DTYPE = torch.bfloat16


class Shape(NamedTuple):
    cluster: int
    packs: int  # of a row, a lane
    teams: int  # rows at once; 0: all
    algorithm: str = "one_shot"


class Shaped(Fused):
    """Ours in one step, in a launch shape of the sweep's choice."""

    def __init__(self, ours: Ours, hidden: int, shape: Shape, sharing: int) -> None:
        super().__init__(ours, hidden)
        self.shape = shape
        self._sharing = sharing  # ranks on a GPU

    def plan(self, rows: int) -> FusedPlan:
        """No more teams than this GPU holds of all ranks that share it, or they would wait for each other in vain."""
        packs = self._hidden * DTYPE.itemsize // 16
        owners = owners_of(self.shape.algorithm, self._comm.world_size)
        if owners > 1:
            warps = -(-part_packs(packs, owners) // (32 * self.shape.cluster))  # of a block, of each owner
            return FusedPlan(self.shape.algorithm, rows, self.shape.cluster, warps * 32 * owners)
        threads = -(-packs // (self.shape.cluster * self.shape.packs) // 32) * 32
        held = self._comm._transport._resident_teams("one_shot", threads, self.shape.cluster) // self._sharing
        return FusedPlan("one_shot", min(rows, self.shape.teams or rows, held), self.shape.cluster, threads)

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        call = self._call(source, output)
        if self._comm._transport.all_reduce_add_rms_norm(call, self.plan(call.rows)):
            self._comm.check()


def sweep(seat: Seat, settings: Settings, jobs: Sequence[Job], tell: Tell) -> None:
    """What a rank does; shapes travel as the jobs' names."""
    shapes = [Shape(*json.loads(job.algorithm)) for job in jobs]
    hidden = settings.hidden
    assert hidden is not None
    ours = Ours(seat, "auto", max(settings.sizes))
    counts = counts_for("cuda", "graph", max(settings.sizes), seat.world)
    for nbytes in settings.sizes:
        elements = nbytes // DTYPE.itemsize
        held: dict[str, GraphRun] = {}
        bits: dict[str, list[torch.Tensor]] = {}  # each algorithm sums squares in an order of its own
        backends: list[tuple[str, Backend]] = [("plain", ours), ("behind", Behind(ours, hidden))]
        sharing = -(-seat.world // settings.gpus)
        backends += [(json.dumps(shape), Shaped(ours, hidden, shape, sharing)) for shape in shapes]
        for name, backend in backends:
            pairs = make_pairs(PAIRS, elements, DTYPE, seat.device)
            for index, pair in enumerate(pairs):
                generator = torch.Generator().manual_seed(1000 * seat.rank + index)
                pair.source.copy_(torch.randn(elements, generator=generator).to(DTYPE))
            try:
                held[name] = GraphRun(backend, pairs, counts)
            except (ValueError, RuntimeError) as error:  # the same on all ranks: it hangs on the shape alone
                tell(Message("step", f"{nbytes} bytes, {name}: {error}"))
                torch.cuda.synchronize()
                continue
            held[name].lead_in()
            torch.cuda.synchronize()
            backend.check()
            if isinstance(backend, Shaped):
                mine = bits.setdefault(
                    backend.shape.algorithm, [call.normed.clone() for call in backend._calls.values()]
                )
                same = (torch.equal(a, call.normed) for a, call in zip(mine, backend._calls.values(), strict=True))
                assert all(same), f"{name}: other bits"
        times: dict[str, list[list[float]]] = {name: [] for name in held}
        for _ in range(settings.repeats):
            for name, run in held.items():
                times[name].append(time_repeat(run, GpuClock(), seat.barrier, counts))
        ours.check()
        for name, run in held.items():
            timing = fold(seat.gather(times[name]))
            tell(Message("row", {"bytes": nbytes, "rows": elements // hidden, "hidden": hidden, "shape": name,
                                 "us_median": round(timing.us_median, 3), "us_min": round(timing.us_min, 3),
                                 "us_max": round(timing.us_max, 3)}))  # fmt: skip
            run.close()
    seat.barrier()
    ours.close()


def main() -> None:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(",")))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--rows", type=numbers, default=(1, 3, 4, 8))
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--clusters", type=numbers, default=(1, 2, 4, 7, 8))
    parser.add_argument("--packs", type=numbers, default=(1, 2))
    parser.add_argument("--teams", type=numbers, default=(0,))
    parser.add_argument("--two-shot", type=numbers, default=())
    parser.add_argument("--island", type=numbers, default=())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    here: Machine = environment.machine()
    request = Request(ranks=options.ranks, device="cuda", repeats=options.repeats, fused=True, hidden=options.hidden,
                      rows=options.rows)  # fmt: skip
    settings = settle(request, here)
    shapes = [Shape(c, k, t) for t in options.teams for k in options.packs for c in options.clusters]
    shapes += [Shape(cluster, 1, 0, "two_shot") for cluster in options.two_shot]
    shapes += [Shape(cluster, 1, 0, "island") for cluster in options.island]
    rows: list[dict[str, Any]] = []

    def hear(message: Message) -> None:
        if message.kind == "row":
            rows.append(message.value)
            row = message.value
            print(f"{row['rows']:3d} x {row['hidden']} {row['shape']:>24} {row['us_median']:7.2f} us "
                  f"({row['us_min']:.2f}-{row['us_max']:.2f})", flush=True)  # fmt: skip
        elif message.kind == "step":
            print(message.value, flush=True)

    run_pass(settings, Pass({}, tuple(Job("pcie_allreduce", json.dumps(shape)) for shape in shapes)), hear, body=sweep)
    if options.json:
        stamp = environment.stamp(settings, here)
        options.json.write_text(json.dumps({"environment": stamp, "eps": EPS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
