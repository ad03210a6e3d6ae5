"""Facts from a server's log. Both engines have reworded their lines; every wording is one pattern here.

A rank's lines are told apart by what SGLang puts in front of them (TP4, DP0 TP1, gpu_id=3); the rank with the least
memory decides. A second pair of "Load weight" lines is a draft model's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pcie_allreduce.memory.facts import GB, NOT_CHUNKED, CannotTell, Facts

NUMBER = r"(-?\d+(?:\.\d+)?)"
IS = r"(?:'?: |[= ]| \()"  # as in ServerArgs(x=1), {'x': 1}, --x 1 and "x (1)"
RANK = re.compile(r"(?:(?:DP|PP)\d+ )*TP\d+|gpu_id=\d+")
BEGIN = re.compile(rf"Load weight begin\. avail mem={NUMBER} GB")
END = re.compile(rf"Load weight end\..*?avail mem={NUMBER} GB")
POOL = re.compile(r"KV Cache is allocated|Memory pool end")
GRAPH = re.compile(rf"Capture .*?graph end\..*?mem usage={NUMBER} GB")
TOKENS = re.compile(rf"KV Cache is allocated\..*?#tokens: (\d+).*?\bK size: {NUMBER} GB, V size: {NUMBER} GB")
TOKENS_MLA = re.compile(rf"KV Cache is allocated\..*?#tokens: (\d+).*?\bKV size: {NUMBER} GB")
NUMBERS = {  # name -> patterns; the last line that fits counts
    "fraction": (
        rf"mem[-_]fraction[-_]static{IS}{NUMBER}",
        rf"gpu[-_]memory[-_]utilization{IS}{NUMBER}",
        rf"GPU memory utilization (?:is )?\({NUMBER},",
    ),
    "total": (rf"total_gpu_memory \({NUMBER}GiB\)", rf"Free memory on device [^(]*\([\d.]+/{NUMBER} GiB\)"),
    "free": (rf"Free memory on device [^(]*\({NUMBER}/",),
    "weights": (
        rf"(?:Loading model weights|Model loading) took {NUMBER} Gi?B",
        rf"model weights take {NUMBER}GiB",
        rf"Actual usage is {NUMBER} GiB for (?:weight|consumed)",
    ),
    "other": (rf"non_torch_memory takes {NUMBER}GiB", rf"{NUMBER} GiB for non-torch memory"),
    "activations": (rf"activation peak memory takes {NUMBER}GiB", rf"{NUMBER} GiB for peak activation"),
    "graphs": (rf"Graph capturing finished in .*? took {NUMBER} GiB", rf"{NUMBER} GiB for CUDAGraph memory"),
    "logged_pool": (rf"reserved for KV Cache is {NUMBER}GiB", rf"Available KV cache memory: {NUMBER} GiB"),
    "needed": (rf"{NUMBER} GiB KV cache is needed",),
}
WHOLE = {
    "pool_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "chunk": rf"chunked_prefill_size{IS}(-?\d+)",
    "tp": rf"\b(?:tp_size|tensor_parallel_size){IS}(\d+)",
    "nccl_channels": r"NCCL INFO ([1-9]\d*) coll channels",  # a communicator of one rank has 0
}
FAILURES = (  # the last line that fits counts
    ("pool", r"Not enough memory\. Please try to increase --mem-fraction-static"),
    ("pool", r"Loaded weights leave no GPU memory for the KV cache"),
    ("pool", r"No available memory for the cache blocks"),
    ("start", r"Free memory on device .* is less than desired GPU memory utilization"),
    ("long", r"GiB KV cache is needed, which is larger than the available KV cache memory"),
    ("later", r"CUDA out of memory\. Tried to allocate"),
)
WANTED = re.compile(rf"CUDA out of memory\. Tried to allocate {NUMBER} ([GM])iB")


def read_log(text: str) -> Facts:
    """CannotTell where no line of either engine about memory is found."""
    lines = text.splitlines()
    given = {**_ranks(lines), **_numbers(lines), **_failure(lines)}
    if not given.keys() & {"before", "after", "total", "weights", "logged_pool", "failure"}:
        raise CannotTell(f"no line of SGLang or vLLM about memory in {len(lines):,} lines")
    if "before" in given:  # SGLang: vLLM's names are not its
        given = {name: value for name, value in given.items() if name not in ("total", "free", "other")}
    return Facts(**given)


def _numbers(lines: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, patterns in NUMBERS.items():
        told = _last(lines, "|".join(patterns))
        if told is not None:
            found[name] = float(told)
    for name, pattern in WHOLE.items():
        told = _last(lines, pattern)
        if told is not None:
            found[name] = int(told.replace(",", ""))
    if found.get("chunk", 1) < 1:  # SGLang takes 0 for -1, too
        found["chunk"] = NOT_CHUNKED
    if "pool_tokens" in found and found.get("logged_pool", 0) > 0:
        found["token_bytes"] = found["logged_pool"] * GB / found["pool_tokens"]
    return found


def _last(lines: list[str], pattern: str) -> str | None:
    compiled = re.compile(pattern)
    for line in reversed(lines):
        if told := compiled.search(line):
            return next(group for group in told.groups() if group is not None)
    return None


def _failure(lines: list[str]) -> dict[str, Any]:
    for line in reversed(lines):
        for kind, pattern in FAILURES:
            if re.search(pattern, line):
                wanted = WANTED.search(line)
                size = float(wanted[1]) / (1 if wanted[2] == "G" else 1024) if wanted else None
                return {"failure": kind} if size is None else {"failure": kind, "wanted": size}
    return {}


def _ranks(lines: list[str]) -> dict[str, Any]:
    """SGLang's lines: each rank's free memory, step by step."""
    begins: dict[str, list[float]] = defaultdict(list)
    ends: dict[str, list[float]] = defaultdict(list)
    graphs: dict[str, float] = defaultdict(float)
    cell: dict[str, Any] = {}
    last_end, pool_at = 0, len(lines)
    for number, line in enumerate(lines):
        prefix = RANK.search(line)
        rank = prefix[0] if prefix else ""
        if begin := BEGIN.search(line):
            begins[rank].append(float(begin[1]))
        elif end := END.search(line):
            ends[rank].append(float(end[1]))
            last_end = number
        elif graph := GRAPH.search(line):
            graphs[rank] += float(graph[1])
        if POOL.search(line):
            pool_at = min(pool_at, number)
            cell = cell or _cell(line)
    if not begins and not ends:
        return {}
    counted = last_end < pool_at
    found: dict[str, Any] = {**cell}
    found |= _least("before", (each[0] for each in begins.values()))
    found |= _least("after", (each[-1 if counted else 0] for each in ends.values()))
    pairs = [(begins[rank], ends[rank]) for rank in begins]
    drafts = [began[1] - ended[1] for began, ended in pairs if len(began) == len(ended) == 2]
    if drafts:
        found |= {"draft": max(drafts), "draft_counted": counted}
    if graphs:
        found["graphs"] = max(graphs.values())
    return found


def _cell(line: str) -> dict[str, Any]:
    told = TOKENS.search(line) or TOKENS_MLA.search(line)
    if not told or not int(told[1]):
        return {}
    size = sum(float(part) for part in told.groups()[1:])
    return {"pool_tokens": int(told[1]), "logged_pool": size, "token_bytes": size * GB / int(told[1])}


def _least(name: str, values: Iterable[float]) -> dict[str, float]:
    known = list(values)
    return {name: min(known)} if known else {}
