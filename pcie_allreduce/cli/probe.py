"""`pcie-allreduce probe`: words to values and no more; `pcie_allreduce.probe.run` does the rest."""

from __future__ import annotations

import argparse

from pcie_allreduce.cli.bench import parse_count

EPILOG = """
Every directed pair of ranks carries known bytes under a deadline; latencies, stores and loads are timed, alone and all
at once, through the peers' memory and through the host's; a fallback (NCCL as configured; gloo on CPU ranks) is
compared at three sizes. What was measured is kept, and communicators start from it after a short look (docs/probe.md).
Exit code: 0 the ranks can meet, 1 everything is left to the fallback or a rank failed, 2 what was asked cannot be run
here.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "probe",
        description="Measures what goes over this machine's links, and says how ranks should meet.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("--ranks", type=parse_count, metavar="N", help="rank processes; default: one for each GPU, or 2 CPU ranks")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: GPUs where there are some")
    add("--json", metavar="FILE", help="write environment, measurements and verdict to FILE")
    add("--plot", metavar="FILE", help="draw latencies and rates of every pair to FILE (.png, .svg, .pdf)")
    add("--debug", action="store_true", help="show the traceback of a rank that failed")


def run(args: argparse.Namespace) -> int:
    from pcie_allreduce.bench.settings import Request
    from pcie_allreduce.probe.run import main

    return main(Request(ranks=args.ranks, device=args.device), args.json, debug=args.debug, plot_path=args.plot)
