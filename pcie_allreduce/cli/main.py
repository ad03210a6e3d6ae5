"""`pcie-allreduce COMMAND ...`. Importing torch takes seconds, so only the chosen command's module is imported."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from types import ModuleType

COMMANDS = {
    "info": "what is installed, which GPUs are here, and why anything is missing",
    "doctor": "what is wrong with this machine, how one sees it, and what to do",
    "memory": "whether a server's memory will do, and which settings work",
    "probe": "measure what goes over this machine's links, and say how ranks should meet",
    "bench": "measure all-reduces on this machine beside torch.distributed",
    "tune": "find the best algorithm and launch shape for this machine and keep them",
    "verify-cycle": "measure a whole verify pass, and what a faster all-reduce is worth in it",
    "report": "write one page about this machine, to attach to an issue",
    "soak": "run everything at once for a while, with late and failing ranks, and check every result",
    "model": "predict microseconds a call on a machine that is not at hand",
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in words if not word.startswith("-")), "")
    args = _parser(chosen).parse_args(words)
    status: int = _module(args.command).run(args)
    return status


def _parser(chosen: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pcie-allreduce", description="An all-reduce for GPUs that talk over PCIe.")
    parser.add_argument("--version", action="version", version=metadata.version("pcie-allreduce"))
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name == chosen:
            _module(name).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def _module(name: str) -> ModuleType:
    return import_module("pcie_allreduce.cli." + name.replace("-", "_"))
