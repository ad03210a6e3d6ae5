"""`pcie-allreduce memory` as it is typed; docs/memory.md holds its output, word for word."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pcie_allreduce.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "memory.md"
LOGS = Path(__file__).resolve().parents[1] / "memory" / "logs"
SEED = ["--before", "94.04", "--after", "21.78", "--mem-fraction-static"]


@pytest.mark.skipif(not PAGE.is_file(), reason="the tests run without the repository around them")
def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = re.findall(r"```\n\$ pcie-allreduce memory ?([^\n]*)\n(.*?)\n```", PAGE.read_text(), flags=re.DOTALL)
    assert len(shown) >= 4
    for words, output in shown:
        assert main(["memory", *words.split()]) in (0, 1)
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert "\n".join(printed).startswith(output.removesuffix("\n..."))
        assert output.endswith("\n...") or printed == output.splitlines()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([*SEED, "0.55"], 1),
        ([*SEED, "0.9"], 0),
        ([*SEED, "0.99"], 1),
        (["--log", str(LOGS / "sglang-fails.log")], 1),
        (["--log", str(LOGS / "sglang-fails.log"), "--mem-fraction-static", "0.9"], 0),
        (["--log", str(LOGS / "vllm-starts.log")], 0),
        (["--log", str(LOGS / "vllm-refuses.log")], 1),
        (["--log", str(LOGS / "vllm-fails.log"), "--total", "79.15"], 1),
        ([*SEED, "0.9", "--tp", "1"], 0),
        ([*SEED, "0.9", "--tp", "16"], 0),
        ([*SEED, "0.9", "--chunk", "-1"], 0),
        (["--before", "0", "--after", "0", "--mem-fraction-static", "0.9"], 1),
        (["--before", "0"], 1),
        (["--total", "80", "--free", "0", "--gpu-memory-utilization", "0.9"], 1),
        (["--samples", "1000", "--batch", "2000"], 1),
        (["--samples", "1000", "--batch", "9"], 0),
        ([*SEED, "0.9", "--samples", "1000", "--batch", "2000"], 1),
    ],
)
def test_the_exit_code_says_whether_it_fits(words: list[str], code: int, tmp_path: Path) -> None:
    assert main(["memory", *words, "--json", str(tmp_path / "told.json")]) == code
    assert json.loads((tmp_path / "told.json").read_text())["fits"] is (code == 0)


def test_the_document_holds_the_sum(tmp_path: Path) -> None:
    assert main(["memory", *SEED, "0.55", "--json", str(tmp_path / "told.json")]) == 1
    pool = json.loads((tmp_path / "told.json").read_text())["pool"]
    parts = {part["name"]: part["gb"] for part in pool["parts"]}
    assert parts["KV pool"] == pool["pool_gb"] == pytest.approx(21.78 - 94.04 * 0.45)
    assert parts["free before the weights"] - parts["weights"] == pytest.approx(parts["free after the weights"])
    assert (pool["low"], pool["fits"]) == (0.769, False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "nothing says how much memory there was"),
        (["--before", "94.04"], "without --after and --mem-fraction-static"),
        (["--log", "nowhere.log"], "No such file or directory: 'nowhere.log'"),
        (["--log", __file__], "no line of SGLang or vLLM about memory"),
        ([*SEED, "0.55", "--json", "nowhere/x.json"], "No such file or directory"),
        ([*SEED, "0.55", "--tp", "0"], "--tp 0: it must be within 1 and 1073741824"),
        ([*SEED, "0.55", "--tp", "-8"], "--tp -8: it must be within 1 and 1073741824"),
        ([*SEED, "0.9", "--chunk", "0"], "--chunk 0: it must be within 1 and 1073741824, or -1, which is no chunks"),
        ([*SEED, "0.9", "--chunk", "-500000"], "--chunk -500000: it must be within 1"),
        ([*SEED, "0.9", "--nccl-channels", "0"], "--nccl-channels 0: it must be within 1 and 64"),
        (["--total", "0", "--weights", "0", "--gpu-memory-utilization", "0.9"], "--total 0: a GPU has more than 0 GB"),
        ([*SEED, "0.55", "--layers", "0"], "--layers 0: it must be within 1"),
    ],
)
def test_what_cannot_be_told_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize("ranks", ["1", "9", "16"])
def test_a_server_of_other_sizes_has_its_answer_without_our_slab(
    ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "told.json"
    log = tmp_path / "server.log"
    log.write_text((LOGS / "sglang-fails.log").read_text().replace("tp_size=8", f"tp_size={ranks}"))
    for words in ([*SEED, "0.55", "--tp", ranks], ["--log", str(log)]):
        assert main(["memory", *words, "--json", str(path)]) == 1
        assert json.loads(path.read_text())["buffers"]["ours"] is None
        out = " ".join(capsys.readouterr().out.split())
        assert f"pcie_allreduce is left out: it serves 2 to 8 ranks, and this is one of {ranks}. NCCL's are" in out
        assert "It does not fit: the pool is 21.78" in out


def test_a_log_of_a_full_gpu_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, path = tmp_path / "server.log", tmp_path / "told.json"
    lines = (LOGS / "sglang-full.log").read_text().splitlines()
    for told in (lines, lines[1:2]):  # all of it, and the least that says so
        log.write_text("\n".join(told))
        assert main(["memory", "--log", str(log), "--json", str(path)]) == 1
        assert "It does not fit: nothing was free before the weights were loaded" in capsys.readouterr().out
        pool = json.loads(path.read_text())["pool"]
        assert (pool["pool_gb"], pool["low"], pool["high"], pool["settings"]) == (None, None, None, [])
