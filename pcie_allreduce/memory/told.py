"""The sum in words: what each part is, why it fails, and which settings work."""

from __future__ import annotations

from typing import Any

from pcie_allreduce.memory.batch import Extraction
from pcie_allreduce.memory.buffers import LL, LL128, MAX_WORLD, MIN_WORLD, Nccl, Ours
from pcie_allreduce.memory.facts import FLAGS, GB, Facts
from pcie_allreduce.memory.model import Model
from pcie_allreduce.memory.pool import Part, Pool, activations

MIB = 2**20
LATER = {"sglang": "CUDA graphs, activations and a draft model", "vllm": "CUDA graphs"}


def parts(facts: Facts, pool: Pool, model: Model) -> list[Part]:
    """The sum from top to bottom."""
    origin = "given, or told by the log"
    if facts.engine == "sglang":
        before, after = facts.before or 0.0, facts.after or 0.0
        if facts.nothing_free:
            return [Part("free before the weights", before, origin)]
        head = [
            Part("free before the weights", before, origin),
            Part("weights", pool.used, f"{before:.2f} - {after:.2f}, and what came with them"),
            Part("free after the weights", after, origin),
            Part("kept out of the pool", before - pool.fraction * before, f"{before:.2f} x (1 - {pool.fraction:g})"),
            Part("KV pool", pool.gb, f"{after:.2f} - {before:.2f} x {1 - pool.fraction:.4g}"),
        ]
    else:
        head = _vllm_parts(facts, pool, activations(facts, model), origin)
    return [*head, *(Part(f"later: {part.name}", part.gb, part.origin) for part in pool.later)]


def _vllm_parts(facts: Facts, pool: Pool, activation: Part, origin: str) -> list[Part]:
    budget = pool.fraction * pool.base
    told = (("free at the start", facts.free), ("weights", facts.weights), ("outside of torch", facts.other))
    head = [Part("memory of the GPU", pool.base, origin)]
    head += [Part(name, value, origin) for name, value in told if value is not None]
    head.append(Part("all that may be taken", budget, f"{pool.base:.2f} x {pool.fraction:g}"))
    if not facts.knows_used:
        return head
    rest = pool.used - (facts.weights or 0.0) - (facts.other or 0.0)
    why = activation.origin if facts.used is None else "the rest of what was taken before the pool"
    head.append(Part("activations at their peak", rest, why))
    return [*head, Part("KV pool", pool.gb, f"{budget:.2f} - {pool.used:.2f}")]


def settings(pool: Pool) -> list[dict[str, Any]]:
    """The ends of the range and a few settings between."""
    if pool.low > pool.high:
        return []
    between = [step / 20 for step in range(1, 20) if pool.low < step / 20 < pool.high]
    return [
        {"fraction": each, "pool_gb": pool.at(each), "tokens": pool.tokens(each), "left_gb": pool.left(each)}
        for each in sorted({pool.low, *between, pool.high})
    ]


def sentences(facts: Facts, pool: Pool) -> list[str]:
    """Whether it fits, why, and what to set."""
    if facts.nothing_free:
        return [
            "It does not fit: nothing was free before the weights were loaded (avail mem=0.00 GB), so that no setting "
            "works. Something else holds the GPU's memory, and nvidia-smi tells what: end it."
        ]
    if not facts.knows_used:
        return [_refused(facts, pool)]
    found = [_judged(facts, pool)]
    if facts.failure == "pool" and pool.gb > 0:
        found.append(
            f"The log says that nothing was left for the pool, where this sum leaves {pool.gb:.2f} GB: the engine took "
            "something else off it (state of Mamba layers, room for images), or another process did."
        )
    return found


def _judged(facts: Facts, pool: Pool) -> str:
    flag, works = FLAGS[facts.engine], _range(facts, pool)
    if pool.fraction < pool.low:
        return f"It does not fit: {_too_low(facts, pool)} {works}"
    if pool.fraction > pool.high:
        takes = f"takes {pool.needed_later:.2f} GB or more"
        if facts.failure == "later":
            takes = f"took more: memory ran out, asking for another {facts.wanted or 0.0:.2f} GB"
        return (
            f"It does not fit: the pool of {pool.gb:.2f} GB leaves {pool.left(pool.fraction):.2f} GB for what comes "
            f"after it ({LATER[facts.engine]}), and that {takes}. {works}"
        )
    tokens = f"{pool.tokens(pool.fraction):,} tokens"
    left = pool.left(pool.fraction)
    return f"It fits: {flag} {pool.fraction:g} leaves a pool of {pool.gb:.2f} GB, {tokens}, and {left:.2f} GB. {works}"


def _too_low(facts: Facts, pool: Pool) -> str:
    share = f"{pool.fraction:g} x {pool.base:.2f} = {pool.fraction * pool.base:.2f} GB"
    if pool.least and pool.gb > 0:
        return f"the pool is {pool.gb:.2f} GB, and one request of the longest kind needs {pool.least:.2f} GB."
    if facts.engine == "sglang":
        return (
            f"the pool is {facts.after:.2f} - {facts.before:.2f} x {1 - pool.fraction:.4g} = {pool.gb:.2f} GB. "
            f"{pool.fraction:g} is not the pool's share: it is what weights and pool may take together, {share}, and "
            f"the weights alone have taken {pool.used:.2f} GB."
        )
    return f"{share} may be taken in all, and {pool.used:.2f} GB are taken before the pool: {pool.gb:.2f} GB are left."


