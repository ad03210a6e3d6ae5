"""A pass is right when it is the pass that the sums of all ranks, taken in another way, make of the same shards."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from ranks import Rank, run_ranks

from pcie_allreduce.bench.backends.base import Seat
from pcie_allreduce.bench.backends.catalogue import Job
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.settings import CannotRun, Machine, Request, Settings
from pcie_allreduce.verify_cycle import worker
from pcie_allreduce.verify_cycle.joints import Alone, Fused, Reduced, add_and_norm
from pcie_allreduce.verify_cycle.passes import EagerPass
from pcie_allreduce.verify_cycle.report import FARTHEST, PassRow, Speculation, complaints
from pcie_allreduce.verify_cycle.run import settled
from pcie_allreduce.verify_cycle.shape import KIMI, TINY
from pcie_allreduce.verify_cycle.worker import Asked, make_model

SMALL = replace(TINY, layers=3, hidden=64)
CPU = Machine(gpus=0, cuda_build=False, mps=False)


def seat_of(me: Rank) -> Seat:
    return Seat(me.rank, me.world, torch.device(me.device), me.group)


class Gathered:
    """Every rank sums all partials itself, in float32 and rank order, but for the calls that it forgets."""

    label = "gathered"

    def __init__(self, me: Rank, forgotten: range = range(0)) -> None:
        self.me, self.forgotten, self.calls = me, forgotten, 0
        self.capture = nullcontext

    def join(self, partial: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        parts = self.me.gather(partial)
        total = torch.zeros_like(partial, dtype=torch.float32)
        for part in parts:
            total += part.float().to(total.device)
        self.calls += 1
        kept = 0.0 if self.calls - 1 in self.forgotten else 1.0
        return add_and_norm(total.to(partial.dtype) * kept, residual, weight)

    def algorithm(self, x: torch.Tensor) -> str:
        return "none"

    def check(self) -> None:
        pass


def ours_and_gathered(me: Rank, rows: int) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    from pcie_allreduce.bench.backends.ours import Ours

    model = make_model(SMALL, 4, seat_of(me))
    backend = Ours(seat_of(me), "auto", SMALL.nbytes(4))
    launches = 0

    class Counted(Reduced):
        def join(self, *args: Any) -> torch.Tensor:
            nonlocal launches
            launches += 1
            return super().join(*args)

    mine, other = (EagerPass(model, joint, rows, 1).output.cpu() for joint in (Counted(backend), Gathered(me)))
    backend.close()
    return mine, other, launches, SMALL.all_reduces


@pytest.mark.parametrize("rows", [1, 3])
def test_a_pass_on_ours_is_the_pass_of_the_same_sums(rows: int) -> None:
    results = run_ranks(3, ours_and_gathered, rows)
    assert all(launches == count == 2 * SMALL.layers + 1 for _, _, launches, count in results)
    for mine, other, _, _ in results:
        assert torch.equal(mine, other) and torch.equal(mine, results[0][0])
        assert mine.isfinite().all() and mine.float().std() > 0.5


def fused_and_not(me: Rank) -> tuple[torch.Tensor, torch.Tensor]:
    from pcie_allreduce.bench.backends.ours import Ours

    model = make_model(SMALL, 4, seat_of(me))
    backend = Ours(seat_of(me), "auto", SMALL.nbytes(4))
    outputs = [EagerPass(model, joint, 3, 1).output.cpu() for joint in (Fused(backend), Reduced(backend))]
    backend.close()
    return outputs[0], outputs[1]


def test_a_fused_pass_ends_alike_on_all_ranks_and_near_the_other_one() -> None:
    results = run_ranks(3, fused_and_not)
    for fused, plain in results:
        assert torch.equal(fused, results[0][0])
        assert (fused.float() - plain.float()).norm() < 0.02 * plain.float().norm()


def distances(me: Rank, forgotten: range) -> float:
    model = make_model(replace(SMALL, layers=61), 3, seat_of(me))
    right, wrong = (EagerPass(model, joint, 3, 1).output.float() for joint in (Gathered(me), Gathered(me, forgotten)))
    return float((wrong - right).norm() / right.norm())


@pytest.mark.parametrize("forgotten", [range(1), range(60, 123)], ids=["the embedding", "the second half"])
def test_a_pass_that_forgets_sums_is_too_far_away(forgotten: range) -> None:
    assert min(run_ranks(2, distances, forgotten)) > FARTHEST


def measured(me: Rank, gpus: int) -> list[PassRow]:
    settings = Settings(me.world, gpus, (1,), "bf16", 1, ("pcie_allreduce",), ("eager",), ("auto",))
    told: list[Message] = []
    jobs = (Job("pcie_allreduce", "auto"), Job("nccl" if gpus else "gloo"))
    worker.measure(Asked(SMALL, (1, 3)), seat_of(me), settings, jobs, told.append)
    return [message.value for message in told if message.kind == "row"]


def test_every_joint_and_row_count_has_its_row() -> None:
    rows = run_ranks(2, measured, 0)[0]
    assert [(row.rows, row.backend) for row in rows] == [
        (count, name)
        for count in (1, 3)
        for name in ("no communication", "pcie_allreduce", "pcie_allreduce fused", "gloo")
    ]
    assert complaints(rows) == []
    assert all(row.us_min <= row.us_median <= row.us_max for row in rows)
    assert [row.all_reduces for row in rows[:4]] == [0, 7, 7, 7]
    assert all(row.algorithm == "one_shot" for row in rows if row.backend == "pcie_allreduce fused")
    assert rows[0].identical is None and rows[1].identical is True
    assert {row.bytes for row in rows} == {128, 384}


class Unsummed(Gathered):
    label = "pcie_allreduce"

    def join(self, partial: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return add_and_norm(partial, residual, weight)


def unsummed(me: Rank) -> list[str]:
    settings = Settings(me.world, 0, (1,), "bf16", 1, (), ("eager",), ("auto",))
    told: list[Message] = []
    seat = seat_of(me)
    case = worker.Case(settings, seat, make_model(SMALL, 3, seat), 3, told.append)
    case.measure([Alone(), Unsummed(me), Gathered(me)])
    return complaints(message.value for message in told if message.kind == "row")


def test_a_joint_that_sums_nothing_is_found() -> None:
    different, far = run_ranks(2, unsummed)[0]
    assert different == "pcie_allreduce, 3 row(s): ranks end with different bits"
    assert "away from another all-reduce's" in far


def test_what_is_asked_can_be_sent_to_ranks() -> None:
    asked = Asked(KIMI, (1, 3))
    assert pickle.loads(pickle.dumps(partial(worker.measure, asked))).args == (asked,)


def test_the_shards_are_those_of_eight_ranks() -> None:
    assert (KIMI.rank_heads, KIMI.rank_intermediate, KIMI.all_reduces) == (8, 256, 123)
    assert KIMI.nbytes(3) == 43008
    assert [KIMI.experts_read(rows) for rows in (1, 3, 4)] == [2, 6, 8]  # 4-bit: four times as many


@pytest.mark.parametrize(
    ("rows", "change", "speculation", "backends", "sentence"),
    [
        ((0,), {}, Speculation(2.0, 0.97), (), "--rows 0: a pass here has 1 to 64 rows"),
        ((65,), {}, Speculation(2.0, 0.97), (), "--rows 65"),
        ((3,), {"layers": 0}, Speculation(2.0, 0.97), (), "--layers 0: it must be within 1"),
        ((3,), {}, Speculation(0.5, 0.97), (), "--acceptance 0.5"),
        ((3,), {}, Speculation(2.0, 0.0), (), "--verify-share 0"),
        ((3,), {}, Speculation(2.0, 0.97), ("nccl",), "--backends nccl: not on cpu ranks"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(
    rows: tuple[int, ...], change: dict[str, int], speculation: Speculation, backends: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(CannotRun, match=sentence):
        settled(Request(backends=backends), CPU, rows, change, speculation)


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [("floor", "it sums nothing"), ("torch-symm-mem", "the layers of a pass do not")],
)
def test_what_cannot_sum_a_layers_tensor_is_no_joint(backend: str, sentence: str) -> None:
    with pytest.raises(CannotRun, match=sentence):
        settled(Request(backends=(backend,)), Machine(2, True, False), (3,), {}, Speculation(2.0, 0.97))
