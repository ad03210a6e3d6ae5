"""How a communicator comes about: arguments, islands, mailboxes, first exchange, each agreed before the next."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from . import _C, cache, nvml, plan, presets, topology
from .errors import SetupError
from .fused_plan import common
from .probe import Measurements, kept
from .probe.experiments import fill
from .rendezvous import Member, Refused, Rendezvous, disagreement
from .transport import NAMES, CpuTransport, GpuTransport, Transport, why_no_p2p

logger = logging.getLogger("pcie_allreduce")

DEFAULT_MAX_BYTES = 2 << 20
GREETING_DEADLINE = 5.0
LONGEST_TIMEOUT = 86400.0
CLOSE_PATIENCE = 5.0
PROBE = "PCIE_ALLREDUCE_PROBE"
ALGORITHMS = ("auto", "one_shot", "two_shot", "island")


@dataclass(frozen=True)
class Wishes:
    """The constructor's arguments, as they were given."""

    device: str | torch.device
    max_bytes: int | None
    timeout: float
    warmup_timeout: float
    transport: str
    algorithm: str
    fallback: bool
    probe: bool | None


@dataclass(frozen=True)
class Probing:
    """Whether and how the machine is probed, as rank 0 has it. `why_not`: a clause; None where it is probed."""

    why_not: str | None
    key: cache.Key
    known: Measurements | None = None
    origin: str = ""
    islands_free: bool = True  # nobody has named them


@dataclass(frozen=True)
class Table:
    """What the cache has under `key`: steps, if any, and their origin: where they lie, or why there are none."""

    key: cache.Key
    steps: plan.Tuned
    origin: str


@dataclass(frozen=True)
class Survey:
    """What rank 0 sees of the machine; the same on all ranks, or they would choose different algorithms."""

    snapshot: topology.Snapshot
    islands: topology.Islands | None
    reason: str
    figures: plan.LinkFigures
    table: Table
    staged_table: Table
    pull_table: Table
    probing: Probing

    def staged(self) -> Survey:
        """The same machine, its ranks meeting in host memory."""
        figures = presets.staged_preset_for(self.snapshot).figures
        reason = "ranks that meet in host memory have no islands"
        return replace(self, islands=None, reason=reason, figures=figures, table=self.staged_table)

    def pull(self) -> Survey:
        """The same machine, its ranks reading from each other."""
        figures = presets.pull_preset_for(self.snapshot).figures
        reason = "ranks that read from each other have no islands"
        return replace(self, islands=None, reason=reason, figures=figures, table=self.pull_table)


def describe(wishes: Wishes, rank: int, world_size: int) -> Member:
    """Checks what this rank was given, and tells it to the others."""
    device = _device(wishes.device)
    max_bytes = DEFAULT_MAX_BYTES if wishes.max_bytes is None else int(wishes.max_bytes)
    timeout, warmup_timeout = float(wishes.timeout), float(wishes.warmup_timeout)
    if not 2 <= world_size <= _C.MAX_WORLD:
        raise SetupError(f"the group has {world_size} ranks; 2 to {_C.MAX_WORLD} are served")
    if not 16 <= max_bytes <= 1 << 30:
        raise SetupError(f"max_bytes is {max_bytes}; it must be within 16 and {1 << 30}")
    if not 0 < timeout <= warmup_timeout <= LONGEST_TIMEOUT:
        raise SetupError(
            f"timeout {timeout:g} s and warmup_timeout {warmup_timeout:g} s must be positive, in this order, and at "
            f"most {LONGEST_TIMEOUT:g} s"
        )
    if wishes.algorithm not in ALGORITHMS:
        raise SetupError(f"algorithm {wishes.algorithm!r} is none of {', '.join(ALGORITHMS)}")
    own = _transport_for(device)
    if wishes.transport not in ("auto", own, "host", "pull"):
        raise SetupError(
            f"transport {wishes.transport!r} does not serve {device}; auto, {own!r}, 'host' or 'pull' does"
        )
    if wishes.transport in ("host", "pull") and wishes.algorithm == "island":
        raise SetupError(f"algorithm 'island' is not served by transport {wishes.transport!r}, which has no islands")
    how = next((how for how, name in NAMES.items() if name == wishes.transport), "push")
    return Member(
        version=_C.build_info()["version"],
        layout=_C.build_info()["layout"],
        host=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        hostname=socket.gethostname(),
        device=device.type,
        device_index=device.index or 0,
        device_id="" if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid),
        max_bytes=max_bytes,
        area_packs=plan.area_packs_for(world_size, max_bytes, wishes.algorithm, how),
        transport=wishes.transport,
        algorithm=wishes.algorithm,
        fallback=wishes.fallback,
        probe=wishes.probe,
        timeout=timeout,
        warmup_timeout=warmup_timeout,
    )


