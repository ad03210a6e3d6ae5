"""`pcie-allreduce verify-cycle`: words to values and no more; `pcie_allreduce.verify_cycle` does the rest."""

from __future__ import annotations

import argparse

from pcie_allreduce.cli.bench import parse_count, parse_sizes, parse_words

EPILOG = """
A pass is an embedding and 61 layers of stand-in attention and experts, with the shards of 8 ranks (tiny ones on CPU
ranks), an all-reduce, a residual add and a norm after each: 123 all-reduces, on GPUs in one CUDA graph. --example and
--show run nothing. Exit code: 0 all right, 1 a rank failed or a pass is wrong, 2 what was asked cannot be run here.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "verify-cycle", description="Measures what an all-reduce is worth in a verify pass.", epilog=EPILOG
    )
    add = parser.add_argument
    add("--ranks", type=parse_count, metavar="N", help="rank processes; default: one for each GPU, or 2 CPU ranks")
    add("--rows", type=parse_sizes, default=(1, 3, 4), metavar="N,...", help="tokens of a pass; default: 1,3,4")
    add(
        "--backends", type=parse_words, default=(), metavar="NAME,...", help="default: pcie_allreduce and nccl, or gloo"
    )
    add("--repeats", type=parse_count, default=3, metavar="N", help="times that the procedure is repeated; default 3")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: GPUs where there are some")
    for name in ("layers", "hidden", "tp", "context"):
        add(f"--{name}", type=parse_count, metavar="N", help=f"of the stand-in model; default: Kimi-K2.5's {name}")
    add("--acceptance", type=float, default=2.0, metavar="N", help="tokens that a verify pass yields; default 2")
    add("--verify-share", type=float, default=0.97, metavar="N", help="its part of a cycle; default 0.97")
    add("--example", action="store_true", help="reported figures worked through; runs nothing")
    add("--plot", metavar="FILE", help="draw the passes as stacked bars to FILE (.png, .svg, .pdf)")
    add("--show", metavar="FILE", help="show (and --plot) what --json wrote; runs nothing")
    add("--json", metavar="FILE", help="write environment and passes to FILE")


def run(args: argparse.Namespace) -> int:
    if args.example:
        from pcie_allreduce.verify_cycle.example import worked

        print(worked())
        return 0
    if args.show:
        from pcie_allreduce.verify_cycle.run import show_file

        return show_file(args.show, args.plot)
    from pcie_allreduce.bench.settings import Request
    from pcie_allreduce.verify_cycle.report import Speculation
    from pcie_allreduce.verify_cycle.run import main

    request = Request(ranks=args.ranks, repeats=args.repeats, backends=args.backends, device=args.device)
    asked = {name: getattr(args, name) for name in ("layers", "hidden", "tp", "context")}
    change = {name: value for name, value in asked.items() if value is not None}
    return main(request, args.rows, change, Speculation(args.acceptance, args.verify_share), args.json, args.plot)
