from __future__ import annotations

import pytest
from sm120.kernels import Variant, variant_of
from sm120.sass import Instruction, read_instruction, read_kernels

LISTING = """
	.target	sm_120

//--------------------- .text.first --------------------------
	.section	.text.first,"ax",@progbits
.text.first:
        .type           first,@function
first:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/                   ACQBULK ;
.L_x_1:
        /*0020*/                   LDG.E.128.STRONG.SYS R8, desc[UR6][R2.64+0x80] ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
        /*0040*/               @P1 EXIT ;
        /*0050*/                   BRX R28 -0xd30                             (*"BRANCH_TARGETS .L_x_1,.L_x_2"*);
        /*0060*/                   CS2R R38, SR_GLOBALTIMERLO ;
.L_x_2:
        /*0070*/                   BRA P2, `(.L_x_1) ;
        /*0080*/                   BRA.U !UP0, `(.L_x_3) ;
        /*0090*/                   CALL.REL.NOINC `(helper) ;
        /*00a0*/                   EXIT ;
helper:
        /*00b0*/                   RET.REL.NODEC R20 `(first) ;
.L_x_3:
        /*00c0*/                   BRA `(.L_x_3);
        /*00d0*/                   NOP;
//--------------------- .text.second --------------------------
.text.second:
        /*0000*/                   EXIT ;
//--------------------- .nv.info --------------------------
"""


def read_one(line: str) -> Instruction:
    instruction = read_instruction(line)
    assert instruction is not None
    return instruction


@pytest.mark.parametrize(
    ("line", "predicate", "name", "size", "scope"),
    [
        ("  /*00a0*/   LDG.E.128.STRONG.GPU R16, desc[UR6][R6.64] ;", "", "LDG.E.128.STRONG.GPU", 16, "GPU"),
        ("  /*00b0*/   @P0 LDG.E.64.STRONG.SYS R42, desc[UR6][R6.64+0x10] ;", "P0", "LDG.E.64.STRONG.SYS", 8, "SYS"),
        ("  /*00c0*/   LDG.E.STRONG.SYS R8, desc[UR6][R8.64+0xc00] ;", "", "LDG.E.STRONG.SYS", 4, "SYS"),
        ("  /*00d0*/   @!PT STG.E.U16 desc[UR4][R2.64+0x2], R5 ;", "!PT", "STG.E.U16", 2, ""),
        ("  /*00e0*/   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;", "", "LDG.E.128.CONSTANT", 16, "CONSTANT"),
        ("  /*00f0*/   ERRBAR;", "", "ERRBAR", 4, ""),
        ("  /*1a50*/   @!UP1 UIADD3 UR4, UPT, UPT, UR4, -0x20, URZ ;", "!UP1", "UIADD3", 4, ""),
    ],
)
def test_an_instruction(line: str, predicate: str, name: str, size: int, scope: str) -> None:
    instruction = read_one(line)
    assert (instruction.predicate, instruction.name, instruction.bytes, instruction.scope) == (
        predicate,
        name,
        size,
        scope,
    )


def test_operands_and_address() -> None:
    instruction = read_one(
        "        /*0e70*/                   ATOMG.E.EXCH.STRONG.GPU PT, R9, desc[UR6][R14.64], R59 ;"
    )
    assert instruction == Instruction(
        0xE70, "", "ATOMG", ("E", "EXCH", "STRONG", "GPU"), "PT, R9, desc[UR6][R14.64], R59"
    )


@pytest.mark.parametrize(
    "line", ["", "first:", "\t.align\t128", "//--- .text.first ---", "        .type  first,@function"]
)
def test_lines_that_are_no_instructions(line: str) -> None:
    assert read_instruction(line) is None


@pytest.mark.parametrize("line", ["  /*0000*/   @Q0 EXIT ;", "  /*0010*/   EXIT", "  /*0020*/   ???;"])
def test_an_instruction_that_is_not_understood_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="not understood"):
        read_instruction(line)


def test_flow() -> None:
    kernels = read_kernels(LISTING)
    assert list(kernels) == ["first", "second"]
    first = kernels["first"]
    assert len(first.code) == 14
    assert len(kernels["second"].code) == 1
    loop, table, helper, tail = 2, 7, 11, 12
    assert first.successors == (
        (1,),
        (2,),
        (3,),
        (4, loop),
        (5,),  # a predicated EXIT
        (loop, table),
        (7,),
        (8, loop),  # conditional by its operand
        (9, tail),
        (10, helper),
        (),
        (),
        (tail,),
        (),
    )
    assert first.reachable() == {0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12}
    assert first.reachable(frozenset({loop})) == {0, 1}
    assert first.after(8) == {9, 10, 11, 12}
    assert first.find("EXIT") == [4, 10]


def test_a_jump_to_nowhere_is_an_error() -> None:
    kernels = read_kernels("//- .text.k -\n        /*0000*/   BRA `(.L_x_9) ;\n        /*0010*/   BRX R2 -0x10 ;\n")
    with pytest.raises(ValueError, match="cannot be read"):
        kernels["k"].reachable()


def test_variants_of_mangled_names() -> None:
    space = "_ZN14pcie_allreduce4cuda43_GLOBAL__N__c91d1a0b_6_dev_cu_7dcedd84_7826"
    pairs = "12run_one_shotINS0_5PairsINS0_9BrainHalfEEELi2ELNS0_5ShareE1EEEvNS0_10CallParamsE"
    assert variant_of(space + pairs) == Variant("one_shot", "bfloat16", 2, "packs")
    floats = "12run_two_shotINS0_7Float32ELi7ELNS0_5ShareE2EEEvNS0_10CallParamsE"
    assert variant_of(space + floats) == Variant("two_shot", "float32", 7, "elements")
    halves = "10run_islandINS0_5PairsINS0_8IeeeHalfEEELi4ELNS0_5ShareE0EEEvNS0_10CallParamsE"
    assert variant_of(space + halves) == Variant("island", "float16", 8, "one pack")
    fused = "16run_fused_islandINS0_5PairsINS0_9BrainHalfEEELi3EEEvNS0_11FusedParamsE"
    assert variant_of(space + fused) == Variant("fused_island", "bfloat16", 6, "one pack", clustered=True)
    assert variant_of(space + "17copy_packs_kernelEPNS_4PackEPKS2_j") is None
