"""What was measured on this machine, kept between runs: one JSON file for each setting that it was measured in.

An entry counts only for exactly the GPUs, links, driver and version that it was measured with. One that does not is
ignored with a reason: a file must never stop a program from starting. Nothing in a key tells one machine of a kind from
another, so that a file can be shown to anybody.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .plan import Step, Tuned
from .topology import Gpu, Snapshot

FORMAT = 1  # of the file: rises when an older reader would misread it


@dataclass(frozen=True)
class Key:
    """What a measurement depends on. Lists and texts, as JSON gives them back; the GPUs in rank order."""

    device: str  # "cuda" or "cpu"
    transport: str
    world: int
    gpus: list[str]
    links: list[list[str | None]]
    p2p: list[list[str | None]]
    islands: str | None  # as in PCIE_ALLREDUCE_ISLANDS
    driver: str | None
    cpu: str | None
    cores: int | None
    version: str
    layout: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def key_for(snapshot: Snapshot, transport: str, islands: str | None, version: str, layout: int) -> Key:
    """CPU ranks, a snapshot of GPUs without UUID, are told apart by CPU and cores; GPUs by all that the driver says."""
    on_gpus = any(gpu.uuid for gpu in snapshot.gpus)
    return Key(
        device="cuda" if on_gpus else "cpu",
        transport=transport,
        world=len(snapshot.gpus),
        gpus=[_kind(gpu) for gpu in snapshot.gpus] if on_gpus else [],
        links=snapshot.to_dict()["links"] if on_gpus else [],
        p2p=[list(row) for row in snapshot.p2p] if on_gpus else [],
        islands=islands or None,
        driver=snapshot.driver if on_gpus else None,
        cpu=None if on_gpus else cpu_model(),
        cores=None if on_gpus else len(os.sched_getaffinity(0)),
        version=version,
        layout=layout,
    )


def _kind(gpu: Gpu) -> str:
    """Its link by what does not change with load: the best generation, the width as it is."""
    return f"{gpu.name}, sm_{gpu.sm}, PCIe {gpu.pcie_max_generation} x{gpu.pcie_width}"


@dataclass(frozen=True)
class Found:
    """A section of an entry, or None; and where it lies or why it does not count, as a clause."""

    value: Any
    reason: str


def folder() -> Path:
    """$PCIE_ALLREDUCE_CACHE, else pcie_allreduce in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("PCIE_ALLREDUCE_CACHE")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "pcie_allreduce"


def path_for(key: Key) -> Path:
    return folder() / f"{key.device}-{key.world}-{key.digest}.json"


def load(key: Key, section: str) -> Found:
    """What `save` has put there for this key. Never raises."""
    try:
        path = path_for(key)
        if not path.exists():
            return Found(None, _nearest(key, section, path.parent))
        entry, why_not = _read(path)
        why_not = why_not or _difference(key, entry)
        if why_not is None and entry.get(section) is None:
            why_not = f"has no {section!r}"
        return Found(None, f"{path} {why_not}") if why_not else Found(entry[section], f"{path}")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return Found(None, f"the cache cannot be read ({error})")


def save(key: Key, section: str, value: Any) -> Path:
    """Whole or not at all, for this user alone; a valid entry keeps its other sections. OSError where it cannot."""
    path = path_for(key)
    prepare(path.parent)
    entry, why_not = _read(path) if path.exists() else ({}, "is not there")
    kept = {} if why_not or _difference(key, entry) else entry
    text = json.dumps({**kept, "format": FORMAT, "key": asdict(key), section: value}, indent=1)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:  # mode 0600
        file.write(text + "\n")
    Path(file.name).replace(path)
    return path


def prepare(where: Path) -> None:
    """Makes the folder, for this user alone, where it is not there; OSError where nothing can be written in it."""
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(where, os.W_OK | os.X_OK):
        raise PermissionError(f"{where} cannot be written to")


def load_tuned(key: Key) -> tuple[Tuned | None, str]:
    """The table that `pcie-allreduce tune` has left for this key, and where it lies or why there is none."""
    found = load(key, "tuned")
    if found.value is None:
        return None, found.reason
    try:
        steps = tuple(Step(**step) for step in found.value)
        order = [(step.dtype_bytes, step.up_to) for step in steps]
        if order != sorted(set(order)):
            raise ValueError("its steps are not in order")
    except (TypeError, ValueError) as error:
        return None, f"{found.reason} holds no tuned table ({error})"
    return steps, found.reason


def save_tuned(key: Key, steps: Tuned) -> Path:
    """Steps of other dtype widths that are there already stay."""
    ours = {step.dtype_bytes for step in steps}
    kept = [step for step in load_tuned(key)[0] or () if step.dtype_bytes not in ours]
    ordered = sorted([*kept, *steps], key=lambda step: (step.dtype_bytes, step.up_to))
    return save(key, "tuned", [asdict(step) for step in ordered])


def cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _read(path: Path) -> tuple[dict[str, Any], str | None]:
    """An entry, or what is wrong with it."""
    try:
        entry = json.loads(path.read_text())
    except OSError as error:
        return {}, f"cannot be read ({error.strerror})"
    except ValueError:
        return {}, "is damaged: it is not JSON"
    if not isinstance(entry, dict) or type(entry.get("format")) is not int:
        return {}, "is damaged: it has no format"
    if entry["format"] != FORMAT:
        age = "a newer" if entry["format"] > FORMAT else "an older"
        return {}, f"is of {age} version: format {entry['format']}, and {FORMAT} is read here"
    return entry, None


def _difference(key: Key, entry: dict[str, Any]) -> str | None:
    """In which fields the entry's key is another, with both values; None where it is this one."""
    if not isinstance(entry.get("key"), dict):
        return "is damaged: it has no key"
    told = [
        f"{name}: {_short(entry['key'].get(name))} there, {_short(value)} here"
        for name, value in asdict(key).items()
        if entry["key"].get(name) != value
    ]
    return f"was measured elsewhere ({'; '.join(told)})" if told else None


def _nearest(key: Key, section: str, where: Path) -> str:
    """Why there is no entry: in what the most similar one of as many ranks differs, of those that have the section."""
    reasons = []
    for path in sorted(where.glob(f"{key.device}-{key.world}-*.json")):
        entry, why_not = _read(path)
        if why_not is not None or entry.get(section) is not None:
            reasons.append(f"{path} {why_not or _difference(key, entry) or 'was renamed'}")
    if not reasons:
        return f"none for {key.world} ranks of this kind in {where}"
    return min(reasons, key=lambda reason: (reason.count(" there, ") or len(reason), reason))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
