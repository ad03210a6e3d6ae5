"""The whole probe over bad wires: what it says, that all ranks say the same, and that sums are right nevertheless."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import wires
from logged import logged
from ranks import Rank, left_in_shared_memory, run_ranks, shared_memory
from wires import Bad

import pcie_allreduce
from pcie_allreduce import construction
from pcie_allreduce.probe import decision, examine

PATIENCE = 3.0


@contextmanager
def no_host_memory() -> Iterator[None]:
    decide = decision.decide
    decision.decide = lambda measured, options: decide(replace(measured, host=None), options)
    try:
        yield
    finally:
        decision.decide = decide


def construct(me: Rank, folder: str, with_fallback: bool, host: bool, *bad: Bad) -> tuple[Any, list[str]]:
    """The verdict, or the refusal, and what was logged. Whatever the verdict, the sum must be right. Without `host` it
    looks as if host memory had not been measured."""
    os.environ["PCIE_ALLREDUCE_CACHE"] = folder
    examine.DEADLINE, wires.TOGETHER, before = PATIENCE, 0.1, (examine.DEADLINE, wires.TOGETHER)
    fallback = me.group if with_fallback else None
    try:
        with logged() as lines, wires.wires(me, *bad), nullcontext() if host else no_host_memory():
            try:
                comm = me.communicator(max_bytes=4096, probe=True, fallback=fallback)
            except pcie_allreduce.SetupError as error:
                return str(error), lines
            with comm:
                for n in (1, 8, 1000, 3000):  # the last is over max_bytes
                    if with_fallback or n <= 1000:
                        assert (
                            comm.all_reduce(torch.full((n,), me.rank + 1.0)).tolist() == [sum(range(me.world + 1))] * n
                        )
                verdict = comm.verdict
                me.meet()
    finally:
        examine.DEADLINE, wires.TOGETHER = before
    return verdict, lines


def agreed(world: int, folder: Any, with_fallback: bool, *bad: Bad, host: bool = True) -> tuple[Any, list[str]]:
    before = shared_memory()
    told = run_ranks(world, construct, str(folder), with_fallback, host, *bad)
    assert all(verdict == told[0][0] for verdict, _ in told), told
    assert left_in_shared_memory(before) == set()
    return told[0]


def test_good_wires_are_taken(tmp_path: Any) -> None:
    verdict, lines = agreed(3, tmp_path, True)
    assert verdict.transport == "cpu", verdict.line
    assert [each.nbytes for each in verdict.compared] == [4096]
    assert [line for line in lines if line == verdict.line], lines


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("corrupt", "rank 2 to rank 1: bytes arrived changed (word "),
        ("lose", f"rank 2 to rank 1: bytes did not arrive within {PATIENCE:g} s (of 16 bytes)"),
    ],
)
def test_lost_and_changed_bytes_leave_everything_to_the_fallback(tmp_path: Any, kind: str, told: str) -> None:
    verdict, lines = agreed(3, tmp_path, True, Bad(2, 1, kind), host=False)
    assert verdict.transport == "fallback", verdict.line
    assert verdict.reason.startswith(told), verdict.line
    assert len(verdict.findings) == 1, "only one wire is bad"
    assert lines.count(verdict.line) == 1, lines


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_meet_in_host_memory_where_a_wire_is_bad(tmp_path: Any, world: int) -> None:
    verdict, _ = agreed(world, tmp_path, False, Bad(0, 1, "lose"))
    assert verdict.transport == "host", verdict.line
    assert verdict.reason.startswith("ranks meet in host memory: rank 0 to rank 1: bytes did not arrive")


def test_without_a_fallback_a_bad_wire_is_an_error_on_all_ranks(tmp_path: Any) -> None:
    told, _ = agreed(3, tmp_path, False, Bad(2, 1, "corrupt"), host=False)
    assert told.startswith("rank 2 to rank 1: bytes arrived changed"), told


def test_a_slow_wire_gives_way_to_the_fallback(tmp_path: Any) -> None:
    verdict, _ = agreed(3, tmp_path, True, Bad(2, 1, "slow", seconds=0.2), host=False)
    assert verdict.transport == "fallback", verdict.line
    found = re.match(r"rank 1 and rank 2: (\d+,\d+) us one way; 50,000 is the limit", verdict.findings[0])
    assert found is not None and float(found[1].replace(",", "")) >= 1e5, verdict.findings
    assert len(verdict.findings) == 1


def test_where_stores_collapse_while_all_ranks_store_ranks_read(tmp_path: Any) -> None:
    verdict, _ = agreed(3, tmp_path, True, Bad(2, 1, "collapse", seconds=0.8))
    assert verdict.transport == "pull", verdict.line
    assert verdict.findings[0].startswith("stores collapse: rank 2 stores 0.0"), verdict.line


def refused(me: Rank) -> None:
    """Not probed: the first exchange finds the wire, and a fallback serves everything."""
    construction.GREETING_DEADLINE, before = PATIENCE, construction.GREETING_DEADLINE
    try:
        with wires.wires(me, Bad(2, 1, "lose")):
            comm = me.communicator(max_bytes=4096, fallback=me.group)
            me.meet()
    finally:
        construction.GREETING_DEADLINE = before
    x = torch.full((8,), me.rank + 1.0)
    with comm, comm.capture():
        assert (comm.transport, comm.memory_bytes) == ("fallback", 0)
        assert comm.verdict.line.startswith(
            "fallback: because the first exchange with the peers failed: rank 1: rank 2 to"
        )
        assert str(comm.why_not(x)).startswith("the fallback serves everything, because the first exchange")
        assert (comm.supports(x), comm.algorithm_for(x), comm.calls) == (False, "none", 0)
        assert comm.all_reduce(x).tolist() == [6.0] * 8
        assert comm.all_reduce(x, out=x) is x and x.tolist() == [6.0] * 8
        compiled = torch.compile(comm.all_reduce, backend="eager", fullgraph=True)
        assert compiled(x).tolist() == [18.0] * 8
        comm.check()
        assert [peer.calls for peer in comm.stats()] == [0] * 3
        me.meet()
    with pytest.raises(pcie_allreduce.ClosedError):
        comm.all_reduce(x)


def test_a_refused_construction_leaves_everything_to_the_fallback() -> None:
    run_ranks(3, refused)


def recovered(me: Rank, folder: str) -> list[tuple[Any, list[str]]]:
    """Bytes are lost while the machine is measured for the first time, and never again."""
    return [construct(me, folder, False, True, *bad) for bad in ((Bad(0, 1, "lose"),), (), ())]


def test_what_was_lost_once_does_not_decide_for_good(tmp_path: Any) -> None:
    (first, _), (second, lines), (third, _) = run_ranks(2, recovered, str(tmp_path))[0]
    (file,) = tmp_path.iterdir()
    assert (first.transport, second.transport, third.transport) == ("host", "cpu", "cpu")
    assert (second.origin, third.origin) == ("measured now", str(file))
    told = f"the machine is measured: {file}: it may have passed that rank 0 to rank 1: bytes did not arrive within 3 s"
    assert [line for line in lines if line.startswith(told)], lines


def damaged(me: Rank, folder: str) -> list[tuple[Any, list[str]]]:
    told = [construct(me, folder, False, True)]
    if me.rank == 0:
        (file,) = Path(folder).iterdir()
        entry = json.loads(file.read_text())
        entry["probe"]["direct"]["latency_us"][0][1] = "fast"
        file.write_text(json.dumps(entry))
    me.meet()
    return [*told, construct(me, folder, False, True)]


def test_a_damaged_file_stops_no_start(tmp_path: Any) -> None:
    _, (verdict, lines) = run_ranks(2, damaged, str(tmp_path))[0]
    assert (verdict.transport, verdict.origin) == ("cpu", "measured now")
    assert any(line.startswith("the machine is measured: ") and "these are no measurements" in line for line in lines)


def for_an_engine(me: Rank) -> str:
    """An engine has a way of its own for what is refused; it must hear of it, and not be served in a roundabout way."""
    from pcie_allreduce.integrations.adapter import EngineAllReduce
    from pcie_allreduce.integrations.settings import Settings

    os.environ["PCIE_ALLREDUCE_PROBE"] = "new"
    examine.DEADLINE, before = PATIENCE, examine.DEADLINE
    options = {
        "name": "tp:0",
        "settings": Settings(max_bytes=4096),
        "fallback": me.group,
        "on_fault": lambda error: None,
    }
    try:
        with (
            wires.wires(me, Bad(2, 1, "lose")),
            no_host_memory(),
            pytest.raises(pcie_allreduce.SetupError) as caught,
        ):
            EngineAllReduce(me.group, torch.device("cpu"), **options)
    finally:
        os.environ["PCIE_ALLREDUCE_PROBE"], examine.DEADLINE = "0", before
    return str(caught.value)


def test_an_engine_is_told_of_a_refusal() -> None:
    (told,) = set(run_ranks(3, for_an_engine))
    assert told.startswith("rank 2 to rank 1: bytes did not arrive within")


def left_out(me: Rank, folder: str) -> list[str]:
    os.environ["PCIE_ALLREDUCE_CACHE"] = folder
    told = []
    for variable, options in (
        ("", {}),
        ("0", {"probe": None}),
        ("1", {"probe": False}),
        ("1", {"transport": "cpu"}),
        ("1", {}),
        ("yes", {}),
    ):
        os.environ["PCIE_ALLREDUCE_PROBE"] = variable
        try:
            with me.communicator(max_bytes=4096, **options) as comm:
                told.append(comm.verdict.line)
                me.meet()
        except pcie_allreduce.SetupError as error:
            told.append(str(error))
        os.environ["PCIE_ALLREDUCE_PROBE"] = "0"
    return told


def test_cpu_ranks_are_probed_only_when_asked(tmp_path: Any) -> None:
    *why_not, probed, wrong = run_ranks(2, left_out, str(tmp_path))[0]
    assert why_not == [
        "cpu: not probed: CPU ranks are only when asked",
        "cpu: not probed: PCIE_ALLREDUCE_PROBE is 0",
        "cpu: not probed: probe=False",
        "cpu: not probed: transport 'cpu' was asked for",
    ]
    assert probed.startswith("cpu: 2 directed pairs carry bytes unchanged")
    assert (
        "PCIE_ALLREDUCE_PROBE is 'yes'; 0 (never), 1 (CPU ranks, too) and 'new' (whatever was kept) are known" in wrong
    )


def broken(me: Rank, folder: str) -> tuple[str, str]:
    """A machine that was good when it was measured, and is not any more."""
    first, _ = construct(me, folder, True, True)
    second, lines = construct(me, folder, True, False, Bad(2, 1, "slow", seconds=0.2))
    return first.origin, second.line if me.rank else "\n".join(lines)


@pytest.mark.slow
def test_what_was_kept_is_looked_at_and_measured_anew_where_it_does_not_hold(tmp_path: Any) -> None:
    (origin, lines), (_, line), _ = run_ranks(3, broken, str(tmp_path))
    assert origin == "measured now"
    assert "the machine is measured anew: rank 1 and rank 2: " in lines
    assert line.startswith("fallback: because rank 1 and rank 2: ") and line.endswith("(measured now)")


def again(me: Rank, folder: str) -> list[Any]:
    verdicts = [construct(me, folder, with_fallback, True)[0] for with_fallback in (False, True, True)]
    return [(verdict.origin, verdict.measured, bool(verdict.compared)) for verdict in verdicts]


def test_what_was_kept_is_not_measured_again(tmp_path: Any) -> None:
    """The comparison is made once a fallback is there, and kept with the rest."""
    first, second, third = run_ranks(2, again, str(tmp_path))[0]
    (file,) = tmp_path.iterdir()
    assert (first[0], second[0], third[0]) == ("measured now", str(file), str(file))
    assert (first[2], second[2], third[2]) == (False, True, True)
    assert first[1].direct == second[1].direct
    assert second[1] == third[1]
