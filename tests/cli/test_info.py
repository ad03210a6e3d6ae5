"""`pcie-allreduce info`. What it concludes is pure, so every machine that it may meet is tried here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from pcie_allreduce.cli.findings import Findings, Gpu
from pcie_allreduce.cli.info import as_text, missing
from pcie_allreduce.cli.main import COMMANDS, main

GPU = Gpu(0, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 120, 96 * 2**30, "0000:01:00.0", "GPU-1")
HEALTHY = Findings(
    version="0.1.0",
    cuda=True,
    cuda_archs=(80, 90, 120),
    toolkit="13.0",
    driver="580.95.05",
    gpus=(GPU, replace(GPU, index=1, bus_id="0000:02:00.0")),
    torch="2.13.0+cu130",
    torch_cuda="13.0",
    torch_gpus=2,
)


def test_nothing_is_missing_on_a_healthy_machine() -> None:
    assert missing(HEALTHY) == []
    assert "needs driver 580.65.06 or newer" in as_text(HEALTHY)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"build_error": "no module named _C"}, "The native module cannot be imported: no module named _C."),
        (
            {"cuda": False, "cpu_only_reason": "asked for"},
            "This build has no GPU code (asked for): only CPU ranks can run.",
        ),
        ({"driver": None, "driver_error": "NVML not found"}, "No NVIDIA driver answers (NVML not found)."),
        ({"gpus": ()}, "The NVIDIA driver 580.95.05 shows no GPU."),
        (
            {"driver": "575.57.08"},
            "The NVIDIA driver is 575.57.08; code built with CUDA 13.0 needs 580.65.06 or newer.",
        ),
        ({"torch": None, "torch_error": "no module"}, "torch cannot be imported: no module."),
        (
            {"torch": "2.13.0+cpu", "torch_cuda": None},
            "torch 2.13.0+cpu is built without CUDA, so no tensor can lie on a GPU.",
        ),
        (
            {"torch_gpus": 1, "environment": {"CUDA_VISIBLE_DEVICES": "0"}},
            "torch sees 1 of 2 GPUs (CUDA_VISIBLE_DEVICES is '0').",
        ),
    ],
)
def test_each_miss_is_one_sentence(change: dict[str, object], sentence: str) -> None:
    found = replace(HEALTHY, **change)  # type: ignore[arg-type]
    assert missing(found) == [sentence]
    assert f"- {sentence}" in as_text(found)


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        ((80, 120), 89, True),  # machine code of sm_80 runs on sm_89
        ((80, 120), 90, False),
        ((86,), 80, False),
        ((80, 90), 120, True),  # PTX of the newest
        ((120,), 90, False),
    ],
)
def test_code_for_a_gpu(archs: tuple[int, ...], capability: int, runs: bool) -> None:
    found = replace(HEALTHY, cuda_archs=archs, gpus=(replace(GPU, capability=capability),), torch_gpus=1)
    sentences = missing(found)
    assert (sentences == []) is runs
    assert all(f'PCIE_ALLREDUCE_CUDA_ARCHS="{capability}"' in sentence for sentence in sentences)


def test_json_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["torch"]
    assert printed["build_error"] == ""
    assert isinstance(printed["missing"], list)
    assert printed["cuda"] or printed["missing"], "a build without GPU code says so"


def test_text_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    assert capsys.readouterr().out.startswith("pcie_allreduce")


def test_help_names_every_command_and_imports_none() -> None:
    code = (
        "import sys; from pcie_allreduce.cli.main import COMMANDS, main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit(any('pcie_allreduce.cli.' + name in sys.modules for name in COMMANDS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


def test_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["inform"])
    assert "inform" in capsys.readouterr().err
