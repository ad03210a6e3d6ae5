"""The plug-in in a process of vLLM's, driven as vLLM drives it, on CPU ranks; vLLM is the stand-in in minimal/."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Rank, run_ranks, start_ranks
from stand_in import COMMUNICATORS, communicator, vllm

from pcie_allreduce import SetupError
from pcie_allreduce.integrations import vllm as plugin
from pcie_allreduce.integrations.vllm_group import VllmAllReduce

ON = {"PCIE_ALLREDUCE": "1", "PCIE_ALLREDUCE_TIMEOUT": "20", "PCIE_ALLREDUCE_WARMUP_TIMEOUT": "20"}
REQUIRED = {**ON, "PCIE_ALLREDUCE_REQUIRE": "1"}
OFF = "pcie-allreduce: off for group tp:0, vLLM's own is used: "


def loaded() -> list[str]:
    return [name for name in sys.modules if name.startswith("vllm.distributed")]


def part(name: str) -> Any:
    return importlib.import_module(f"vllm.distributed.{name}")


def test_vllm_finds_it() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = re.search(r'^\[project\.entry-points\."vllm\.general_plugins"\]\n(\w+) = "(\S+)"$', project, re.MULTILINE)
    assert found is not None
    assert EntryPoint(found[1], found[2], "vllm.general_plugins").load() is plugin.register


def served(me: Rank) -> list[str]:
    with vllm(**ON, PCIE_ALLREDUCE_MAX_BYTES="65536", PCIE_ALLREDUCE_LOG_SECONDS="0") as lines:
        plugin.register()
        plugin.register()  # vLLM may load plug-ins more than once
        tp, ep = communicator(me), communicator(me, "ep:0")
        assert isinstance(tp.ca_comm, VllmAllReduce) and ep.ca_comm is None
        assert part("device_communicators.custom_all_reduce").CustomAllreduce.create_shared_buffer(3) == [3]
        random = torch.Generator().manual_seed(me.rank)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            x = torch.randn(4, 256, generator=random).to(dtype)
            whole = torch.stack(me.gather(x)).float()
            y = tp.all_reduce(x)
            assert torch.equal(y, sum(whole[1:], whole[0]).to(dtype))  # in rank order, rounded once
            assert all(torch.equal(y, other) for other in me.gather(y))
        with tp.graph_capture(), torch.inference_mode():
            assert float(tp.all_reduce(torch.ones(1, 256))[0, 0]) == me.world
        x = torch.ones(256, 256)
        for unserved in (x, x[:64].t()[:, :8], torch.ones(4, 4, dtype=torch.int32)):
            assert torch.equal(tp.all_reduce(unserved), unserved * me.world)
        assert tp.custom_all_gather(x) is None and tp.ca_comm.custom_reduce_scatter(x) is None
        assert (tp.ca_comm.served, tp.ca_comm.declined) == (4, 3)
        assert "all_gather" not in vars(tp)
        me.meet()
        tp.destroy()  # drops its reference, and nothing else
        return lines


def test_on_it_serves_what_it_can_and_says_so() -> None:
    first, second = run_ranks(2, served)
    assert re.fullmatch(
        r"pcie-allreduce: on for group tp:0: 2 ranks, transport cpu, [\d.]+ MB of memory a rank, "
        r"tensors up to 65536 bytes",
        first[0],
    )
    assert first[-1] == "pcie-allreduce: group tp:0 served 4 all-reduces (3 went to the engine)"
    assert second == []  # one rank speaks for the group


def gathered(me: Rank) -> list[str]:
    with vllm(**ON, PCIE_ALLREDUCE_GATHER="1", PCIE_ALLREDUCE_MAX_BYTES="65536") as lines:
        plugin.register()
        tp, ep = communicator(me), communicator(me, "ep:0")
        for x in (torch.full((4, 256), me.rank + 1.0), torch.full((4, 2), me.rank + 1)):
            for group in (tp, ep):
                for dim in (0, 1, -1):
                    assert torch.equal(group.all_gather(x, dim), torch.cat(me.gather(x), dim))
        assert (tp.ca_comm.gathered, tp.ca_comm.declined) == (3, 3)
        me.meet()
        return lines


def test_all_gathers_are_served_where_that_is_asked_for() -> None:
    first, second = run_ranks(2, gathered)
    told = "pcie-allreduce: all-gathers of group tp:0 are served: up to 65536 bytes of all ranks together"
    assert told in first and second == []


def untouched(me: Rank) -> None:
    with vllm() as lines:
        plugin.register()
        assert loaded() == []
        assert type(communicator(me).ca_comm).__name__ == "CustomAllreduce"
        assert lines == []


def test_off_nothing_of_vllm_is_imported_or_touched() -> None:
    run_ranks(2, untouched)


def refused(me: Rank, environment: dict[str, str], extra: dict[str, Any], wanted: bool) -> tuple[list[str], str]:
    """What the log says, and what the launch fails with."""
    with vllm(**environment) as lines:
        plugin.register()
        part("device_communicators.cuda_communicator").CudaCommunicator.extra = extra
        part("parallel_state")._ENABLE_CUSTOM_ALL_REDUCE = wanted
        try:
            group = communicator(me)
        except (SetupError, TypeError) as error:
            return lines, str(error)
        assert not isinstance(group.ca_comm, VllmAllReduce)
        assert torch.equal(group.all_reduce(torch.ones(8)), torch.full((8,), float(me.world)))
        return lines, ""


CASES = [
    pytest.param({"PCIE_ALLREDUCE_MAX_BYTES": "-1"}, {}, True, "max_bytes", id="a setting is wrong"),
    pytest.param({}, {}, False, "--disable-custom-all-reduce", id="vLLM makes none"),
    pytest.param(
        {}, {"tea": 1}, True, "this vLLM makes a custom all-reduce with tea, unknown here", id="a new keyword"
    ),
]


@pytest.mark.parametrize(("environment", "extra", "wanted", "reason"), CASES)
def test_a_refusal_is_one_sentence_and_ends_the_launch_where_required(
    environment: dict[str, str], extra: dict[str, Any], wanted: bool, reason: str
) -> None:
    told = [lines for lines, _ in run_ranks(2, refused, {**ON, **environment}, extra, wanted)]
    assert len(told[0]) == 1 and told[1] == []
    assert told[0][0].startswith(OFF) and reason in told[0][0]
    for _, error in run_ranks(2, refused, {**REQUIRED, **environment}, extra, wanted):
        assert error.startswith("PCIE_ALLREDUCE_REQUIRE is on: cannot serve group tp:0: ") and reason in error


@pytest.mark.parametrize("missing", ["custom_all_reduce.CustomAllreduce", "cuda_communicator.CudaCommunicator"])
def test_a_seam_that_is_gone_is_said(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, name = missing.partition(".")
    for environment in (ON, REQUIRED):
        with vllm(**environment) as lines:
            vars(part(f"device_communicators.{module}")).pop(name)
            before = dict(vars(part("device_communicators.custom_all_reduce")))
            told = f"this vLLM has no {COMMUNICATORS}.{missing} ("
            if environment is ON:
                plugin.register()
                plugin.register()
                assert lines[0].startswith(f"pcie-allreduce: off, vLLM's own is used: {told}")
            else:
                with pytest.raises(
                    SystemExit, match="PCIE_ALLREDUCE_REQUIRE is on, and nothing can be served"
                ) as ended:
                    plugin.register()
                assert told in str(ended.value)
            assert vars(part("device_communicators.custom_all_reduce")) == before


def test_a_value_that_means_nothing_ends_the_launch() -> None:
    with vllm(PCIE_ALLREDUCE="maybe"), pytest.raises(SystemExit, match="PCIE_ALLREDUCE is 'maybe'"):
        plugin.register()


def invariant(me: Rank) -> tuple[list[str], int]:
    """A tensor over the limit is summed in the same order as its parts would be."""
    with vllm(**ON, VLLM_BATCH_INVARIANT="1", PCIE_ALLREDUCE_MAX_BYTES="4096") as lines:
        plugin.register()
        tp = communicator(me)
        x = torch.randn(64, 256, generator=torch.Generator().manual_seed(me.rank)) * 10.0**me.rank
        rows = torch.cat([tp.all_reduce(row.clone()) for row in x.split(1)])
        assert torch.equal(tp.all_reduce(x), rows)
        assert tp.ca_comm.declined == 0
        me.meet()
        return lines, tp.ca_comm.served


def test_batch_invariance_means_every_size() -> None:
    (lines, count), *_ = run_ranks(3, invariant)
    assert lines[1] == "pcie-allreduce: VLLM_BATCH_INVARIANT: larger tensors are reduced in pieces, all in rank order"
    assert count == 65


def neighbours(me: Rank) -> list[str]:
    with vllm(**ON, VLLM_USE_NCCL_SYMM_MEM="1") as lines:
        plugin.register()
        made = part("device_communicators.cuda_communicator").CudaCommunicator
        made.fi_pcie_ipc_ar_comm = type("PcieIpc", (), {"disabled": False})()
        made.fi_ar_comm = type("Fi", (), {"disabled": True})()
        communicator(me)
        me.meet()
        return lines[1:]


def test_who_is_asked_first_is_said() -> None:
    ipc = "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC is on: vLLM asks it first, and us for what it does not take"
    nccl = "VLLM_USE_NCCL_SYMM_MEM is on: vLLM asks NCCL first for the sizes that it holds to be NCCL's"
    assert run_ranks(2, neighbours) == [[f"pcie-allreduce: {ipc}", f"pcie-allreduce: {nccl}"], []]


def left_alone(me: Rank) -> None:
    os.environ.update(ON, PCIE_ALLREDUCE_TIMEOUT="1", PCIE_ALLREDUCE_WARMUP_TIMEOUT="1")
    with vllm():
        plugin.register()
        tp = communicator(me)
        tp.all_reduce(torch.ones(8))
        me.tell("served")
        if me.rank == 1:
            time.sleep(600)
        time.sleep(0.5)  # in which rank 1 is killed
        tp.all_reduce(torch.ones(8))


def test_a_fault_ends_the_worker_and_signals_nobody() -> None:
    """vLLM waits for its workers' processes, and would be killed by the signal that SGLang expects."""
    told: list[int] = []
    kept = signal.signal(signal.SIGQUIT, lambda number, frame: told.append(number))
    try:
        with start_ranks(2, left_alone) as pool:
            pool.await_told("served")
            pool.kill(1)
            outcome = pool.collect(15.0)[0]
    finally:
        signal.signal(signal.SIGQUIT, kept)
    assert (outcome.kind, outcome.text) == ("died", "exit code 1")
    assert told == []
