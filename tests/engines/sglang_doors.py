"""How this package gets into SGLang's processes: plug-ins, the registry of hooks, flags, and the launcher of ours."""

from __future__ import annotations

import ast

from pcie_allreduce.integrations import hooks, sglang

from .contract import Finding, Seam, broken, first_broken, fits, refused
from .source import Tree, calls, comes_first, decorators, parameters, runs_as_main

ENTRY_POINTS = "sglang.srt.plugins"  # as pyproject.toml names them
NO_PLUGINS = "before 0.5.11 there are no plug-ins: `sglang_launch` is the door"
REGISTRY = f"{hooks.REGISTRY}.HookRegistry"
KINDS = f"{hooks.REGISTRY}.HookType"
ROUTING, SERVER = "test_routing.py", "test_server.py"
DOOR = f"{ROUTING}::test_flags_become_variables_and_installing_twice_is_installing_once"


def entry_points(tree: Tree) -> Finding:
    """SGLang calls the plug-ins of our group with no argument, and applies their hooks afterwards."""
    plugins = "sglang.srt.plugins"
    load = tree.function(f"{plugins}.load_plugins")
    if tree.module("sglang/srt/plugins/__init__.py") is None:
        return refused(NO_PLUGINS)
    if load is None:
        return broken(f"{plugins} has no load_plugins")
    group = tree.find(f"{plugins}.GENERAL_PLUGINS_GROUP")
    if not isinstance(group, ast.Assign) or ast.literal_eval(group.value) != ENTRY_POINTS:
        return broken(f"the entry points are not {ENTRY_POINTS}")
    told = first_broken(
        None if calls(load, "load_plugins_by_group") else "load_plugins asks for no group of entry points",
        None if any(not call.args and not call.keywords for call in calls(load, "func")) else "no plug-in is called",
        None if comes_first(load, "func", "apply_hooks") else "hooks are applied before plug-ins have registered them",
        None if calls(load, "apply_hooks") else "hooks are not applied",
    )
    return told or fits(ENTRY_POINTS)


LOADS = (  # file, function (None: what runs as the main module), what must come later, by one name or another
    ("launch_server.py", None, ("prepare_server_args",)),
    ("cli/serve.py", "serve", ("run", "run_server")),
    ("srt/entrypoints/engine.py", "Engine.__init__", ("server_args_class",)),
    ("srt/managers/scheduler.py", "run_scheduler_process", ("Scheduler",)),
)


def loaded_in_time(tree: Tree) -> Finding:
    """In the launcher before arguments are parsed, in every rank before it makes anything."""
    if tree.module("sglang/srt/plugins/__init__.py") is None:
        return refused(NO_PLUGINS)
    for path, function, later in LOADS:
        module = tree.module(f"sglang/{path}")
        if module is None:
            return broken(f"there is no {path}")
        dotted = f"sglang.{path.removesuffix('.py').replace('/', '.')}.{function}"
        node = tree.function(dotted) if function else runs_as_main(module)
        if node is None or not _loads(node, later):
            return broken(f"{path}: {function or 'the main module'} does not load plug-ins before {' or '.join(later)}")
    return fits("launcher, `sglang serve`, Engine, every rank")


def _loads(node: ast.AST, later: tuple[str, ...]) -> bool:
    """But for help, which is printed before: the last call counts."""
    loads, then = calls(node, "load_plugins"), [call for name in later for call in calls(node, name)]
    return bool(loads) and bool(then) and loads[0].lineno < then[-1].lineno


def registry(tree: Tree) -> Finding:
    """`HookRegistry.register(target, hook, HookType.AROUND)`, and such a hook gets the original first."""
    if tree.find(hooks.REGISTRY.rsplit(".", 1)[0] + ".hook_registry") is None and tree.find(REGISTRY) is None:
        return refused(NO_PLUGINS)
    register = tree.function(f"{REGISTRY}.register")
    if register is None:
        return broken(f"there is no {REGISTRY}.register")
    kinds = tree.find(KINDS)
    wrap = tree.function(f"{hooks.REGISTRY}._wrap_fn")
    passes = wrap is not None and any(
        ast.unparse(call) == "hook(original_fn, *args, **kwargs)" for call in calls(wrap, "hook")
    )
    told = first_broken(
        None
        if parameters(register)[:4] == ["cls", "target", "hook", "hook_type"]
        else f"register takes {', '.join(parameters(register))}",
        None if "classmethod" in decorators(register) else "register is no class method",
        None if kinds is not None and "AROUND" in ast.unparse(kinds) else "there is no HookType.AROUND",
        None if passes else "a hook of the kind AROUND does not get the original first",
    )
    return told or fits()