def agree(rendezvous: Rendezvous, member: Member) -> tuple[list[Member], Survey]:
    """All members, which must not disagree, and rank 0's view of the machine."""
    members = rendezvous.gather(member)
    differ = disagreement(members)
    if differ is not None:
        raise SetupError(differ)

    def look() -> Survey | None:
        return _survey(members) if rendezvous.rank == 0 else None

    survey = rendezvous.gather(rendezvous.stage("looking at the machine", look))[0]
    assert survey is not None  # rank 0 has looked, or the stage had failed
    if member.algorithm == "island" and survey.islands is None:
        raise SetupError(f"algorithm 'island' needs two islands: {survey.reason}")
    return members, survey


def build(rendezvous: Rendezvous, members: list[Member], survey: Survey) -> tuple[Transport, Survey]:
    """Mailboxes of all ranks, mapped by all ranks and seen to work, or Refused on all of them.

    Where "auto" finds that GPUs cannot write to each other, they meet in host memory; all ranks see the same verdicts.
    """
    me = members[rendezvous.rank]
    if me.transport == "host":
        return make(rendezvous, members, survey.staged()), survey.staged()
    try:
        _check_p2p(rendezvous, members)
        survey = survey.pull() if me.transport == "pull" else survey
        return make(rendezvous, members, survey), survey
    except Refused as error:
        if me.device != "cuda" or me.transport != "auto" or me.algorithm == "island":
            raise
        if rendezvous.rank == 0:
            logger.warning("the GPUs meet in host memory, because %s", error)
    return make(rendezvous, members, survey.staged()), survey.staged()


def _check_p2p(rendezvous: Rendezvous, members: list[Member]) -> None:
    me = members[rendezvous.rank]
    if me.device == "cuda":
        rendezvous.stage("checking P2P", lambda: _require_p2p(device_of(me), members))


def _require_p2p(device: torch.device, members: list[Member]) -> None:
    reason = why_no_p2p(device, members)
    if reason is not None:
        raise SetupError(reason)


def make(
    rendezvous: Rendezvous, members: list[Member], survey: Survey, *, staged: bool = False, scratch: bool = False
) -> Transport:
    """The mailboxes that the survey asks for; Refused on all ranks where one fails. `scratch`: for experiments alone,
    in host memory if `staged`."""
    me = members[rendezvous.rank]
    device = device_of(me)
    how = "staged" if staged else survey.figures.transport
    if scratch and how != "staged":
        _check_p2p(rendezvous, members)
    area_packs, copies = _C.PROBE_AREA_PACKS, 1
    if not scratch:
        copies = survey.figures.sum_copies
        area_packs = plan.area_packs_for(rendezvous.world_size, me.max_bytes, me.algorithm, how, copies)
    needed = plan.memory_bytes(area_packs, how)
    where = "host memory" if how == "staged" else str(device)
    purpose = "experiments" if scratch else "its mailbox"
    logger.log(
        logging.DEBUG if scratch else logging.INFO,
        "rank %d takes %.2f MB of %s for %s", rendezvous.rank, needed / 1e6, where, purpose,
    )  # fmt: skip
    sizes = (rendezvous.rank, rendezvous.world_size, area_packs, me.timeout, me.warmup_timeout, how)
    transport: Transport | None = None

    def allocate() -> Transport:
        nonlocal transport
        transport = CpuTransport(*sizes) if device.type == "cpu" else GpuTransport(device, *sizes)
        if isinstance(transport, GpuTransport):
            transport.share_gpu(sum(member.device_id == me.device_id for member in members))
        if survey.islands is not None:
            transport.set_islands(survey.islands[0])
        before = sum(member.device_id == me.device_id for member in members[: rendezvous.rank])
        transport.set_sum_copies(copies, before % copies)
        if scratch:
            fill(transport)
        return transport

    try:
        built = rendezvous.stage("allocating the mailbox", allocate)
        handles = rendezvous.gather(rendezvous.stage("exporting the mailbox", built.handle))
        rendezvous.stage("mapping the peers' mailboxes", lambda: built.open(handles))
        built.forget_names()
        if how == "pull":  # a block reads what the peers' blocks of its number have staged
            built.max_blocks = min(rendezvous.gather(built.max_blocks))
        if not scratch:
            built.shapes = common(rendezvous.gather(built.shapes))
            rendezvous.stage(
                "the first exchange with the peers",
                lambda: built.greet(rendezvous.rank, rendezvous.world_size, GREETING_DEADLINE),
            )
    except BaseException:
        if transport is not None:
            transport.close(CLOSE_PATIENCE)
        raise
    built.area_packs, built.memory_bytes = area_packs, needed
    return built


