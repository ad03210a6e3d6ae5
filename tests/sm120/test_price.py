"""Writing the protocol once for every machine costs an SM120 kernel nothing: it is held to a hand-written one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sm120 import checks, kernels
from sm120.kernels import SHARES, Compiled, Variant

from pcie_allreduce import _C

if TYPE_CHECKING:
    from sm120.sass import Kernel

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
SLACK = 1.05
REGISTERS_AT_A_TIME = 8  # a multiprocessor gives them to a thread in eights


@pytest.fixture(scope="module")
def by_hand(disassembler: None, nvcc: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Compiled]:
    """Of bfloat16, by world size; compiled by the compiler that compiled the module, for the same occupancy."""
    if not CSRC.is_dir():
        pytest.skip("the tests run without the repository around them")
    release = re.search(r"release (\d+\.\d+)", subprocess.check_output([nvcc, "--version"], text=True))
    assert release is not None
    built_by = _C.build_info()["toolkit"]
    if release.group(1) != built_by:
        pytest.skip(f"the module was built by CUDA {built_by}, and the nvcc here is of {release.group(1)}")
    bounds = re.search(r"__launch_bounds__\(kMaxThreads \+ kStewards, (\d+)\)", (CSRC / "cuda/one_shot.cu").read_text())
    assert bounds is not None
    folder = tmp_path_factory.mktemp("by_hand")
    flag = f"-DPAR_TEST_BLOCKS={bounds.group(1)}"
    cubin = kernels.compile_cubin(nvcc, HERE / "hand_written.cu", CSRC, folder / "hand_written.cubin", flag)
    found = {re.search(r"hand_writtenILi(\d)E", name): kernel for name, kernel in kernels.read([cubin], folder).items()}
    return {int(name.group(1)): kernel for name, kernel in found.items() if name}


@pytest.fixture(params=[(world, share) for world in (2, 8) for share in SHARES[:2]], ids="x{0[0]} {0[1]}".format)
def pair(
    request: pytest.FixtureRequest, installed: dict[Variant, Compiled], by_hand: dict[int, Compiled]
) -> tuple[Compiled, Compiled]:
    world, share = request.param
    return installed[Variant("one_shot", "bfloat16", world, share)], by_hand[world]


def kernels_of(pair: tuple[Compiled, Compiled]) -> tuple[Kernel, Kernel]:
    return pair[0].kernel, pair[1].kernel


def test_the_hand_written_kernel_keeps_the_same_promises(by_hand: dict[int, Compiled]) -> None:
    """Else it would be no measure."""
    promises = [check for check in checks.CHECKS if check is not checks.memory_beside_the_path]
    for world, kernel in by_hand.items():
        variant = Variant("one_shot", "bfloat16", world, "packs")
        assert [finding for check in promises for finding in check(kernel, variant)] == []


def test_registers(pair: tuple[Compiled, Compiled]) -> None:
    ours, theirs = (compiled.registers for compiled in pair)
    given = [-(-registers // REGISTERS_AT_A_TIME) for registers in (ours, theirs)]
    assert ours <= SLACK * theirs or given[0] <= given[1], f"{ours} registers, {theirs} by hand"


def test_memory_instructions_on_the_path(pair: tuple[Compiled, Compiled]) -> None:
    ours, theirs = (checks.accesses(kernel, checks.path(kernel)) for kernel in kernels_of(pair))
    assert {access: (ours[access], theirs[access]) for access in ours if ours[access] > SLACK * theirs[access]} == {}


@pytest.mark.parametrize("opcode", ["LDG", "STG"])
def test_memory_instructions_in_all(pair: tuple[Compiled, Compiled], opcode: str) -> None:
    """With the fault path, where one vector or its words are a matter of taste: counted in bytes."""
    ours, theirs = (sum(kernel.code[index].bytes for index in kernel.find(opcode)) for kernel in kernels_of(pair))
    assert ours <= SLACK * theirs, f"{ours} bytes of {opcode}, {theirs} by hand"
