"""Groups of vLLM itself, from its published files, on two CPU ranks: GroupCoordinator and CudaCommunicator are its own.

Not vLLM's here: compiled kernels, NCCL, the configuration, the engine around it. CUDA's streams are stand-ins.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import platform
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from borrowed import borrow
from published import VERSIONS, Published
from ranks import Rank, start_ranks

from pcie_allreduce.integrations import vllm as plugin
from pcie_allreduce.integrations.vllm_group import VllmAllReduce

if TYPE_CHECKING:
    from types import ModuleType

OLDER = [pytest.param(version, marks=pytest.mark.slow) for version in VERSIONS[:-1]]
every_version = pytest.mark.parametrize("published", [*OLDER, VERSIONS[-1]], indirect=True)
SETTINGS = {"PCIE_ALLREDUCE_TIMEOUT": "20", "PCIE_ALLREDUCE_WARMUP_TIMEOUT": "20", "PCIE_ALLREDUCE_MAX_BYTES": "65536"}


def state_of(version: str, **environment: str) -> ModuleType:
    """vllm.distributed.parallel_state, after vLLM has loaded the plug-in."""
    os.environ.update({**SETTINGS, **environment, "VLLM_NCCL_SO_PATH": "none"})  # NCCL, where it is, wants GPUs
    borrow(Published(version))
    plugins = importlib.import_module("vllm.plugins")
    found = {"pcie_allreduce": plugin.register}
    with mock.patch.object(plugins, "load_plugins_by_group", return_value=found):
        plugins.load_general_plugins()
    return importlib.import_module("vllm.distributed.parallel_state")


def group_of(me: Rank, state: ModuleType, name: str = "tp") -> Any:
    group = state.init_model_parallel_group([list(range(me.world))], me.rank, "gloo", group_name=name)
    group.use_custom_op_call = True  # as on GPUs
    return group


class Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("vllm").addHandler(self)
        logging.getLogger("vllm").setLevel(logging.INFO)  # 0.33.0 does that when it has read its configuration

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("pcie_allreduce.integrations"):
            self.lines.append(record.getMessage())


def served(me: Rank, version: str) -> list[str]:
    state = state_of(version, PCIE_ALLREDUCE="1", PCIE_ALLREDUCE_GATHER="1")
    log = Log()
    group = group_of(me, state)
    adapter = group.device_communicator.ca_comm
    assert isinstance(adapter, VllmAllReduce)
    assert type(group.device_communicator).__module__ == "vllm.distributed.device_communicators.cuda_communicator"
    x = torch.full((4, 256), me.rank + 1, dtype=torch.bfloat16)
    assert float(group.all_reduce(x)[0, 0]) == 3 and float(x[0, 0]) == me.rank + 1
    assert adapter.served == 1
    compiled = torch.compile(lambda x: group.all_reduce(x * 2) + 1, backend="eager", fullgraph=True)
    assert float(compiled(x)[0, 0]) == 7
    with captured(state, group, adapter), torch.inference_mode():
        assert float(group.all_reduce(x)[0, 0]) == 3
    assert (adapter.served, adapter.declined) == (3, 0)
    for unserved in (torch.ones(256, 256), torch.ones(4, dtype=torch.int64)):
        assert torch.equal(group.all_reduce(unserved), unserved * 2)
    assert (adapter.served, adapter.declined) == (3, 2)
    logits = torch.full((2, 8), me.rank + 1, dtype=torch.float16)
    assert group.all_gather(logits).tolist() == [[1.0] * 8 + [2.0] * 8] * 2
    assert group.all_gather(torch.full((2, 1), me.rank)).tolist() == [[0, 1]] * 2
    assert (adapter.gathered, adapter.declined) == (1, 3)
    for name in ("custom_all_gather", "custom_reduce_scatter"):  # of later versions
        assert getattr(group.device_communicator, name, lambda x: None)(x) is None
    assert group_of(me, state, "ep").device_communicator.ca_comm is None
    me.meet()
    adapter.close()
    group.destroy()
    return log.lines


@contextlib.contextmanager
def captured(state: ModuleType, group: Any, adapter: VllmAllReduce) -> Any:
    """vLLM's graph_capture, without CUDA; ours must have been entered and left."""
    stream = object()
    no_streams = {"current_stream": lambda: stream, "stream": lambda stream: contextlib.nullcontext()}
    entered = mock.Mock(wraps=adapter.capture)
    with (
        mock.patch.multiple(torch.cuda, **no_streams),
        mock.patch.object(adapter, "capture", entered),
        group.graph_capture(state.GraphCaptureContext(stream)),
    ):
        yield
    assert entered.call_count == 1


def ran(published: Published, function: Any, *args: Any) -> list[Any]:
    """In processes of its own: a version cannot be unloaded."""
    if not published.runs_here():
        pytest.skip(f"vLLM {published.version} is not made for Python {platform.python_version()}")
    with start_ranks(2, function, published.version, *args) as pool:
        outcomes = pool.collect(240.0)
    assert [outcome.kind for outcome in outcomes] == ["returned"] * 2, "\n".join(outcome.text for outcome in outcomes)
    return [outcome.value for outcome in outcomes]


@every_version
def test_a_group_of_vllms_is_served(published: Published) -> None:
    first, second = ran(published, served)
    assert first[0].startswith("pcie-allreduce: on for group tp:0: 2 ranks, transport cpu, ")
    assert first[-1] == "pcie-allreduce: group tp:0 served 4 all-reduces and all-gathers (3 went to the engine)"
    assert second == []


def left(me: Rank, version: str) -> list[str]:
    """--disable-custom-all-reduce; then ours refused, for which vLLM's own is made as vLLM makes it; then off."""
    state = state_of(version, PCIE_ALLREDUCE="1")
    log = Log()
    state.set_custom_all_reduce(False)
    assert group_of(me, state).device_communicator.ca_comm is None
    state.set_custom_all_reduce(True)
    os.environ["PCIE_ALLREDUCE_MAX_BYTES"] = "-1"
    group = group_of(me, state)
    own = importlib.import_module("vllm.distributed.device_communicators.custom_all_reduce").CustomAllreduce
    assert type(group.device_communicator.ca_comm) is own.__base__  # vLLM's, which finds no kernels here
    assert group.device_communicator.ca_comm.disabled
    assert torch.equal(group.all_reduce(torch.ones(8)), torch.full((8,), 2.0))
    return log.lines


@pytest.mark.slow
@every_version
def test_what_is_refused_is_left_to_vllm(published: Published) -> None:
    (first, second) = ran(published, left)
    assert len(first) == 2 and second == []
    assert first[0].startswith(
        "pcie-allreduce: off for group tp:0, vLLM's own is used: vLLM makes no custom all-reduce"
    )
    assert first[1].startswith("pcie-allreduce: off for group tp:1, vLLM's own is used: ") and "max_bytes" in first[1]
