"""`pcie-allreduce tune`: words to values and no more; `pcie_allreduce.tuning` does the rest."""

from __future__ import annotations

import argparse

from pcie_allreduce.cli.bench import parse_count, parse_sizes

EPILOG = """
Measures every algorithm in a few launch shapes, and the fallback (NCCL as configured; gloo on CPU ranks), each checked
before it is timed. What beats the untuned plan by more than 3 % is kept, and communicators on this machine with as many
ranks use it from then on; PCIE_ALLREDUCE_TUNED=0 ignores it, PCIE_ALLREDUCE_CACHE names the folder. Exit code: 0 all
right, 1 a rank failed or a sum is wrong, 2 what was asked cannot be run here.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "tune", description="Finds the best algorithm and launch shape for this machine and keeps them.", epilog=EPILOG
    )
    add = parser.add_argument
    add("--ranks", type=parse_count, metavar="N", help="rank processes; default: one for each GPU, or 2 CPU ranks")
    add(
        "--sizes", type=parse_sizes, default=(), metavar="BYTES,...", help="payloads of one rank; default: 1 KB to 2 MB"
    )
    add("--dtype", metavar="NAME", help="bf16 (default), fp16 or fp32; a table serves all dtypes of that width")
    add("--repeats", type=parse_count, default=3, metavar="N", help="times that the procedure is repeated; default 3")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: GPUs where there are some")
    add("--dry-run", action="store_true", help="measure and show, but keep nothing")
    add("--force", action="store_true", help="keep what ranks that share GPUs have measured, too")
    add("--json", metavar="FILE", help="write environment, candidates and choices to FILE")
    add("--plot", metavar="FILE", help="draw the untuned plan and the best of each size to FILE (.png, .svg, .pdf)")
    add("--debug", action="store_true", help="show the traceback of a rank that failed")


def run(args: argparse.Namespace) -> int:
    from pcie_allreduce.bench.settings import Request
    from pcie_allreduce.tuning.run import main

    request = Request(ranks=args.ranks, sizes=args.sizes, dtype=args.dtype, repeats=args.repeats, device=args.device)
    return main(request, args.json, args.dry_run, args.force, args.debug, args.plot)
