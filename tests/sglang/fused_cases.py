"""Cases for routing_ranks.py: SGLang's layers at the place where a sum meets its residual and norm.

Inputs are small integers over 64, whose sums float32 holds exactly. So a residual that was rounded once (ours, in one
step) is told from one that was rounded twice (the sum, and then the residual with it), bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import routing_ranks
import torch
import torch.distributed as dist
from routing_ranks import groups, with_variables

HIDDEN = 1024
ROWS, MANY_ROWS = 6, 200  # 12 and 400 KiB of bfloat16; the limit of the test lies between
FUSED = {"PCIE_ALLREDUCE_FUSED": "1"}
BATCH = SimpleNamespace(can_run_tbo=False, forward_mode=SimpleNamespace(is_decode_or_idle=lambda: True))

NEW = find_spec("sglang.srt.layers.layer_boundary") is not None  # in 0.5.23
if NEW:
    SEAM, HOOKED = "sglang.srt.layers.layer_boundary.fusions.allreduce", "fused_ffn_input"
    THEIR_QUESTION = "flashinfer_ar_fusion_applies"
else:
    SEAM, HOOKED = "sglang.srt.layers.communicator", "LayerCommunicator.prepare_mlp"
    THEIR_QUESTION = "apply_flashinfer_allreduce_fusion"
BETWEEN = not NEW and find_spec("sglang.srt.plugins") is not None  # which 0.5.9 had not yet


def norm_of(kind: str = "RMSNorm", **options: Any) -> Any:
    made = getattr(import_module("sglang.srt.layers.layernorm"), kind)(HIDDEN, eps=1e-5, **options)
    made = made.to(torch.bfloat16)
    made.weight.data = (torch.arange(HIDDEN) % 17 - 8).to(torch.bfloat16) / 8
    return made


def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every rank's part of the sum, and the residual."""
    random = torch.Generator().manual_seed(rows)
    values = torch.randint(-256, 257, (3, rows, HIDDEN), generator=random) / 64
    return values[:2].to(torch.bfloat16), values[2].to(torch.bfloat16)


def behind_attention(x: torch.Tensor, residual: torch.Tensor, norm: Any, batch: Any = BATCH) -> Any:
    """As a layer does it: SGLang's own functions decide, and complete what is refused."""
    if NEW:
        prepare, fusions = import_module("sglang.srt.layers.layer_boundary.prepare"), import_module(SEAM)
        offered = fusions.ffn_input_fusions(SimpleNamespace(norm=norm, fusions=None))
        runs = tuple(fusion.run for fusion in offered)
        return prepare._reduce_update_read(x, residual, batch, norm, gathers_residual=False, fusions=runs)
    return layer_communicator(norm).prepare_mlp(x, residual, batch)


def before_attention(x: torch.Tensor, residual: torch.Tensor, norm: Any) -> Any:
    """What the layer before has left over."""
    fusions, output = import_module(SEAM), import_module("sglang.srt.layers.layer_boundary.output")
    state = import_module("sglang.srt.distributed.parallel_state")
    owed = output.UnreducedOutput(x, group=state._TP)
    for fused in fusions.attn_input_fusions(SimpleNamespace(norm=norm, fusions=None)):
        taken = fused(owed, residual, BATCH, None)
        if taken is not None:
            return taken
    return norm(owed.complete(), residual)


def layer_communicator(norm: Any) -> Any:
    module = import_module(SEAM)
    sparse = dict.fromkeys(("is_layer_sparse", "is_previous_layer_sparse", "is_next_layer_sparse"), False)
    modes = module.LayerScatterModes.init_new(layer_id=1, num_layers=4, **sparse)
    return module.LayerCommunicator(modes, norm, norm)


def outcome(
    rank: int, norm: Any, rows: int = ROWS, layer: Callable[..., Any] = behind_attention, **options: Any
) -> dict[str, Any]:
    """How many roundings the residual has seen, how far the norm is from that of a float64, and what was kept."""
    parts, residual = inputs(rows)
    x, given = parts[rank].clone(), residual.clone()
    with torch.no_grad():
        normed, total = layer(x, given, norm, **options)
    exact = parts.double().sum(0)
    roundings = {
        "once": (exact + residual.double()).to(torch.bfloat16),
        "twice": (exact.to(torch.bfloat16).double() + residual.double()).to(torch.bfloat16),
    }
    values = total.double()
    bias = 1.0 if type(norm).__name__ == "GemmaRMSNorm" else 0.0
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-5)
    want = values * scale * (norm.weight.double() + bias)
    return {
        "rounded": next((name for name, value in roundings.items() if torch.equal(total, value)), "wrong"),
        "normed": bool(torch.allclose(normed.double(), want, rtol=2**-7, atol=2**-7)),
        "kept": torch.equal(x, parts[rank]) and torch.equal(given, residual),
    }


def counted(group: Any) -> dict[str, int]:
    return {name: getattr(group.ca_comm, name) for name in ("fused", "served", "declined")}


def one(rank: int, **options: Any) -> dict[str, Any]:
    norm = options.pop("norm", None) or norm_of()
    group = groups()
    return {**outcome(rank, norm, **options), **counted(group)}


