"""The way through NCCL's settings, over machines that are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest

from pcie_allreduce.nccl_sweep.knobs import (
    AS_CHOSEN,
    KNOBS,
    Outcome,
    Setting,
    best_of,
    better,
    count,
    descend,
    environment,
    everything,
    told,
)

MIB = 2**20


def machine(time: Callable[[dict[str, str]], float], memory: Callable[[dict[str, str]], int]) -> Callable[..., Outcome]:
    def measure(setting: Setting) -> Outcome:
        variables = environment(setting)
        return Outcome(setting, ((43008, time(variables)),), memory(variables))

    return measure


def slow_but_for_ll(variables: dict[str, str]) -> float:
    return (20.0 if variables.get("NCCL_PROTO") == "LL" else 40.0) + 5.0 * ("NCCL_ALGO" in variables)


def by_channels(variables: dict[str, str]) -> int:
    return int(variables.get("NCCL_MAX_NCHANNELS", 16)) * 9 * MIB


def test_the_way_finds_the_quick_protocol_and_then_the_fewest_channels() -> None:
    outcomes = list(descend(machine(slow_but_for_ll, by_channels)))
    best = best_of(outcomes)
    assert best is not None
    assert environment(best.setting) == {"NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"}
    assert len(outcomes) == count("descent") == 14
    assert outcomes[0].setting == AS_CHOSEN
    assert len({outcome.setting for outcome in outcomes}) == len(outcomes)


def test_full_is_every_combination_once() -> None:
    assert count("full") == 4 * 3 * 3 * 5 * 3
    first = list(islice(everything(machine(slow_but_for_ll, by_channels)), 20))
    assert len({outcome.setting for outcome in first}) == 20


def test_a_setting_that_fails_is_passed_by() -> None:
    def measure(setting: Setting) -> Outcome:
        if "NCCL_PROTO" in environment(setting):
            return Outcome(setting, failure="rank 0 failed")
        return Outcome(setting, ((1, 10.0),), MIB)

    best = best_of(list(descend(measure)))
    assert best is not None and best.setting == AS_CHOSEN


def test_where_all_fail_there_is_no_best() -> None:
    assert best_of([Outcome(AS_CHOSEN, failure="no")]) is None


OLD = Outcome(AS_CHOSEN, ((1, 10.0), (2, 10.0)), 100)


@pytest.mark.parametrize(
    ("new", "is_better"),
    [
        (replace(OLD, us=((1, 9.0), (2, 9.0))), True),
        (replace(OLD, us=((1, 9.9), (2, 9.9))), False),  # noise
        (replace(OLD, us=((1, 10.2), (2, 10.2)), memory=50), True),  # noise, and less memory
        (replace(OLD, us=((1, 10.9), (2, 10.9)), memory=1), False),
        (replace(OLD, memory=None), False),
        (replace(OLD, failure="no"), False),
    ],
)
def test_quicker_counts_first_and_then_memory(new: Outcome, is_better: bool) -> None:
    assert better(new, OLD) is is_better
    assert better(OLD, replace(OLD, failure="no"))


def test_both_ends_of_channels_are_set() -> None:
    setting = tuple("2" if knob.name == "channels" else None for knob in KNOBS)
    assert told(setting) == "NCCL_MIN_NCHANNELS=2 NCCL_MAX_NCHANNELS=2"
    assert told(AS_CHOSEN) == "as NCCL chooses"
