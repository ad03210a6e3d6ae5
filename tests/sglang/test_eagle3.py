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
    rows = [json.loads(line)[0] for line in (folder / "calls").read_text().splitlines()]
    target, draft = 2 * LAYERS + 1, 3  # one for the embedding, two a layer
    prefill = [len(PROMPT)] * (target + draft)
    iteration = [1] * (draft * (STEPS - 1)) + [DRAFT_TOKENS] * (target + draft)
    assert rows == prefill + iteration * result["verify_ct"]
    assert f"group tp:0 served {len(rows)} all-reduces (0 went to the engine)" in log
