"""Checkpoints small enough for a CPU whose tokens depend on every all-reduce.

SGLang's dummy weights are so small that a layer's output hardly moves the residual stream, and one token repeats. Here
the next token is mostly a permutation of the last one, which the layers, at full scale, overrule now and then. The
draft knows the permutation and not the layers, so that some of its tokens are accepted and some are not.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import torch

HIDDEN, INNER, HEADS, VOCABULARY = 128, 256, 2, 512


def write_target(folder: Path, layers: int, gain: float, qwen3: bool = False) -> str:
    """A Llama, or a Qwen 3, of `layers` layers; returns the folder as a string."""
    random = torch.Generator().manual_seed(1)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=random)
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(layers):
        weights.update(_layer(f"model.layers.{layer}", random, gain))
    weights["lm_head.weight"] = _next_token_head(embedding)
    if not qwen3:
        return _write(folder, "LlamaForCausalLM", layers, weights)
    for layer, name in itertools.product(range(layers), "qk"):
        weights[f"model.layers.{layer}.self_attn.{name}_norm.weight"] = torch.ones(HIDDEN // HEADS)
    return _write(folder, "Qwen3ForCausalLM", layers, weights, model_type="qwen3", head_dim=HIDDEN // HEADS)


def write_draft(folder: Path) -> str:
    """An EAGLE-3 draft for `write_target`: attends to the last token itself and knows the permutation."""
    random = torch.Generator().manual_seed(2)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1))
    weights = _layer("midlayer", random, gain=0.1)
    pick_token = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)
    weights["midlayer.self_attn.q_proj.weight"] = 2 * pick_token
    weights["midlayer.self_attn.k_proj.weight"] = 2 * pick_token
    weights["midlayer.self_attn.v_proj.weight"] = pick_token
    weights["midlayer.self_attn.o_proj.weight"] = 4 * torch.eye(HIDDEN)
    weights["midlayer.hidden_norm.weight"] = torch.ones(HIDDEN)
    weights["fc.weight"] = _random(random, HIDDEN, 3 * HIDDEN, 0.5)
    weights["norm.weight"] = torch.ones(HIDDEN)
    weights["lm_head.weight"] = _next_token_head(embedding)
    return _write(folder, "LlamaForCausalLMEagle3", 1, weights, draft_vocab_size=VOCABULARY)


def _next_token_head(embedding: torch.Tensor) -> torch.Tensor:
    """Rows such that the token after t is, by t's embedding alone, another and never the same."""
    return embedding.roll(1 + VOCABULARY // 3, dims=0)


def _layer(prefix: str, random: torch.Generator, gain: float) -> dict[str, torch.Tensor]:
    weights = {
        f"{prefix}.self_attn.{name}_proj.weight": _random(random, HIDDEN, HIDDEN, 1.0 if name != "o" else gain)
        for name in "qkvo"
    }
    weights[f"{prefix}.mlp.gate_proj.weight"] = _random(random, INNER, HIDDEN, 1.0)
    weights[f"{prefix}.mlp.up_proj.weight"] = _random(random, INNER, HIDDEN, 1.0)
    weights[f"{prefix}.mlp.down_proj.weight"] = _random(random, HIDDEN, INNER, 2 * gain)
    weights[f"{prefix}.input_layernorm.weight"] = torch.ones(HIDDEN)
    weights[f"{prefix}.post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    return weights


def _random(random: torch.Generator, rows: int, columns: int, gain: float) -> torch.Tensor:
    return torch.randn(rows, columns, generator=random) * (gain / math.sqrt(columns))


def _write(folder: Path, architecture: str, layers: int, weights: dict[str, torch.Tensor], **more: Any) -> str:
    from safetensors.torch import save_file  # SGLang's environments have it

    folder.mkdir(parents=True)
    stored = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(stored, folder / "model.safetensors")
    config = {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        **more,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return str(folder)
