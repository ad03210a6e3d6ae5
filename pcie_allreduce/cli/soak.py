"""`pcie-allreduce soak`: words to values and no more; `pcie_allreduce.soak` does the rest."""

from __future__ import annotations

import argparse

EPILOG = """
Every round is a communicator with sizes, dtypes and an algorithm of its own; GPUs replay CUDA graphs in between. In
many rounds a rank is late; in some it is too late, calls with another size, closes early or, with --kills, is
killed. Every other rank must then be told of it within the deadline and a second. Every result is checked. Exit code: 0
all right, 1 a result was wrong or a failure was not told as it must be, 2 what was asked cannot be run here.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "soak", description="Runs everything at once for a while, and checks every result.", epilog=EPILOG
    )
    add = parser.add_argument
    add("--seconds", type=float, default=60.0, metavar="N", help="how long, a round at least; default 60")
    add("--timeout", type=float, default=5.0, metavar="N", help="seconds that a call may wait, up to 120; default 5")
    add("--ranks", type=int, metavar="N", help="rank processes; default: one for each GPU, or 2 CPU ranks")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: GPUs where there are some")
    add("--seed", type=int, default=1, metavar="N", help="what is drawn; default 1")
    add("--kills", action="store_true", help="kill ranks too; all processes then start anew")
    add("--json", metavar="FILE", help="write environment and figures to FILE")


def run(args: argparse.Namespace) -> int:
    from pcie_allreduce.bench.settings import Request
    from pcie_allreduce.soak.run import main

    request = Request(ranks=args.ranks, device=args.device)
    return main(request, args.seconds, args.timeout, args.seed, args.kills, args.json)
