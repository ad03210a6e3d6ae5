"""Host memory, where GPUs cannot write to each other. What it has in common with pull: test_transports.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ranks import Rank, run_ranks
from test_sums import sums_every_way
from test_transports import over, served_by

from pcie_allreduce import _C, presets
from pcie_allreduce.topology import Gpu, Snapshot
from pcie_allreduce.transport import CpuTransport


def without_p2p(me: Rank) -> tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PCIE_ALLREDUCE_P2P", "0")
        return served_by(me, {})


@pytest.mark.gpu
def test_gpus_without_p2p_take_it_unasked() -> None:
    assert set(run_ranks(2, without_p2p, device="cuda")) == {("host", "one_shot")}


def in_copies(me: Rank, copies: int, kind: str) -> tuple[str, list[tuple[int, int]]]:
    """As ranks that share GPUs do: each reads a copy of the sums of its own, as far as there are so many."""
    plain, seen = presets.staged_preset_for, []

    def sharing(snapshot: Snapshot) -> presets.Preset:
        return replace(plain(snapshot), sum_copies=copies)

    def told(self: CpuTransport, count: int, own: int) -> None:
        seen.append((count, own))
        tell(self, count, own)

    tell = CpuTransport.set_sum_copies
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "staged_preset_for", sharing)
        patch.setattr(CpuTransport, "set_sum_copies", told)
        return over(me, "host", "two_shot", sums_every_way, kind), seen


@pytest.mark.parametrize(("world", "copies"), [(3, 3), (4, 2), (5, 4), (8, 3)])
@pytest.mark.parametrize("kind", ["integers", "mixed"])
def test_ranks_that_share_gpus_read_copies_of_the_sums(world: int, copies: int, kind: str) -> None:
    outcomes = run_ranks(world, in_copies, copies, kind)
    assert len({digest for digest, _ in outcomes}) == 1
    for rank, (_, seen) in enumerate(outcomes):
        assert set(seen) == {(copies, rank % copies)}


def test_ranks_with_gpus_of_their_own_read_the_same_sums() -> None:
    unknown = ((None,) * 4,) * 4
    for a_gpu in (1, 2, 4):
        gpus = tuple(Gpu(f"GPU-{rank // a_gpu}") for rank in range(4))
        assert presets.staged_preset_for(Snapshot(gpus, unknown, unknown)).sum_copies == a_gpu


@pytest.mark.parametrize(("copies", "own"), [(0, 0), (3, 1), (2, 2)])
def test_copies_that_cannot_be_are_refused(copies: int, own: int) -> None:
    channel = _C.CpuChannel(0, 2, 64, 1.0, 1.0, 1, False)
    with pytest.raises(ValueError, match=f"copy {own} of {copies} for 2 ranks"):
        channel.set_sum_copies(copies, own)
    channel.close()
