"""The judge must be able to say no: every way in which an all-reduce goes wrong is planted here once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pcie_allreduce.bench.correctness import Finding, Verdict, combine, judge
from pcie_allreduce.bench.execution import make_pairs
from pcie_allreduce.bench.inputs import Expectation, Source, expect, integers, normals, shifted

ELEMENTS, PAIRS = 4096, 4
RIGHT = Verdict(exact=True, identical=True, correctly_rounded=True)

# (the parts of all ranks, this rank) -> its output, or None where it writes nothing
Sum = Callable[[list[torch.Tensor], int], "torch.Tensor | None"]


class OneRank:
    """A rank of an all-reduce that computes its output from all inputs by `how`."""

    def __init__(self, rank: int, world: int, sources: list[Source], dtype: torch.dtype, how: Sum) -> None:
        self.rank, self.world, self.how = rank, world, how
        self.sources = iter(sources)
        self.pairs = make_pairs(PAIRS, ELEMENTS, dtype, torch.device("cpu"))

    def restore(self) -> None:
        pass

    def each_pair(self) -> None:
        source = next(self.sources)
        for index, pair in enumerate(self.pairs):
            parts = [shifted(source(rank, ELEMENTS), index) for rank in range(self.world)]
            assert torch.equal(pair.source, parts[self.rank])
            output = self.how(parts, self.rank)
            if output is not None:
                pair.output.copy_(output)


def verdict(how: Sum, world: int = 4, dtype: torch.dtype = torch.bfloat16) -> Verdict:
    findings: list[Finding] = []
    whole, real = integers(dtype, world, seed=1), normals(dtype, seed=2)

    def gather(finding: Finding) -> list[Finding]:
        findings.append(finding)
        return [finding]

    for rank in range(world):
        run = OneRank(rank, world, [whole, real], dtype, how)
        judge(run, run.pairs, expected(whole, rank, world, True), expected(real, rank, world, False), gather)
    return combine(findings)


def expected(source: Source, rank: int, world: int, exactly: bool) -> list[Expectation]:
    one = expect(source, rank, world, ELEMENTS, exactly)
    return [one.for_pair(pair) for pair in range(PAIRS)]


def right(parts: list[torch.Tensor], rank: int) -> torch.Tensor:
    total = torch.zeros(ELEMENTS)
    for part in parts:
        total += part.float()
    return total.to(parts[0].dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_float32_in_rank_order_rounded_once_is_right(dtype: torch.dtype, world: int) -> None:
    assert verdict(right, world, dtype) == RIGHT


def test_a_missing_term_is_wrong() -> None:
    assert verdict(lambda parts, rank: right(parts[:-1], rank)) == Verdict(False, True, False)


def test_one_wrong_element_on_one_rank_is_wrong() -> None:
    def how(parts: list[torch.Tensor], rank: int) -> torch.Tensor:
        output = right(parts, rank)
        if rank == 2:
            output[-1] = torch.nextafter(output[-1], torch.tensor(torch.inf, dtype=output.dtype))
        return output

    assert verdict(how) == Verdict(False, False, False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_accumulation_in_the_dtype_is_not_correctly_rounded(dtype: torch.dtype) -> None:
    def how(parts: list[torch.Tensor], rank: int) -> torch.Tensor:
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    assert verdict(how, dtype=dtype) == Verdict(True, True, False)


def test_ties_rounded_up_are_not_correctly_rounded() -> None:
    def how(parts: list[torch.Tensor], rank: int) -> torch.Tensor:
        total = right([part.float() for part in parts], rank)
        return ((total.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32).to(torch.bfloat16)

    assert verdict(how, world=2) == Verdict(True, True, False)


def test_float32_sums_in_another_order_are_correctly_rounded_but_differ_between_ranks() -> None:
    def how(parts: list[torch.Tensor], rank: int) -> torch.Tensor:
        return right(parts[rank:] + parts[:rank], rank)

    assert verdict(how, dtype=torch.float32) == Verdict(True, False, True)


def test_the_sign_of_zero_counts_as_a_bit() -> None:
    def how(parts: list[torch.Tensor], rank: int) -> torch.Tensor:
        output = right(parts, rank)
        return torch.where(output == 0, -0.0, output) if rank == 1 else output

    assert verdict(how) == Verdict(True, False, True)


def test_a_launch_that_writes_nothing_is_wrong() -> None:
    assert verdict(lambda parts, rank: None) == Verdict(False, True, False)


def test_a_tail_that_is_not_written_is_wrong() -> None:
    def how(parts: list[torch.Tensor], rank: int) -> torch.Tensor:
        output = right(parts, rank)
        output[-3:] = torch.nan
        return output

    assert verdict(how) == Verdict(False, True, False)


def test_the_sum_of_another_buffer_is_wrong() -> None:
    assert verdict(lambda parts, rank: right([shifted(part, 1) for part in parts], rank)) == Verdict(False, True, False)
