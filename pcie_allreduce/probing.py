"""How ranks meet: by the verdict of the start-up probe, as it was kept or measured anew; else as they were told.

With a fallback a construction that is refused by all ranks gives a communicator that serves by it.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

import torch

from . import cache, construction, plan
from .construction import CLOSE_PATIENCE, Survey, device_of
from .faults import fault_error
from .probe import Compared, Measurements, Verdict, compare, decision, examine, kept
from .rendezvous import Member, Refused, Rendezvous
from .transport import FallbackTransport, Transport

MEASURED = "measured now"
logger = logging.getLogger("pcie_allreduce")


def build(
    rendezvous: Rendezvous, members: list[Member], survey: Survey, fallback: Any
) -> tuple[Transport, Survey, Verdict]:
    """Mailboxes of all ranks, mapped by all ranks and seen to work, and why they lie where they lie.

    Refused, on all of them, where there is none that works and no fallback.
    """
    try:
        if survey.probing.why_not is None:
            return _probed(rendezvous, members, survey, fallback)
        transport, survey = construction.build(rendezvous, members, survey)
        return transport, survey, Verdict(transport.name, f"not probed: {survey.probing.why_not}")
    except Refused as refusal:
        if fallback is None:
            raise
        verdict = refusal.verdict or Verdict("fallback", str(refusal))
        return FallbackTransport(rendezvous.world_size), survey, verdict


def _probed(
    rendezvous: Rendezvous, members: list[Member], survey: Survey, fallback: Any
) -> tuple[Transport, Survey, Verdict]:
    """By the verdict that was kept, where a short look agrees with it; else by a new one."""
    probing = survey.probing
    if probing.known is None and probing.origin and rendezvous.rank == 0:
        logger.info("the machine is measured: %s", probing.origin)
    if probing.known is not None:
        verdict = _decided(members, probing.known, probing.origin)
        try:
            return _by_verdict(rendezvous, members, survey, fallback, verdict)
        except Refused as error:
            if rendezvous.rank == 0:
                logger.info("the machine is measured anew: %s", error)
    measured = examine.examine(
        rendezvous,
        _site(members),
        lambda staged: construction.make(rendezvous, members, survey, staged=staged, scratch=True),
    )
    return _by_verdict(rendezvous, members, survey, fallback, _decided(members, measured, MEASURED))


def judge(rendezvous: Rendezvous, members: list[Member], survey: Survey, fallback: Any) -> Verdict:
    """The verdict alone, measured anew and kept; nothing of it lives on."""
    fresh = replace(survey, probing=replace(survey.probing, known=None, origin=""))
    try:
        transport, _, verdict = _probed(rendezvous, members, fresh, fallback)
    except Refused as refusal:
        if refusal.verdict is None:
            raise
        return refusal.verdict
    transport.close(CLOSE_PATIENCE)
    return verdict


def _decided(members: list[Member], measured: Measurements, origin: str) -> Verdict:
    """On all ranks alike. Islands have no place but where ranks write to each other."""
    me = members[0]
    anywhere = me.algorithm != "island"
    options = decision.Options(me.fallback, pull=anywhere, host=anywhere)
    return replace(decision.decide(measured, options), origin=origin)


def _by_verdict(
    rendezvous: Rendezvous, members: list[Member], survey: Survey, fallback: Any, verdict: Verdict
) -> tuple[Transport, Survey, Verdict]:
    """The mailboxes that the verdict names; it is kept with what the comparison with the fallback adds."""
    me, measured = members[rendezvous.rank], verdict.measured
    assert measured is not None
    if verdict.transport == "fallback":
        _keep(rendezvous, survey, measured)
        raise Refused(verdict.reason, verdict)
    if verdict.islands is not None and survey.probing.islands_free:
        survey = replace(survey, islands=verdict.islands, reason="they are nearer inside than across, as was measured")
    if verdict.transport == "host":
        survey = survey.staged()
    elif verdict.transport == "pull":
        survey = survey.pull()
    transport = construction.make(rendezvous, members, survey)
    try:
        stale = None if verdict.origin == MEASURED else examine.why_stale(rendezvous, transport, measured)
        if stale is not None:
            raise Refused(stale)
        if fallback is not None and me.algorithm == "auto" and not survey.table.steps:
            measured = _compared(rendezvous, members, survey, fallback, measured)
    except BaseException:
        transport.close(CLOSE_PATIENCE)
        raise
    if measured != survey.probing.known:
        _keep(rendezvous, survey, measured)
    return transport, survey, replace(verdict, measured=measured)


def _compared(
    rendezvous: Rendezvous, members: list[Member], survey: Survey, fallback: Any, measured: Measurements
) -> Measurements:
    """Over mailboxes of its own, unless it was done before with the same fallback at these sizes."""
    me = members[rendezvous.rank]
    device = device_of(me)
    name = rendezvous.gather(compare.name_of(fallback, device))[0]
    sizes = compare.sizes_for(me.max_bytes)
    known = {each.nbytes: each for each in measured.compared if measured.fallback == name}
    if known.keys() >= set(sizes):
        return measured
    try:
        now = _timed(rendezvous, members, survey, fallback, sizes)
    except Refused as error:
        if rendezvous.rank == 0:
            logger.warning("not compared: %s", error)
        return replace(measured, fallback=None, compared=())  # nor does another comparison stand for it
    known.update({each.nbytes: each for each in now})
    return replace(measured, fallback=name, compared=tuple(known[nbytes] for nbytes in sorted(known)))


def _timed(
    rendezvous: Rendezvous, members: list[Member], survey: Survey, fallback: Any, sizes: tuple[int, ...]
) -> tuple[Compared, ...]:
    """Ours and the fallback, or Refused on all ranks where either fails on one."""
    device = device_of(members[rendezvous.rank])
    transport = construction.make(rendezvous, members, survey)

    def check() -> None:
        fault = transport.fault()
        if fault is not None:
            raise fault_error(fault, rendezvous.rank, rendezvous.world_size)

    def call(x: torch.Tensor, out: torch.Tensor) -> None:
        chosen = plan_call(transport, survey, rendezvous.world_size, x, "auto", ())
        assert chosen is not None  # "auto" serves all sizes up to max_bytes
        if transport.collective(x, out, chosen):
            check()

    def begin() -> tuple[compare.Contest, list[float]]:
        try:
            contest = compare.Contest(device, fallback, sizes)
            times = contest.ours(call)
            check()  # the replay of a graph raises nothing
            return contest, times
        except BaseException:
            transport.close(CLOSE_PATIENCE)  # says so to the peers, which wait in calls of ours
            raise

    try:
        contest, ours = rendezvous.stage("comparing with the fallback", begin)
        rendezvous.stage("comparing with the fallback", contest.prepare_theirs)
        theirs = rendezvous.stage("comparing with the fallback", contest.theirs)
        return compare.slowest(sizes, rendezvous.gather((ours, theirs)))
    finally:
        transport.close(CLOSE_PATIENCE)


def plan_call(
    transport: Transport, survey: Survey, world: int, x: torch.Tensor, algorithm: str, tuned: plan.Tuned
) -> plan.Plan | None:
    """What serves x (at least one element) over these mailboxes."""
    return plan.choose(
        world,
        x.nbytes,
        x.element_size(),
        survey.islands is not None,
        survey.figures,
        transport.area_packs,
        transport.max_blocks,
        algorithm,
        tuned,
    )


def _keep(rendezvous: Rendezvous, survey: Survey, measured: Measurements) -> None:
    if rendezvous.rank == 0 and kept.save(survey.probing.key, measured) is None:
        logger.info("what was measured cannot be kept in %s: the next start measures again", cache.folder())


def _site(members: list[Member]) -> examine.Site:
    device = members[0].device
    if device == "cpu":
        return examine.Site("cpu", "cpu", max(1.0, len(members) / len(os.sched_getaffinity(0))))
    gpus = [member.device_id for member in members]
    return examine.Site("cuda", "peer", max(map(gpus.count, gpus)))
