"""What is asked and what the machine has decide together, before a rank starts; what cannot be run is a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pcie_allreduce.bench.settings import (
    DEFAULT_HIDDEN,
    DEFAULT_ROWS,
    DEFAULT_SIZES,
    CannotRun,
    Machine,
    Recording,
    Request,
    settle,
)

NO_GPU = Machine(gpus=0, cuda_build=False, mps=False)
ONE_GPU = Machine(gpus=1, cuda_build=True, mps=False)
TWO_GPUS = Machine(gpus=2, cuda_build=True, mps=False)
SHARED_GPUS = replace(TWO_GPUS, mps=True)
RECORDING = Recording("o_proj.npz", world=8, dtype="bf16", nbytes=21504)


def test_without_gpus_two_cpu_ranks_are_measured_eagerly() -> None:
    settings = settle(Request(), NO_GPU)
    assert (settings.device, settings.ranks, settings.gpus, settings.modes) == ("cpu", 2, 0, ("eager",))
    assert settings.backends == ("pcie_allreduce", "gloo")
    assert settings.sizes == DEFAULT_SIZES
    assert {14336, 43008, 57344} <= set(settings.sizes)
    assert not settings.notices
    assert not settings.emulated


def test_with_gpus_each_has_a_rank_and_both_modes_are_measured() -> None:
    settings = settle(Request(), TWO_GPUS)
    assert (settings.device, settings.ranks, settings.gpus) == ("cuda", 2, 2)
    assert settings.modes == ("graph", "eager")
    assert settings.backends == ("pcie_allreduce", "nccl", "nccl-tuned", "nccl-p2p-off", "floor", "torch-symm-mem")
    assert not settings.emulated


def test_ranks_that_share_gpus_are_called_emulated() -> None:
    settings = settle(Request(ranks=8), SHARED_GPUS)
    assert (settings.ranks, settings.gpus, settings.emulated) == (8, 2, True)


def test_fewer_ranks_than_gpus_use_as_many_gpus() -> None:
    assert settle(Request(ranks=2), Machine(gpus=8, cuda_build=True, mps=False)).gpus == 2


@pytest.mark.parametrize("machine", [ONE_GPU, replace(TWO_GPUS, cuda_build=False)])
def test_auto_takes_cpu_ranks_and_says_why_where_gpus_cannot_serve(machine: Machine) -> None:
    settings = settle(Request(), machine)
    assert settings.device == "cpu"
    assert len(settings.notices) == 1
    assert settings.notices[0].startswith("CPU ranks are measured: ")


@pytest.mark.parametrize(
    ("request_", "machine", "words"),
    [
        (Request(device="cuda"), NO_GPU, ["--device cuda", "no GPU", "pcie-allreduce info"]),
        (Request(device="cuda"), replace(TWO_GPUS, cuda_build=False), ["2 GPU(s)", "no CUDA kernels", "nvcc"]),
        (Request(device="cuda"), ONE_GPU, ["one GPU", "two ranks", "nvidia-cuda-mps-control -d"]),
        (Request(ranks=8), TWO_GPUS, ["--ranks 8 on 2 GPU(s)", "nvidia-cuda-mps-control -d", "--device cpu"]),
        (Request(ranks=1), NO_GPU, ["--ranks 1", "2 to 8"]),
        (Request(ranks=9), NO_GPU, ["--ranks 9", "2 to 8"]),
        (Request(dtype="int8"), NO_GPU, ["--dtype int8", "bf16, fp16, fp32"]),
        (Request(sizes=(1023,)), NO_GPU, ["--sizes 1023", "2 bytes of bf16"]),
        (Request(sizes=(0,)), NO_GPU, ["--sizes 0", "positive"]),
        (Request(sizes=(-4,)), NO_GPU, ["--sizes -4", "positive"]),
        (Request(repeats=0), NO_GPU, ["--repeats 0"]),
        (Request(modes=("graph",)), NO_GPU, ["--mode graph", "need GPUs"]),
        (Request(modes=("lazy",)), TWO_GPUS, ["--mode lazy", "graph, eager"]),
        (Request(algorithms=("ring",)), NO_GPU, ["--algorithm ring", "one_shot"]),
        (Request(backends=("mpi",)), NO_GPU, ["--backends mpi", "gloo"]),
        (Request(backends=("nccl",)), NO_GPU, ["--backends nccl", "not on cpu ranks"]),
        (Request(backends=("gloo",)), TWO_GPUS, ["--backends gloo", "not on cuda ranks"]),
        (Request(recording=RECORDING, dtype="fp32"), NO_GPU, ["--dtype fp32", "o_proj.npz", "bf16"]),
        (Request(recording=RECORDING, sizes=(43008,)), NO_GPU, ["--sizes 43008", "21504 bytes"]),
        (Request(recording=RECORDING, ranks=3), NO_GPU, ["--ranks 3", "8 ranks", "2, 4, 8"]),
    ],
)
def test_what_cannot_be_run_is_a_sentence_with_the_values(
    request_: Request, machine: Machine, words: list[str]
) -> None:
    with pytest.raises(CannotRun) as caught:
        settle(request_, machine)
    for word in words:
        assert word in str(caught.value)


def test_a_recording_brings_its_size_and_dtype() -> None:
    settings = settle(Request(recording=RECORDING, ranks=4), NO_GPU)
    assert (settings.sizes, settings.dtype) == ((21504,), "bf16")


def test_what_is_named_twice_is_measured_once() -> None:
    settings = settle(Request(sizes=(1024, 1024), backends=("gloo", "gloo"), algorithms=("auto", "auto")), NO_GPU)
    assert (settings.sizes, settings.backends, settings.algorithms) == ((1024,), ("gloo",), ("auto",))


def test_rows_to_be_normalised() -> None:
    settings = settle(Request(fused=True), NO_GPU)
    assert settings.hidden == DEFAULT_HIDDEN
    assert settings.sizes == tuple(rows * DEFAULT_HIDDEN * 2 for rows in DEFAULT_ROWS)
    settings = settle(Request(fused=True, hidden=4096, rows=(3, 1, 3), dtype="fp32"), NO_GPU)
    assert (settings.hidden, settings.sizes) == (4096, (3 * 4096 * 4, 4096 * 4))
    assert settle(Request(), NO_GPU).hidden is None


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(hidden=4096), "--hidden and --rows belong to --fused"),
        (Request(rows=(1,)), "--hidden and --rows belong to --fused"),
        (Request(fused=True, sizes=(1024,)), "--sizes and --input do not go with it"),
        (Request(fused=True, hidden=0), "--hidden 0"),
        (Request(fused=True, rows=(0,)), "--rows 0"),
        (Request(fused=True, halves=True), "--fused and --halves"),
        (Request(ranks=3, halves=True, sizes=(1024,)), "--sizes 1024: with --halves a size is a multiple of 6 bytes"),
    ],
)
def test_rows_that_cannot_be_normalised(request_: Request, words: str) -> None:
    with pytest.raises(CannotRun, match=words):
        settle(request_, NO_GPU)
