"""What becomes of published boxes: each row of the table says what a person with that box should be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from probe import boxes

from pcie_allreduce.plan import step_for
from pcie_allreduce.probe import Compared, Measurements, Verdict
from pcie_allreduce.probe.decision import Options, decide, fallback_wins, find_islands, narrows, steps
from pcie_allreduce.probe.examine import differs

WITH = Options(fallback=True, pull=False, host=False)
WITHOUT = replace(WITH, fallback=False)
PULL = replace(WITH, pull=True)
HOST = replace(WITH, host=True)

Box = Callable[[], Measurements]
FOUR = (frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7}))


@pytest.mark.parametrize(
    ("box", "options", "transport", "told"),
    [
        (boxes.switch, WITH, "peer", "56 directed pairs carry bytes unchanged"),
        (boxes.four_and_four, WITH, "peer", "21.9 GB/s a rank while all store"),
        (boxes.two_h200, WITH, "peer", "2 directed pairs"),
        (boxes.collapse, WITH, "fallback", "stores collapse: rank 0 stores 2.7 GB/s"),
        (boxes.collapse, PULL, "pull", "stores collapse: rank 0 stores 2.7 GB/s"),
        (boxes.collapse, WITHOUT, "peer", "nothing better is there, though stores collapse"),
        (lambda: boxes.collapse(7.0), PULL, "pull", "root complexes"),
        (boxes.mailbox, PULL, "fallback", "rank 0 and rank 1: 121 us one way"),
        (boxes.mailbox, WITHOUT, "peer", "RMForceP2PType"),
        (boxes.wrong_data, PULL, "fallback", "rank 0 to rank 1: bytes arrived changed (word 3 of"),
        (boxes.wrong_data, WITHOUT, "fallback", "iommu=pt"),
        (boxes.hang, WITH, "fallback", "rank 0 to rank 1: bytes did not arrive within 2 s"),
        (boxes.no_p2p, WITH, "fallback", "GeForce without a patched driver"),
        (boxes.no_p2p, WITHOUT, "fallback", "no P2P between cuda:0 and cuda:1"),
        (lambda: boxes.no_p2p(2), HOST, "host", "no P2P between cuda:0 and cuda:1"),
        (boxes.no_p2p, HOST, "host", "no P2P between cuda:0 and cuda:1"),
        (boxes.no_p2p, replace(HOST, fallback=False), "host", "GeForce without a patched driver"),
        (boxes.mailbox, HOST, "host", "rank 0 and rank 1: 121 us one way"),
        (boxes.containers, WITH, "fallback", "--ipc=host"),
        (boxes.one_bad_pair, WITH, "fallback", "rank 5 to rank 2: bytes did not arrive within 2 s (of 1,024 bytes)"),
        (boxes.mixed, WITH, "peer", "56 directed pairs"),
        (boxes.slower_than_nccl, WITH, "peer", "56 directed pairs"),
    ],
)
def test_what_becomes_of_a_box(box: Box, options: Options, transport: str, told: str) -> None:
    verdict = decide(box(), options)
    assert (verdict.transport, told in verdict.line) == (transport, True), verdict.line
    assert verdict.line.startswith("fallback: because " if transport == "fallback" else f"{transport}: ")


@pytest.mark.parametrize(
    ("box", "islands"),
    [
        (boxes.switch, None),
        (boxes.four_and_four, FOUR),
        (boxes.collapse, FOUR),
        (boxes.interleaved, (frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7}))),
        (boxes.mixed, None),
        (boxes.two_h200, None),
        (boxes.no_p2p, None),
        (lambda: replace(boxes.four_and_four(), device="cpu"), None),
        (lambda: replace(boxes.four_and_four(), sharing=4), None),
    ],
)
def test_islands_are_seen_in_the_latencies(box: Box, islands: object) -> None:
    assert find_islands(box()) == islands


def test_a_link_that_all_share_is_no_collapse() -> None:
    """Loads as slow as stores: pulling would not help. And eight ranks on two GPUs share each link by four."""
    direct = boxes.collapse().direct
    assert decide(boxes.box(replace(direct, pull_together_gbps=(3.0,) * 8)), PULL).transport == "peer"
    emulated = replace(direct, push_together_gbps=(boxes.STORES / 4,) * 8, pull_together_gbps=(40.0,) * 8)
    assert decide(boxes.box(emulated, sharing=4), PULL).transport == "peer"
    assert decide(boxes.box(replace(emulated, push_together_gbps=(2.7,) * 8), sharing=4), PULL).transport == "pull"


def test_what_is_read_changed_is_not_pulled() -> None:
    direct = replace(boxes.collapse().direct, pulled=boxes.matrix(8, lambda a, b: "were read changed"))
    assert decide(boxes.box(direct), PULL).transport == "fallback"


def test_host_memory_that_is_no_better_is_not_taken() -> None:
    bad = boxes.no_p2p(2)
    assert bad.host is not None
    lost = replace(bad.host, arrived=boxes.matrix(2, lambda a, b: "did not arrive within 2 s (of 16 bytes)", "ok"))
    assert decide(bad, HOST).transport == "host"
    assert decide(replace(bad, host=lost), HOST).transport == "fallback"
    assert decide(replace(bad, host=None), HOST).transport == "fallback"


def test_a_narrow_pair_is_told_and_serves() -> None:
    assert decide(boxes.switch(), WITH).findings == ()
    told = decide(boxes.mixed(), WITH).findings
    assert len(told) == 14 and told[0].startswith("rank 0 to rank 7: 11.5 GB/s, and 47.5 between most (usually fewer")
    assert narrows(replace(boxes.mixed(), device="cpu")) == ()


def test_every_refusal_names_a_pair_and_a_cause() -> None:
    for box in (boxes.mailbox, boxes.wrong_data, boxes.hang, boxes.one_bad_pair, boxes.collapse):
        for finding in decide(box(), WITH).findings:
            assert "rank " in finding and "(usually " in finding, finding
    assert len(decide(boxes.wrong_data(), WITH).findings) == 56
    assert "usually other processes" in decide(replace(boxes.hang(), device="cpu"), WITH).reason


def test_sizes_at_which_the_fallback_was_faster_are_left_to_it() -> None:
    """Two medians of the same thing differ by a percent or two: 3 % decide nothing."""
    compared = (Compared(14336, 5.0, 20.0), Compared(131072, 10.0, 9.8), Compared(1048576, 60.0, 50.0))
    assert [fallback_wins(each) for each in compared] == [False, False, True]
    table = steps(compared)
    for dtype_bytes in (2, 4):
        left = [step_for(table, nbytes, dtype_bytes) for nbytes in (1024, 131072, 370_000, 371_000, 1 << 30)]
        assert [step is not None and step.fallback for step in left] == [False, False, False, True, True]
        assert all(step is not None and step.algorithm == "auto" for step in left)
    assert steps(compared[:2]) == steps(()) == ()
    verdict = decide(boxes.slower_than_nccl(), WITH)
    assert "the fallback is faster at 14,336, 131,072, 1,048,576 of" in verdict.line
    assert all(step.fallback for step in steps(verdict.compared))
    assert "no slower than the fallback at 14,336, 131,072 bytes" in decide(boxes.two_h200(), WITH).line
    assert "not compared" in decide(boxes.switch(), WITH).line


def test_the_verdict_tells_json_everything() -> None:
    for box in (boxes.four_and_four, boxes.no_p2p, boxes.slower_than_nccl):
        verdict = decide(box(), WITH)
        told = json.loads(json.dumps(verdict.to_dict()))
        assert Measurements.from_dict(told["measured"]) == verdict.measured
        assert (told["transport"], told["line"]) == (verdict.transport, verdict.line)
    assert json.loads(json.dumps(decide(boxes.four_and_four(), WITH).to_dict()))["islands"] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert Verdict("cpu", "not probed: CPU ranks are only when asked").to_dict()["measured"] is None


def test_the_short_look_finds_another_way_and_overlooks_a_coarse_clock() -> None:
    before = boxes.four_and_four().direct.latency_us
    assert differs(before, boxes.matrix(8, lambda a, b: 2.6), "cuda") is None
    assert differs(before, boxes.mailbox().direct.latency_us, "cuda") == (
        "rank 0 and rank 1: 121.0 us one way, where 0.7 were measured"
    )
    lost = boxes.matrix(8, lambda a, b: None if (a, b) == (6, 2) else 0.7)
    assert differs(before, lost, "cuda") == "rank 6 and rank 2 did not answer each other"
    assert differs(boxes.matrix(2, lambda a, b: 5.0), boxes.matrix(2, lambda a, b: 900.0), "cpu") is None


def test_the_short_look_finds_a_way_that_was_slowed_down_when_it_was_measured() -> None:
    now = boxes.four_and_four().direct.latency_us
    inflated = boxes.matrix(8, lambda a, b: 6.0 if {a, b} == {2, 5} else now[a][b] or 0.0)
    assert differs(inflated, now, "cuda") == "rank 2 and rank 5: 1.1 us one way, where 6.0 were measured"
    assert differs(boxes.matrix(8, lambda a, b: 2.6), now, "cuda") is None
    assert differs(boxes.matrix(2, lambda a, b: 900.0), boxes.matrix(2, lambda a, b: 5.0), "cpu") is None
