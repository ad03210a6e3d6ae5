"""Facts off logs, in the wording of old and new versions of both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcie_allreduce.memory.facts import GB, NOT_CHUNKED, CannotTell
from pcie_allreduce.memory.log import read_log
from pcie_allreduce.memory.model import Model
from pcie_allreduce.memory.pool import pool_of

LOGS = Path(__file__).parent / "logs"
SGLANG = {
    "sglang-full": {"before": 0.0, "after": 0.0, "fraction": 0.55, "chunk": NOT_CHUNKED, "failure": "later"},
    "sglang-fails": {"before": 94.04, "after": 21.78, "fraction": 0.55, "chunk": 8192, "tp": 8, "failure": "pool"},
    "sglang-new-fails": {"before": 94.04, "after": 18.70, "fraction": 0.55, "draft_counted": True, "failure": "pool"},
    "sglang-runs-out": {
        "before": 94.04,
        "after": 21.78,
        "fraction": 0.95,
        "graphs": 1.93,
        "pool_tokens": 260948,
        "failure": "later",
        "wanted": 2.19,
    },
}
VLLM = {
    "vllm-old": {
        "total": 79.15,
        "fraction": 0.9,
        "weights": 60.12,
        "other": 1.1,
        "activations": 1.2,
        "graphs": 0.47,
        "logged_pool": 8.82,
        "failure": "",
    },
    "vllm-fails": {"fraction": 0.9, "weights": 74.08, "logged_pool": -4.3, "tp": 8, "failure": "pool"},
    "vllm-starts": {
        "total": 31.86,
        "free": 31.23,
        "fraction": 0.97,
        "weights": 24.58,
        "graphs": 0.2,
        "logged_pool": 4.87,
        "pool_tokens": 651081,
        "failure": "",
    },
    "vllm-refuses": {"total": 15.49, "free": 7.34, "fraction": 0.8, "failure": "start"},
    "vllm-long": {"fraction": 0.9, "logged_pool": 2.0, "needed": 17.16, "failure": "long"},
}


@pytest.mark.parametrize(("name", "known"), [*SGLANG.items(), *VLLM.items()])
def test_every_wording_is_read(name: str, known: dict[str, object]) -> None:
    facts = read_log((LOGS / f"{name}.log").read_text())
    assert {field: getattr(facts, field) for field in known} == known
    assert name in VLLM or facts.engine == "sglang"


def test_every_kept_log_is_read_by_a_test() -> None:
    assert {path.stem for path in LOGS.iterdir()} == {*SGLANG, *VLLM}


def test_the_rank_with_least_memory_decides() -> None:
    text = (LOGS / "sglang-fails.log").read_text()
    assert "TP0] Load weight begin. avail mem=94.11" in text
    older = text.replace("TP0]", "gpu_id=0]").replace("TP4]", "gpu_id=4]")
    assert (read_log(older).before, read_log(older).after) == (94.04, 21.78)


def test_a_draft_is_counted_where_it_is_loaded_before_the_pool() -> None:
    target = "Load weight begin. avail mem=94.00 GB\nLoad weight end. avail mem=22.00 GB\n"
    draft = "Load weight begin. avail mem=9.50 GB\nLoad weight end. avail mem=6.50 GB\n"
    pool = "KV Cache is allocated. #tokens: 1000, K size: 1.00 GB, V size: 1.00 GB\nMemory pool end. avail mem=9.6 GB\n"
    late, early = read_log(target + pool + draft), read_log(target + draft + pool)
    assert (late.draft, late.draft_counted, late.after) == (3.0, False, 22.0)
    assert (early.draft, early.draft_counted, early.after) == (3.0, True, 6.5)
    assert late.token_bytes == 2 * GB / 1000


def test_the_pool_of_the_sum_is_the_pool_of_the_log() -> None:
    for name in ("sglang-runs-out", "vllm-old", "vllm-starts"):
        facts = read_log((LOGS / f"{name}.log").read_text()).settled()
        facts.check()
        assert pool_of(facts, Model()).gb == pytest.approx(facts.logged_pool, abs=0.01)
    told = read_log((LOGS / "vllm-old.log").read_text())
    assert pool_of(told, Model()).gb == pytest.approx(told.logged_pool, abs=0.01)  # weights, other and activations


def test_another_setting_does_not_change_what_was_taken() -> None:
    facts = read_log((LOGS / "vllm-starts.log").read_text()).settled()
    other = pool_of(facts.with_given(fraction=0.9), Model())
    assert other.gb == pytest.approx(4.87 - 0.07 * 31.86)


def test_a_log_without_such_lines_is_refused() -> None:
    with pytest.raises(CannotTell, match="no line of SGLang or vLLM about memory in 2 lines"):
        read_log("hello\nworld")


@pytest.mark.parametrize(("told", "chunk"), [("-1", NOT_CHUNKED), ("0", NOT_CHUNKED), ("4096", 4096)])
def test_what_is_not_chunked_is_read_as_such(told: str, chunk: int) -> None:
    text = (LOGS / "sglang-fails.log").read_text()
    assert "chunked_prefill_size=8192" in text
    assert read_log(text.replace("chunked_prefill_size=8192", f"chunked_prefill_size={told}")).chunk == chunk


def test_a_communicator_of_one_rank_tells_nothing_of_channels() -> None:
    text = (LOGS / "sglang-fails.log").read_text() + "\nNCCL INFO 0 coll channels, 0 collnet channels"
    assert read_log(text).nccl_channels is None
    assert read_log(text.replace("INFO 0 coll", "INFO 10 coll")).nccl_channels == 10