def device_of(member: Member) -> torch.device:
    """The device that a member has named."""
    return torch.device("cpu") if member.device == "cpu" else torch.device("cuda", member.device_index)


def _device(given: str | torch.device) -> torch.device:
    device = torch.device(given)
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _transport_for(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        raise SetupError(f"device {device} is not served; cpu and cuda are")
    if not _C.build_info()["cuda"]:
        why = _C.build_info()["cpu_only_reason"]
        raise SetupError(f"{device} cannot be served: this build has CPU ranks only ({why}); see pcie-allreduce info")
    if not torch.cuda.is_available():
        raise SetupError(f"{device} cannot be served: torch sees no CUDA device")
    if device.index >= torch.cuda.device_count():
        raise SetupError(f"{device} does not exist: torch sees {torch.cuda.device_count()} CUDA devices")
    return "peer"


def _survey(members: list[Member]) -> Survey:
    snapshot = nvml.read([member.device_id for member in members])
    override = os.environ.get("PCIE_ALLREDUCE_ISLANDS")
    decision = topology.decide_islands(snapshot, override)
    figures = presets.preset_for(snapshot, decision.islands is not None).figures
    me = members[0]
    own, staged, pull = (
        _table(cache.key_for(snapshot, transport, override, me.version, me.layout), me.algorithm)
        for transport in (_transport_for(device_of(me)), "host", "pull")
    )
    probing = _probing(me, kept.key_for(snapshot, override, me.version, me.layout))
    return Survey(snapshot, decision.islands, decision.reason, figures, own, staged, pull, probing)


def _probing(me: Member, key: cache.Key) -> Probing:
    """GPUs are probed unless something says no, CPU ranks only if something says yes."""
    wanted = os.environ.get(PROBE, "")
    if wanted not in ("", "0", "1", "new"):
        raise ValueError(
            f"{PROBE} is {wanted!r}; 0 (never), 1 (CPU ranks, too) and 'new' (whatever was kept) are known"
        )
    if me.transport != "auto":
        return Probing(f"transport {me.transport!r} was asked for", key)
    if me.probe is False or (me.probe is None and wanted == "0"):
        return Probing("probe=False" if me.probe is False else f"{PROBE} is 0", key)
    if me.probe is None and not wanted and me.device == "cpu":
        return Probing("CPU ranks are only when asked", key)
    known, origin = (None, "") if wanted == "new" else kept.load(key)
    return Probing(None, key, known, origin, islands_free=key.islands is None)


def _table(key: cache.Key, algorithm: str) -> Table:
    if algorithm != "auto":
        return Table(key, (), f"no tuned table is used: algorithm {algorithm!r} was asked for")
    if os.environ.get("PCIE_ALLREDUCE_TUNED") == "0":
        return Table(key, (), "no tuned table is used: PCIE_ALLREDUCE_TUNED is 0")
    tuned, where = cache.load_tuned(key)
    if tuned is None:
        return Table(key, (), f"no tuned table is used, the cost model chooses: {where}")
    return Table(key, tuned, f"tuned table of {where} is used")