def nothing_is_touched_by_default(rank: int) -> dict[str, Any]:
    """The all-reduce is on, and fusing is not, on CPU ranks: SGLang's functions are its own."""
    result = one(rank)
    hooked = import_module(SEAM)
    for name in HOOKED.split("."):
        hooked = getattr(hooked, name)
    return {**result, "untouched": not hasattr(hooked, "__wrapped__")}


def mixed(rank: int) -> dict[str, Any]:
    """Fused and plain calls, small and large, in turn on one communicator, and the sums stay right."""
    group, norm = groups(), norm_of()
    rounded = []
    for rows in (ROWS, 1, MANY_ROWS, ROWS, ROWS):
        rounded.append(outcome(rank, norm, rows)["rounded"])
        assert bool((group.all_reduce(routing_ranks.filled(rank, (4, HIDDEN))) == 3).all())
    return {"rounded": rounded, **counted(group)}


def disabled(rank: int) -> dict[str, Any]:
    group = groups()
    group.ca_comm.disabled = True
    return {**outcome(rank, norm_of()), **counted(group)}


def without_ours(rank: int) -> dict[str, Any]:
    group = groups()
    return {**outcome(rank, norm_of()), "ours": type(group.ca_comm).__name__ == "EngineAllReduce"}


def theirs(rank: int) -> dict[str, Any]:
    """With a stand-in for FlashInfer's kernels, which takes what it is asked for: it is asked first."""
    taken = []

    def fused(*, input_tensor: torch.Tensor, residual: torch.Tensor, weight: Any, eps: float, **how: Any) -> Any:
        taken.append(1)
        total = input_tensor.float()
        dist.all_reduce(total)
        total += residual.float()
        normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight.float()
        return normed.to(torch.bfloat16), total.to(torch.bfloat16)

    module = import_module("sglang.srt.layers.flashinfer_comm_fusion")
    kernels = replaced(module, "flashinfer_allreduce_residual_rmsnorm", fused)
    with kernels, replaced(import_module(SEAM), THEIR_QUESTION, lambda rows: True):
        result = one(rank)
    return {**result, "theirs": len(taken)}


def left_for_the_next_layer(rank: int) -> dict[str, Any]:
    """0.5.9 asks one question for both sums of a layer; that behind the MLP must go on as without us."""
    groups()
    communicator = layer_communicator(norm_of())
    batch = SimpleNamespace(input_ids=torch.zeros(ROWS))
    return {"deferred": communicator.should_fuse_mlp_allreduce_with_next_layer(batch)}


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def with_dp_attention(rank: int) -> dict[str, Any]:
    flags = import_module("sglang.srt.runtime_context").get_flags().dp
    with replaced(flags, "enabled", True):
        return one(rank)


def wide_weight(rank: int) -> dict[str, Any]:
    norm = norm_of()
    norm.weight.data = norm.weight.data.float()
    return one(rank, norm=norm)


def lazily(**options: Any) -> Callable[[int], Any]:
    return with_variables(lambda rank: one(rank, **{k: v() if k == "norm" else v for k, v in options.items()}), **FUSED)


CASES: dict[str, Callable[[int], Any]] = {
    "fused_default": nothing_is_touched_by_default,
    "fused_off": with_variables(one, PCIE_ALLREDUCE_FUSED="0"),
    "fused": lazily(),
    "fused_gemma": lazily(norm=lambda: norm_of("GemmaRMSNorm")),
    "fused_mixed": with_variables(mixed, **FUSED),
    "fused_large": lazily(rows=MANY_ROWS),
    "fused_wide_weight": with_variables(wide_weight, **FUSED),
    "fused_other_product": lazily(norm=lambda: norm_of(cast_x_before_out_mul=True)),
    "fused_wide_residual": lazily(norm=lambda: norm_of(override_orig_dtype=torch.bfloat16)),
    "fused_two_batches": lazily(batch=SimpleNamespace(**{**vars(BATCH), "can_run_tbo": True})),
    "fused_disabled": with_variables(disabled, **FUSED),
    "fused_unable": with_variables(without_ours, **FUSED, **routing_ranks.UNABLE),
    "fused_deterministic": with_variables(one, **FUSED, SGLANG_ENABLE_DETERMINISTIC_INFERENCE="1"),
    "fused_theirs": with_variables(theirs, **FUSED),
}
if NEW:
    CASES["fused_left_over"] = lazily(layer=before_attention)
    CASES["fused_dp_attention"] = with_variables(with_dp_attention, **FUSED)
else:
    CASES["fused_deferred"] = with_variables(left_for_the_next_layer, **FUSED)


def cases(model: str) -> dict[str, Callable[[int], Any]]:
    if BETWEEN:
        return {"fused_not_here": with_variables(lambda rank: counted(groups()), **FUSED)}
    return {"fused_preparation": lambda rank: prepare(model), **CASES}


def prepare(model: str) -> dict[str, Any]:
    """What layers ask of the process that they are in."""
    if NEW:
        import_module("sglang.srt.runtime_context").get_context().override_server_args(tp_size=2).install()
        return {}
    from sglang.srt import server_args
    from sglang.srt.layers.dp_attention import initialize_dp_attention

    arguments = server_args.ServerArgs(model_path=model, device="cpu", attention_backend="torch_native", tp_size=2)
    server_args.set_global_server_args_for_scheduler(arguments)
    groups()
    initialize_dp_attention(arguments, SimpleNamespace(hidden_size=HIDDEN, dtype=torch.bfloat16))
    return {}
