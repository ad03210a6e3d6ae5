"""A seam is a place of the engine that is hooked or relied on; what a version has of it is one of three findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .source import Tree

FITS, REFUSED, BROKEN = "fits", "refused", "broken"


@dataclass(frozen=True)
class Finding:
    """What a version has of a seam.

    Attributes:
        state: FITS; REFUSED where the version lacks it, and is known to, so that it is not used there; BROKEN where
            nothing provides for what was found.
        detail: what was found, in words; for REFUSED and BROKEN, why.
    """

    state: str
    detail: str = ""


@dataclass(frozen=True)
class Seam:
    """One line of the table.

    Attributes:
        name: how the table calls it.
        paths: the dotted paths of the engine that are looked at, as the integration names them.
        look: gives the finding for a version.
        tests: those that exercise it with the engine itself, as `file::test`.
    """

    name: str
    paths: tuple[str, ...]
    look: Callable[[Tree], Finding]
    tests: tuple[str, ...] = ()


def fits(detail: str = "") -> Finding:
    return Finding(FITS, detail)


def refused(why: str) -> Finding:
    return Finding(REFUSED, why)


def broken(why: str) -> Finding:
    return Finding(BROKEN, why)


def first_broken(*complaints: str | None) -> Finding | None:
    """A finding for the first of the complaints, if there is any."""
    return next((broken(complaint) for complaint in complaints if complaint is not None), None)
