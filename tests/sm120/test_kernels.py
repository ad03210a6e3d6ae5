"""The SM120 code of every all-reduce kernel keeps what the protocol relies on. Read, not run: it needs no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sm120.checks import CHECKS
from sm120.expected import ALGORITHMS, variants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sm120.kernels import Compiled, Variant


def test_every_kernel_is_there_and_expected(installed: dict[Variant, Compiled]) -> None:
    assert set(installed) == {variant for algorithm in ALGORITHMS for variant in variants(algorithm)}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_kernel_of(
    algorithm: str, check: Callable[[Compiled, Variant], Iterator[str]], installed: dict[Variant, Compiled]
) -> None:
    here = [variant for variant in variants(algorithm) if variant in installed]
    assert [f"{variant}: {finding}" for variant in here for finding in check(installed[variant], variant)] == []
