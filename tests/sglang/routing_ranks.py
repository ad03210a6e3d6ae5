"""A process of its own: two ranks with SGLang's real GroupCoordinator; prints what each case led to, as JSON.

    python routing_ranks.py MODEL

SGLang reduces CPU tensors before it looks at ca_comm. `LikeCuda` denies being one, so that the routing that GPUs take
runs here, down to our CPU ranks; the operators of SGLang that it passes are registered for CUDA alone, and get a CPU
kernel: SGLang's own function.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
import torch.multiprocessing

PLUGINS = find_spec("sglang.srt.plugins") is not None  # from 0.5.11 on
PCIE_IPC = find_spec("sglang.srt.distributed.device_communicators.pcie_ipc_ar") is not None  # from 0.5.21 on
SMALL, LARGE = (6, 1024), (256, 1024)  # 12 and 512 KiB of bfloat16; the limit of the test lies between
SEAM = "init_model_parallel_group"


class LikeCuda(torch.Tensor):
    is_cpu = property(lambda self: False)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("pcie-allreduce: "):
            self.lines.append(record.getMessage())


def filled(rank: int, shape: tuple[int, ...], kind: type = torch.Tensor) -> Any:
    return torch.full(shape, float(rank + 1), dtype=torch.bfloat16).as_subclass(kind)


def knock(model: str) -> dict[str, Any]:
    """The door without the switch, then the flags; says what was different before and after."""
    if PLUGINS:
        from sglang.srt.plugins import load_plugins

        load_plugins()
    else:
        import pcie_allreduce.integrations.sglang_launch  # noqa: F401  # to import it is to knock
    import sglang.srt.distributed.parallel_state as state
    from sglang.srt.server_args import ServerArgs

    before = getattr(state, SEAM)
    untouched = not hasattr(before, "__wrapped__") and "pcie_allreduce.integrations.sglang_group" not in sys.modules
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    plain = ["--model-path", model, "--device", "cpu", "--attention-backend", "torch_native"]
    ServerArgs.from_cli_args(parser.parse_args(plain))
    without = "PCIE_ALLREDUCE" in os.environ
    ServerArgs.from_cli_args(parser.parse_args([*plain, "--enable-pcie-allreduce", "--pcie-allreduce-require"]))
    told = {name: os.environ.pop(name) for name in ("PCIE_ALLREDUCE", "PCIE_ALLREDUCE_REQUIRE")}
    if PLUGINS:
        from sglang.srt.plugins.hook_registry import HookRegistry

        HookRegistry.apply_hooks()  # a rank does so first thing, with the switch in its environment
    touched = getattr(state, SEAM) is not before
    from pcie_allreduce.integrations import sglang

    os.environ["PCIE_ALLREDUCE"] = "1"
    again = getattr(state, SEAM)
    idempotent = sglang.install() and sglang.install() and getattr(state, SEAM) is again
    return {"untouched": untouched, "without": without, "told": told, "touched": touched, "idempotent": idempotent}


def start(rank: int, port: int, world: int = 2) -> None:
    import sglang.srt.distributed.parallel_state as state

    where = f"tcp://127.0.0.1:{port}"
    state.init_distributed_environment(world, rank, distributed_init_method=where, local_rank=rank, backend="gloo")
    register_operators(state)


def register_operators(state: Any) -> None:
    from sglang.srt.utils.common import sglang_lib

    def out_of_place(tensor: torch.Tensor, group_name: str, outplace_all_reduce_method: str) -> torch.Tensor:
        return state._groups[group_name]()._all_reduce_out_place(tensor, outplace_all_reduce_method)

    def in_place(tensor: torch.Tensor, group_name: str) -> None:
        state._groups[group_name]()._all_reduce_in_place(tensor)

    sglang_lib.impl("outplace_all_reduce", out_of_place, "CPU")

    def into_tensor(output: torch.Tensor, input: torch.Tensor, group_name: str) -> None:
        state._groups[group_name]()._all_gather_into_tensor(output, input)

    sglang_lib.impl("inplace_all_reduce", in_place, "CPU")
    sglang_lib.impl("reg_all_gather_into_tensor", into_tensor, "CPU")


SIZES = {  # as 0.5.23 calls them, and before it
    "tp_size": "tensor_model_parallel_size",
    "moe_ep_size": "expert_model_parallel_size",
    "pp_size": "pipeline_model_parallel_size",
    "attn_dp_size": "attention_data_parallel_size",
    "attn_cp_size": "attention_context_model_parallel_size",
    "moe_dp_size": "moe_data_model_parallel_size",
    "attn_dcp_size": "decode_context_parallel_size",
}


def groups(*, tp_size: int = 2, duplicate_tp_group: bool = False, **more: int) -> Any:
    """SGLang's groups made anew, as at its start; returns the tensor parallel one."""
    import sglang.srt.distributed.parallel_state as state

    state.destroy_model_parallel()
    sizes = {**dict.fromkeys(SIZES, 1), "tp_size": tp_size, **more}
    known = inspect.signature(state.initialize_model_parallel).parameters
    options: dict[str, Any] = {"backend": "gloo", "duplicate_tp_group": duplicate_tp_group}
    if "tensor_model_parallel_size" in known:
        options |= {SIZES[name]: size for name, size in sizes.items() if SIZES[name] in known}
        for name in ("_ATTN_TP", "_ATTN_CP", "_MOE_DP", "_PDMUX_PREFILL_TP_GROUP"):
            setattr(state, name, None)  # which 0.5.9 forgets to do
    else:
        from sglang.srt.runtime_context import get_parallel

        get_parallel().override_permanently(shared_experts_tp_size=None, world_group=state._WORLD, **sizes)
    state.initialize_model_parallel(**options)
    return state._TP


