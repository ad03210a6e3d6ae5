"""The staged transport through host memory does all that the others do: their own tests' work, done over it."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks import Rank, run_ranks
from reference import DTYPES
from test_calls import ORDERS, many, walk
from test_failure import DIFFERENT, MARGIN, TIMEOUT, all_but_one_call, different_calls
from test_graphs import LAYERS, back_to_back, chain, missing_in_replay, several_graphs
from test_sums import sums_every_way

if TYPE_CHECKING:
    from collections.abc import Callable

worlds = pytest.mark.parametrize("world", [2, 3, 5, 8])
algorithms = pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])


def staged(me: Rank, algorithm: str, job: Callable[..., Any], *args: Any) -> Any:
    return job(replace(me, options={"transport": "host", "algorithm": algorithm}), *args)


@worlds
@algorithms
@pytest.mark.parametrize("kind", ["integers", "mixed", "patterns"])
def test_sums(world: int, algorithm: str, kind: str, device: str) -> None:
    digests = run_ranks(world, staged, algorithm, sums_every_way, kind, device=device)
    assert len(set(digests)) == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world", [2, 8])
def test_sizes_in_awkward_orders(world: int, order: str, device: str) -> None:
    steps = [(elements, torch.bfloat16) for elements in ORDERS[order]]
    run_ranks(world, staged, "auto", walk, steps, device=device)


@algorithms
def test_a_random_walk_with_late_ranks(algorithm: str, device: str) -> None:
    choose = random.Random(6)
    steps = [(choose.choice([1, 8, 500, 4096, choose.randrange(1, 30000)]), choose.choice(DTYPES)) for _ in range(300)]
    run_ranks(3, staged, algorithm, walk, steps, range(0, 300, 29), 0.01, device=device)


def test_ten_thousand_calls(device: str) -> None:
    run_ranks(2, staged, "auto", many, 10_000, 1000, device=device)


@pytest.mark.parametrize(("world", "silent"), [(2, (0,)), (4, (2,))])
def test_a_silent_rank_is_named(world: int, silent: tuple[int, ...], device: str) -> None:
    for rank, failure in enumerate(run_ranks(world, staged, "auto", all_but_one_call, silent, device=device)):
        if rank not in silent:
            assert failure.kind == "AllReduceTimeout", failure
            assert failure.poisoned, failure
            assert set(failure.missing) == set(silent), failure
            assert failure.raised - failure.begun <= TIMEOUT + MARGIN, failure


@pytest.mark.parametrize("case", ["sizes", "types of equal bytes"])
def test_different_calls_are_an_error(case: str, device: str) -> None:
    sizes, dtypes, parts = DIFFERENT[case]
    told = []
    for failure, later in run_ranks(3, staged, "auto", different_calls, 1, sizes, dtypes, device=device):
        assert failure is not None
        assert failure.poisoned
        assert later is not None
        assert later.poisoned
        told.append(failure.message)
    assert any(all(part in message for part in parts) for message in told), told


@pytest.mark.gpu
@algorithms
@pytest.mark.parametrize("world", [2, 8])
def test_graphs_of_a_whole_verify_pass(world: int, algorithm: str) -> None:
    run_ranks(world, staged, algorithm, chain, torch.bfloat16, 21504, LAYERS, 5, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("world", [2, 8])
def test_graphs_back_to_back_and_of_other_sizes(world: int) -> None:
    run_ranks(world, staged, "auto", back_to_back, 101, device="cuda")
    run_ranks(world, staged, "auto", several_graphs, [0, 1, 2, 2, 0, 1, 1, 2, 0], device="cuda")


@pytest.mark.gpu
def test_a_rank_missing_in_a_replay_is_named() -> None:
    outcomes = run_ranks(2, staged, "auto", missing_in_replay, 2.0, device="cuda", timeout=120)
    message, missing, first, later = outcomes[0]
    assert (missing, first, later) == ((1,), True, True), message


def served_by(me: Rank, options: dict[str, Any]) -> tuple[str, str]:
    with me.communicator(**options) as comm:
        x = torch.full((21504,), float(me.rank + 1), dtype=torch.bfloat16, device=me.device)
        assert bool((comm.all_reduce(x) == me.world * (me.world + 1) / 2).all())
        return comm.transport, comm.algorithm_for(x)


def test_cpu_ranks_take_it_only_when_asked() -> None:
    assert {transport for transport, _ in run_ranks(2, served_by, {})} == {"cpu"}
    assert set(run_ranks(2, served_by, {"transport": "host"})) == {("host", "one_shot")}


def without_p2p(me: Rank) -> tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PCIE_ALLREDUCE_P2P", "0")
        return served_by(me, {})


@pytest.mark.gpu
def test_gpus_without_p2p_take_it_unasked() -> None:
    assert set(run_ranks(2, without_p2p, device="cuda")) == {("host", "one_shot")}


def refusal_of_islands(me: Rank) -> str:
    with pytest.raises(Exception, match="island") as caught:
        me.communicator(transport="host", algorithm="island")
    return str(caught.value)


def test_islands_are_refused() -> None:
    for message in run_ranks(4, refusal_of_islands):
        assert re.search("'host', which has no islands", message), message


def memory(me: Rank, most: int) -> int:
    with me.communicator(transport="host", max_bytes=most) as comm:
        return int(comm.memory_bytes)


def test_memory_is_a_few_payloads_whatever_the_world() -> None:
    assert all(used < 6 * (1 << 20) for used in run_ranks(8, memory, 1 << 20))
