"""`pcie-allreduce doctor`: words to values, and findings to lines; `pcie_allreduce.doctor` does the rest."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from pcie_allreduce.doctor.box import Box
from pcie_allreduce.doctor.examine import examine, exit_code
from pcie_allreduce.doctor.finding import Finding, Level
from pcie_allreduce.doctor.reading import read

EPILOG = """
Nothing is changed and nothing is sent over a link: this is what kernel, driver and environment say. A snapshot holds no
host name, network address or serial number. As root it sees the ACS bits as well. Exit code: 0 all right or warnings
alone, 1 a problem, 2 a file cannot be read or written.
"""
WIDTH = 120


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor", description="Says what is wrong with this machine, how one sees it, and what to do.", epilog=EPILOG
    )
    parser.add_argument("--json", metavar="FILE", help="write the findings to FILE")
    parser.add_argument("--save-snapshot", metavar="FILE", help="write what was seen to FILE, to send to others")
    parser.add_argument("--snapshot", metavar="FILE", help="judge the machine of FILE instead of this one")


def run(args: argparse.Namespace) -> int:
    try:
        box = _load(args.snapshot) if args.snapshot else read()
        findings = _examined(box, args.snapshot)
        if args.save_snapshot:
            _write(args.save_snapshot, box.to_dict())
        if args.json:
            _write(args.json, as_dict(box, findings))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(as_text(box, findings))
    return exit_code(findings)


def _load(path: str) -> Box:
    try:
        return Box.from_dict(json.loads(Path(path).read_text()))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _examined(box: Box, path: str | None) -> tuple[Finding, ...]:
    """What the findings look at is not looked at before, so that an odd value in a file is met only there."""
    try:
        return examine(box)
    except (TypeError, AttributeError) as error:
        if path is None:
            raise
        raise ValueError(f"{path}: a value in it is of another kind than a snapshot's ({error})") from error


def _write(path: str, data: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(data, indent=1) + "\n")


def as_dict(box: Box, findings: tuple[Finding, ...]) -> dict[str, Any]:
    rows = [{**vars(finding), "level": finding.level.name.lower()} for finding in findings]
    return {"exit_code": exit_code(findings), "findings": rows, "unseen": list(box.unseen)}


def as_text(box: Box, findings: tuple[Finding, ...]) -> str:
    topic = max(len(finding.topic) for finding in findings)
    lines = [line for finding in findings for line in _lines(finding, topic)]
    counts = [sum(finding.level is level for finding in findings) for level in Level]
    summary = f"{counts[Level.PROBLEM]} problem(s), {counts[Level.WARNING]} warning(s), {counts[Level.OK]} ok"
    virtual = ["A virtual machine: bridges and IOMMU of its host cannot be seen."] if box.virtual else []
    return "\n".join([*lines, *box.unseen, *virtual, summary])


def _lines(finding: Finding, topic: int) -> list[str]:
    head = f"{finding.level.name.lower():<8} {finding.topic:<{topic}}  "
    margin = " " * len(head)
    lines = textwrap.wrap(
        finding.evidence, WIDTH, initial_indent=head, subsequent_indent=margin, break_long_words=False
    )
    if finding.remedy:
        lines += textwrap.wrap(
            f"-> {finding.remedy}",
            WIDTH,
            initial_indent=margin,
            subsequent_indent=margin + "   ",
            break_long_words=False,
        )
    return lines
