"""EAGLE-3 in SGLang's real engine at tensor parallel size 2: draft, verify and draft-extend steps on our CPU ranks.

Greedy verification compares nothing between ranks: if their sums differed in one bit, they would accept different
drafts and part ways at the next collective.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import launch
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

LAYERS, STEPS, DRAFT_TOKENS, PROMPT = 12, 3, 4, [5, 7, 9, 11, 13]
TARGET, DRAFT = 2 * LAYERS + 1, 3  # calls of a forward: one for the embedding, two a layer
PLAIN, FUSED = "custom_all_reduce", "fused_allreduce_rmsnorm"


def run_engine(target: str, draft: str, calls: Path, **variables: str) -> tuple[dict[str, Any], str]:
    """Tokens and acceptance, and the log."""
    script = Path(__file__).with_name("eagle3_engine.py")
    done = subprocess.run(
        [sys.executable, str(script), target, draft, str(calls), json.dumps(PROMPT)],
        env=launch.environment(TRITON_INTERPRET="1", **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=420,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert told, f"exit status {done.returncode}\n" + "\n".join(line[:300] for line in done.stdout.splitlines()[-40:])
    return json.loads(told[0].removeprefix("RESULT ")), done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("eagle3")


@pytest.fixture(scope="module")
def without(twelve_layers: str, draft: str, folder: Path) -> dict[str, Any]:
    result, log = run_engine(twelve_layers, draft, folder / "none")
    assert "pcie-allreduce: on" not in log
    assert not (folder / "none").exists()
    return result


def calls(folder: Path, name: str) -> list[tuple[str, int]]:
    """What rank 0 has called, in order: a method of the adapter, and the number of rows."""
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [(method, rows) for method, rows, hidden in lines]


@pytest.fixture(scope="module")
def served(twelve_layers: str, draft: str, folder: Path) -> tuple[dict[str, Any], str]:
    return run_engine(twelve_layers, draft, folder / "calls", PCIE_ALLREDUCE="1", PCIE_ALLREDUCE_LOG_SECONDS="0.3")


def test_tokens_and_acceptance_are_those_of_the_engine(
    without: dict[str, Any], served: tuple[dict[str, Any], str]
) -> None:
    assert served[0] == without
    # Some drafts are accepted and some are not; else one wrong sum could go unseen.
    assert 0 < without["num_correct_drafts"] < without["num_proposed_drafts"]
    assert len(set(without["tokens"])) > len(without["tokens"]) // 2


def test_every_all_reduce_is_served_in_the_order_of_the_algorithm(
    served: tuple[dict[str, Any], str], folder: Path
) -> None:
    result, log = served
    prefill = [(PLAIN, len(PROMPT))] * (TARGET + DRAFT)
    iteration = [(PLAIN, 1)] * (DRAFT * (STEPS - 1)) + [(PLAIN, DRAFT_TOKENS)] * (TARGET + DRAFT)
    made = calls(folder, "calls")
    assert made == prefill + iteration * result["verify_ct"]
    assert f"group tp:0 served {len(made)} all-reduces (0 went to the engine)" in log


@pytest.mark.slow
def test_fused_calls_give_the_same_tokens_and_are_most_of_a_forward(
    without: dict[str, Any], twelve_layers: str, draft: str, folder: Path
) -> None:
    """A residual is rounded once instead of twice, and the tokens are the same. Not fused are the embedding, the last
    layer, and the three layers whose output the draft model gets: SGLang sums those before it copies them."""
    on = {"PCIE_ALLREDUCE": "1", "PCIE_ALLREDUCE_FUSED": "1", "PCIE_ALLREDUCE_LOG_SECONDS": "0.3"}
    result, log = run_engine(twelve_layers, draft, folder / "fused", **on)
    assert result == without
    captured = {2, LAYERS // 2, LAYERS - 3}
    forward = [PLAIN]
    for layer in range(LAYERS):
        forward += [FUSED, PLAIN if layer + 1 in {*captured, LAYERS} else FUSED]
    assert forward.count(FUSED) == 20

    def target(rows: int) -> list[tuple[str, int]]:
        return [(method, rows) for method in forward]

    prefill = target(len(PROMPT)) + [(PLAIN, len(PROMPT))] * DRAFT
    iteration = [(PLAIN, 1)] * (DRAFT * (STEPS - 1)) + target(DRAFT_TOKENS) + [(PLAIN, DRAFT_TOKENS)] * DRAFT
    made = calls(folder, "fused")
    assert made == prefill + iteration * result["verify_ct"]
    assert f"group tp:0 served {len(made)} all-reduces (0 went to the engine)" in log


@pytest.mark.slow
def test_all_gathers_of_logits_give_the_same_tokens(
    without: dict[str, Any], twelve_layers: str, draft: str, folder: Path
) -> None:
    """One behind each forward of the target and of the draft model."""
    on = {"PCIE_ALLREDUCE": "1", "PCIE_ALLREDUCE_GATHER": "1", "PCIE_ALLREDUCE_LOG_SECONDS": "0.3"}
    result, log = run_engine(twelve_layers, draft, folder / "gathered", **on)
    assert result == without
    forwards = 2 + (STEPS - 1 + 2) * result["verify_ct"]
    made = len(calls(folder, "gathered")) + forwards
    assert f"group tp:0 served {made} all-reduces and all-gathers (0 went to the engine)" in log
