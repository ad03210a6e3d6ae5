"""Weights and matmuls of one layer on one rank: latent attention over a filled cache, routed experts, a shared one.

Values are random and of unit variance on the way, so that nothing overflows. They stand in for a model's in bytes read
and kernels launched; the tokens that a token is routed to, and the sampling, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from pcie_allreduce.verify_cycle.shape import Shape

DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Layer:
    """Matrices are [in, out]; `expert_*` have one for each expert in front."""

    query_down: torch.Tensor
    cache_down: torch.Tensor
    query_up: torch.Tensor
    absorb: torch.Tensor
    cache: torch.Tensor
    value_up: torch.Tensor
    attention_out: torch.Tensor
    router: torch.Tensor
    expert_in: torch.Tensor
    expert_out: torch.Tensor
    shared_in: torch.Tensor
    shared_out: torch.Tensor


def make_layer(shape: Shape, rows: int, generator: torch.Generator, device: torch.device) -> Layer:
    """Experts for `rows` rows; fewer rows use the first of them."""

    def matrix(*sizes: int) -> torch.Tensor:
        values = torch.randn(*sizes, generator=generator, device=device, dtype=torch.float32)
        return values.mul_(sizes[-2] ** -0.5).to(DTYPE)

    width, heads, wide = shape.latent + shape.rotary, shape.rank_heads, shape.rank_intermediate
    experts = shape.experts_read(rows)
    return Layer(
        query_down=matrix(shape.hidden, shape.query_rank),
        cache_down=matrix(shape.hidden, width),
        query_up=matrix(shape.query_rank, heads * (shape.head + shape.rotary)),
        absorb=matrix(heads, shape.head + shape.rotary, width),
        cache=matrix(shape.context, width) * shape.context**0.5,
        value_up=matrix(heads, shape.latent, shape.head),
        attention_out=matrix(heads * shape.head, shape.hidden),
        router=matrix(shape.hidden, 48 * shape.experts),
        expert_in=matrix(experts, shape.hidden, 2 * wide),
        expert_out=matrix(experts, wide, shape.hidden),
        shared_in=matrix(shape.hidden, 2 * wide),
        shared_out=matrix(wide, shape.hidden),
    )


def attention(layer: Layer, x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """[rows, hidden] -> this rank's part of [rows, hidden]."""
    rows, heads = x.shape[0], shape.rank_heads
    latent = x @ layer.cache_down  # a model writes it to the cache
    query = (x @ layer.query_down @ layer.query_up).view(rows, heads, -1).transpose(0, 1)
    scores = torch.bmm(query, layer.absorb) @ layer.cache.t()
    weights = torch.softmax(scores * (shape.head + shape.rotary) ** -0.5, dim=-1)
    seen = weights @ layer.cache[:, : shape.latent] + latent[:, : shape.latent]
    return torch.bmm(seen, layer.value_up).transpose(0, 1).reshape(rows, -1) @ layer.attention_out


def experts(layer: Layer, x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """[rows, hidden] -> this rank's part of [rows, hidden]."""
    count = shape.experts_read(x.shape[0])
    gates = torch.softmax(x @ layer.router, dim=-1)[:, :count].t().unsqueeze(-1)
    routed = torch.bmm(_gated(torch.matmul(x, layer.expert_in[:count])), layer.expert_out[:count])
    return (routed * gates).sum(0) + _gated(x @ layer.shared_in) @ layer.shared_out


def _gated(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, dim=-1)
    opened: torch.Tensor = F.silu(gate) * up
    return opened
