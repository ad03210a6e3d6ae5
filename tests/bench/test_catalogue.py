"""Every backend has rows or a reason; what reads its settings once gets rank processes of their own."""

from __future__ import annotations

import importlib.metadata

import pytest

from pcie_allreduce.bench.backends import catalogue
from pcie_allreduce.bench.backends.catalogue import Job, plan

GPU_NAMES = catalogue.names_for("cuda")


def everything() -> set[str]:
    return {*catalogue.all_names(), *catalogue.PEERS}


def test_on_gpus_every_set_of_variables_has_its_own_processes() -> None:
    passes, _ = plan(GPU_NAMES, ["auto"], "cuda", ranks=2, gpus=2)
    assert [(dict(work.environment), work.jobs) for work in passes] == [
        ({}, (Job("pcie_allreduce", "auto"), Job("nccl"), Job("floor"))),
        ({"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL,LL128,Simple"}, (Job("nccl-tuned"),)),
        ({"NCCL_P2P_DISABLE": "1"}, (Job("nccl-p2p-off"),)),
        (
            {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"},
            (Job("torch-symm-mem", "one_shot"), Job("torch-symm-mem", "two_shot")),
        ),
    ]


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 2), ("cuda", 8)])
def test_every_backend_has_a_job_or_a_reason(device: str, gpus: int) -> None:
    passes, not_run = plan(catalogue.names_for(device), ["auto"], device, ranks=8, gpus=gpus)
    jobs = {job.backend for work in passes for job in work.jobs}
    assert jobs | set(not_run) == everything()
    assert not jobs & set(not_run)
    assert all(not_run.values())


def test_nccl_and_torch_are_left_out_where_ranks_share_a_gpu() -> None:
    passes, not_run = plan(GPU_NAMES, ["auto"], "cuda", ranks=8, gpus=2)
    assert {job.backend for work in passes for job in work.jobs} == {"pcie_allreduce", "floor"}
    for name in ("nccl", "nccl-tuned", "nccl-p2p-off"):
        assert not_run[name] == "NCCL refuses two ranks on one GPU, and 8 ranks share 2 GPU(s)"
    assert not_run["torch-symm-mem"] == "torch refuses two ranks on one GPU, and 8 ranks share 2 GPU(s)"


def test_a_backend_without_a_dtype_is_left_out_with_it() -> None:
    jobs = {}
    for dtype in ("bf16", "fp16", "fp32"):
        passes, not_run = plan(GPU_NAMES, ["auto"], "cuda", ranks=2, gpus=2, dtype=dtype)
        jobs[dtype] = {job.backend for work in passes for job in work.jobs}
        assert not_run.get("torch-symm-mem") == ("has no sum of fp16" if dtype == "fp16" else None)
    assert jobs["bf16"] == jobs["fp32"] == jobs["fp16"] | {"torch-symm-mem"}


def test_each_algorithm_of_ours_is_a_job() -> None:
    passes, _ = plan(["pcie_allreduce"], ["auto", "one_shot"], "cpu", ranks=2, gpus=0)
    assert passes[0].jobs == (Job("pcie_allreduce", "auto"), Job("pcie_allreduce", "one_shot"))


def test_with_norms_ours_is_fused_and_every_backend_has_one_behind_it() -> None:
    passes, _ = plan(["pcie_allreduce", "nccl", "floor"], ["auto"], "cuda", ranks=2, gpus=2, norms=True)
    assert [(job.label, job.norm) for job in passes[0].jobs] == [
        ("pcie_allreduce (auto)", "fused"),
        ("pcie_allreduce+norm (auto)", "behind"),
        ("nccl+norm", "behind"),
        ("nccl", ""),
        ("floor", ""),
    ]


def test_with_halves_whoever_has_them_has_one_job_more() -> None:
    passes, _ = plan(["pcie_allreduce", "nccl", "floor"], ["one_shot"], "cuda", ranks=2, gpus=2, halves=True)
    labels = [job.label for job in passes[0].jobs]
    assert labels == ["pcie_allreduce (one_shot)", "pcie_allreduce-halves (auto)", "nccl", "nccl-halves", "floor"]


def test_peers_are_said_to_be_missing_or_without_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "vllm":
            return "0.9.1"
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    reasons = catalogue.not_installed("cuda")
    assert reasons["vllm-custom"] == "vllm 0.9.1 is installed, but this version has no adapter for it"
    assert {name for name, reason in reasons.items() if reason == "not installed"} == set(reasons) - {"vllm-custom"}
    assert {"flashinfer-pcie-ipc", "trtllm-lamport"} <= set(reasons)