def outcome(rank: int, group: Any, kind: type = torch.Tensor) -> dict[str, Any]:
    """One small and one large tensor through the group: who served them, and whether the sums are right."""
    from sglang.srt.distributed import tensor_model_parallel_all_reduce

    small, large = filled(rank, SMALL, kind), filled(rank, LARGE, kind)
    with torch.no_grad():
        sums = [tensor_model_parallel_all_reduce(x) for x in (small, large)]
    adapter = group.ca_comm
    ours = type(adapter).__name__ == "EngineAllReduce"
    return {
        "ours": ours,
        "right": all(bool((x == 3).all()) for x in sums),
        "kept": bool((small == rank + 1).all()),
        "served": adapter.served if ours else None,
        "declined": adapter.declined if ours else None,
    }


def cpu_tensors(rank: int) -> dict[str, Any]:
    group = groups()
    result = outcome(rank, group)
    captures = []
    enter = group.ca_comm.capture
    group.ca_comm.capture = lambda: captures.append(1) or enter()
    with group.graph_capture():
        pass
    import sglang.srt.distributed.parallel_state as state

    others = [state._WORLD.ca_comm, state._PP.ca_comm]
    return {**result, "captures": len(captures), "others": others}


def as_on_gpus() -> Any:
    from pcie_allreduce.integrations import sglang_group

    group = groups()
    group.pynccl_comm = None  # there is no NCCL here; torch.distributed takes its place
    del group.all_reduce  # what stands in front for CPU tensors
    sglang_group._count_the_rest(group)  # what a GPU's group gets in its place
    return group


def cuda_routing(rank: int) -> dict[str, Any]:
    return outcome(rank, as_on_gpus(), LikeCuda)


def gathered(rank: int, group: Any, kind: type = torch.Tensor) -> dict[str, Any]:
    """Logits as they are gathered, by columns; the same stacked; and what is too large, or no sum's dtype."""
    from sglang.srt.distributed import tensor_model_parallel_all_gather

    small, large = filled(rank, SMALL, kind), filled(rank, LARGE, kind)
    stacked = torch.empty((2 * SMALL[0], SMALL[1]), dtype=torch.bfloat16).as_subclass(kind)
    with torch.no_grad():
        columns, wide = (tensor_model_parallel_all_gather(x) for x in (small, large))
        rows = tensor_model_parallel_all_gather(small, dim=0)
        ids = tensor_model_parallel_all_gather(torch.full((4, 1), rank).as_subclass(kind))
        group.all_gather_into_tensor(stacked, small)
    return {
        "columns": [columns.shape == (SMALL[0], 2 * SMALL[1]), columns[0, :: SMALL[1]].tolist()],
        "rows": [rows.shape == (2 * SMALL[0], SMALL[1]), rows[:: SMALL[0], 0].tolist()],
        "wide": wide[0, :: LARGE[1]].tolist(),
        "ids": ids[0].tolist(),
        "stacked": stacked[:: SMALL[0], 0].tolist(),
        "gathered": group.ca_comm.gathered,
        "reduced": group.ca_comm.served,
        "declined": group.ca_comm.declined,
    }


