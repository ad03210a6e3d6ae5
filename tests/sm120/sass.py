"""Reads what `nvdisasm -c` prints. A line that looks like an instruction and is not understood is an error, and so
is a jump whose target is not known: a check that reads half a kernel would pass for the wrong reason."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

SECTION = re.compile(r"^//-+ \.text\.(\S+) -+$")
LABEL = re.compile(r"^([.$\w]+):$")
ADDRESSED = re.compile(r"^\s*/\*[0-9a-f]+\*/")
INSTRUCTION = re.compile(
    r"""^\s* /\*(?P<address>[0-9a-f]+)\*/ \s+
        (?:@(?P<predicate>!?U?P[0-9T]+)\s+)?
        (?P<opcode>[A-Z][A-Z0-9_]*)(?P<modifiers>(?:\.[A-Z0-9_]+)*)
        \s*(?P<operands>[^;]*?)\s*;""",
    re.VERBOSE,
)
TARGET = re.compile(r"`\((\S+)\)")
TARGETS = re.compile(r'\(\*"BRANCH_TARGETS ([^"]+)"\*\)')
CONDITION = re.compile(r"!?U?(?:P|R)\d")
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
ENDS = {"EXIT", "RET", "BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"}
JUMPS = {"CALL", *ENDS} - {"EXIT", "RET"}


@dataclass(frozen=True)
class Instruction:
    address: int
    predicate: str  # "P0", "!P3", or "" for always
    opcode: str  # "LDG"
    modifiers: tuple[str, ...]  # ("E", "128", "STRONG", "SYS")
    operands: str

    @property
    def name(self) -> str:
        return ".".join((self.opcode, *self.modifiers))

    @property
    def bytes(self) -> int:
        """Of one lane's memory access: four where no modifier says otherwise."""
        return next((WIDTHS[modifier] for modifier in self.modifiers if modifier in WIDTHS), 4)

    @property
    def scope(self) -> str:
        """ "SYS" or "GPU" of a strong access; "CONSTANT" of one through the read-only path; "" of a plain one."""
        if "STRONG" in self.modifiers:
            return self.modifiers[self.modifiers.index("STRONG") + 1]
        return "CONSTANT" if "CONSTANT" in self.modifiers else ""

    @property
    def targets(self) -> tuple[str, ...]:
        """Labels; of an indirect branch those that nvdisasm found."""
        table = TARGETS.search(self.operands)
        return tuple(table.group(1).split(",")) if table else tuple(TARGET.findall(self.operands))

    @property
    def falls_through(self) -> bool:
        """Whether a lane may go on to the next instruction."""
        if self.opcode not in ENDS or self.predicate:
            return True
        return self.opcode == "BRA" and CONDITION.match(self.operands) is not None


@dataclass(frozen=True)
class Kernel:
    name: str  # mangled
    code: tuple[Instruction, ...]
    labels: dict[str, int]  # to an index into `code`

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._next(index) for index in range(len(self.code)))

    def reachable(self, stops: frozenset[int] = frozenset()) -> set[int]:
        """Indices that a lane may come to from the entry without executing any of `stops`; of those, none."""
        return self._spread([0], stops)

    def after(self, index: int, stops: frozenset[int] = frozenset()) -> set[int]:
        """The same from behind an instruction."""
        return self._spread([*self.successors[index]], stops)

    def find(self, *opcodes: str) -> list[int]:
        return [index for index, instruction in enumerate(self.code) if instruction.opcode in opcodes]

    def names(self, indices: set[int]) -> Counter[str]:
        return Counter(self.code[index].name for index in indices)

    def _spread(self, open_ends: list[int], stops: frozenset[int]) -> set[int]:
        found: set[int] = set()
        while open_ends:
            index = open_ends.pop()
            if index not in found and index not in stops:
                found.add(index)
                open_ends += self.successors[index]
        return found

    def _next(self, index: int) -> tuple[int, ...]:
        instruction = self.code[index]
        following = (index + 1,) if instruction.falls_through and index + 1 < len(self.code) else ()
        if instruction.opcode not in JUMPS:
            return following
        if not instruction.targets or not self.labels.keys() >= set(instruction.targets):
            raise ValueError(f"{self.name}: where {instruction} goes cannot be read")
        return (*following, *(self.labels[target] for target in instruction.targets))


def read_instruction(line: str) -> Instruction | None:
    """None for a line that is none. Raises ValueError for one that has an address and is not understood."""
    if not ADDRESSED.match(line):
        return None
    found = INSTRUCTION.match(line)
    if found is None:
        raise ValueError(f"not understood: {line!r}")
    modifiers = tuple(found["modifiers"].split(".")[1:])
    predicate = found["predicate"] or ""
    return Instruction(int(found["address"], 16), predicate, found["opcode"], modifiers, found["operands"])


def read_kernels(text: str) -> dict[str, Kernel]:
    """By mangled name, from the disassembly of one cubin."""
    kernels: dict[str, Kernel] = {}
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    name = ""
    for line in [*text.splitlines(), "//- .text.end -"]:
        section = SECTION.match(line)
        if section:
            if code:
                kernels[name] = Kernel(name, tuple(code), labels)
            name, code, labels = section.group(1), [], {}
        elif label := LABEL.match(line):
            labels[label.group(1)] = len(code)
        elif instruction := read_instruction(line):
            code.append(instruction)
    return kernels
