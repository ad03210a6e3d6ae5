"""What an engine's adapter costs on top of the all-reduce itself, in microseconds of host time a call.

    python benchmarks/adapter_overhead.py                       # 2 CPU ranks
    python benchmarks/adapter_overhead.py --device cuda --ranks 8

Eager mode only: the replay of a CUDA graph passes no Python, so there the adapter costs nothing. Blocks of calls of the
bare `Communicator.all_reduce` and of the adapter (`should_custom_ar`, then `custom_all_reduce`, as an engine asks) take
turns, so that drift of the machine meets both; a block's time is the largest over the ranks. `python` is the adapter
around a call that does nothing: the share that waiting for peers cannot hide.
"""

from __future__ import annotations

import argparse
import json
import platform
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from pcie_allreduce.integrations.adapter import EngineAllReduce
from pcie_allreduce.integrations.settings import Settings

Call = Callable[[torch.Tensor], torch.Tensor]


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


def measure(adapter: EngineAllReduce, x: torch.Tensor, calls: int, blocks: int) -> dict[str, float]:
    bare, asked = adapter.communicator.all_reduce, ask(adapter)
    for call in (bare, asked):
        block(call, x, calls)  # warm-up
    pairs = [(block(bare, x, calls), block(asked, x, calls)) for _ in range(blocks)]
    return {
        "bare_us": statistics.median(pair[0] for pair in pairs),
        "adapter_us": statistics.median(pair[1] for pair in pairs),
        "difference_us": statistics.median(pair[1] - pair[0] for pair in pairs),
        "python_us": python_share(adapter, x, calls, blocks),
    }


def python_share(adapter: EngineAllReduce, x: torch.Tensor, calls: int, blocks: int) -> float:
    kept = adapter.communicator.all_reduce
    adapter.communicator.all_reduce = lambda x, *, out=None: x  # type: ignore[method-assign]
    nothing, asked = adapter.communicator.all_reduce, ask(adapter)
    pairs = [(block(nothing, x, calls), block(asked, x, calls)) for _ in range(blocks)]
    adapter.communicator.all_reduce = kept  # type: ignore[method-assign]
    return statistics.median(pair[1] - pair[0] for pair in pairs)


def run_rank(rank: int, port: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options.ranks)
    settings = Settings(enabled=True, max_bytes=max(options.bytes))
    adapter = EngineAllReduce(dist.group.WORLD, device, name="tp:0", settings=settings, on_fault=print)
    results = {}
    with torch.inference_mode():
        for nbytes in options.bytes:
            x = torch.ones(nbytes // 2, dtype=torch.bfloat16, device=device)
            results[nbytes] = measure(adapter, x, options.calls, options.blocks)
    dist.barrier()
    adapter.close()
    if rank == 0:
        report(options, device, results)
    dist.barrier()
    dist.destroy_process_group()


def report(options: argparse.Namespace, device: torch.device, results: dict[int, dict[str, float]]) -> None:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"{options.ranks} {device.type} ranks ({where}), {options.blocks} blocks of {options.calls} calls, medians")
    print(f"{'bytes':>9} {'bare us':>9} {'adapter us':>11} {'difference us':>14} {'python us':>10}")
    for nbytes, times in results.items():
        print(
            f"{nbytes:>9} {times['bare_us']:>9.2f} {times['adapter_us']:>11.2f} {times['difference_us']:>14.2f} "
            f"{times['python_us']:>10.2f}"
        )
    if options.json:
        told: dict[str, Any] = {"device": device.type, "machine": where, "ranks": options.ranks, "results": results}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Host time of the engine adapter on top of the bare all-reduce.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--bytes", type=int, nargs="+", default=[14336, 57344])
    parser.add_argument("--calls", type=int, default=500, help="calls a block")
    parser.add_argument("--blocks", type=int, default=15, help="blocks of each kind")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = arguments()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, args=(free, chosen), nprocs=chosen.ranks)
