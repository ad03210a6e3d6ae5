"""A process of its own: four ranks, so that SGLang makes groups within the tensor parallel one; prints as JSON, for
each rank and case, which groups there are, and who serves them.

    python group_ranks.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import routing_ranks
import torch.distributed as dist

WORLD = 4
PLACES = ("_TP", "_PDMUX_PREFILL_TP_GROUP", "_DCP", "_ATTN_TP", "_ATTN_CP", "_MOE_DP", "_MOE_EP", "_MOE_TP")
SIZES = {
    "attention_dp": {"attn_dp_size": 2, "moe_ep_size": 2},
    "context": {"attn_cp_size": 2, "moe_dp_size": 2},
    "pd_multiplexing": {"duplicate_tp_group": True},
}


def served(rank: int, **sizes: int) -> dict[str, Any]:
    """By name of each group of more than one rank: its size, who serves it, and whether its sums are right."""
    import sglang.srt.distributed.parallel_state as state

    routing_ranks.groups(tp_size=WORLD, **sizes)
    told = {}
    for group in {id(group): group for place in PLACES if (group := getattr(state, place, None))}.values():
        if group.world_size > 1:
            total = group.all_reduce(routing_ranks.filled(rank, routing_ranks.SMALL))
            adapter = group.ca_comm
            told[group.unique_name.split(":")[0]] = {
                "size": group.world_size,
                "ours": type(adapter).__name__ == "EngineAllReduce",
                "served": getattr(adapter, "served", None),
                "right": bool((total == sum(other + 1 for other in group.ranks)).all()),
            }
    return told


def decode_context(rank: int) -> dict[str, Any]:
    """SGLang refuses it on CPUs before it makes the group."""
    case: Callable[[int], Any] = lambda rank: served(rank, attn_dcp_size=2)  # noqa: E731
    return routing_ranks.with_attribute(case, "parallel_state", "is_cuda", lambda: True)(rank)


def run_rank(rank: int, port: int) -> None:
    import sglang.srt.distributed.parallel_state as state

    os.environ |= {"SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "0", "PCIE_ALLREDUCE": "1"}
    from pcie_allreduce.integrations import sglang

    sglang.register()
    if routing_ranks.PLUGINS:
        from sglang.srt.plugins.hook_registry import HookRegistry

        HookRegistry.apply_hooks()
    routing_ranks.start(rank, port, WORLD)
    results: dict[str, Any] = {}
    cases: dict[str, Callable[[int], Any]] = {
        name: lambda rank, sizes=sizes: served(rank, **sizes) for name, sizes in SIZES.items()
    }
    if hasattr(state, "_DCP"):
        cases["decode_context"] = decode_context
    for name, case in cases.items():
        results[name] = routing_ranks.attempt(case, rank)
        dist.barrier()
    routing_ranks.tell(results)


if __name__ == "__main__":
    routing_ranks.spawn(WORLD, run_rank)
