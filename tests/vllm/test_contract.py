"""What the integration takes for granted of vLLM, read in published versions: the oldest, the newest, some between."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
import torch
from published import VERSIONS
from ranks import Rank, run_ranks

from pcie_allreduce.integrations import vllm, vllm_group
from pcie_allreduce.integrations.adapter import EngineAllReduce
from pcie_allreduce.integrations.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from published import Published

COMMUNICATORS = "vllm/distributed/device_communicators"
MAKER = f"{COMMUNICATORS}/cuda_communicator.py"
STATE = "vllm/distributed/parallel_state.py"
WORKER = {"0.11.0": "vllm/worker/worker_base.py"}  # where a worker is, if not where it is in the newest
MODELS = {"0.33.0": ["vllm/models/deepseek_v41/nvidia/model.py", "vllm/models/deepseek_v41/nvidia/ops/mhc.py"]}

every_version = pytest.mark.parametrize("published", VERSIONS, indirect=True)


def function(tree: ast.Module, owner: str, name: str) -> ast.FunctionDef:
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner).body
    return next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == name:
            yield node


def parameters(made: ast.FunctionDef) -> set[str]:
    return {argument.arg for argument in [*made.args.args, *made.args.kwonlyargs]}


@every_version
def test_the_class_is_imported_from_its_module_when_a_group_is_made(published: Published) -> None:
    module, _, name = vllm.SEAM.rpartition(".")
    defined = published.tree(module.replace(".", "/") + ".py").body
    assert name in [node.name for node in defined if isinstance(node, ast.ClassDef)]
    tree = published.tree(MAKER)
    inside = list(ast.walk(function(tree, "CudaCommunicator", "__init__")))
    everywhere = list(ast.walk(tree))
    for nodes in (inside, everywhere):
        found = [node for node in nodes if isinstance(node, ast.ImportFrom) and name in [x.name for x in node.names]]
        assert [node.module for node in found] == [module]


@every_version
def test_it_is_made_with_keywords_that_are_known_here(published: Published) -> None:
    made = list(calls(function(published.tree(MAKER), "CudaCommunicator", "__init__"), "CustomAllreduce"))
    assert len(made) == 1 and made[0].args == []
    keywords = {keyword.arg for keyword in made[0].keywords}
    assert {"group", "device"} <= keywords
    assert keywords <= {"group", "device"} | vllm_group.IGNORED


@every_version
def test_who_makes_it_tells_what_is_read_here(published: Published) -> None:
    tree = published.tree(MAKER)
    assert {"unique_name", "device_group"} <= parameters(function(tree, "CudaCommunicator", "__init__"))
    assert [x.arg for x in function(tree, "CudaCommunicator", "all_reduce").args.args] == ["self", "input_"]
    base = function(
        published.tree(f"{COMMUNICATORS}/base_device_communicator.py"), "DeviceCommunicatorBase", "__init__"
    )
    stored = {
        node.attr for node in ast.walk(base) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert {"rank_in_group", "world_size", "device_group"} <= stored
    made = list(calls(published.tree(STATE), "device_comm_cls"))
    assert made and all("unique_name" in [keyword.arg for keyword in node.keywords] for node in made)


@every_version
def test_the_group_is_tp_and_the_flag_decides(published: Published) -> None:
    """--disable-custom-all-reduce means that none is made: nothing here would be asked."""
    text = ast.unparse(function(published.tree(MAKER), "CudaCommunicator", "__init__"))
    assert "if 'tp' not in unique_name:" in text or "unique_name.split(':')[0] != 'tp'" in text
    assert "use_custom_allreduce = _ENABLE_CUSTOM_ALL_REDUCE" in text
    assert 'group_name="tp"' in published.file(STATE).read_text()


def reads(tree: ast.Module) -> set[str]:
    """Attributes of whatever came out of something's `ca_comm`, under whichever name."""
    names = {"ca_comm"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            source = ast.unparse(node.value)
            if source.endswith(".ca_comm") or "'ca_comm'" in source:
                names.add(node.targets[0].id)
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", getattr(node.value, "attr", "")) in names
    }


def has(me: Rank) -> list[str]:
    options = {"name": "tp:0", "settings": Settings(), "on_fault": lambda error: None}
    adapter = vllm_group.VllmAllReduce(me.group, torch.device(me.device), fallback=me.group, **options)
    me.meet()
    return dir(adapter)


