"""SGLang's own GroupCoordinator, old and new, with our communicator in it: who serves which tensor, and who wins."""

from __future__ import annotations

import pytest
from routing import LIMIT, Results, case, has

pytestmark = pytest.mark.sglang

SERVED_SMALL = {"ours": True, "right": True, "kept": True, "served": 1, "declined": 1}
LEFT_ALONE = {"ours": False, "right": True, "served": None, "declined": None}


def test_nothing_is_touched_without_the_switch(results: Results) -> None:
    for result in results:
        door = result["door"]
        assert door["untouched"]
        assert not door["without"]


def test_flags_become_variables_and_installing_twice_is_installing_once(results: Results) -> None:
    for result in results:
        door = result["door"]
        assert door["told"] == {"PCIE_ALLREDUCE": "1", "PCIE_ALLREDUCE_REQUIRE": "1"}
        assert door["touched"]
        assert door["idempotent"]


def test_cpu_tensors_are_served_up_to_the_limit(results: Results) -> None:
    lines = case(results, "cpu_tensors", captures=1, others=[None, None], **SERVED_SMALL)
    assert has(lines, "on for group tp:0", "2 ranks", "transport cpu", f"up to {LIMIT} bytes")


def test_the_way_of_gpu_tensors_ends_here_up_to_the_limit(results: Results) -> None:
    case(results, "cuda_routing", **SERVED_SMALL)


def test_what_is_compiled_is_served_by_the_same_question(results: Results) -> None:
    case(results, "while_compiling", **SERVED_SMALL)


def test_batches_that_overlap_are_served_in_turn(results: Results) -> None:
    case(results, "two_batches", right=True, order=[6, 6, 4, 6, 4, 4], served=6, declined=0)


GATHERED = {
    "columns": [True, [1, 2]],
    "rows": [True, [1, 2]],
    "wide": [1, 2],
    "ids": [0, 1],
    "stacked": [1, 2],
    "reduced": 0,
}


def test_all_gathers_are_served_where_that_is_asked_for(results: Results) -> None:
    lines = case(
        results, "gathers", **GATHERED, gathered=2, declined=2
    )  # the stacked one goes by SGLang's own way for CPU tensors
    assert has(lines, "all-gathers of group tp:", "are served: ", f"up to {LIMIT} bytes of all ranks together")
    case(results, "gathers_as_on_gpus", **GATHERED, gathered=3, declined=2)


def test_all_gathers_are_the_engine_s_own_else(results: Results) -> None:
    lines = case(results, "gathers_unasked", **GATHERED, gathered=0, declined=0)
    assert not any("all-gathers of group" in line for line in lines)


def test_each_group_has_its_own(results: Results) -> None:
    lines = case(results, "two_groups", served=[2, 1])
    assert has(lines, "on for group tp:")
    assert has(lines, "on for group pdmux_prefill_tp:0")


def test_our_flag_wins_over_disable_custom_all_reduce_and_says_so_once(results: Results) -> None:
    lines = case(results, "disabled", **SERVED_SMALL)
    assert has(lines, "--disable-custom-all-reduce turns off SGLang's own", "served all the same")


def test_deterministic_inference_is_served_at_every_size(results: Results) -> None:
    lines = case(results, "deterministic", **{**SERVED_SMALL, "served": 2, "declined": 0})
    assert has(lines, "deterministic inference", "in rank order")


def test_it_gives_way_to_symmetric_memory(results: Results) -> None:
    assert has(case(results, "symmetric_memory", **LEFT_ALONE), "off for group", "--enable-symm-mem")


def test_it_gives_way_to_mscclpp(results: Results) -> None:
    assert has(case(results, "mscclpp", **LEFT_ALONE), "off for group", "--enable-mscclpp")


def test_pcie_ipc_gets_what_is_not_served_here(results: Results) -> None:
    if "pcie_ipc" not in results[0]:
        pytest.skip("this SGLang has no SGLANG_ENABLE_PCIE_IPC_ALLREDUCE")
    lines = case(results, "pcie_ipc", theirs=1, **SERVED_SMALL)
    assert has(lines, "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is on, too")


def test_what_cannot_be_set_up_is_left_to_the_engine_with_the_reason_once(results: Results) -> None:
    lines = case(results, "unable", **LEFT_ALONE)
    assert has(lines, "off for group", "max_bytes is 1")
    assert has(lines, "SGLang's own custom all-reduce is not available")  # as without us: it needs GPUs


def test_a_disabled_custom_all_reduce_stays_so_if_ours_cannot_be_set_up(results: Results) -> None:
    lines = case(results, "unable_and_disabled", **LEFT_ALONE)
    assert has(lines, "off for group", "max_bytes is 1")
    assert not any("not available" in line for line in lines)


def test_requiring_it_raises_the_reason(results: Results) -> None:
    for result in results:
        raised = result["unable_but_required"]["raised"]
        assert "--pcie-allreduce-require" in raised
        assert "max_bytes is 1" in raised
