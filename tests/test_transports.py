"""The transports that have to be asked for do all that the usual one does: its tests' work, done over them."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks import Rank, run_ranks, start_ranks
from reference import DTYPES
from test_calls import ORDERS, many, walk
from test_failure import DIFFERENT, MARGIN, TIMEOUT, all_but_one_call, different_calls, judge_death, until_it_fails
from test_graphs import LAYERS, back_to_back, chain, missing_in_replay, several_graphs
from test_sums import sums_every_way

if TYPE_CHECKING:
    from collections.abc import Callable

transports = pytest.mark.parametrize("transport", ["host", "pull"])
worlds = pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
algorithms = pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])


def over(me: Rank, transport: str, algorithm: str, job: Callable[..., Any], *args: Any) -> Any:
    return job(replace(me, options={"transport": transport, "algorithm": algorithm}), *args)


@transports
@worlds
@algorithms
@pytest.mark.parametrize("kind", ["integers", "mixed", "patterns"])
def test_sums(world: int, transport: str, algorithm: str, kind: str, device: str) -> None:
    digests = run_ranks(world, over, transport, algorithm, sums_every_way, kind, device=device)
    assert len(set(digests)) == 1


@transports
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world", [2, 8])
def test_sizes_in_awkward_orders(world: int, transport: str, order: str, device: str) -> None:
    steps = [(elements, torch.bfloat16) for elements in ORDERS[order]]
    run_ranks(world, over, transport, "auto", walk, steps, device=device)


@transports
@algorithms
def test_a_random_walk_with_late_ranks(transport: str, algorithm: str, device: str) -> None:
    choose = random.Random(6)
    steps = [(choose.choice([1, 8, 500, 4096, choose.randrange(1, 30000)]), choose.choice(DTYPES)) for _ in range(300)]
    run_ranks(3, over, transport, algorithm, walk, steps, range(0, 300, 29), 0.01, device=device)


@transports
def test_ten_thousand_calls(transport: str, device: str) -> None:
    run_ranks(2, over, transport, "auto", many, 10_000, 1000, device=device)


@transports
@pytest.mark.parametrize(("world", "silent"), [(2, (0,)), (4, (2,))])
def test_a_silent_rank_is_named(world: int, transport: str, silent: tuple[int, ...], device: str) -> None:
    outcomes = run_ranks(world, over, transport, "auto", all_but_one_call, silent, device=device)
    for rank, failure in enumerate(outcomes):
        if rank not in silent:
            assert failure.kind == "AllReduceTimeout", failure
            assert failure.poisoned, failure
            assert set(failure.missing) == set(silent), failure
            assert failure.raised - failure.begun <= TIMEOUT + MARGIN, failure


@transports
@algorithms
def test_a_killed_rank_is_named_by_every_other(transport: str, algorithm: str) -> None:
    with start_ranks(3, over, transport, algorithm, until_it_fails, 1, False) as ranks:
        ranks.await_told("looping")
        since = time.monotonic()
        ranks.kill(1)
        judge_death(ranks.collect(60), 1, since)


@transports
@pytest.mark.parametrize("case", ["sizes", "types of equal bytes"])
def test_different_calls_are_an_error(transport: str, case: str, device: str) -> None:
    sizes, dtypes, parts = DIFFERENT[case]
    told = []
    outcomes = run_ranks(3, over, transport, "auto", different_calls, 1, sizes, dtypes, device=device)
    for failure, later in outcomes:
        assert failure is not None
        assert failure.poisoned
        assert later is not None
        assert later.poisoned
        told.append(failure.message)
    assert any(all(part in message for part in parts) for message in told), told


@pytest.mark.gpu
@transports
@algorithms
@pytest.mark.parametrize("world", [2, 8])
def test_graphs_of_a_whole_verify_pass(world: int, transport: str, algorithm: str) -> None:
    run_ranks(world, over, transport, algorithm, chain, torch.bfloat16, 21504, LAYERS, 5, device="cuda")


@pytest.mark.gpu
@transports
@pytest.mark.parametrize("world", [2, 8])
def test_graphs_back_to_back_and_of_other_sizes(world: int, transport: str) -> None:
    run_ranks(world, over, transport, "auto", back_to_back, 101, device="cuda")
    run_ranks(world, over, transport, "auto", several_graphs, [0, 1, 2, 2, 0, 1, 1, 2, 0], device="cuda")


@pytest.mark.gpu
@transports
def test_a_rank_missing_in_a_replay_is_named(transport: str) -> None:
    outcomes = run_ranks(2, over, transport, "auto", missing_in_replay, 2.0, device="cuda", timeout=120)
    message, missing, first, later = outcomes[0]
    assert (missing, first, later) == ((1,), True, True), message


def served_by(me: Rank, options: dict[str, Any]) -> tuple[str, str]:
    with me.communicator(**options) as comm:
        x = torch.full((21504,), float(me.rank + 1), dtype=torch.bfloat16, device=me.device)
        assert bool((comm.all_reduce(x) == me.world * (me.world + 1) / 2).all())
        return comm.transport, comm.algorithm_for(x)


@transports
def test_cpu_ranks_take_it_only_when_asked(transport: str) -> None:
    assert {served for served, _ in run_ranks(2, served_by, {})} == {"cpu"}
    assert set(run_ranks(2, served_by, {"transport": transport})) == {(transport, "one_shot")}


def refusal_of_islands(me: Rank, transport: str) -> str:
    with pytest.raises(Exception, match="island") as caught:
        me.communicator(transport=transport, algorithm="island")
    return str(caught.value)


@transports
def test_islands_are_refused(transport: str) -> None:
    for message in run_ranks(4, refusal_of_islands, transport):
        assert f"'{transport}', which has no islands" in message, message


def memory(me: Rank, transport: str, most: int) -> int:
    with me.communicator(transport=transport, max_bytes=most) as comm:
        return int(comm.memory_bytes)


@pytest.mark.parametrize(("transport", "payloads"), [("host", 6), ("pull", 3)])
def test_memory_is_a_few_payloads_whatever_the_world(transport: str, payloads: int) -> None:
    assert all(used < payloads * (1 << 20) for used in run_ranks(8, memory, transport, 1 << 20))
