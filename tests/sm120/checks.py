"""What is wrong with a compiled kernel, in sentences; nothing, in a good one. Each function looks at one promise."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sm120.expected import Access, beside_the_path, on_the_path, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm120.kernels import Compiled, Variant
    from sm120.sass import Kernel

ATOMICS = {"ATOM", "ATOMG", "RED", "REDG", "UREDG", "UREDGR"}
FENCES = {"MEMBAR", "FENCE", "ERRBAR", "CGAERRBAR", "CCTL"}
MEMORY = {"LDG", "STG", "LD", "ST", "LDL", "STL", *ATOMICS}
OTHER_MEMORY = {"LD", "ST", "LDS", "STS", "ATOMS", "REDAS", "LDGSTS", "UBLKCP", "UTMALDG", "SUST", "SULD", "TEX", "TLD"}


def access(kernel: Kernel, index: int) -> Access:
    step = kernel.code[index]
    acquires = step.opcode == "LDG" and kernel.code[index + 1].name == "CCTL.IVALL"
    return Access(step.opcode, step.bytes, "ACQUIRE" if acquires else step.scope)


def path(kernel: Kernel) -> set[int]:
    """Where a lane may come that has not waited for long and not stood for election: indices of instructions. A wait is
    long when the clock is read and then abort words, before the data or the clock is looked at again."""
    elections = frozenset(kernel.find(*ATOMICS))
    data = (Access("LDG", 16, "SYS"), Access("LDG", 4, "ACQUIRE"))
    polls = frozenset(index for index in kernel.find("LDG") if access(kernel, index) in data)
    words = {index for index in kernel.find("LDG") if access(kernel, index) == Access("LDG", 4, "SYS")}
    clocks = [index for index, step in enumerate(kernel.code) if "GLOBALTIMER" in step.operands]
    stops = elections | polls | frozenset(clocks) | frozenset(kernel.find("BAR"))
    return kernel.reachable(elections | {clock for clock in clocks if kernel.after(clock, stops) & words})


def accesses(kernel: Kernel, indices: set[int]) -> Counter[Access]:
    return Counter(access(kernel, index) for index in indices if kernel.code[index].opcode in ("LDG", "STG"))


def resources(compiled: Compiled, _: Variant) -> Iterator[str]:
    if compiled.stack or compiled.local:
        yield f"a stack frame of {compiled.stack} bytes, {compiled.local} bytes of local memory"
    spills = compiled.kernel.names(set(compiled.kernel.find("LDL", "STL")))
    if spills:
        yield f"local memory is accessed: {dict(spills)}"


def memory_on_the_path(compiled: Compiled, variant: Variant) -> Iterator[str]:
    yield from _differences(accesses(compiled.kernel, path(compiled.kernel)), on_the_path(variant))


def memory_beside_the_path(compiled: Compiled, variant: Variant) -> Iterator[str]:
    kernel = compiled.kernel
    beside = set(range(len(kernel.code))) - path(kernel)
    yield from _differences(accesses(kernel, beside), beside_the_path(variant))


def only_global_memory(compiled: Compiled, variant: Variant) -> Iterator[str]:
    """And in a fused kernel the shared memory of its block, or its cluster; where a warp looks ahead, of its block."""
    allowed = {"LDS", "STS"} if variant.fused else ({"LDS", "STS", "ATOMS"} if steps_of(variant).ahead else set())
    found = compiled.kernel.names(set(compiled.kernel.find(*(OTHER_MEMORY - allowed))))
    if found:
        yield f"memory is accessed by other means than LDG and STG: {dict(found)}"


def one_election_one_fence(compiled: Compiled, variant: Variant) -> Iterator[str]:
    """The record's fence; where slabs are staged, that of what was re-armed; and one before the flags of a stage."""
    kernel = compiled.kernel
    steps = steps_of(variant)
    more = steps.staged + steps.flags
    elections = kernel.find(*ATOMICS)
    if (names := kernel.names(set(elections))) != {"ATOMG.E.EXCH.STRONG.GPU": 1}:
        yield f"atomics other than one election: {dict(names)}"
    fences = {"MEMBAR.ALL.SYS": 1 + more, **({"MEMBAR.ALL.CTA": 1} if variant.clustered else {})}  # beside it
    # FENCE.VIEW.ASYNC.S concerns the block's own shared memory, in which a cluster's barrier is made.
    found = {index for index in kernel.find("MEMBAR", "FENCE") if kernel.code[index].name != "FENCE.VIEW.ASYNC.S"}
    if (names := kernel.names(found)) != fences:
        yield f"fences other than {fences}: {dict(names)}"
    unelected = kernel.reachable(frozenset(elections)) & found
    if len(unelected) != more:
        yield f"fences without an election: {dict(kernel.names(unelected))}"


def waits_for_its_predecessor(compiled: Compiled, _: Variant) -> Iterator[str]:
    """griddepcontrol.wait comes first: in every thread, on every path."""
    kernel = compiled.kernel
    waits = kernel.find("ACQBULK")
    if len(waits) != 1 or kernel.code[waits[0]].predicate:
        yield f"griddepcontrol.wait, unconditional, is there {len(waits)} times"
    before = kernel.reachable(frozenset(waits)) & set(kernel.find("EXIT", *MEMORY))
    if before:
        yield f"before griddepcontrol.wait: {dict(kernel.names(before))}"


def meetings(kernel: Kernel, variant: Variant) -> list[int]:
    """Where the threads of a block wait for each other; those of a cluster, for the last sum of squares."""
    if variant.clustered:
        return [index for index in kernel.find("SYNCS") if "PHASECHK" in kernel.code[index].modifiers]
    return kernel.find("BAR")


def lets_its_successor_start(compiled: Compiled, variant: Variant) -> Iterator[str]:
    """launch_dependents stands behind the last block barrier, which stands behind the last poll; so does the block's
    state, of which one half is the only access of its kind."""
    kernel = compiled.kernel
    triggers, barriers = kernel.find("PREEXIT"), meetings(kernel, variant)
    if steps_of(variant).flags or steps_of(variant).ahead:  # the last of them
        barriers = [one for one in barriers if not kernel.after(one) & set(barriers)]
    if len(triggers) != 1 or kernel.code[triggers[0]].predicate:
        yield f"griddepcontrol.launch_dependents, unconditional, is there {len(triggers)} times"
    before = kernel.reachable(frozenset(barriers))
    state = {
        index for index in kernel.find("STG") if (kernel.code[index].bytes, kernel.code[index].scope) == (8, "GPU")
    }
    early = before & (set(triggers) if steps_of(variant).staged else state | set(triggers))
    if early:
        yield f"before the block barrier: {dict(kernel.names(early))}"
    after = {later for barrier in barriers for later in kernel.after(barrier)}
    polls = {index for index in after if kernel.code[index].opcode == "LDG" and kernel.code[index].scope == "SYS"}
    if polls:
        yield f"after the block barrier: {dict(kernel.names(polls))}"


CHECKS = (
    resources,
    memory_on_the_path,
    memory_beside_the_path,
    only_global_memory,
    one_election_one_fence,
    waits_for_its_predecessor,
    lets_its_successor_start,
)


def _differences(found: Counter[Access], expected: dict[Access, tuple[int, int]]) -> Iterator[str]:
    for kind in sorted(found.keys() | expected.keys()):
        least, most = expected.get(kind, (0, 0))
        if not least <= found[kind] <= most:
            what = f"{kind.scope or 'plain'} {kind.opcode} of {kind.bytes} bytes"
            yield f"{found[kind]} times {what}, not {least if least == most else f'{least} to {most}'}"
