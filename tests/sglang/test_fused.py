"""Fused calls where SGLang's layers, old and new, ask for them: which are served, and what becomes of the others.

A residual rounded once came from a fused call; one rounded twice from an all-reduce and SGLang's norm behind it.
"""

from __future__ import annotations

from typing import Any

import pytest
import routing
from routing import Results, has

pytestmark = pytest.mark.sglang

SERVED = {"rounded": "once", "normed": True, "kept": True, "fused": 1, "served": 1, "declined": 0}
REFUSED = {"rounded": "twice", "normed": True, "fused": 0, "served": 1, "declined": 0}
TO_ENGINE = {**REFUSED, "served": 0, "declined": 1}
FUSED = "are fused with the residual and RMSNorm behind them: where the engine's layers ask for it"
NOT_FUSED = "are not fused with the residual and RMSNorm behind them: "


def case(results: Results, name: str, **expected: Any) -> list[str]:
    if name not in results[0]:
        pytest.skip("this SGLang has no such case")
    return routing.case(results, name, **expected)


def test_on_cpu_ranks_it_is_off_by_default_and_nothing_is_touched(results: Results) -> None:
    lines = case(results, "fused_default", untouched=True, **REFUSED)
    assert has(lines, NOT_FUSED, "PCIE_ALLREDUCE_FUSED=1 does it on CPU ranks, too")


def test_the_switch_turns_it_off(results: Results) -> None:
    assert has(case(results, "fused_off", **REFUSED), NOT_FUSED, "PCIE_ALLREDUCE_FUSED is 0")


def test_the_sum_behind_attention_is_fused_and_rounded_once(results: Results) -> None:
    lines = case(results, "fused", **SERVED)
    assert has(lines, FUSED)
    assert has(lines, "fuses up to 128 rows of 1024 bfloat16")  # 256 KiB


def test_the_sum_that_the_layer_before_has_left_is_fused(results: Results) -> None:
    case(results, "fused_left_over", **SERVED)


def test_a_norm_that_stores_its_weight_less_one_is_fused(results: Results) -> None:
    case(results, "fused_gemma", **SERVED)


def test_fused_and_other_calls_in_turn(results: Results) -> None:
    case(results, "fused_mixed", rounded=["once", "once", "twice", "once", "once"], fused=4, served=9, declined=1)


@pytest.mark.parametrize("name", ["other_product", "wide_residual", "two_batches"])
def test_what_is_not_served_is_reduced_here_and_normed_by_sglang(results: Results, name: str) -> None:
    case(results, f"fused_{name}", **REFUSED)


def test_a_weight_of_another_dtype_is_left_to_sglang(results: Results) -> None:
    case(results, "fused_wide_weight", **REFUSED)


def test_what_is_too_large_is_left_to_sglang_with_its_all_reduce(results: Results) -> None:
    case(results, "fused_large", **TO_ENGINE)


def test_dp_attention_is_left_alone(results: Results) -> None:
    case(results, "fused_dp_attention", **REFUSED)


def test_a_group_that_is_switched_off_gets_nothing(results: Results) -> None:
    case(results, "fused_disabled", **TO_ENGINE)


def test_a_group_that_is_not_served_goes_sglangs_way(results: Results) -> None:
    lines = case(results, "fused_unable", ours=False, rounded="twice", normed=True)
    assert not any("fused" in line for line in lines)


def test_deterministic_inference_is_not_fused(results: Results) -> None:
    lines = case(results, "fused_deterministic", **REFUSED)
    assert has(lines, NOT_FUSED, "a sum must not depend on its size")


def test_flashinfers_kernels_go_first(results: Results) -> None:
    case(results, "fused_theirs", theirs=1, fused=0, served=0, declined=0, rounded="once", normed=True)


def test_the_sum_behind_an_mlp_of_the_old_sglang_is_not_left_over(results: Results) -> None:
    case(results, "fused_deferred", deferred=False)


def test_a_version_between_is_told_of_and_left_alone(results: Results) -> None:
    lines = case(results, "fused_not_here", fused=0)
    assert has(lines, NOT_FUSED, "this SGLang", "sglang.srt.layers.communicator than 0.5.9's")
