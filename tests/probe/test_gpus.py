"""The probe on GPUs: two of them, several ranks on one, and with P2P switched off."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Rank, run_ranks

from pcie_allreduce.probe import Verdict

pytestmark = pytest.mark.gpu


def probed(me: Rank, folder: str, **variables: str) -> list[Any]:
    """Verdicts of a first and a second start and the seconds that they took; sums over both, eager and in a graph."""
    os.environ.update(PCIE_ALLREDUCE_CACHE=folder, **variables)
    try:
        return [start(me) for _ in range(2)]
    finally:
        for name in ("PCIE_ALLREDUCE_CACHE", *variables):
            del os.environ[name]


def start(me: Rank) -> tuple[Verdict, float]:
    torch.cuda.current_stream().synchronize()
    me.meet()
    begun = time.monotonic()
    with me.communicator(max_bytes=1 << 20, probe=True) as comm:
        took = time.monotonic() - begun
        for n in (1, 7168, 1 << 18):
            x = torch.full((n,), me.rank + 1.0, device=me.device)
            assert comm.all_reduce(x).tolist() == [sum(range(me.world + 1))] * n
        graph = torch.cuda.CUDAGraph()
        with comm.capture(), torch.cuda.graph(graph):
            y = comm.all_reduce(x)
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert y.tolist() == [sum(range(me.world + 1))] * n
        assert [peer.calls for peer in comm.stats()] == [4 if r != me.rank else 0 for r in range(me.world)]
        me.meet()
        return comm.verdict, took


def own_gpus(world: int) -> None:
    if torch.cuda.device_count() < world:
        pytest.skip(f"{world} ranks need as many GPUs")


def test_two_gpus_are_measured_once(tmp_path: Path) -> None:
    own_gpus(2)
    for (first, _), (second, took) in run_ranks(2, probed, str(tmp_path), device="cuda"):
        assert first.transport in ("peer", "host"), first.line
        assert first.origin == "measured now" and second.origin.startswith(str(tmp_path)), second.line
        assert first.measured == second.measured and first.measured is not None
        assert first.measured.host is not None and first.measured.host.problem is None
        assert min(first.measured.host.push_together_gbps) > 1.0, "PCIe carries more than that"
        assert took < 2.0


def without_p2p(me: Rank, folder: str) -> list[Any]:
    return probed(me, folder, PCIE_ALLREDUCE_P2P="0")


def test_without_p2p_they_meet_in_host_memory(tmp_path: Path) -> None:
    own_gpus(2)
    for (first, _), (second, _) in run_ranks(2, without_p2p, str(tmp_path), device="cuda"):
        assert first.transport == second.transport == "host", first.line
        assert first.reason.startswith("ranks meet in host memory: checking P2P failed: ")
        assert "switched off by PCIE_ALLREDUCE_P2P=0" in first.reason
        assert (first.origin, second.origin.startswith(str(tmp_path))) == ("measured now", True)


@pytest.mark.parametrize("world", [2, 8])
def test_ranks_that_share_gpus(tmp_path: Path, world: int) -> None:
    """Islands are no matter of latencies there."""
    if "CUDA_MPS_PIPE_DIRECTORY" not in os.environ:
        pytest.skip("ranks that share a GPU need the multi-process service (CUDA_MPS_PIPE_DIRECTORY is not set)")
    if torch.cuda.device_count() >= world > 2:
        pytest.skip(f"each of the {world} ranks has a GPU of its own")
    for (first, _), _ in run_ranks(world, on_first, str(tmp_path), device="cuda"):
        assert first.transport == "peer" and first.islands is None, first.line
        assert first.measured is not None and first.measured.sharing >= 2


def on_first(me: Rank, folder: str) -> list[Any]:
    """Two ranks share the first GPU; eight share all."""
    if me.world > 2:
        return probed(me, folder)
    torch.cuda.set_device(0)
    return probed(replace(me, device="cuda:0"), folder)


def with_nccl(me: Rank, folder: str) -> Any:
    os.environ["PCIE_ALLREDUCE_CACHE"] = folder
    nccl = torch.distributed.new_group(backend="nccl")
    try:
        with me.communicator(probe=True, fallback=nccl) as comm:
            x = torch.ones(1 << 21, dtype=torch.bfloat16, device=me.device)  # over max_bytes: NCCL's
            assert comm.all_reduce(x).eq(me.world).all()
            me.meet()
            return comm.verdict
    finally:
        torch.distributed.destroy_process_group(nccl)
        del os.environ["PCIE_ALLREDUCE_CACHE"]


def test_nccl_is_compared_in_graphs(tmp_path: Path) -> None:
    own_gpus(2)
    first, second = run_ranks(2, with_nccl, str(tmp_path), device="cuda")
    assert first.compared == second.compared
    assert [each.nbytes for each in first.compared] == [14336, 131072, 1048576]
    assert first.measured.fallback.startswith("nccl")
    assert all(0.5 < each.ours_us < 500 and 0.5 < each.fallback_us < 5000 for each in first.compared), first.line
