"""`pcie-allreduce memory`: words to values, and sums to lines; `pcie_allreduce.memory` does the rest."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pcie_allreduce.memory import told
from pcie_allreduce.memory.batch import Extraction
from pcie_allreduce.memory.buffers import DEFAULT_BYTES, SIMPLE, Nccl, Ours
from pcie_allreduce.memory.facts import CannotTell, Facts
from pcie_allreduce.memory.log import read_log
from pcie_allreduce.memory.model import Model
from pcie_allreduce.memory.pool import pool_of

EPILOG = """
Nothing is allocated: this is arithmetic over what was given, in GB of 2^30 bytes, as the engines print them. What is
assumed says so. Flags count more than the log. Exit code: 0 it fits, 1 it does not, 2 something is missing or cannot be
read or written.
"""
WIDTH = 120
NAMES = {"sglang": "SGLang", "vllm": "vLLM"}
FACTS = ("before", "after", "total", "free", "weights", "other", "activations", "graphs", "draft")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "memory", description="Says whether a server's memory will do, and why.", epilog=EPILOG
    )
    add = parser.add_argument
    add("--log", metavar="FILE", help="a log of SGLang or vLLM")
    add("--before", type=float, metavar="GB", help="SGLang: free before the weights ('Load weight begin')")
    add("--after", type=float, metavar="GB", help="SGLang: free after them ('Load weight end')")
    add("--mem-fraction-static", type=float, metavar="F", help="SGLang's setting")
    add("--total", type=float, metavar="GB", help="vLLM: memory of the GPU")
    add("--free", type=float, metavar="GB", help="vLLM: free at the start")
    add("--weights", type=float, metavar="GB", help="vLLM: weights of a rank")
    add("--other", type=float, metavar="GB", help="vLLM: taken outside of torch")
    add("--gpu-memory-utilization", type=float, metavar="F", help="vLLM's setting")
    add("--graphs", type=float, metavar="GB", help="CUDA graphs; assumed: 2")
    add("--activations", type=float, metavar="GB", help="of the largest forward pass; else worked out of --chunk")
    add("--chunk", type=int, metavar="TOKENS", help="of a prefill chunk; assumed: 8192; -1: not chunked")
    add("--draft", type=float, metavar="GB", help="weights of a draft model, on one rank")
    add("--draft-counted", action="store_true", help="they are loaded before the pool is sized (SGLang 0.5.23)")
    for name, value in asdict(Model()).items():
        add(f"--{name.replace('_', '-')}", type=int, default=value, metavar="N", help=f"of the model; default {value}")
    add("--tp", type=int, metavar="N", help="ranks; default 8")
    add("--samples", type=int, metavar="N", help="extract hidden states of so many samples")
    add("--sample-tokens", type=int, default=2048, metavar="N", help="of the longest sample; default 2048")
    add("--batch", type=int, metavar="SAMPLES", help="samples in a batch; default: all")
    add("--headroom", type=float, default=4.0, metavar="GB", help="free for them; default 4")
    add("--nccl-channels", type=int, metavar="N", help="assumed: 8; NCCL_DEBUG=INFO tells ('coll channels')")
    add("--nccl-buffer", type=int, default=SIMPLE, metavar="BYTES", help="NCCL_BUFFSIZE; default 4194304")
    add("--nccl-peers", type=int, default=Nccl.peers, metavar="N", help="connections of a channel; a ring has 2")
    add("--nccl-groups", type=int, default=Nccl.groups, metavar="N", help="communicators of a rank; default 2")
    add(
        "--max-bytes",
        type=int,
        default=DEFAULT_BYTES,
        metavar="BYTES",
        help="largest tensor of this package; default 2097152",
    )
    add("--json", metavar="FILE", help="write the sums to FILE")


def run(args: argparse.Namespace) -> int:
    try:
        document = sums(args)
        if args.json:
            Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    except (CannotTell, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(as_text(document))
    return int(not document["fits"])


def sums(args: argparse.Namespace) -> dict[str, Any]:
    """What `--json` writes and the text shows."""
    facts = _facts(args)
    model = Model(**{name: getattr(args, name) for name in asdict(Model())})
    model.check()
    document: dict[str, Any] = {"model": asdict(model), "pool": None, "extraction": None}
    if args.samples is None or args.log or args.before is not None or args.total is not None:
        document["pool"] = _pool(facts, model)
    if args.samples is not None:
        document["extraction"] = _extraction(args, model)
    document["buffers"] = _buffers(args, facts)
    document["fits"] = all(part["fits"] for part in (document["pool"], document["extraction"]) if part)
    return document


def _facts(args: argparse.Namespace) -> Facts:
    facts = Facts()
    if args.log:
        try:
            facts = read_log(Path(args.log).read_text(errors="replace"))
        except CannotTell as error:
            raise CannotTell(f"--log {args.log}: {error}") from error
    given = {name: getattr(args, name) for name in (*FACTS, "chunk", "tp", "nccl_channels")}
    facts = facts.with_given(draft_counted=args.draft_counted or None, **given).settled()
    fraction = args.gpu_memory_utilization if args.mem_fraction_static is None else args.mem_fraction_static
    return facts if fraction is None else facts.with_given(fraction=fraction, failure="")


def _pool(facts: Facts, model: Model) -> dict[str, Any]:
    facts.check()
    pool = pool_of(facts, model)
    return {
        "engine": facts.engine,
        "fraction": facts.fraction,
        "parts": [asdict(part) for part in told.parts(facts, pool, model)],
        "pool_gb": pool.gb if facts.has_lowest else None,
        "token_bytes": pool.token_bytes,
        "low": pool.low if facts.has_lowest else None,
        "high": None if facts.nothing_free else pool.high,
        "fits": facts.has_lowest and pool.fits and not facts.failure,
        "sentences": told.sentences(facts, pool),
        "settings": told.settings(pool) if facts.has_lowest else [],
    }


def _extraction(args: argparse.Namespace, model: Model) -> dict[str, Any]:
    batch = args.samples if args.batch is None else args.batch
    work = Extraction(args.samples, args.sample_tokens, batch, args.headroom, model)
    work.check()
    return {
        "samples": work.samples,
        "sample_tokens": work.sample_tokens,
        "batch": work.batch,
        "batch_tokens": work.in_batch * work.sample_tokens,
        "kept_bytes": model.kept * model.row_bytes,
        "at_work_bytes": model.at_work * model.row_bytes,
        "batch_gb": work.gb(work.in_batch),
        "headroom_gb": work.headroom,
        "fitting_samples": work.fitting,
        "fitting_tokens": work.fitting_tokens,
        "fits": work.fits,
        "sentences": told.extraction(work),
    }


def _buffers(args: argparse.Namespace, facts: Facts) -> dict[str, Any]:
    channels = Nccl.channels if facts.nccl_channels is None else facts.nccl_channels
    nccl = Nccl(channels, args.nccl_buffer, args.nccl_peers, args.nccl_groups)
    nccl.check()
    ours = Ours(8 if facts.tp is None else facts.tp, args.max_bytes)
    ours.check()
    slab = {**asdict(ours), "gpu_bytes": ours.bytes(), "host_bytes": ours.bytes("staged")} if ours.serves else None
    return {
        "nccl": {**asdict(nccl), "bytes": nccl.bytes},
        "ours": slab,
        "lines": told.buffers(nccl, ours),
    }


def as_text(document: dict[str, Any]) -> str:
    blocks = []
    if pool := document["pool"]:
        lines = [f"{NAMES[pool['engine']]}, GB of one GPU"]
        lines += [f"{part['gb']:9.2f}  {part['name']:<27} {part['origin']}" for part in pool["parts"]]
        blocks += ["\n".join(lines), _wrapped(pool["sentences"])]
        if pool["settings"]:
            rows = [
                f"{row['fraction']:9.3f} {row['pool_gb']:9.2f} {row['tokens']:11,} {row['left_gb']:9.2f}"
                for row in pool["settings"]
            ]
            head = f"  setting  pool, GB      tokens  left, GB    (tokens of {pool['token_bytes']:,.0f} bytes)"
            blocks.append("\n".join([head, *rows]))
    if document["extraction"]:
        blocks.append(_wrapped(document["extraction"]["sentences"]))
    blocks.append(_wrapped(document["buffers"]["lines"]))
    return "\n\n".join(blocks)


def _wrapped(sentences: list[str]) -> str:
    return "\n".join(textwrap.fill(sentence, WIDTH, break_long_words=False) for sentence in sentences)
