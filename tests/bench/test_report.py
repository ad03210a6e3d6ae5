"""What people read: ratios within one run, verdicts, and everything that was not run."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from bench.documents import FLOOR, NCCL, OURS, TUNED, document
from rich.console import Console

from pcie_allreduce.bench import report
from pcie_allreduce.bench.rows import Document


def shown(document_: Document, width: int = 80) -> str:
    file = io.StringIO()
    report.show(document_, Console(file=file, width=width))
    return file.getvalue()


def test_ratios_are_to_the_untuned_baseline_of_the_same_work() -> None:
    rows = [OURS, replace(NCCL, mode="eager", us_median=20.0), replace(NCCL, bytes=14336), TUNED, NCCL, FLOOR]
    assert report.ratio(OURS, rows) == pytest.approx(7.5 / 2.25)
    assert report.ratio(TUNED, rows) == pytest.approx(7.5 / 9)
    assert report.ratio(NCCL, rows) is None
    assert report.ratio(FLOOR, rows) is None
    assert report.ratio(OURS, [OURS, TUNED]) is None


def test_the_table_fits_80_columns_and_shows_every_row() -> None:
    text = shown(document(replace(OURS, bytes=1 << 20), replace(NCCL, bytes=1 << 20, us_median=31020.4), FLOOR))
    line = next(line for line in text.splitlines() if "one_shot" in line)
    assert line.split() == ["1,048,576", "pcie_allreduce", "one_shot", "2.25", "2.20-2.50", "13786.84", "E", "I", "R"]
    assert "31020" in text
    assert "floor" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_what_was_not_run_is_said() -> None:
    assert "not run: b12x, vllm-custom: not installed" in shown(document(OURS))


def test_the_label_and_a_recorded_input_are_said() -> None:
    text = shown(document(OURS, label="emulated: 8 ranks share 2 GPU(s)", input={"file": "o_proj.npz"}), width=200)
    assert text.startswith("emulated: 8 ranks share 2 GPU(s); 2 x A GPU, A CPU, 64 cores, torch 2.13.0, NCCL 2.28.9")
    assert "o_proj.npz" in text


def test_verdicts_are_letters() -> None:
    assert report.verdict(OURS) == "E I R"
    assert report.verdict(replace(OURS, identical=False, correctly_rounded=False)) == "E - -"
    assert report.verdict(FLOOR) == ""


@pytest.mark.parametrize("key", ["exact", "identical", "correctly_rounded"])
def test_ours_must_hold_everything(key: str) -> None:
    (sentence,) = report.complaints([OURS, replace(OURS, **{key: False}), NCCL])
    assert "pcie_allreduce (one_shot, graph, 43008 bytes of bf16, 2 ranks)" in sentence


def test_a_baseline_must_be_exact_and_may_round_as_it_likes() -> None:
    assert not report.complaints([FLOOR, replace(NCCL, identical=False, correctly_rounded=False)])
    assert report.complaints([replace(NCCL, exact=False)]) == [
        "nccl (none, graph, 43008 bytes of bf16, 2 ranks): sums are not exact"
    ]


@pytest.mark.parametrize(("us", "text"), [(0.554, "0.55"), (99.994, "99.99"), (100.04, "100.0"), (31020.4, "31020")])
def test_microseconds_have_as_many_digits_as_they_are_worth(us: float, text: str) -> None:
    assert report.microseconds(us) == text
