"""What GPUs do with the host's memory over PCIe: facts behind the staged transport that nobody has published.

    python benchmarks/host_facts.py --json benchmarks/results/host-facts/NAME.json       # two GPUs
    python benchmarks/host_facts.py --device cpu --ranks 2                               # that it runs; no fact at all

Rates are those of the start-up probe, 32 times 256 KiB by 32 blocks of 256 threads, alone and on all GPUs at once, in
10^9 bytes/s; stores until another rank has said that it saw the last one. The rest is one lane's, repeated: a look at
16 bytes whose answer decides on the next (`poll_ns`), and a system fence behind so many 16-byte stores (`fence_ns`), on
one GPU while the others are quiet and on all at once. Torn stores: 256 lanes of rank 0 store packs of four equal words,
as fast as they can, and as many lanes of rank 1 look at them; a pack of two values is torn. `changes` are looks at
another pack than the last one, so only those can have met a store half done. `placement`: pages of each rank's slab by
NUMA node, as the kernel tells the rank.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pcie_allreduce import construction
from pcie_allreduce.bench import environment
from pcie_allreduce.bench.backends.base import Seat
from pcie_allreduce.bench.backends.catalogue import Job, Pass
from pcie_allreduce.bench.case import Message, Tell
from pcie_allreduce.bench.ranks import run_pass
from pcie_allreduce.bench.settings import Request, Settings, settle
from pcie_allreduce.probe import measuring
from pcie_allreduce.probe.experiments import Experiments, Kind
from pcie_allreduce.rendezvous import Rendezvous

RATE_REPEATS = {"cuda": 32, "cpu": 4}
LANE_REPEATS = 2000
FENCED = (0, 1, 8, 32)  # packs stored before the fence
TEAR_REPEATS, TEAR_ROUNDS = {"cuda": 400_000, "cpu": 4000}, 5
DEADLINE = 60.0


def measure(seat: Seat, settings: Settings, jobs: Sequence[Job], tell: Tell) -> None:
    """The ranks' part; tells the "facts of the host"."""
    rendezvous = Rendezvous(seat.gloo)
    wishes = construction.Wishes(seat.device, None, DEADLINE, DEADLINE, "host", "auto", False, False)
    member = rendezvous.stage("checking the arguments", lambda: construction.describe(wishes, seat.rank, seat.world))
    members, survey = construction.agree(rendezvous, member)
    transport = construction.make(rendezvous, members, survey, staged=True, scratch=True)
    experiments = Experiments(transport, seat.rank, seat.world, DEADLINE)
    found = {
        "traffic": asdict(measuring.measure(rendezvous, experiments, RATE_REPEATS[settings.device])),
        "poll_ns": lane(rendezvous, experiments, Kind.POLL, 0),
        "fence_ns": {packs: lane(rendezvous, experiments, Kind.FENCE, packs) for packs in FENCED},
        "torn": torn(rendezvous, experiments, TEAR_REPEATS[settings.device]),
        "placement": rendezvous.gather(placement(transport.handle().decode())),
    }
    rendezvous.gather(None)
    transport.close(construction.CLOSE_PATIENCE)
    if experiments.problem is not None:
        raise RuntimeError(experiments.problem)
    tell(Message("facts of the host", found))


def lane(rendezvous: Rendezvous, experiments: Experiments, kind: Kind, packs: int) -> dict[str, float | None]:
    """Nanoseconds on rank 0 alone, and the most on any rank while all do the same."""
    peer = (rendezvous.rank + 1) % rendezvous.world_size
    rendezvous.gather(None)
    alone = experiments.once(kind, peer if rendezvous.rank == 0 else None, packs, LANE_REPEATS)
    rendezvous.gather(None)
    times = [ns for ns in rendezvous.gather(experiments.once(kind, peer, packs, LANE_REPEATS)) if ns is not None]
    return {"alone": alone, "together": max(times, default=None)}


def torn(rendezvous: Rendezvous, experiments: Experiments, repeats: int) -> dict[str, int]:
    """Summed over lanes and rounds; `unfinished` lanes never saw the last pack."""
    counts = {"looks": 0, "changes": 0, "torn": 0, "unfinished": 0}
    for _ in range(TEAR_ROUNDS):
        rendezvous.gather(None)
        peer = 1 - rendezvous.rank if rendezvous.rank < 2 else None
        results = experiments.tear(peer, rendezvous.rank == 0, repeats)
        for result in rendezvous.gather(results)[1]:
            counts["looks"] += result.expected
            counts["changes"] += result.got
            counts["torn"] += result.where
            counts["unfinished"] += result.finding != 1
    return counts


def placement(name: str) -> dict[str, int]:
    """Pages by NUMA node of the shared memory of that name, which this process has mapped; {} where nobody tells."""
    try:
        mappings = Path("/proc/self/numa_maps").read_text().splitlines()
    except OSError:
        return {}
    own = [line for line in mappings if f"file=/dev/shm{name}\\040" in line]
    return {node: int(pages) for line in own for node, pages in re.findall(r" (N\d+)=(\d+)", line)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What GPUs do with the host's memory over PCIe.")
    parser.add_argument("--ranks", type=int, default=2, help="default 2, each with a GPU of its own")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--json", type=Path, help="write the facts to this file, too")
    options = parser.parse_args()
    here = environment.machine()
    settings = settle(Request(ranks=options.ranks, device=options.device), here)
    stamp = environment.stamp(settings, here)
    stamp["method"] = (__doc__ or "").rpartition("\n\n")[2].strip()
    for other in ("input", "not_run", "settings", "tuned"):
        del stamp[other]
    heard: dict[str, Any] = {}

    def hear(message: Message) -> None:
        if message.kind == "facts":
            environment.add_rank_facts(stamp, message.value)
        else:
            heard.update(message.value)

    run_pass(settings, Pass({}, ()), hear, body=measure)
    print(stamp["label"])
    for name in ("poll_ns", "fence_ns", "torn", "placement"):
        print(f"{name}: {heard[name]}")
    for name in ("push_gbps", "pull_gbps", "push_together_gbps", "pull_together_gbps", "latency_us"):
        print(f"{name}: {heard['traffic'][name]}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"environment": stamp, **heard}, indent=1) + "\n")


if __name__ == "__main__":
    main()
