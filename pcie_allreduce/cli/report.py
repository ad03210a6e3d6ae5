"""`pcie-allreduce report`: words to values, and the order of things; `pcie_allreduce.reporting` does the rest."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pcie_allreduce.cli.bench import parse_count

EPILOG = """
Runs doctor, probe, bench and verify-cycle, minutes in all, and puts what they print, draw and write into DIR and into
one page, DIR/report.html. What is in DIR already (NAME.txt) is not run again. Nothing of it names host or network.
Exit code: 0 the page is written, whatever it says; 2 it cannot be, 130 interrupted.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "report", description="Writes one page about this machine, to attach to an issue.", epilog=EPILOG
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="is made where it is not there")
    add("--ranks", type=parse_count, metavar="N", help="rank processes; default: one for each GPU, or 2 CPU ranks")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: GPUs where there are some")
    add("--quick", action="store_true", help="one repeat and few sizes: to see whether it works")


def run(args: argparse.Namespace) -> int:
    from pcie_allreduce.reporting.page import write_page
    from pcie_allreduce.reporting.sections import Options, run_sections

    folder = Path(args.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run_sections(folder, Options(args.device, args.ranks, args.quick), lambda text: print(text, file=sys.stderr))
        print(write_page(folder))
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, and no page is written", file=sys.stderr)
        return 130
    return 0
