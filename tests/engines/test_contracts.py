"""A contract finds what it is about: each is shown SGLang in small, as it is and with one thing changed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from engines import miniature, sglang_doors, sglang_groups
from engines.contract import BROKEN, FITS, REFUSED, Finding
from engines.miniature import (
    ARGUMENTS,
    BATCH,
    BOUNDARY,
    COMMUNICATOR,
    CUSTOM,
    ENGINE,
    LAUNCH,
    LAYERNORM,
    NEW,
    OLD,
    OUTPUT,
    PLUGINS,
    RAY,
    REGISTRY,
    SCHEDULER,
    SERVE,
    STATE,
)
from engines.sglang_seams import SEAMS
from engines.source import Tree

from pcie_allreduce.integrations import sglang_group

INTEGRATIONS = Path(sglang_group.__file__).parent
ROOT = Path(__file__).resolve().parents[2]


def findings(root: Path) -> dict[str, Finding]:
    return {seam.look.__name__: seam.look(Tree(root)) for seam in SEAMS}


def test_both_fit_as_they_are(tmp_path: Path) -> None:
    new = findings(miniature.write(tmp_path / "new", NEW))
    assert {name: found.detail for name, found in new.items() if found.state != FITS} == {
        "ray": "`--use-ray`: its actors load no plug-ins"
    }
    assert new["makers"].detail == "custom all-reduce for tp, attention_tp"
    assert new["order"].detail == "custom, then symmetric memory, then pcie_ipc"
    assert new["duck"].detail == "capture, custom_all_reduce, disabled, should_custom_ar"
    old = findings(miniature.write(tmp_path / "old", OLD))
    assert {name for name, found in old.items() if found.state == REFUSED} == {
        "entry_points",
        "loaded_in_time",
        "registry",
        "ray",
    }
    assert not [found for found in old.values() if found.state == BROKEN]
    assert old["order"].detail == "symmetric memory, then custom"


CHANGES = [  # contract, whose file, what of it becomes what (None: the file goes), what is found
    ("entry_points", NEW, PLUGINS, '"sglang.srt.plugins"', '"sglang.addons"', "are not sglang.srt.plugins"),
    ("entry_points", NEW, PLUGINS, "def load_plugins()", "def load_all()", "no load_plugins"),
    ("entry_points", NEW, PLUGINS, "        func()", "        func(server_args)", "no plug-in is called"),
    ("entry_points", NEW, PLUGINS, "    HookRegistry.apply_hooks()", "    pass", "hooks are not applied"),
    ("entry_points", NEW, PLUGINS, "    for name", "    HookRegistry.apply_hooks()\n    for name", "applied before"),
    ("loaded_in_time", NEW, SCHEDULER, "    load_plugins()\n", "", "run_scheduler_process does not load"),
    ("loaded_in_time", NEW, SERVE, "    load_plugins()\n", "", "serve does not load"),
    ("loaded_in_time", NEW, ENGINE, "        load_plugins()\n", "", "Engine.__init__ does not load"),
    ("loaded_in_time", NEW, LAUNCH, "    load_plugins()\n", "", "the main module does not load"),
    ("loaded_in_time", NEW, LAUNCH, "1:])", "1:])\n    load_plugins()", None),
    ("loaded_in_time", NEW, SERVE, None, None, "there is no cli/serve.py"),
    (
        "registry",
        NEW,
        REGISTRY,
        "def register(",
        "def add(",
        "no sglang.srt.plugins.hook_registry.HookRegistry.register",
    ),
    ("registry", NEW, REGISTRY, "target, hook,", "hook, target,", "register takes cls, hook, target"),
    ("registry", NEW, REGISTRY, 'AROUND = "around"', 'INSTEAD = "instead"', "no HookType.AROUND"),
    ("registry", NEW, REGISTRY, "hook(original_fn, ", "hook(", "does not get the original first"),
    (
        "flags",
        NEW,
        ARGUMENTS,
        "def from_cli_args(cls, args)",
        "def from_cli_args(cls, args, env)",
        "takes cls, args, env",
    ),
    ("flags", NEW, ARGUMENTS, "    @staticmethod\n", "    @classmethod\n", "no static method"),
    ("flags", NEW, ARGUMENTS, "def add_cli_args", "def add_arguments", "is not there"),
    ("launcher", OLD, LAUNCH, "if __name__", "if started", "does nothing"),
    ("launcher", OLD, ENGINE, '"spawn"', '"fork"', "not started by spawn"),
    ("told_of_faults", OLD, ENGINE, "signal.SIGQUIT, ", "signal.SIGTERM, ", "no handler for SIGQUIT"),
    ("ray", NEW, RAY, ": ...", ":\n    def __init__(self):\n        load_plugins()", "can go"),
    ("makers", NEW, STATE, "use_custom_allreduce=None, group_name", "custom=None, group_name", "takes no use_custom"),
    ("makers", OLD, STATE, "def init_model_parallel_group", "def make_group", "there is no sglang.srt"),
    ("makers", NEW, STATE, "use_custom_allreduce=use_custom_allreduce", "custom=True", "does not hand on"),
    (
        "makers",
        NEW,
        STATE,
        "def graph_capture():",
        "def more():\n    GroupCoordinator([])\n\ndef graph_capture():",
        "by init_world_group, more",
    ),
    (
        "makers",
        NEW,
        STATE,
        'ranks, group_name="tp"',
        'ranks, use_custom_allreduce=False, group_name="tp"',
        "tp is made",
    ),
    ("allowed", NEW, STATE, "_ENABLE_CUSTOM_ALL_REDUCE = True", "_CUSTOM = True", "there is no"),
    (
        "allowed",
        NEW,
        STATE,
        "        use_custom_allreduce = _ENABLE_CUSTOM_ALL_REDUCE",
        "        pass",
        "does not read",
    ),
    ("attributes", NEW, STATE, "self.rank_in_group = ", "", "has no rank_in_group"),
    ("attributes", OLD, STATE, "def _all_reduce_in_place", "def _reduce_in_place", "has no _all_reduce_in_place"),
    ("dispatch", NEW, CUSTOM, "(group, device)", "(group, device, dtype)", "takes group, device, dtype"),
    ("dispatch", OLD, STATE, "CAClass(group=self.cpu_group, ", "CAClass(self, ", "is called as"),
    ("gathers", NEW, STATE, "def _all_gather_into_tensor(", "def _gather_into(", "no _all_gather_into_tensor"),
    (
        "gathers",
        NEW,
        STATE,
        "all_gather(self, input_, dim=-1",
        "all_gather(self, dim, input_",
        "all_gather takes self, dim",
    ),
    (
        "gathers",
        NEW,
        STATE,
        "group._all_gather_into_tensor(output, input)",
        "group.gather(output)",
        "operator does not",
    ),
    ("gathers", OLD, STATE, "self.all_gather_into_tensor(output, input_)", "gather(output)", "goes another way"),
    ("captured", NEW, STATE, "with self.ca_comm.capture():", "with nullcontext():", "enters no capture()"),
    ("captured", NEW, STATE, "get_tp_group().graph_capture()", "stream_capture()", "does not enter tp's"),
    (
        "order",
        NEW,
        STATE,
        "        wanted =",
        "        if self.fast.takes(input_):\n            return 1\n        wanted =",
        "self.fast",
    ),
    (
        "order",
        NEW,
        STATE,
        "if not self.ca_comm",
        'if self.new.takes():\n            return "new"\n        if not self.ca_comm',
        "self.new",
    ),
    (
        "order",
        NEW,
        STATE,
        "        wanted = self.ca_comm is not None and self.ca_comm.should_custom_ar(input_)\n",
        "        wanted = True\n",
        None,
    ),
    (
        "order",
        NEW,
        STATE,
        "        if not self.ca_comm.disabled and self",
        "        if self",
        "whether ca_comm is disabled",
    ),
    ("order", OLD, STATE, "ca_comm.custom_all_reduce(input_)", "ca_comm.reduce(input_)", "does not call"),
    ("order", OLD, STATE, "not self.ca_comm.disabled and ", "", "whether ca_comm is disabled"),
    ("order", OLD, STATE, "should_custom_ar", "takes", "does not ask should_custom_ar"),
    ("duck", NEW, STATE, "assert not ca_comm.disabled", "assert ca_comm.rank_count", "ca_comm.rank_count"),
    ("duck", NEW, STATE, "        if is_hip():\n    ", "", "ca_comm.of_amd"),
    ("duck", NEW, STATE, "isinstance(ca_comm, CustomAllReduceV2) and ", "", "ca_comm.has_multicast"),
    ("duck", NEW, STATE, 'hasattr(ca_comm, "fused_by_another")', "fusing", "ca_comm.fused_by_another"),
    (
        "layers",
        NEW,
        BOUNDARY,
        "keep_bf16):\n    return None",
        "keep_bf16):\n    raise ValueError",
        "no longer returns None",
    ),
]


@pytest.mark.parametrize(("contract", "version", "path", "old", "new", "told"), CHANGES)
def test_what_has_changed_is_found(
    contract: str,
    version: dict[str, str],
    path: str,
    old: str | None,
    new: str | None,
    told: str | None,
    tmp_path: Path,
) -> None:
    files = dict(version)
    if old is None or new is None:
        del files[path]
    else:
        assert old in files[path]
        files[path] = files[path].replace(old, new)
    found = findings(miniature.write(tmp_path, files))[contract]
    assert found.state == (FITS if told is None else BROKEN), found
    assert told is None or told in found.detail


@pytest.mark.parametrize(
    ("version", "path", "old", "new", "told"),
    [
        (NEW, BOUNDARY, "owed, residual", "owed, kept", "takes no residual"),
        (NEW, OUTPUT, "    complete_sum: Callable\n", "", "takes no complete_sum"),
        (NEW, LAYERNORM, ", fp32_residual", "", "takes no fp32_residual"),
        (NEW, BATCH, "can_run_tbo", "runs_two_batches", "has no sglang.srt.model_executor"),
        (
            NEW,
            BOUNDARY,
            "def get_exec",
            "def get_other",
            "has no sglang.srt.layers.layer_boundary.fusions.allreduce.get_exec",
        ),
        (OLD, COMMUNICATOR, ", cache=None", "", "prepare_mlp that takes no cache"),
        (OLD, COMMUNICATOR, "residual_input_mode", "mode", "takes no residual_input_mode"),
        (OLD, COMMUNICATOR, "TP_ATTN_FULL", "FULL", "has no sglang.srt.layers.communicator.ScatterMode.TP_ATTN_FULL"),
        (OLD, LAYERNORM, "_addition=None", "_addition=None, use_attn_tp_group=True", "a later LayerCommunicator"),
    ],
)
def test_layers_without_a_place_for_a_fused_call_have_none(
    version: dict[str, str], path: str, old: str, new: str, told: str, tmp_path: Path
) -> None:
    """As it is when they are to be hooked: the all-reduce is served all the same."""
    assert old in version[path]
    files = {**version, path: version[path].replace(old, new)}
    found = findings(miniature.write(tmp_path, files))["layers"]
    assert found.state == REFUSED, found
    assert told in found.detail


def test_every_path_that_is_named_has_a_contract() -> None:
    """A new hook comes with one."""
    named = {path for file in INTEGRATIONS.glob("sglang*.py") for path in paths_in(file)}
    named |= paths_in(INTEGRATIONS / "hooks.py")
    assert len(named) > 6
    assert named - {path for seam in SEAMS for path in seam.paths} == set()


def paths_in(file: Path) -> set[str]:
    """Of SGLang, in strings and in those that are put together of constants; prose is none."""
    module = ast.parse(file.read_text())
    constants: dict[str, str] = {}

    def text(node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.Name):
            return constants.get(node.id)
        if isinstance(node, ast.FormattedValue):
            return text(node.value)
        if isinstance(node, ast.JoinedStr):
            parts = [text(part) for part in node.values]
            return None if None in parts else "".join(str(part) for part in parts)
        return None

    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (value := text(node.value)):
            constants[node.targets[0].id] = value
    inside = {id(part) for node in ast.walk(module) if isinstance(node, ast.JoinedStr) for part in node.values}
    strings = (text(node) for node in ast.walk(module) if isinstance(node, ast.expr) and id(node) not in inside)
    return {value for value in strings if value and re.fullmatch(r"sglang(\.\w+)+", value)}


def test_paths_are_found(tmp_path: Path) -> None:
    file = tmp_path / "integration.py"
    file.write_text(
        'A = "sglang.srt.a"\nB = f"{A}.b"\ndef f():\n    "See sglang.srt.c."\n    g(f"{B}.d", "sglang.e")\n'
    )
    assert paths_in(file) == {"sglang.srt.a", "sglang.srt.a.b", "sglang.srt.a.b.d", "sglang.e"}


def test_all_that_is_read_from_a_group_is_looked_for() -> None:
    module = ast.parse(Path(sglang_group.__file__).read_text())
    read = {
        node.attr
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("group", "owner")
    }
    assert "ca_comm" in read
    assert read <= {*sglang_group.GROUP}


def test_the_entry_points_are_those_of_this_package() -> None:
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the tests run without the repository around them")
    assert f'[project.entry-points."{sglang_doors.ENTRY_POINTS}"]' in (ROOT / "pyproject.toml").read_text()


def test_names_of_seams_differ() -> None:
    names = [seam.name for seam in SEAMS]
    assert len(set(names)) == len(names) == len({seam.look for seam in SEAMS})
    assert sglang_groups.adapter_face() >= {"disabled", "should_custom_ar", "custom_all_reduce", "capture", "close"}
