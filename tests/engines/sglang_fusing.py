"""Where SGLang's layers have an all-reduce, the residual and a norm in a row, and a fused call can step in."""

from __future__ import annotations

import ast

from pcie_allreduce.integrations import sglang_fused as fused

from .contract import Finding, Seam, broken, fits, refused
from .source import Tree

LATER = "has a later LayerCommunicator than 0.5.9's, which may quantise what it reduces"


def layers(tree: Tree) -> Finding:
    """As sglang_fused looks for them when it is to hook them: a version without has no fused calls, and says so."""
    norms = _lacks(tree, fused.NORM, (fused.BATCH,))
    boundary, communicator = _lacks(tree, *fused.IN_BOUNDARY), _lacks(tree, *fused.IN_COMMUNICATOR)
    if norms is not None:
        return refused(f"fused calls: {norms}")
    if boundary is None:
        return _declines(tree) or fits("before and behind attention")
    if communicator is None and tree.lacks(fused.FUSED_NORM, "use_attn_tp_group") is not None:
        return fits("behind attention")
    return refused(f"fused calls: {LATER if communicator is None else f'{boundary}, and {communicator}'}")


def _declines(tree: Tree) -> Finding | None:
    """Where neither of the two takes a sum, layers must go on by themselves."""
    for path, *_ in fused.IN_BOUNDARY[:2]:
        if "return None" not in ast.unparse(tree.find(path)):
            return broken(f"{path} no longer returns None for what it does not take")
    return None


def _lacks(tree: Tree, *seam: tuple[str, ...]) -> str | None:
    return next((reason for each in seam if (reason := tree.lacks(*each)) is not None), None)


SEAMS = (
    Seam(
        "layers that take a fused call",
        (
            fused.BOUNDARY,
            fused.COMMUNICATOR,
            fused.LAYERNORM,
            fused.STEPS,
            fused.BATCH,
            fused.DP_ATTENTION,
            fused.FUSED_NORM,
            *(path for path, *_ in (fused.NORM, *fused.IN_BOUNDARY, *fused.IN_COMMUNICATOR)),
        ),
        layers,
        ("test_fused.py::test_the_sum_behind_attention_is_fused_and_rounded_once",),
    ),
)
