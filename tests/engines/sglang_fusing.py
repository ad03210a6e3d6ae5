"""Where SGLang's layers have an all-reduce, the residual and a norm in a row, and a fused call can step in."""

from __future__ import annotations

import ast

from .contract import Finding, Seam, broken, first_broken, fits, refused
from .source import Tree, parameters

BOUNDARY = "sglang.srt.layers.layer_boundary.fusions.allreduce"
COMMUNICATOR = "sglang.srt.layers.communicator"
LAYERNORM = "sglang.srt.layers.layernorm"
OWED = "sglang.srt.layers.layer_boundary.output.UnreducedOutput"
GATE = f"{COMMUNICATOR}.apply_flashinfer_allreduce_fusion"
FORWARD = f"{LAYERNORM}.RMSNorm.forward_with_allreduce_fusion"
DP_ATTENTION = "sglang.srt.layers.dp_attention.is_dp_attention_enabled"
BETWEEN = "its layers reduce over more groups, and some quantise: fused calls are left to SGLang"


def layers(tree: Tree) -> Finding:
    """The functions around SGLang's own fused call, with the arguments that a hook takes."""
    if tree.function(f"{BOUNDARY}.fused_ffn_input") is not None:
        return boundary(tree)
    forward = tree.function(FORWARD)
    if tree.function(GATE) is not None and forward is not None and "use_attn_tp_group" not in parameters(forward):
        return first_communicator(tree)
    return refused(BETWEEN)


def boundary(tree: Tree) -> Finding:
    """Each returns None for what it does not take, and layers go on with an all-reduce and a norm."""
    taken = "plan", "residual", "forward_batch"
    wanted = {
        "fused_ffn_input": ("hidden_states", *taken),
        "fused_attn_input": ("owed", "post_residual_addition", *taken),
    }
    for name, names in wanted.items():
        function = tree.function(f"{BOUNDARY}.{name}")
        if function is None:
            return broken(f"there is no {BOUNDARY}.{name}")
        gone = sorted({*names} - {*parameters(function)})
        if gone:
            return broken(f"{name} takes no {', '.join(gone)}")
        if "return None" not in ast.unparse(function):
            return broken(f"{name} no longer returns None for what it does not take")
    owed = tree.find(OWED)
    fields = ("partial", "group", "complete_sum", "reduce_to_dp_local")
    text = "" if owed is None else ast.unparse(owed)
    told = first_broken(
        *(None if f"{field}:" in text else f"UnreducedOutput has no {field}" for field in fields),
        None if tree.function(DP_ATTENTION) is not None else f"there is no {DP_ATTENTION}",
    )
    return told or fits("before and behind attention")


def first_communicator(tree: Tree) -> Finding:
    """FlashInfer's own place must not be used here: a call that it declines leaves the all-reduce out."""
    prepare = tree.function(f"{COMMUNICATOR}.LayerCommunicator.prepare_mlp")
    taken = None if prepare is None else parameters(prepare)
    step = f"{COMMUNICATOR}.CommunicateWithAllReduceAndLayerNormFn._gather_hidden_states_and_residual"
    told = first_broken(
        None
        if taken == ["self", "hidden_states", "residual", "forward_batch", "cache"]
        else f"prepare_mlp takes {taken}",
        None if tree.function(step) is not None else f"there is no {step}",
        None if tree.function(f"{COMMUNICATOR}.get_attn_tp_context") else "there is no get_attn_tp_context",
    )
    return told or fits("behind attention")


PATHS = (
    BOUNDARY,
    f"{BOUNDARY}.fused_ffn_input",
    f"{BOUNDARY}.fused_attn_input",
    COMMUNICATOR,
    GATE,
    f"{COMMUNICATOR}.LayerCommunicator.prepare_mlp",
    LAYERNORM,
    FORWARD,
    DP_ATTENTION,
)
SEAMS = (Seam("layers that take a fused call", PATHS, layers),)
