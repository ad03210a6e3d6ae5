"""The tables of docs/engines.md, of what was recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from . import record
from .contract import BROKEN, REFUSED, Seam
from .sglang_seams import SEAMS

PLACE = re.compile(r"(<!-- engines:begin -->\n).*?(<!-- engines:end -->)", re.DOTALL)


def put(page: str, document: dict[str, Any]) -> str:
    """The page with its tables as they are now."""
    return PLACE.sub(lambda found: found[1] + render(document) + found[2], page)


def render(document: dict[str, Any], seams: Sequence[Seam] = SEAMS) -> str:
    versions: dict[str, Any] = document["versions"]
    notes: list[str] = []
    heads = [f"{version} (newest)" if version == document["newest"] else version for version in versions]
    rows = [[seam.name, *(_cell(seam, version, notes) for version in versions.values())] for seam in seams]
    groups = list(dict.fromkeys(name for version in versions.values() for name in version["groups"]))
    served = [[f"`{name}`", *(_group(version["groups"], name) for version in versions.values())] for name in groups]
    lines = [
        f"Contracts of {document['date']}, runs of {document['exercised']} on {document['environment']}.",
        "",
        *_table(["seam", *heads], rows),
        "",
        *(f"{number}. {note}" for number, note in enumerate(notes, 1)),
        "",
        *_table(["group of more than one rank", *heads], served),
    ]
    return "\n".join(lines) + "\n"


def _cell(seam: Seam, version: dict[str, Any], notes: list[str]) -> str:
    finding = version["seams"][seam.name]
    exercised = record.exercised(seam, version["tests"])
    if finding["state"] == BROKEN or exercised == "failed":
        return f"**broken**: {finding['detail'] if finding['state'] == BROKEN else 'its tests fail'}"
    if finding["state"] == REFUSED:
        if finding["detail"] not in notes:
            notes.append(finding["detail"])
        return f"refused ({notes.index(finding['detail']) + 1})"
    return "exercised" if exercised == "passed" else "checked"


def _group(groups: dict[str, bool], name: str) -> str:
    if name not in groups:
        return ""
    return "served" if groups[name] else "SGLang's own"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_line(head), "|" + "---|" * len(head), *(_line(row) for row in rows)]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
