"""Host memory, where GPUs cannot write to each other. What it has in common with pull: test_transports.py."""

from __future__ import annotations

import pytest
from ranks import Rank, run_ranks
from test_transports import served_by


def without_p2p(me: Rank) -> tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PCIE_ALLREDUCE_P2P", "0")
        return served_by(me, {})


@pytest.mark.gpu
def test_gpus_without_p2p_take_it_unasked() -> None:
    assert set(run_ranks(2, without_p2p, device="cuda")) == {("host", "one_shot")}