def _range(facts: Facts, pool: Pool) -> str:
    flag = FLAGS[facts.engine]
    if pool.low > pool.high:
        return (
            f"No setting works: a pool needs {pool.low:.3f} or more ({pool.used + pool.least:.2f} / {pool.base:.2f}), "
            f"and above {pool.high:.3f} too little is left for what comes after it. Take smaller weights, more GPUs, "
            "or less of the rest (shorter prefill chunks, fewer graphs)."
        )
    low = f"{pool.low:.3f} ({pool.used + pool.least:.2f} / {pool.base:.2f} = {pool.exact_low:.4f})"
    later = f"{pool.needed_later:.2f} GB of what comes after the pool still have room"
    if facts.wanted is not None and pool.cap * pool.base < pool.there - pool.needed_later:
        later = f"the {facts.wanted:.2f} GB that were asked for would have had room"
    verb = "Raise" if pool.fraction < pool.low else "Lower" if pool.fraction > pool.high else ""
    what = f"{verb} {flag}: it works" if verb else f"{flag} works"
    return f"{what} from {low} to {pool.high:.3f}, where {later}."


def _refused(facts: Facts, pool: Pool) -> str:
    wanted = (
        f"It does not start: {pool.fraction:g} x {pool.base:.2f} = {pool.fraction * pool.base:.2f} GB are wanted and "
        f"{pool.there:.2f} GB are free."
    )
    if pool.high <= 0:
        return f"{wanted} No setting works: CUDA graphs alone take {pool.needed_later:.2f} GB. End what is on the GPU."
    return (
        f"{wanted} Lower {FLAGS[facts.engine]} to {pool.high:.3f} or less, which leaves room for "
        f"{pool.needed_later:.2f} GB of CUDA graphs, or end what else is on the GPU. How low it may be, "
        "the weights will tell, which were not loaded yet."
    )


def extraction(work: Extraction) -> list[str]:
    """A batch is counted in samples; what it takes, and which one fits."""
    model = work.model
    batch = f"{work.in_batch:,} samples x {work.sample_tokens:,} = {work.in_batch * work.sample_tokens:,} tokens"
    found = [
        f"Hidden states of {work.samples:,} samples of up to {work.sample_tokens:,} tokens, --batch {work.batch:,}: a "
        f"batch counts samples, so one is {batch}.",
        f"A token takes {work.token_bytes:,} bytes: {model.kept} hidden states that are kept and {model.at_work} at "
        f"work (assumed), {model.row_bytes:,} bytes each. Every rank holds all of it, so that more ranks do not help.",
    ]
    fitting, tokens = work.fitting, work.fitting_tokens
    needs = f"The batch takes {work.gb(work.in_batch):,.2f} GB where {work.headroom:.2f} GB are free"
    if work.fits:
        return [*found, f"{needs}: it fits. {fitting:,} samples would be the most."]
    if not fitting:
        return [*found, f"{needs}: it does not fit, nor does one sample. Shorten samples to {tokens:,} tokens."]
    runs = -(-work.samples // fitting)
    size = f"{fitting * work.sample_tokens:,} tokens, {work.gb(fitting):.2f} GB"
    found.append(f"{needs}: it does not fit. --batch {fitting} does ({size}), in {runs:,} batches.")
    if work.batch <= tokens:
        wrong = work.batch * work.token_bytes / GB
        found.append(f"Read as tokens, {work.batch:,} would be {wrong:.2f} GB, which is why it looks harmless.")
    return found


def buffers(nccl: Nccl, ours: Ours) -> list[str]:
    """What is taken before the weights are loaded, so that no engine counts it as its own."""
    each = f"{nccl.buffer / MIB:g} + {LL / MIB:g} + {LL128 / MIB:.2f} MiB (SIMPLE, LL, LL128)"
    one = nccl.groups * nccl.peers * (nccl.buffer + LL + LL128)
    lines = [
        f"NCCL: {nccl.groups} groups x {nccl.channels} channels x {nccl.peers} peers x {each} = "
        f"{nccl.bytes / GB:.2f} GB; NCCL_MAX_NCHANNELS=1 would leave {one / GB:.2f} GB, at a price in bandwidth. "
        "Groups, channels and peers are assumed unless given."
    ]
    if not ours.serves:
        return [
            *lines,
            f"pcie_allreduce is left out: it serves {MIN_WORLD} to {MAX_WORLD} ranks, and this is one of {ours.world}.",
            "NCCL's are taken before the weights are loaded: they are not in the sums above, but the engine finds less "
            "free.",
        ]
    return [
        *lines,
        f"pcie_allreduce: {ours.bytes() / MIB:.1f} MiB a rank for {ours.world} ranks and tensors up to "
        f"{ours.max_bytes:,} bytes; without P2P {ours.bytes('staged') / MIB:.1f} MiB, of the host's memory.",
        "Both are taken before the weights are loaded: they are not in the sums above, but the engine finds less free.",
    ]
