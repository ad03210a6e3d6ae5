"""Writes the tables of README.md and docs/measurements.md from benchmarks/results/*.json, so that every number that a
reader meets comes from a file with its machine and commit.

    python benchmarks/render_results.py             rewrites what stands between the markers
    python benchmarks/render_results.py --check     exit code 1, and the name of the file, where that would change it

    <!-- results:begin NAME -->            or with a mode, `graph` or `eager`, behind NAME: this mode alone
    <!-- results:end NAME -->

NAME is the name of a result file without .json, or `cpu`, `measured` or `emulated` for all files of that kind.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pcie_allreduce.bench import report
from pcie_allreduce.bench.rows import Document, Row

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "measurements.md")
KINDS = ("cpu", "measured", "emulated")
BLOCK = re.compile(
    r"(?P<begin><!-- results:begin (?P<name>\S+)(?: (?P<mode>graph|eager))? -->\n).*?"
    r"(?P<end><!-- results:end (?P=name) -->)",
    re.DOTALL,
)
MARK = re.compile(r"<!-- results:(begin|end)")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Writes the tables of the pages from the result files.")
    parser.add_argument("--check", action="store_true", help="change nothing; say which pages are out of date")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("pages", nargs="*", type=Path, default=[page for page in PAGES if page.exists()])
    args = parser.parse_args(argv)
    documents = {path.stem: Document.read(path) for path in sorted(args.results.glob("*.json"))}
    stale = [page for page in args.pages if not _is_current(page, documents, write=not args.check)]
    for page in stale:
        print(
            f"{page}: {'out of date; run benchmarks/render_results.py' if args.check else 'written'}", file=sys.stderr
        )
    return 1 if args.check and stale else 0


def _is_current(page: Path, documents: dict[str, Document], write: bool) -> bool:
    text = page.read_text()
    fresh = render_page(text, documents)
    if write and fresh != text:
        page.write_text(fresh)
    return fresh == text


def render_page(text: str, documents: dict[str, Document]) -> str:
    """`text` with fresh tables; `ValueError` on a marker without its partner or a name without a file."""
    if 2 * len(BLOCK.findall(text)) != len(MARK.findall(text)):
        raise ValueError("a results:begin or results:end marker has no partner")
    return BLOCK.sub(lambda m: m["begin"] + render(m["name"], m["mode"], documents) + m["end"], text)


def render(name: str, mode: str | None, documents: dict[str, Document]) -> str:
    if name in KINDS:
        chosen = [document for document in documents.values() if document.environment["kind"] == name]
    elif name in documents:
        chosen = [documents[name]]
    else:
        raise ValueError(f"no result file is called {name}.json, and the kinds are {', '.join(KINDS)}")
    return "\n".join(_section(document, mode) for document in chosen) or "No such run has been made.\n"


def _section(document: Document, mode: str | None) -> str:
    rows = [row for row in document.rows if mode in (None, row.mode)]
    tables = [_table([row for row in rows if row.mode == one]) for one in dict.fromkeys(row.mode for row in rows)]
    return "\n".join([_caption(document), *tables, _sums(rows)])


def _caption(document: Document) -> str:
    environment = document.environment
    parts = [report.machine(document)]
    if environment["driver"]:
        parts.append(f"driver {environment['driver']}")
    if environment["input"]:
        parts.append(f"input {environment['input']['file']}")
    parts.append(f"commit {(environment['commit'] or 'unknown')[:12]}")
    parts.append(environment["date"][:10])
    label = environment["label"]
    return f"**{label[0].upper()}{label[1:]}.** {', '.join(parts)}.\n"


def _table(rows: list[Row]) -> str:
    """Sizes down, backends across; the last columns are how many times faster ours is than the baseline."""
    columns = list(dict.fromkeys((row.backend, row.algorithm) for row in rows))
    ours = [column for column in columns if column[0] == report.OURS]
    baseline = next((name for name in report.BASELINES if name in {column for column, _ in columns}), None)
    heads = [_column(column) for column in columns] + [f"{_column(c)} vs {baseline}" for c in ours if baseline]
    lines = [
        f"| us per call ({rows[0].dtype}, {rows[0].mode}) | " + " | ".join(heads) + " |",
        "|---|" + "---:|" * len(heads),
    ]
    for nbytes in dict.fromkeys(row.bytes for row in rows):
        by_column = {(row.backend, row.algorithm): row for row in rows if row.bytes == nbytes}
        cells = [report.microseconds(by_column[c].us_median) if c in by_column else "" for c in columns]
        cells += [_ratio(by_column.get(column), rows) for column in ours if baseline]
        lines.append(f"| {nbytes:,} B | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _column(column: tuple[str, str]) -> str:
    backend, algorithm = column
    return backend if algorithm == "none" else f"{backend} {algorithm}"


def _ratio(row: Row | None, rows: list[Row]) -> str:
    times = report.ratio(row, rows) if row else None
    return f"{times:.1f}x" if times else ""


def _sums(rows: Sequence[Row]) -> str:
    """What held at every size and mode, for each backend that sums."""
    sentences = []
    for backend in dict.fromkeys(row.backend for row in rows if row.exact is not None):
        own = [row for row in rows if row.backend == backend]
        held = {
            "exact": all(row.exact for row in own),
            "bit-identical on all ranks": all(row.identical for row in own),
            "correctly rounded": all(row.correctly_rounded for row in own),
        }
        words = [word if holds else f"not always {word}" for word, holds in held.items()]
        sentences.append(f"{backend}: {', '.join(words)}")
    return f"Sums over all sizes: {'; '.join(sentences)}.\n"


if __name__ == "__main__":
    sys.exit(main())
