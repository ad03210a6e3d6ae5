"""What goes around functions of SGLang's layers, so that an all-reduce, residual and RMSNorm become one call.

SGLang has a place for such a call, made for FlashInfer's kernels on GPUs with NVLink, and it asks for it by the number
of rows alone. What is served here depends on the length of a row, the dtype and the norm, too. So not that question is
hooked but the functions around it, which hold the tensors: a call is refused before anything has happened, and SGLang
goes on as without us. In 0.5.9, a refusal any later would leave the all-reduce out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .adapter import EngineAllReduce

Results = tuple[torch.Tensor, torch.Tensor]
Original = Callable[..., Any]


@dataclass(frozen=True)
class Norms:
    """SGLang's norms, of which those are served that do what one of ours does."""

    plain: Any
    one_more: Any  # stores weight - 1

    def weight_bias(self, norm: Any) -> float | None:
        """What is added to its weight; None for a norm that is not served."""
        if type(norm) is self.one_more:
            return 1.0
        if type(norm) is not self.plain or not norm.has_weight or norm.variance_size_override is not None:
            return None
        if norm.cast_x_before_out_mul or norm.fp32_residual or norm.override_orig_dtype is not None:
            return None
        return 0.0

    def fused(self, norm: Any, x: torch.Tensor, residual: Any, group: Any) -> Results | None:
        """(norm of residual + the group's sum of x, residual + that sum); None, and nothing has happened, where that is
        not served. By types, shapes and dtypes alone, so that all ranks say the same."""
        adapter = getattr(group, "ca_comm", None)
        if not isinstance(adapter, EngineAllReduce) or not isinstance(residual, torch.Tensor):
            return None
        bias = self.weight_bias(norm)
        if bias is None or not adapter.should_fuse(x, residual, norm.weight):
            return None
        return adapter.fused_allreduce_rmsnorm(x, residual, norm.weight, norm.variance_epsilon, weight_bias=bias)


@dataclass(frozen=True)
class Boundary:
    """0.5.23: every sum before a norm passes one of two functions, which take it or return None."""

    norms: Norms
    module: Any
    has_dp_attention: Callable[[], bool]

    def fused_ffn_input(
        self, original: Original, plan: Any, hidden_states: torch.Tensor, residual: Any, forward_batch: Any
    ) -> Any:
        """Behind attention: its sum is over the attention's tensor parallel group."""
        taken = original(plan, hidden_states, residual, forward_batch)
        if taken is not None or not self._may_fuse(forward_batch):
            return taken
        return self.norms.fused(plan.norm, hidden_states, residual, self.module.get_parallel().attn_tp_group)

    def fused_attn_input(
        self,
        original: Original,
        plan: Any,
        owed: Any,
        residual: Any,
        forward_batch: Any,
        post_residual_addition: Any,
        **how: Any,
    ) -> Any:
        """Before attention: the sum that the layer before has left."""
        taken = original(plan, owed, residual, forward_batch, post_residual_addition, **how)
        if taken is not None or post_residual_addition is not None or not self._may_fuse(forward_batch):
            return taken
        if not isinstance(owed, self.module.UnreducedOutput):
            return None
        if owed.complete_sum is not None or owed.reduce_to_dp_local is not None:  # a sum of another kind
            return None
        return self.norms.fused(plan.norm, owed.partial, residual, owed.group)

    def _may_fuse(self, forward_batch: Any) -> bool:
        return not (
            self.has_dp_attention()
            or forward_batch.can_run_tbo  # two batches at a time, on two streams
            or self.module.get_exec().comm.enable_quant_communications
        )


@dataclass(frozen=True)
class FirstCommunicator:
    """0.5.9: the sum behind attention alone.

    That behind an MLP would have to be left to the next layer, and models of that version then lose it: EAGLE-3's
    hidden states are taken before the sum, one model never reduces, and an addition to the residual is dropped.
    """

    norms: Norms
    module: Any

    def prepare_mlp(
        self,
        original: Original,
        communicator: Any,
        hidden_states: torch.Tensor,
        residual: Any,
        forward_batch: Any,
        cache: Any = None,
    ) -> Any:
        if self._only_reduces(communicator, hidden_states.shape[0], forward_batch):
            norm = communicator.post_attention_layernorm
            taken = self.norms.fused(norm, hidden_states, residual, self.module.get_tp_group())
            if taken is not None:
                return taken
        return original(communicator, hidden_states, residual, forward_batch, cache)

    def _only_reduces(self, communicator: Any, rows: int, forward_batch: Any) -> bool:
        """Whether an all-reduce, the add and the norm are all that is done, and FlashInfer does not do them."""
        step, context = communicator._communicate_with_all_reduce_and_layer_norm_fn, communicator._context
        plain = self.module.CommunicateWithAllReduceAndLayerNormFn._gather_hidden_states_and_residual
        whole = self.module.ScatterMode.TP_ATTN_FULL
        return (
            getattr(step, "func", None) is plain
            and (step.keywords["residual_input_mode"] is whole or context.attn_tp_size == 1)
            and context.attn_dp_size == 1
            and not self.module.get_attn_tp_context().input_scattered
            and not forward_batch.can_run_tbo
            and not self.module.apply_flashinfer_allreduce_fusion(rows)
        )
