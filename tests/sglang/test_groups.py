"""Four ranks, so that SGLang makes groups within the tensor parallel one: we serve those to which it would give a
custom all-reduce, by what its sources say, and leave the others alone."""

from __future__ import annotations

from typing import Any

import launch
import pytest
from engines import sglang_groups
from engines.source import Tree

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


@pytest.fixture(scope="session")
def results(installed: launch.Installed) -> list[dict[str, Any]]:
    return launch.results("group_ranks.py", installed.variables)


CASES = {  # what the sizes lead to: groups and their number of ranks
    "attention_dp": {"tp": 4, "attention_tp": 2, "moe_ep": 2, "moe_tp": 2},
    "context": {"tp": 4, "attention_tp": 2, "attn_cp": 2, "moe_dp": 2, "moe_tp": 2},
    "pd_multiplexing": {"tp": 4, "pdmux_prefill_tp": 4},
    "decode_context": {"tp": 4, "dcp": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_groups_are_served_as_sglang_would(
    case: str, results: list[dict[str, Any]], installed: launch.Installed
) -> None:
    allowed = sglang_groups.served(Tree(installed.folder))
    if case not in results[0]:
        assert "dcp" not in allowed
        pytest.skip("this SGLang has no decode context parallelism")
    for rank, result in enumerate(results):
        told = result[case]
        assert {name: group["size"] for name, group in told.items()} == CASES[case], f"rank {rank}: {told}"
        for name, group in told.items():
            assert group["right"], f"rank {rank}: {name}"
            assert group["ours"] == allowed[name], f"rank {rank}: {name}"
            assert group["served"] == (1 if allowed[name] else None), f"rank {rank}: {name}"
