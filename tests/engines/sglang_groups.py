"""What is relied on of SGLang's GroupCoordinator, and of who makes one."""

from __future__ import annotations

import ast
import inspect

from pcie_allreduce.integrations import sglang, sglang_gather, sglang_group
from pcie_allreduce.integrations.adapter import EngineAllReduce

from .contract import Finding, Seam, broken, first_broken, fits
from .source import Function, Tree, calls, keyword, parameters

STATE = sglang_group.STATE
GROUP = f"{STATE}.GroupCoordinator"
MAKER = sglang.SEAM.rsplit(".", 1)[1]
ROUTING = "test_routing.py"
CASES = f"{ROUTING}::test_"


def makers(tree: Tree) -> Finding:
    """The hooked function takes the switch, means SGLang's own by None, and makes all groups but the world's."""
    maker = tree.function(sglang.SEAM)
    if maker is None:
        return broken(f"there is no {sglang.SEAM}")
    if sglang_group.SWITCH not in parameters(maker):
        return broken(f"{MAKER} takes no {sglang_group.SWITCH}")
    given = [keyword(call, sglang_group.SWITCH) for call in calls(maker, "GroupCoordinator")]
    module = tree.module(STATE.replace(".", "/") + ".py")
    assert module is not None
    others = [
        function.name
        for function in module.body
        if isinstance(function, Function) and function.name != MAKER and calls(function, "GroupCoordinator")
    ]
    told = first_broken(
        None if not maker.args.posonlyargs else f"{MAKER} takes arguments by position alone",
        None if given == [sglang_group.SWITCH] else f"{MAKER} does not hand on {sglang_group.SWITCH}",
        None if others == ["init_world_group"] else f"groups are made by {', '.join(others)}, too",
        None if served(tree).get("tp") else "tp is made without a custom all-reduce",
    )
    return told or fits("custom all-reduce for " + ", ".join(name for name, own in served(tree).items() if own))


def served(tree: Tree) -> dict[str, bool]:
    """Groups by name, and whether SGLang would give them a custom all-reduce: those alone are served."""
    module = tree.module(STATE.replace(".", "/") + ".py")
    assert module is not None
    return {
        ast.literal_eval(name): keyword(call, sglang_group.SWITCH) in (None, "None")
        for call in calls(module, MAKER)
        if (name := keyword(call, "group_name")) is not None
    }


def allowed(tree: Tree) -> Finding:
    """What --disable-custom-all-reduce sets, and what the hooked function reads when it is given None."""
    name = sglang_group.ALLOWED.rsplit(".", 1)[1]
    maker, setter = tree.function(sglang.SEAM), tree.function(f"{STATE}.set_custom_all_reduce")
    told = first_broken(
        None if tree.find(sglang_group.ALLOWED) is not None else f"there is no {sglang_group.ALLOWED}",
        None if setter is not None and name in ast.unparse(setter) else f"set_custom_all_reduce does not set {name}",
        None if maker is not None and name in ast.unparse(maker) else f"{MAKER} does not read {name}",
    )
    return told or fits()


def attributes(tree: Tree) -> Finding:
    """All that is read from a group or put in its place."""
    group = tree.find(GROUP)
    if not isinstance(group, ast.ClassDef):
        return broken(f"there is no {GROUP}")
    known = {node.name for node in group.body if isinstance(node, Function)}
    known |= {
        target.attr
        for node in ast.walk(group)
        for target in _targets(node)
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    }
    gone = [name for name in sglang_group.GROUP if name not in known]
    return broken(f"GroupCoordinator has no {', '.join(gone)}") if gone else fits()


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def dispatch(tree: Tree) -> Finding:
    """SGLang's own is put back by the call that SGLang makes."""
    function = tree.function(sglang_group.DISPATCH)
    if function is None:
        return broken(f"there is no {sglang_group.DISPATCH}")
    if parameters(function) not in ([], ["group", "device"]):
        return broken(f"dispatch_custom_allreduce takes {', '.join(parameters(function))}")
    made = [ast.unparse(call) for call in calls(tree.function(f"{GROUP}.__init__") or ast.Module([], []), "CAClass")]
    if made != ["CAClass(group=self.cpu_group, device=self.device)"]:
        return broken(f"its class is called as {made}")
    return fits(f"takes {', '.join(parameters(function)) or 'nothing'}")


def captured(tree: Tree) -> Finding:
    """Capturing a group's graphs enters its communicator's `capture()`, and capturing a forward enters tp's."""
    inner, outer = tree.function(f"{GROUP}.graph_capture"), tree.function(f"{STATE}.graph_capture")
    if inner is None or outer is None:
        return broken("there is no graph_capture")
    told = first_broken(
        None if "ca_comm.capture()" in ast.unparse(inner) else "GroupCoordinator.graph_capture enters no capture()",
        None if "get_tp_group().graph_capture(" in ast.unparse(outer) else "graph_capture does not enter tp's",
    )
    return told or fits()


def gathers(tree: Tree) -> Finding:
    """All-gathers end in the method that is replaced, with its arguments in the order of ours."""
    first, last = sglang_gather.NAMES
    begins, ends = (tree.function(f"{GROUP}.{name}") for name in (first, last))
    operator = tree.function(f"{STATE}.reg_all_gather_into_tensor")
    if begins is None or ends is None or operator is None:
        return broken(f"GroupCoordinator has no {first} or no {last}, or there is no operator around it")
    told = first_broken(
        None
        if parameters(begins)[:3] == ["self", "input_", "dim"]
        else f"{first} takes {', '.join(parameters(begins))}",
        None if f"group.{last}(output, input)" in ast.unparse(operator) else f"the operator does not call {last}",
        None if "self.all_gather_into_tensor(" in ast.unparse(begins) else f"{first} goes another way",
    )
    return told or fits()


def adapter_face() -> set[str]:
    """What our object in the place of `ca_comm` answers to."""
    made = ast.walk(ast.parse(inspect.getsource(EngineAllReduce)))
    own = {target.attr for node in made for target in _targets(node) if isinstance(target, ast.Attribute)}
    return own | set(dir(EngineAllReduce))


SEAMS = (
    Seam(
        "`init_model_parallel_group`",
        (STATE, sglang.SEAM),
        makers,
        (
            f"{CASES}cpu_tensors_are_served_up_to_the_limit",
            f"{CASES}each_group_has_its_own",
            "test_groups.py::test_groups_are_served_as_sglang_would",
        ),
    ),
    Seam(
        "`--disable-custom-all-reduce`",
        (sglang_group.ALLOWED,),
        allowed,
        (f"{CASES}our_flag_wins_over_disable_custom_all_reduce_and_says_so_once",),
    ),
    Seam("a group's attributes", (), attributes, (f"{CASES}cpu_tensors_are_served_up_to_the_limit",)),
    Seam(
        "`dispatch_custom_allreduce`, to put SGLang's own back",
        (sglang_group.DISPATCH,),
        dispatch,  # on CPUs there is none of SGLang's own to put back
    ),
    Seam("all-gathers", (), gathers, (f"{CASES}all_gathers_are_served_where_that_is_asked_for",)),
    Seam("`graph_capture` enters our `capture()`", (), captured, (f"{CASES}cpu_tensors_are_served_up_to_the_limit",)),
)
