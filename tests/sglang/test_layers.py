"""When a function of SGLang's layers is taken over, condition by condition; stand-ins for what it is called with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pcie_allreduce.integrations.sglang_layers import Boundary, FirstCommunicator, Norms

X, RESIDUAL, TAKEN = torch.zeros(2, 8), torch.ones(2, 8), ("ours", "ours")
GROUP = object()


class Plain:
    has_weight, variance_size_override, override_orig_dtype = True, None, None
    cast_x_before_out_mul = fp32_residual = False


class OneMore:
    pass


class Subclass(Plain):
    pass


class Taking(Norms):
    """Takes everything, of the one group."""

    def fused(self, norm: Any, x: Any, residual: Any, group: Any) -> Any:
        assert (x is X, residual is RESIDUAL, group is GROUP) == (True, True, True)
        return TAKEN


TAKES = Taking(Plain, OneMore)


def test_norms_that_are_served_have_a_bias() -> None:
    norms = Norms(Plain, OneMore)
    assert (norms.weight_bias(Plain()), norms.weight_bias(OneMore())) == (0.0, 1.0)
    assert norms.weight_bias(Subclass()) is None  # whatever it does otherwise
    for name, value in {
        "has_weight": False,
        "variance_size_override": 4,
        "cast_x_before_out_mul": True,
        "fp32_residual": True,
        "override_orig_dtype": torch.float32,
    }.items():
        norm = Plain()
        setattr(norm, name, value)
        assert norms.weight_bias(norm) is None, name
    assert norms.fused(Plain(), X, RESIDUAL, SimpleNamespace(ca_comm=None)) is None  # not our group, or one rank
    assert norms.fused(Plain(), X, RESIDUAL, None) is None


class Owed:
    def __init__(self, complete_sum: Any = None, reduce_to_dp_local: Any = None) -> None:
        self.partial, self.group = X, GROUP
        self.complete_sum, self.reduce_to_dp_local = complete_sum, reduce_to_dp_local


def boundary(*, dp: bool = False, quantised: bool = False) -> Boundary:
    module = SimpleNamespace(
        UnreducedOutput=Owed,
        get_parallel=lambda: SimpleNamespace(attn_tp_group=GROUP),
        get_exec=lambda: SimpleNamespace(comm=SimpleNamespace(enable_quant_communications=quantised)),
    )
    return Boundary(TAKES, module, lambda: dp)


def call(
    seam: Boundary, *, behind: bool, owed: Any = None, theirs: Any = None, overlap: bool = False, added: Any = None
) -> Any:
    plan, batch = SimpleNamespace(norm=Plain()), SimpleNamespace(can_run_tbo=overlap)
    if behind:
        return seam.fused_ffn_input(lambda *arguments: theirs, plan, X, RESIDUAL, batch)
    original = lambda *arguments, **how: theirs  # noqa: E731
    return seam.fused_attn_input(original, plan, owed or Owed(), RESIDUAL, batch, added, fuses_quant=False)


@pytest.mark.parametrize("behind", [True, False])
def test_sums_on_either_side_of_attention(behind: bool) -> None:
    assert call(boundary(), behind=behind) == TAKEN
    assert call(boundary(), behind=behind, theirs="theirs") == "theirs"  # SGLang's own goes first
    assert call(boundary(), behind=behind, overlap=True) is None
    assert call(boundary(dp=True), behind=behind) is None
    assert call(boundary(quantised=True), behind=behind) is None


def test_sums_of_another_kind_are_left_alone() -> None:
    for owed in (object(), Owed(complete_sum=print), Owed(reduce_to_dp_local=print)):
        assert call(boundary(), behind=False, owed=owed) is None
    assert call(boundary(), behind=False, added=RESIDUAL) is None


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ({}, True),
        ({"step": "_scatter"}, False),
        ({"input_mode": "SCATTERED"}, False),
        ({"input_mode": "SCATTERED", "attn_tp_size": 1}, True),
        ({"attn_dp_size": 2}, False),
        ({"input_scattered": True}, False),
        ({"overlap": True}, False),
        ({"theirs": True}, False),
    ],
)
def test_the_sum_of_the_first_communicator(changed: dict[str, Any], taken: bool) -> None:
    how = {"step": "_gather", "input_mode": "TP_ATTN_FULL", "attn_tp_size": 2, "attn_dp_size": 1, **changed}
    steps = {"_gather": object(), "_scatter": object()}
    module = SimpleNamespace(
        CommunicateWithAllReduceAndLayerNormFn=SimpleNamespace(_gather_hidden_states_and_residual=steps["_gather"]),
        ScatterMode=SimpleNamespace(TP_ATTN_FULL="TP_ATTN_FULL"),
        get_attn_tp_context=lambda: SimpleNamespace(input_scattered=how.get("input_scattered", False)),
        apply_flashinfer_allreduce_fusion=lambda rows: how.get("theirs", False),
        get_tp_group=lambda: GROUP,
    )
    step = SimpleNamespace(func=steps[how["step"]], keywords={"residual_input_mode": how["input_mode"]})
    communicator = SimpleNamespace(
        _communicate_with_all_reduce_and_layer_norm_fn=step,
        _context=SimpleNamespace(attn_tp_size=how["attn_tp_size"], attn_dp_size=how["attn_dp_size"]),
        post_attention_layernorm=Plain(),
    )
    batch = SimpleNamespace(can_run_tbo=how.get("overlap", False))
    seam = FirstCommunicator(TAKES, module)
    assert seam.prepare_mlp(lambda *arguments: "theirs", communicator, X, RESIDUAL, batch) == (
        TAKEN if taken else "theirs"
    )