@pytest.fixture(scope="module")
def face() -> set[str]:
    return set(run_ranks(2, has)[0])


@every_version
def test_all_that_is_read_off_it_is_there(published: Published, face: set[str]) -> None:
    found = {name: reads(published.tree(name)) for name in [MAKER, STATE, *MODELS.get(published.version, [])]}
    assert all(found.values())
    assert {"disabled", "should_custom_ar", "custom_all_reduce"} <= found[MAKER]
    assert "capture" in found[STATE]
    assert set.union(*found.values()) <= face


@every_version
def test_it_is_asked_before_it_is_called(published: Published) -> None:
    """With one tensor; and what it answers may not be None then."""
    dispatch = function(published.tree(MAKER), "CudaCommunicator", "all_reduce")
    asking = [node for node in ast.walk(dispatch) if isinstance(node, ast.If) and "ca_comm" in ast.unparse(node.test)]
    ours = [node for node in asking if "ca_comm.should_custom_ar(input_)" in ast.unparse(node.test).split(" and ")]
    assert len(ours) == 1
    assert "not ca_comm.disabled" in ast.unparse(ours[0].test)
    assert ast.unparse(ours[0].body[0]) == "out = ca_comm.custom_all_reduce(input_)"
    assert EngineAllReduce.custom_all_reduce.__annotations__["return"] == "torch.Tensor"


@every_version
def test_who_is_asked_first(published: Published) -> None:
    """As docs/vllm.md tells: quick reduce and AITER are AMD's, the others are named where they are on."""
    dispatch = function(published.tree(MAKER), "CudaCommunicator", "all_reduce")
    tests = [ast.unparse(node.test) for node in dispatch.body if isinstance(node, ast.If)]
    before = tests[: next(i for i, test in enumerate(tests) if "ca_comm.should_custom_ar" in test.split(" and ")[-1])]
    known = {"pynccl_comm", "qr_comm", "aiter_ar_comm", "use_fi_ar", *vllm_group.ASKED_FIRST}
    assert [test for test in before if not any(name in test for name in known)] == []
    nccl = [test for test in before if "pynccl_comm" in test]
    assert nccl and all("should_nccl_symm_mem_allreduce" in test for test in nccl)
    assert any("symm_mem_comm.should_use_symm_mem" in test for test in tests[len(before) + 1 :])


@every_version
def test_torch_compile_does_not_look_into_it(published: Published) -> None:
    """The group's all-reduce is an operator, and what the operator does ends in the communicator's method."""
    text = ast.unparse(function(published.tree(STATE), "GroupCoordinator", "all_reduce"))
    assert "torch.ops.vllm.all_reduce(input_, group_name=self.unique_name)" in text
    text = ast.unparse(function(published.tree(STATE), "GroupCoordinator", "_all_reduce_out_place"))
    assert "return self.device_communicator.all_reduce(input_)" in text


@every_version
def test_nor_into_all_gathers(published: Published) -> None:
    tree = published.tree(STATE)
    text = ast.unparse(function(tree, "GroupCoordinator", "all_gather"))
    assert "torch.ops.vllm.all_gather(input_, dim, world_size, group_name=self.unique_name)" in text
    text = ast.unparse(function(tree, "GroupCoordinator", "_all_gather_out_place"))
    assert "return self.device_communicator.all_gather(input_, dim)" in text


@every_version
def test_plugins_are_loaded_by_every_worker_and_called_without_arguments(published: Published) -> None:
    assert "vllm.general_plugins" in published.file("vllm/plugins/__init__.py").read_text()
    loads = next(
        node
        for node in published.tree("vllm/plugins/__init__.py").body
        if isinstance(node, ast.FunctionDef) and node.name == "load_general_plugins"
    )
    assert ast.unparse(loads.body[-1]) == "for func in plugins.values():\n    func()"
    worker = published.tree(WORKER.get(published.version, "vllm/v1/worker/worker_base.py"))
    assert list(calls(function(worker, "WorkerWrapperBase", "init_worker"), "load_general_plugins"))


@every_version
def test_a_dead_worker_ends_the_server(published: Published) -> None:
    """A fault ends the process, and tells nobody: vLLM waits for its workers' processes."""
    text = published.file("vllm/v1/executor/multiproc_executor.py").read_text()
    assert "died unexpectedly" in text and ".sentinel" in text
