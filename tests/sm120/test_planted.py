"""The checks must find what they look for: a pack that is not 16-byte aligned, and single instructions gone wrong."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sm120 import checks, kernels
from sm120.expected import Access
from sm120.kernels import Compiled, Variant
from sm120.sass import Instruction, read_instruction

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm120.sass import Kernel

CSRC = Path(__file__).parents[2] / "csrc"
VARIANT = Variant("one_shot", "bfloat16", 2, "packs")
PULL = Variant("pull_one_shot", "bfloat16", 2, "packs")
SOURCE = """
#include "protocol/one_shot.h"
#include "cuda/machine.cuh"
namespace pcie_allreduce::cuda {
template <class Element, int kWorld, Share kShare>
__global__ void run_one_shot(const __grid_constant__ CallParams params) {
  Machine<Element, kShare> machine(params.channel, params.request);
  one_shot<Element, kWorld>(machine, params.channel, params.request);
}
template __global__ void run_one_shot<BFloat16, 2, Share::kPacks>(const __grid_constant__ CallParams);
}
"""


def findings(compiled: Compiled, variant: Variant = VARIANT) -> set[str]:
    return {finding for check in checks.CHECKS for finding in check(compiled, variant)}


def compile_with(csrc: Path, nvcc: Path, folder: Path) -> Compiled:
    folder.mkdir()
    (folder / "kernel.cu").write_text(SOURCE)
    cubin = kernels.compile_cubin(nvcc, folder / "kernel.cu", csrc, folder / "kernel.cubin")
    return kernels.by_variant(kernels.read([cubin], folder))[VARIANT]


@pytest.mark.skipif(not CSRC.is_dir(), reason="the tests run without the repository around them")
def test_a_pack_without_alignment_is_found(disassembler: None, nvcc: Path, tmp_path: Path) -> None:
    planted = shutil.copytree(CSRC, tmp_path / "csrc")
    word = planted / "protocol" / "word.h"
    text, aligned = re.subn(r"struct alignas\(16\) Pack", "struct Pack", word.read_text())
    text, asserted = re.subn(r" && alignof\(Pack\) == 16", "", text)
    assert (aligned, asserted) == (1, 1)
    word.write_text(text)
    found = findings(compile_with(planted, nvcc, tmp_path / "planted")) - findings(
        compile_with(CSRC, nvcc, tmp_path / "sound")
    )
    assert found == {
        "12 times plain LDG of 4 bytes, not 0",
        "0 times plain LDG of 16 bytes, not 3",
        "8 times plain STG of 4 bytes, not 0",
        "0 times plain STG of 16 bytes, not 2",
    }


def plant(kernel: Kernel, index: int, text: str) -> Kernel:
    instruction = read_instruction(f"/*{kernel.code[index].address:04x}*/ {text} ;")
    assert instruction is not None
    return replace(kernel, code=(*kernel.code[:index], instruction, *kernel.code[index + 1 :]))


def first(kernel: Kernel, name: str) -> int:
    """On the path of a call whose peers are in time."""
    return min(index for index in checks.path(kernel) if kernel.code[index].name == name)


def arithmetic(kernel: Kernel, after: int) -> int:
    def plain(step: Instruction) -> bool:
        return step.opcode in ("IADD3", "IMAD", "LOP3", "MOV", "SEL", "ISETP") and not step.predicate

    return min(index for index in checks.path(kernel) if index > after and plain(kernel.code[index]))


def weak_poll(kernel: Kernel) -> Kernel:
    return plant(kernel, first(kernel, "LDG.E.128.STRONG.SYS"), "LDG.E.128 R20, desc[UR6][R28.64]")


def read_only_poll(kernel: Kernel) -> Kernel:
    return plant(kernel, first(kernel, "LDG.E.128.STRONG.SYS"), "LDG.E.128.CONSTANT R20, desc[UR6][R28.64]")


def send_of_gpu_scope(kernel: Kernel) -> Kernel:
    return plant(kernel, first(kernel, "STG.E.128.STRONG.SYS"), "STG.E.128.STRONG.GPU desc[UR6][R28.64], R20")


def narrow_send(kernel: Kernel) -> Kernel:
    return plant(kernel, first(kernel, "STG.E.128.STRONG.SYS"), "STG.E.64.STRONG.SYS desc[UR6][R28.64], R20")


def spill(kernel: Kernel) -> Kernel:
    return plant(kernel, arithmetic(kernel, 0), "STL.128 [R1+0x10], R20")


def generic_store(kernel: Kernel) -> Kernel:
    return plant(kernel, arithmetic(kernel, kernel.find("ACQBULK")[0]), "ST.E.128 desc[UR6][R28.64], R20")


def fence(kernel: Kernel) -> Kernel:
    return plant(kernel, arithmetic(kernel, kernel.find("ACQBULK")[0]), "MEMBAR.SC.GPU")


def counter(kernel: Kernel) -> Kernel:
    return plant(kernel, arithmetic(kernel, kernel.find("ACQBULK")[0]), "REDG.E.ADD.STRONG.SYS desc[UR6][R28.64], R5")


def no_wait(kernel: Kernel) -> Kernel:
    return plant(kernel, kernel.find("ACQBULK")[0], "NOP")


def conditional_wait(kernel: Kernel) -> Kernel:
    return plant(kernel, kernel.find("ACQBULK")[0], "@P0 ACQBULK")


def load_before_the_wait(kernel: Kernel) -> Kernel:
    return plant(kernel, kernel.find("ACQBULK")[0] - 1, "LDG.E R5, desc[UR6][R28.64]")


def exit_before_the_wait(kernel: Kernel) -> Kernel:
    return plant(kernel, kernel.find("ACQBULK")[0] - 1, "@P0 EXIT")


def early_trigger(kernel: Kernel) -> Kernel:
    barrier, trigger = kernel.find("BAR")[-1], kernel.find("PREEXIT")[0]
    return plant(plant(kernel, barrier, "PREEXIT"), trigger, "BAR.SYNC.DEFER_BLOCKING 0x0")


def poll_behind_the_barrier(kernel: Kernel) -> Kernel:
    return plant(kernel, arithmetic(kernel, kernel.find("PREEXIT")[0]), "LDG.E.128.STRONG.SYS R20, desc[UR6][R28.64]")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (weak_poll, "times plain LDG of 16 bytes"),
        (read_only_poll, "1 times CONSTANT LDG of 16 bytes, not 0"),
        (send_of_gpu_scope, "3 times GPU STG of 16 bytes, not 2"),
        (narrow_send, "1 times SYS STG of 8 bytes, not 0"),
        (spill, "local memory is accessed: {'STL.128': 1}"),
        (generic_store, "memory is accessed by other means than LDG and STG: {'ST.E.128': 1}"),
        (fence, "fences without an election: {'MEMBAR.SC.GPU': 1}"),
        (counter, "'REDG.E.ADD.STRONG.SYS'"),
        (no_wait, "griddepcontrol.wait, unconditional, is there 0 times"),
        (conditional_wait, "griddepcontrol.wait, unconditional, is there 1 times"),
        (load_before_the_wait, "before griddepcontrol.wait: {'LDG.E': 1}"),
        (exit_before_the_wait, "before griddepcontrol.wait: {'EXIT': 1}"),
        (early_trigger, "before the block barrier: {'PREEXIT': 1}"),
        (poll_behind_the_barrier, "after the block barrier: {'LDG.E.128.STRONG.SYS': 1}"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_changed_instruction_is_found(
    change: Callable[[Kernel], Kernel], told: str, installed: dict[Variant, Compiled]
) -> None:
    sound = installed[VARIANT]
    found = findings(replace(sound, kernel=change(sound.kernel))) - findings(sound)
    assert any(told in finding for finding in found), found


def relaxed_flag(kernel: Kernel) -> Kernel:
    flag = next(i for i in sorted(checks.path(kernel)) if checks.access(kernel, i) == Access("LDG", 4, "ACQUIRE"))
    return plant(kernel, flag + 1, "NOP")


def flag_without_a_fence(kernel: Kernel) -> Kernel:
    return plant(kernel, kernel.find("MEMBAR")[0], "NOP")


def read_of_gpu_scope(kernel: Kernel) -> Kernel:
    return plant(kernel, first(kernel, "LDG.E.128.STRONG.SYS"), "LDG.E.128.STRONG.GPU R20, desc[UR6][R28.64]")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (relaxed_flag, "0 times ACQUIRE LDG of 4 bytes, not 1 to 2"),
        (flag_without_a_fence, "fences other than {'MEMBAR.ALL.SYS': 2}"),
        (read_of_gpu_scope, "3 times GPU LDG of 16 bytes, not 2"),
        (early_trigger, "before the block barrier: {'PREEXIT': 1"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_changed_instruction_of_pull_is_found(
    change: Callable[[Kernel], Kernel], told: str, installed: dict[Variant, Compiled]
) -> None:
    sound = installed[PULL]
    found = findings(replace(sound, kernel=change(sound.kernel)), PULL) - findings(sound, PULL)
    assert any(told in finding for finding in found), found


def test_a_stack_frame_is_found(installed: dict[Variant, Compiled]) -> None:
    found = findings(replace(installed[VARIANT], stack=16)) - findings(installed[VARIANT])
    assert found == {"a stack frame of 16 bytes, 0 bytes of local memory"}