def gathered_on_cpus(rank: int) -> dict[str, Any]:
    return gathered(rank, groups())


def gathered_as_on_gpus(rank: int) -> dict[str, Any]:
    from pcie_allreduce.integrations import sglang_gather

    group = as_on_gpus()
    if "all_gather" in vars(group):  # what stands in front for CPU tensors
        del group.all_gather
        group.device = MagicMock(type="cuda")
        sglang_gather.route(group)
    return gathered(rank, group, LikeCuda)


def two_batches(rank: int) -> dict[str, Any]:
    """Two-batch overlap: SGLang's executor takes turns at the stages of two batches, the second a stage behind."""
    from sglang.srt.batch_overlap import operations
    from sglang.srt.distributed import tensor_model_parallel_all_reduce

    group = as_on_gpus()
    order = []

    def op_reduce(state: Any, forward_batch: Any, x: torch.Tensor) -> dict[str, Any]:
        order.append(len(x))
        return {"forward_batch": forward_batch, "x": tensor_model_parallel_all_reduce(x)}

    stages = [op_reduce, operations.YieldOperation(), op_reduce, operations.YieldOperation(), op_reduce]
    batches = [{"forward_batch": MagicMock(), "x": filled(rank, (rows, 1024), LikeCuda)} for rows in (6, 4)]
    with torch.no_grad(), without_attention():
        given = operations.execute_overlapped_operations(batches, [stages, list(stages)], [0, 1])
    return {
        "right": all(bool((batch["x"] == 3 * 2 * 2).all()) for batch in given),  # of 1 + 2, and twice of two alike
        "order": order,
        "served": group.ca_comm.served,
        "declined": group.ca_comm.declined,
    }


def without_attention() -> AbstractContextManager[Any]:
    """What later versions want to know of a forward pass, in one that has no attention."""
    try:
        from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
    except ModuleNotFoundError:
        return nullcontext()
    return forward_context(ForwardContext(attn_backend=None))


def with_variables(case: Callable[[int], Any], **variables: str) -> Callable[[int], Any]:
    @functools.wraps(case)
    def run(rank: int) -> Any:
        kept = dict(os.environ)
        os.environ.update(variables)
        try:
            return case(rank)
        finally:
            os.environ.clear()
            os.environ.update(kept)

    return run


def with_attribute(
    case: Callable[[int], Any], path: str, names: str | tuple[str, ...], value: Any
) -> Callable[[int], Any]:
    """With one of SGLang's module attributes replaced: the one of these names that this version has."""

    def run(rank: int) -> Any:
        module = importlib.import_module(f"sglang.srt.distributed.{path}")
        name = next(name for name in ((names,) if isinstance(names, str) else names) if hasattr(module, name))
        kept = getattr(module, name)
        setattr(module, name, value)
        try:
            return case(rank)
        finally:
            setattr(module, name, kept)

    return run


def reduce(rank: int) -> Any:
    return outcome(rank, groups())


class OtherCommunicator:
    """In the place of one of SGLang's that needs GPUs: there, enabled, and asked for nothing."""

    disabled = False

    def __init__(self, **arguments: Any) -> None:
        self.served = 0

    def destroy(self) -> None:
        pass

    def should_mscclpp_allreduce(self, inp: torch.Tensor) -> bool:
        return False

    def should_pcie_ipc_ar(self, inp: torch.Tensor) -> bool:
        return True

    def pcie_ipc_all_reduce(self, inp: torch.Tensor) -> torch.Tensor:
        self.served += 1
        out = inp.clone()
        dist.all_reduce(out)
        return out


def beside_pcie_ipc(rank: int) -> dict[str, Any]:
    result = cuda_routing(rank)
    import sglang.srt.distributed.parallel_state as state

    return {**result, "theirs": state._TP.pcie_ipc_comm.served}