def flags(tree: Tree) -> Finding:
    """The parser and what is made of its result are the two functions that are hooked, in this order."""
    adds = tree.function(f"{sglang.ARGUMENTS}.add_cli_args")
    makes = tree.function(f"{sglang.ARGUMENTS}.from_cli_args")
    prepares = tree.function("sglang.srt.server_args.prepare_server_args")
    if adds is None or makes is None or prepares is None:
        return broken("add_cli_args, from_cli_args or prepare_server_args is not there")
    told = first_broken(
        None if parameters(adds) == ["parser"] else f"add_cli_args takes {', '.join(parameters(adds))}",
        None if "staticmethod" in decorators(adds) else "add_cli_args is no static method",
        None if parameters(makes) == ["cls", "args"] else f"from_cli_args takes {', '.join(parameters(makes))}",
        None if "classmethod" in decorators(makes) else "from_cli_args is no class method",
        None if calls(prepares, "from_cli_args") else "prepare_server_args does not call from_cli_args",
        None if comes_first(prepares, "add_cli_args", "from_cli_args") else "arguments are made before flags are added",
    )
    return told or fits()


def launcher(tree: Tree) -> Finding:
    """`sglang_launch` runs launch_server as the main module, and rests on spawn to run in every rank again."""
    module = tree.module("sglang/launch_server.py")
    engine = tree.module("sglang/srt/entrypoints/engine.py")
    if module is None or runs_as_main(module) is None:
        return broken("sglang.launch_server does nothing when it runs as the main module")
    starts = [] if engine is None else calls(engine, "set_start_method")
    if not any("spawn" in ast.unparse(call) for call in starts):
        return broken("ranks are not started by spawn")
    return fits()


def told_of_faults(tree: Tree) -> Finding:
    """A rank that ends the server sends its parent SIGQUIT; the launcher must act on it."""
    engine = tree.module("sglang/srt/entrypoints/engine.py")
    handlers = [] if engine is None else calls(engine, "signal")
    if not any("SIGQUIT" in ast.unparse(call) for call in handlers):
        return broken("the launcher has no handler for SIGQUIT")
    return fits()


def ray(tree: Tree) -> Finding:
    """Ray's actors are ranks that load no plug-ins; the flag `--use-ray` is refused where it is known."""
    actor = tree.module("sglang/srt/ray/scheduler_actor.py")
    if actor is None:
        return refused("there is no `--use-ray`")
    if calls(actor, "load_plugins"):
        return broken("actors load plug-ins: what refuses `--use-ray` can go")
    return refused("`--use-ray`: its actors load no plug-ins")


SEAMS = (
    Seam("entry points call us", (), entry_points, (DOOR,)),
    Seam(
        "plug-ins are loaded in launcher and ranks, in time",
        (),
        loaded_in_time,
        (
            f"{SERVER}::test_the_flag_serves_the_same_tokens_and_a_rank_that_stops_is_named",
            f"{SERVER}::test_other_versions_serve_the_same_tokens_by_the_flag",
        ),
    ),
    Seam("registry of hooks", (hooks.REGISTRY,), registry, (DOOR,)),
    Seam(
        "flags: `add_cli_args`, `from_cli_args`",
        (sglang.ARGUMENTS, f"{sglang.ARGUMENTS}.add_cli_args", f"{sglang.ARGUMENTS}.from_cli_args"),
        flags,
        (DOOR,),
    ),
    Seam(
        "`sglang_launch`: main module, spawn",
        ("sglang.launch_server",),
        launcher,
        (f"{SERVER}::test_the_old_sglang_serves_them_by_our_launcher_and_a_rank_that_is_killed_is_named",),
    ),
    Seam(
        "SIGQUIT ends the server",
        (),
        told_of_faults,
        (
            f"{SERVER}::test_the_flag_serves_the_same_tokens_and_a_rank_that_stops_is_named",
            f"{SERVER}::test_the_old_sglang_serves_them_by_our_launcher_and_a_rank_that_is_killed_is_named",
        ),
    ),
    Seam("Ray's actors", (), ray),
)
