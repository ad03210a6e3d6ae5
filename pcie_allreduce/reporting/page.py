"""One HTML file without scripts, links or fonts of others: it opens the same from a disk, a mail and an issue."""

from __future__ import annotations

import base64
import datetime
import json
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

from pcie_allreduce.bench import report
from pcie_allreduce.bench.rows import Document
from pcie_allreduce.reporting.sections import SECTIONS, Section

PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
p.about { color: #555; margin-top: 0.3rem; }
pre { background: #f5f5f5; padding: 0.8rem 1rem; overflow-x: auto; font-size: 0.8rem; line-height: 1.35; }
img { max-width: 100%; height: auto; } nav a { margin-right: 1.2rem; }
"""


def write_page(folder: Path) -> Path:
    """From the texts and pictures in the folder."""
    path = folder / "report.html"
    path.write_text(page(folder))
    return path


def page(folder: Path) -> str:
    there = [section for section in SECTIONS if (folder / f"{section.name}.txt").is_file()]
    about = [f"pcie_allreduce {metadata.version('pcie-allreduce')}", *_about(folder / "bench.json")]
    about.append(datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))
    links = "".join(f'<a href="#{section.name}">{escape(section.name)}</a>' for section in there)
    body = "\n".join(_section(section, folder) for section in there)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>pcie_allreduce on this machine</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>pcie_allreduce on this machine</h1>\n"
        f'<p class="about">{"<br>".join(map(escape, about))}</p>\n<nav>{links}</nav>\n{body}\n</body></html>\n'
    )


def _about(path: Path) -> list[str]:
    """What the benchmark says of the machine, and of how its numbers came about."""
    try:
        document = Document.read(path)
        return [str(document.environment["label"]), report.machine(document)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _section(section: Section, folder: Path) -> str:
    text = (folder / f"{section.name}.txt").read_text()
    return (
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2>\n{_picture(section, folder)}'
        f"<pre>{escape(text)}</pre>{_facts(folder / f'{section.name}.json')}</section>"
    )


def _picture(section: Section, folder: Path) -> str:
    for suffix, kind in PICTURES.items():
        path = folder / f"{section.name}{suffix}"
        if path.is_file():
            data = base64.b64encode(path.read_bytes()).decode()
            return f'<p><img alt="{escape(section.title)}" src="data:{kind};base64,{data}"></p>\n'
    return ""


def _facts(path: Path) -> str:
    """The document itself, folded, so that whoever reads the page can compute with it."""
    try:
        document: Any = json.loads(path.read_text())
    except (OSError, ValueError):
        return ""
    return f"<details><summary>{path.name}</summary><pre>{escape(json.dumps(document, indent=1))}</pre></details>"