def in_turn_on_two_groups(rank: int) -> dict[str, Any]:
    """PD multiplexing: a second group over the same ranks, with a communicator of its own."""
    import sglang.srt.distributed.parallel_state as state

    pair = [groups(duplicate_tp_group=True), state._PDMUX_PREFILL_TP_GROUP]
    for group in (*pair, pair[0]):
        assert bool((group.all_reduce(filled(rank, SMALL)) == 3).all())
    return {"names": [g.ca_comm.name for g in pair], "served": [g.ca_comm.served for g in pair]}


class Tracing:
    """torch, as SGLang's module sees it where torch.compile traces: later versions then defer the question whether a
    tensor is served to an operator, which asks it when it runs."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name == "is_compiling":
            return lambda: True
        found = getattr(self._module, name)
        return Tracing(found) if name == "compiler" else found


UNABLE = {"PCIE_ALLREDUCE_MAX_BYTES": "1"}  # refused by the communicator, on every rank
OFF = ("parallel_state", "_ENABLE_CUSTOM_ALL_REDUCE", False)  # what --disable-custom-all-reduce leads to
CASES: dict[str, Callable[[int], Any]] = {
    "cpu_tensors": cpu_tensors,
    "cuda_routing": cuda_routing,
    "while_compiling": with_attribute(cuda_routing, "parallel_state", "torch", Tracing(torch)),
    "two_batches": two_batches,
    "gathers": with_variables(gathered_on_cpus, PCIE_ALLREDUCE_GATHER="1"),
    "gathers_as_on_gpus": with_variables(gathered_as_on_gpus, PCIE_ALLREDUCE_GATHER="1"),
    "gathers_unasked": gathered_as_on_gpus,
    "two_groups": in_turn_on_two_groups,
    "disabled": with_attribute(reduce, *OFF),
    "deterministic": with_variables(reduce, SGLANG_ENABLE_DETERMINISTIC_INFERENCE="1"),
    "symmetric_memory": with_attribute(
        reduce, "device_communicators.pynccl_allocator", "is_symmetric_memory_enabled", lambda: True
    ),
    "mscclpp": with_attribute(
        with_attribute(reduce, "parallel_state", ("_ENABLE_MSCCLPP", "_ENABLE_MSCCLPP_ALL_REDUCE"), True),
        "device_communicators.pymscclpp",
        "PyMscclppCommunicator",
        OtherCommunicator,
    ),
    "unable": with_variables(reduce, **UNABLE),
    "unable_and_disabled": with_attribute(with_variables(reduce, **UNABLE), *OFF),
    "unable_but_required": with_variables(reduce, PCIE_ALLREDUCE_REQUIRE="1", **UNABLE),
}
if PCIE_IPC:
    CASES["pcie_ipc"] = with_attribute(
        with_variables(beside_pcie_ipc, SGLANG_ENABLE_PCIE_IPC_ALLREDUCE="1"),
        "device_communicators.pcie_ipc_ar",
        "PcieIpcCommunicator",
        OtherCommunicator,
    )


def run_rank(rank: int, port: int, model: str) -> None:
    sys.argv[1:] = []
    lines = Lines()
    logging.getLogger("pcie_allreduce").addHandler(lines)
    logging.getLogger("pcie_allreduce").setLevel(logging.INFO)
    os.environ["SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"] = "0"
    results: dict[str, Any] = {"door": knock(model)}
    start(rank, port)
    import fused_cases  # which takes much of this module

    for name, case in {**CASES, **fused_cases.cases(model)}.items():
        lines.lines.clear()
        results[name] = {**attempt(case, rank), "log": [*lines.lines]}
        dist.barrier()
    tell(results)


def attempt(case: Callable[[int], Any], rank: int) -> Any:
    try:
        return case(rank)
    except Exception as error:
        traceback.print_exc()
        return {"raised": f"{type(error).__name__}: {error}"}


def tell(results: dict[str, Any]) -> None:
    """Those of all ranks, in their order."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, results)
    if dist.get_rank() == 0:
        print("RESULT", json.dumps(everyone), flush=True)
    dist.barrier()


def spawn(ranks: int, run: Callable[..., None], *args: Any) -> None:
    """run(rank, port, *args) in as many processes; the port is a free one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    torch.multiprocessing.spawn(run, args=(free, *args), nprocs=ranks)


if __name__ == "__main__":
    spawn(2, run_rank, sys.argv[1])
