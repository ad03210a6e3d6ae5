"""Where SGLang's layers have an all-reduce, the residual and a norm in a row, and a fused call can step in."""

from __future__ import annotations

import ast

from .contract import Finding, Seam, broken, first_broken, fits, refused
from .source import Tree, parameters

BOUNDARY = "sglang.srt.layers.layer_boundary.fusions.allreduce"
COMMUNICATOR = "sglang.srt.layers.communicator"
LAYERNORM = "sglang.srt.layers.layernorm"
OWED = "sglang.srt.layers.layer_boundary.output.UnreducedOutput"
STEPS = f"{COMMUNICATOR}.CommunicateWithAllReduceAndLayerNormFn"
STEP = f"{STEPS}._gather_hidden_states_and_residual"
BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.can_run_tbo"
KINDS = {"has_weight", "var_hidden_size", "cast_x_before_out_mul", "fp32_residual", "override_orig_dtype"}
READ_OF_BOUNDARY = tuple(f"{BOUNDARY}.{name}" for name in ("UnreducedOutput", "get_parallel", "get_exec"))
READ_OF_COMMUNICATOR = tuple(
    f"{COMMUNICATOR}.{name}" for name in ("get_attn_tp_context", "get_tp_group", "ScatterMode.TP_ATTN_FULL")
)
GATE = f"{COMMUNICATOR}.apply_flashinfer_allreduce_fusion"
NORM = f"{LAYERNORM}.RMSNorm"
FORWARD = f"{NORM}.forward_with_allreduce_fusion"
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
        *missing(tree, DP_ATTENTION, BATCH, *READ_OF_BOUNDARY),
        norm(tree),
    )
    return told or fits("before and behind attention")


def first_communicator(tree: Tree) -> Finding:
    """FlashInfer's own place must not be used here: a call that it declines leaves the all-reduce out."""
    prepare = tree.function(f"{COMMUNICATOR}.LayerCommunicator.prepare_mlp")
    taken = None if prepare is None else parameters(prepare)
    step = tree.function(STEP)
    told = first_broken(
        None
        if taken == ["self", "hidden_states", "residual", "forward_batch", "cache"]
        else f"prepare_mlp takes {taken}",
        None
        if step is not None and "residual_input_mode" in parameters(step)
        else f"there is no {STEP} of a residual_input_mode",
        *missing(tree, BATCH, *READ_OF_COMMUNICATOR),
        norm(tree),
    )
    return told or fits("behind attention")


def missing(tree: Tree, *paths: str) -> list[str | None]:
    return [None if tree.find(path) is not None else f"there is no {path}" for path in paths]


def norm(tree: Tree) -> str | None:
    """What tells a plain norm from others is given to its constructor."""
    made = tree.function(f"{NORM}.__init__")
    gone = KINDS if made is None else KINDS - {*parameters(made)}
    return f"RMSNorm takes no {', '.join(sorted(gone))}" if gone else None


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
    NORM,
    BATCH,
    STEPS,
    STEP,
    *READ_OF_BOUNDARY,
    *READ_OF_COMMUNICATOR,
)
SEAMS = (Seam("layers that take a fused call", PATHS, layers),)
