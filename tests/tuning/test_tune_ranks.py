"""What is measured at a size: every algorithm that may serve, each launch shape once; and nothing that sums wrong."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from ranks import Rank, run_ranks

from pcie_allreduce.bench import case
from pcie_allreduce.bench.backends.base import Seat
from pcie_allreduce.bench.backends.catalogue import Job
from pcie_allreduce.bench.case import Case, Message, WrongSum
from pcie_allreduce.bench.inputs import workload
from pcie_allreduce.bench.settings import Machine, Request, Settings, settle
from pcie_allreduce.plan import Plan, Step, area_packs_for, choose
from pcie_allreduce.presets import PRESETS
from pcie_allreduce.tuning.ranks import list_candidates


class Planned:
    """Stands for our backend on GPUs: plans without a communicator."""

    def __init__(self, world: int, preset: str, has_fallback: bool = True) -> None:
        self.world, self.preset, self.has_fallback = world, PRESETS[preset], has_fallback

    def plan(self, x: torch.Tensor, step: Step | None) -> Plan | None:
        about = (self.world, x.nbytes, 2, self.preset.islands, self.preset.figures)
        return choose(*about, area_packs_for(self.world, 1 << 20), 128, "auto", () if step is None else (step,))


def listed(world: int, preset: str, nbytes: int, device: str = "meta", has_fallback: bool = True) -> list[Any]:
    settings = settle(Request(ranks=world, sizes=(nbytes,)), Machine(8, cuda_build=True, mps=False))
    seat = Seat(0, world, torch.device(device), None)  # type: ignore[arg-type]
    planned: Any = Planned(world, preset, has_fallback)
    return list_candidates(planned, seat, settings, nbytes)


def test_every_algorithm_comes_in_its_own_shape_in_half_and_in_twice_as_many_threads() -> None:
    candidates = listed(8, "pcie5-4+4", 43008)
    shapes = [(each.algorithm, *(each.shape or ())) for each in candidates]
    assert shapes == [
        ("one_shot", 42, 64),
        ("one_shot", 84, 32),
        ("one_shot", 21, 128),
        ("two_shot", 11, 256),  # a warp for each owner; twice as many are more than a block has
        ("island", 21, 128),
        ("island", 11, 256),
        ("none",),
    ]
    assert [each.algorithm for each in candidates if each.untuned] == ["island"]
    assert all(each.step.up_to == 43008 and each.step.dtype_bytes == 2 for each in candidates)
    assert [each.step.fallback for each in candidates] == [False] * 6 + [True]


def test_what_cannot_serve_or_does_not_fit_is_not_listed() -> None:
    assert {each.algorithm for each in listed(8, "pcie5-switch", 43008)} == {"one_shot", "two_shot", "none"}
    assert {each.algorithm for each in listed(8, "pcie5-switch", 1 << 20)} == {"two_shot", "none"}
    assert {each.algorithm for each in listed(2, "pcie5-switch", 43008, has_fallback=False)} == {"one_shot"}


@pytest.mark.parametrize("nbytes", [2, 1024, 14336, 1 << 20])
def test_no_shape_is_measured_twice_and_one_is_the_untuned(nbytes: int) -> None:
    for world, preset in ((2, "nvlink"), (3, "pcie5-cpu"), (8, "pcie5-dual-socket")):
        shapes = [(each.algorithm, each.shape) for each in listed(world, preset, nbytes)]
        assert len(set(shapes)) == len(shapes)
        assert sum(each.untuned for each in listed(world, preset, nbytes)) == 1


def test_cpu_ranks_have_one_shape() -> None:
    assert [(each.label, each.step.threads) for each in listed(3, "cpu", 1024, "cpu")] == [
        ("one_shot", None),
        ("two_shot", None),
        ("fallback", None),
    ]


class Wrong:
    """Sums whole numbers to one more than they are."""

    name, transport, in_place, reduces = "pcie_allreduce", "cpu", False, True
    zeros = staticmethod(torch.zeros)

    def algorithm(self, x: torch.Tensor) -> str:
        return "one_shot"

    def launch(self, source: torch.Tensor, output: torch.Tensor) -> None:
        output.copy_(source + 1)

    def capture(self) -> nullcontext[None]:
        return nullcontext()

    def check(self) -> None: ...

    def close(self) -> None: ...


def wrong_before_timed(me: Rank, settings: Settings) -> str:
    def timed(*parts: Any) -> list[float]:
        raise AssertionError("it was timed")

    before, case.time_repeat = case.time_repeat, timed
    heard: list[Message] = []
    try:
        seat = Seat(me.rank, me.world, torch.device("cpu"), me.group)
        a_case = Case(settings, seat, workload(settings), "eager", 1024, heard.append)
        with pytest.raises(WrongSum) as caught:
            a_case.measure([(Job("candidate", "one_shot"), Wrong())], judge_first=True)
    finally:
        case.time_repeat = before
    assert not [message for message in heard if message.kind == "row"]
    return str(caught.value)


def test_a_wrong_sum_is_refused_before_anything_is_timed() -> None:
    settings = settle(Request(ranks=2, sizes=(1024,), repeats=1), Machine(0, cuda_build=False, mps=False))
    reasons = run_ranks(2, wrong_before_timed, settings)
    assert set(reasons) == {"sums of 1024 bytes are not exact: candidate (one_shot)"}
