"""Which versions of SGLang have what this package hooks and relies on, and in which it is exercised.

    python tests/engines_matrix.py                       # contracts over the sources of published versions
    python tests/engines_matrix.py --exercise            # and runs the tests with SGLang in each version
    python tests/engines_matrix.py --versions 0.5.20     # of others, to look at: nothing is written

Writes benchmarks/results/engines/sglang.json and the tables of docs/engines.md. All that is fetched lies in build/:
about 230 MB, and with --exercise, for which `make test-sglang` must have made its environment, about 600 MB more; that
takes about 15 minutes. Ends with status 1 where a version breaks a contract, or fails a test.

`make engines` does all of it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
from typing import Any

from engines import published, record, table
from engines.contract import BROKEN

BUILD = record.ROOT / "build"
PAGE = record.ROOT / "docs" / "engines.md"
INSTALLED = "0.5.23"  # by `make sglang-environment`
TESTS = ("test_routing.py", "test_groups.py", "test_server.py", "test_fused.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", help="instead of those of the table; only printed")
    parser.add_argument("--exercise", action="store_true", help="run the tests with SGLang in each version, too")
    options = parser.parse_args()
    newest = published.newest()
    versions = options.versions or list(dict.fromkeys([*record.VERSIONS, newest]))
    before = record.read()
    found = {version: record.contracts(published.sources(version, BUILD / "engines")) for version in versions}
    document = {
        "engine": "sglang",
        "newest": newest,
        "date": _today(),
        "exercised": before.get("exercised", "never"),
        "environment": before.get("environment", "nothing"),
        "versions": found,
    }
    for version, told in found.items():
        told["tests"] = before["versions"].get(version, {}).get("tests", {})
    if options.exercise:
        exercise(document)
    if not options.versions:
        record.write(document)
        PAGE.write_text(table.put(PAGE.read_text(), document))
    print(table.render(document))
    return any(_broken(told) for told in found.values())


def exercise(document: dict[str, Any]) -> None:
    """The tests with SGLang, in each version of the document."""
    programs = BUILD / f"sglang-{INSTALLED}" / "bin"
    python = str(programs / "python")
    others = [version for version in document["versions"] if version != INSTALLED]
    folders = [published.unpack(version, BUILD / f"sglang-{version}", python) for version in others]
    junit = BUILD / "engines" / "junit.xml"
    files = [file for name in TESTS if (file := record.ROOT / "tests" / "sglang" / name).exists()]
    # Not `python -m pytest`, which would find the checkout's sources before the installed package.
    command = [str(programs / "pytest"), "-m", "sglang", f"--junitxml={junit}", *map(str, files)]
    variables = {**os.environ, "SGLANG_FOLDERS": os.pathsep.join(map(str, folders))}
    subprocess.run(command, env=variables, cwd=record.ROOT, check=False)  # what failed is in the file
    told = record.outcomes(junit)
    for version, version_told in document["versions"].items():
        version_told["tests"] = record.of_version(version, told)
    asks = "import platform, torch; print(f'Python {platform.python_version()}, torch {torch.__version__}')"
    where = subprocess.run([python, "-c", asks], capture_output=True, text=True, check=True).stdout.strip()
    document["environment"] = f"CPU ranks, {where}, {platform.system()}"
    document["exercised"] = _today()


def _broken(told: dict[str, Any]) -> bool:
    return any(seam["state"] == BROKEN for seam in told["seams"].values()) or "failed" in told["tests"].values()


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


if __name__ == "__main__":
    sys.exit(main())
