"""Who asks the communicator in a group's `ca_comm`, what, and after whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .contract import Finding, Seam, broken, fits
from .sglang_groups import CASES, GROUP, adapter_face
from .source import Function, Tree, calls

METHODS = ("all_reduce", "_resolve_outplace_all_reduce_method")
ASKS = "should_custom_ar"

# What may reduce a tensor before a custom all-reduce is asked, by what stands in the condition, and why that is no
# matter. In order of appearance; what is not here is found.
BEFORE = {
    "world_size == 1": "nothing to reduce",
    "use_deterministic_ar": "AMD alone",
    "inp_size < self.ca_comm.max_size": "AMD alone",
    "input_.is_cpu and": "AMD alone",
    "input_.is_cpu": "CPU ranks stand in front of it",
    "hpu_communicator": "another make",
    "xpu_communicator": "another make",
    "npu_communicator": "another make",
    "is_compiling": "traced: decided when it runs, by the same question",
    "is_symmetric_memory_enabled": "we give way to it",
    "_can_use_flashinfer_allreduce": "needs NVLink",
    "should_use_pymscclpp_allreduce": "we give way to it",
    "outplace_all_reduce_method is not None": "the answer itself",
    "self.ca_comm is None": "there is none",
}


def order(tree: Tree) -> Finding:
    """Nothing that is not known reduces a tensor before `should_custom_ar` is asked, and a yes leads to us."""
    reduces, asks = (tree.function(f"{GROUP}.{name}") for name in METHODS)
    runs = tree.function(f"{GROUP}._all_reduce_out_place")
    if reduces is None or runs is None:
        return broken("GroupCoordinator has no all_reduce or no _all_reduce_out_place")
    if not any("ca_comm.custom_all_reduce(input_)" in ast.unparse(call) for call in calls(runs, "custom_all_reduce")):
        return broken("_all_reduce_out_place does not call ca_comm.custom_all_reduce(input_)")
    handed_on = calls(reduces, METHODS[1])
    asked = calls(reduces if asks is None or not handed_on else asks, ASKS)
    if not asked:
        return broken(f"all_reduce does not ask {ASKS}")
    way = [(reduces, asked[0])] if asks is None or not handed_on else [(reduces, handed_on[-1]), (asks, asked[0])]
    if "not self.ca_comm.disabled" not in ast.unparse(way[-1][0]):
        return broken("all_reduce does not look whether ca_comm is disabled")
    for function, call in way:
        first = [test for test in _answers_before(function, call) if not any(known in test for known in BEFORE)]
        if first:
            return broken(f"`if {first[0]}` reduces before {ASKS} is asked")
    sequence = _sequence(tree)
    if "pcie_ipc" in sequence and sequence.index("pcie_ipc") < sequence.index("custom"):
        return broken("SGLang's own for PCIe is asked before a custom all-reduce")
    return fits(", then ".join(sequence))


def _answers_before(function: Function, call: ast.Call) -> list[str]:
    """The conditions under which a function has returned before a call."""
    return [
        ast.unparse(node.test)
        for node in ast.walk(function)
        if isinstance(node, ast.If)
        and node.lineno < call.lineno
        and any(isinstance(child, ast.Return) and child.lineno < call.lineno for child in ast.walk(node))
    ]


def _sequence(tree: Tree) -> list[str]:
    """The order in which some are asked; what depends on a platform or a build is left out."""
    named = {
        "with self.pynccl_comm.change_state": "symmetric memory",
        "ca_comm.should_custom_ar": "custom",
        "should_pcie_ipc_ar": "pcie_ipc",
    }
    methods = [tree.function(f"{GROUP}.{name}") for name in METHODS]
    text = "\n".join(ast.unparse(method) for method in methods if method is not None)
    return [name for _, name in sorted((text.index(part), name) for part, name in named.items() if part in text)]


def duck(tree: Tree) -> Finding:
    """Every attribute that SGLang reads off a `ca_comm`, unasked, is one of ours."""
    face = adapter_face()
    for path, attribute, line in reads(tree):
        if attribute not in face:
            return broken(f"{path}:{line} reads ca_comm.{attribute}, which ours has not")
    return fits(", ".join(sorted({attribute for _, attribute, _ in reads(tree)})))


def reads(tree: Tree) -> Iterator[tuple[str, str, int]]:
    """File, attribute and line of what is read off a `ca_comm`, or off a name that a function has given it. Not what a
    function has asked for before, nor what it does on AMD's GPUs alone. Other functions that it is handed to are not
    followed."""
    for path, module in tree.naming("sglang/srt", "ca_comm"):
        for function in (node for node in ast.walk(module) if isinstance(node, Function)):
            names = _names_of(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    owner = ast.unparse(node.value)
                    mine = owner in names or owner.endswith(".ca_comm")
                    if mine and not _asked_before(function, owner, node):
                        yield path, node.attr, node.lineno


def _names_of(function: Function) -> set[str]:
    return {
        ast.unparse(target)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".ca_comm")
        for target in node.targets
    }


def _asked_before(function: Function, owner: str, read: ast.Attribute) -> bool:
    """Whether the function has looked for the attribute, or for the class of SGLang's own, on an earlier line or on
    this one, or whether the read stands where only AMD's GPUs come."""
    whole = ast.unparse(function)
    if f"hasattr({owner}, '{read.attr}')" in whole or any(asks in whole for asks in ASKING_METHODS):
        return True
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and node.lineno <= read.lineno
            and ast.unparse(node).startswith(f"isinstance({owner},")
        ):
            return True
        if isinstance(node, ast.If) and any(name in ast.unparse(node.test) for name in AMD):
            inside = node.lineno <= read.lineno <= (node.end_lineno or 0)
            leaves = isinstance(node.body[-1], ast.Return) and ast.unparse(node.test).startswith("not ")
            if inside or (leaves and node.lineno < read.lineno):
                return True
    return False


AMD = ("is_hip()", "use_deterministic_ar", "_has_aiter_custom")
ASKING_METHODS = ("self._has_aiter_custom_all_gather()", "self._has_aiter_custom_reduce_scatter()")


SEAMS = (
    Seam(
        "order of `all_reduce`",
        (),
        order,
        (
            f"{CASES}the_way_of_gpu_tensors_ends_here_up_to_the_limit",
            f"{CASES}what_is_compiled_is_served_by_the_same_question",
            f"{CASES}pcie_ipc_gets_what_is_not_served_here",
        ),
    ),
    Seam("what is read off `ca_comm`", (), duck, (f"{CASES}the_way_of_gpu_tensors_ends_here_up_to_the_limit",)),
)
