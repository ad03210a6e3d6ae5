"""Whether this SGLang has the places at which its layers can have an all-reduce, residual and RMSNorm in one call."""

from __future__ import annotations

import functools
import pkgutil

from . import hooks, seams
from .adapter import EngineAllReduce
from .sglang_layers import Boundary, FirstCommunicator, Norms

BOUNDARY = "sglang.srt.layers.layer_boundary.fusions.allreduce"  # in 0.5.23
COMMUNICATOR = "sglang.srt.layers.communicator"  # in 0.5.9, and later another of the same name
LAYERNORM = "sglang.srt.layers.layernorm"
DP_ATTENTION = "sglang.srt.layers.dp_attention.is_dp_attention_enabled"
FUSED_NORM = f"{LAYERNORM}.RMSNorm.forward_with_allreduce_fusion"
BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.can_run_tbo"

# What is hooked or read, with the arguments that matter.
TENSORS = ("hidden_states", "residual", "forward_batch")
KINDS = ("has_weight", "var_hidden_size", "cast_x_before_out_mul", "fp32_residual", "override_orig_dtype")
NORM = (f"{LAYERNORM}.RMSNorm", *KINDS)
IN_BOUNDARY = (
    (f"{BOUNDARY}.fused_ffn_input", "plan", *TENSORS),
    (f"{BOUNDARY}.fused_attn_input", "plan", "owed", "residual", "forward_batch", "post_residual_addition"),
    (f"{BOUNDARY}.UnreducedOutput", "partial", "group", "complete_sum", "reduce_to_dp_local"),
    (f"{BOUNDARY}.get_parallel",),
    (f"{BOUNDARY}.get_exec",),
    (DP_ATTENTION,),
)
STEPS = f"{COMMUNICATOR}.CommunicateWithAllReduceAndLayerNormFn"
IN_COMMUNICATOR = (
    (f"{COMMUNICATOR}.LayerCommunicator.prepare_mlp", *TENSORS, "cache"),
    (
        f"{COMMUNICATOR}.CommunicateWithAllReduceAndLayerNormFn._gather_hidden_states_and_residual",
        "residual_input_mode",
    ),
    (f"{COMMUNICATOR}.apply_flashinfer_allreduce_fusion",),
    (f"{COMMUNICATOR}.ScatterMode.TP_ATTN_FULL",),
    (f"{COMMUNICATOR}.get_attn_tp_context",),
    (f"{COMMUNICATOR}.get_tp_group",),
    (FUSED_NORM,),
)


def attach(adapter: EngineAllReduce) -> str | None:
    """Has SGLang's layers ask this adapter for fused calls; or says why they will not."""
    reason = adapter.fusing.why_not()
    if reason is None:
        try:
            reason = _hook_layers()
        except Exception as error:  # the all-reduce serves all the same
            reason = f"SGLang's layers cannot be hooked: {error!r}"
    adapter.fuses = reason is None
    return reason


@functools.cache
def _hook_layers() -> str | None:
    """Once a process, and not before a group is served: what is imported is large, and ranks alone need it."""
    no_norms, no_boundary = _lacks(NORM, (BATCH,)), _lacks(*IN_BOUNDARY)
    if no_norms is None and no_boundary is None:
        boundary = Boundary(_norms(), pkgutil.resolve_name(BOUNDARY), pkgutil.resolve_name(DP_ATTENTION))
        hooks.replace(f"{BOUNDARY}.fused_ffn_input", boundary.fused_ffn_input)
        hooks.replace(f"{BOUNDARY}.fused_attn_input", boundary.fused_attn_input)
        return None
    no_communicator = _lacks(*IN_COMMUNICATOR)
    if no_communicator is None and seams.lacks(FUSED_NORM, "use_attn_tp_group") is None:
        no_communicator = f"has a later {COMMUNICATOR} than 0.5.9's"  # which may quantise what it reduces
    if no_norms is None and no_communicator is None:
        layers = FirstCommunicator(_norms(), pkgutil.resolve_name(COMMUNICATOR))
        hooks.replace(f"{COMMUNICATOR}.LayerCommunicator.prepare_mlp", layers.prepare_mlp)
        return None
    return seams.sentence("SGLang", no_norms or f"{no_boundary}, and {no_communicator}")


def _lacks(*seam: tuple[str, ...]) -> str | None:
    return next((reason for reason in (seams.lacks(*each) for each in seam) if reason is not None), None)


def _norms() -> Norms:
    module = pkgutil.resolve_name(LAYERNORM)
    return Norms(module.RMSNorm, module.GemmaRMSNorm)
