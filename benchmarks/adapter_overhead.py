"""What an engine's adapter costs on top of the all-reduce itself, in microseconds of host time a call.

    python benchmarks/adapter_overhead.py --json benchmarks/results/adapter/NAME.json
    python benchmarks/adapter_overhead.py --device cpu --ranks 2

Eager mode only: the replay of a CUDA graph passes no Python, so there the adapter costs nothing. Blocks of calls of the
bare `Communicator.all_reduce` and of the adapter (`should_custom_ar`, then `custom_all_reduce`, as an engine asks) take
turns, so that drift of the machine meets both; a block's time is the largest over the ranks, and the median over the
blocks is told. `above_us` is the median difference of two neighbouring blocks, of which a part may hide behind the wait
for peers; `above_us_quartiles` say how far to trust it. `python_us` is that difference around a communicator that does
nothing: the share that no wait can hide.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from pcie_allreduce.bench import environment
from pcie_allreduce.bench.settings import Machine, Request, Settings, settle
from pcie_allreduce.integrations.adapter import EngineAllReduce
from pcie_allreduce.integrations.settings import Settings as EngineSettings

Call = Callable[[torch.Tensor], torch.Tensor]
COLUMNS = ("bytes", "bare_us", "adapter_us", "above_us", "python_us")


def ask(adapter: EngineAllReduce) -> Call:
    def call(x: torch.Tensor) -> torch.Tensor:
        assert adapter.should_custom_ar(x)
        return adapter.custom_all_reduce(x)

    return call


def block(call: Call, x: torch.Tensor, calls: int) -> float:
    """Microseconds a call, of the slowest rank."""
    if x.is_cuda:
        torch.cuda.synchronize()
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(calls):
        call(x)
    host = torch.tensor((time.perf_counter() - begun) / calls * 1e6)
    if x.is_cuda:
        torch.cuda.synchronize()
    dist.all_reduce(host, op=dist.ReduceOp.MAX)
    return float(host)


def in_turn(first: Call, second: Call, x: torch.Tensor, options: argparse.Namespace) -> list[tuple[float, float]]:
    for call in (first, second):
        block(call, x, options.calls)  # warm-up
    return [(block(first, x, options.calls), block(second, x, options.calls)) for _ in range(options.blocks)]


def measure(adapter: EngineAllReduce, x: torch.Tensor, options: argparse.Namespace) -> dict[str, Any]:
    comm = adapter.communicator
    served = in_turn(comm.all_reduce, ask(adapter), x, options)
    kept = comm.all_reduce
    comm.all_reduce = lambda x, *, out=None: x  # type: ignore[method-assign]
    idle = in_turn(comm.all_reduce, ask(adapter), x, options)
    comm.all_reduce = kept  # type: ignore[method-assign]
    above = [asked - bare for bare, asked in served]
    return {
        "bytes": x.nbytes,
        "bare_us": statistics.median(bare for bare, _ in served),
        "adapter_us": statistics.median(asked for _, asked in served),
        "above_us": statistics.median(above),
        "above_us_quartiles": statistics.quantiles(above, n=4)[::2],
        "python_us": statistics.median(asked - bare for bare, asked in idle),
    }


def run_rank(rank: int, port: int, options: argparse.Namespace, settings: Settings, here: Machine) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if settings.gpus:
        device = torch.device("cuda", rank % settings.gpus)
        torch.cuda.set_device(device)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=settings.ranks)
    limits = EngineSettings(enabled=True, max_bytes=max(settings.sizes))
    adapter = EngineAllReduce(dist.group.WORLD, device, name="tp:0", settings=limits, on_fault=print)
    rows = []
    with torch.inference_mode():
        for nbytes in settings.sizes:
            rows.append(measure(adapter, torch.ones(nbytes // 2, dtype=torch.bfloat16, device=device), options))
    dist.barrier()
    adapter.close()
    if rank == 0:
        report(options, stamp(options, settings, here), rows)
    dist.barrier()
    dist.destroy_process_group()


def stamp(options: argparse.Namespace, settings: Settings, here: Machine) -> dict[str, Any]:
    told = environment.stamp(settings, here)
    environment.add_rank_facts(told, environment.rank_facts(settings.gpus))
    told["settings"]["repeats"], told["settings"]["calls"] = options.blocks, options.calls
    told["method"] = (__doc__ or "").rpartition("\n\n")[2].strip()
    return told


def report(options: argparse.Namespace, told: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    print(f"{told['label']}; {told['cpu']['model']}; eager, {options.blocks} blocks of {options.calls} calls, medians")
    print("".join(f"{name:>12}" for name in COLUMNS))
    for row in rows:
        print(f"{row['bytes']:>12}" + "".join(f"{row[name]:>12.2f}" for name in COLUMNS[1:]))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"environment": told, "rows": rows}, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Host time of the engine adapter on top of the bare all-reduce.")
    parser.add_argument("--ranks", type=int, help="default: one a GPU, 2 CPU ranks")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--sizes", type=int, nargs="+", default=[14336, 57344], help="bytes")
    parser.add_argument("--calls", type=int, default=200, help="calls a block")
    parser.add_argument("--blocks", type=int, default=101, help="blocks of each kind")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    here = environment.machine()
    request = Request(options.ranks, tuple(options.sizes), backends=("pcie_allreduce",), device=options.device)
    settings = settle(request, here)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, args=(port, options, settings, here), nprocs=settings.ranks)


if __name__ == "__main__":
    main()
