"""The pages hold together: their commands can be typed, their links lead somewhere, and all findings are explained."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from pcie_allreduce.cli.main import COMMANDS, _module, _parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
DOCTOR = Path(_parser.__code__.co_filename).parents[1] / "doctor"

pytestmark = pytest.mark.skipif(not PAGES, reason="the tests run without the repository around them")


def blocks_and_prose(page: Path) -> tuple[str, str]:
    text = page.read_text()
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    return blocks, re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def test_every_command_of_a_block_can_be_typed() -> None:
    told = 0
    for page in PAGES:
        for line in re.findall(r"^(?:\$ )?pcie-allreduce ([^\n#&]+)", blocks_and_prose(page)[0], flags=re.MULTILINE):
            words = shlex.split(line)
            assert _parser(words[0]).parse_args(words).command in COMMANDS, f"{page.name}: {line}"
            told += 1
    assert told > 25


def test_every_command_of_a_sentence_has_the_options_that_it_names() -> None:
    """A sentence may leave values out."""
    subparsers = argparse.ArgumentParser().add_subparsers()
    for name in COMMANDS:
        _module(name).add_parser(subparsers)
    told = 0
    for page in PAGES:
        for line in re.findall(r"`pcie-allreduce ([^`]+)`", blocks_and_prose(page)[1]):
            name, *words = line.split()
            if page.name != "errors.md":  # whose commands are wrong on purpose
                known = subparsers.choices[name].format_help()
                missing = [word for word in words if word.startswith("--") and word not in known]
                assert missing == [], f"{page.name}: {line}"
                told += 1
    assert told > 20


def test_every_command_is_told_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"pcie-allreduce {name}" not in text] == []


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if re.match(r"https?:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_finding_of_the_doctor_has_its_entry() -> None:
    source = "\n".join(path.read_text() for path in DOCTOR.glob("*.py"))
    topics = set(re.findall(r"(?:ok|warning|problem|judge|\))\(\s*\"([^\"]+)\",", source))
    assert {"P2P", "ACS", "IOMMU", "shared memory"} < topics
    entries = set(re.findall(r"^### (.+)$", (ROOT / "docs" / "troubleshooting.md").read_text(), flags=re.MULTILINE))
    assert entries == topics


def test_the_mistakes_that_the_protocol_names_are_planted() -> None:
    named = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", (ROOT / "docs" / "protocol.md").read_text()))
    planted = set(re.findall(r"^\| `(\w+)`:", (ROOT / "docs" / "fabric.md").read_text(), flags=re.MULTILINE))
    assert len(named) > 8 and named <= planted
