"""`pcie-allreduce tune` on CPU ranks as a person runs it, and what it keeps of a run: all of it or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from bench.documents import NCCL, OURS

from pcie_allreduce import cache
from pcie_allreduce.bench import environment
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.ranks import RanksFailed
from pcie_allreduce.bench.rows import Row
from pcie_allreduce.bench.settings import Machine
from pcie_allreduce.cache import Key, load_tuned
from pcie_allreduce.cli.main import main
from pcie_allreduce.plan import Step
from pcie_allreduce.tuning import run
from pcie_allreduce.tuning.decision import Candidate

KEY = Key("cuda", "peer", 2, ["A GPU"] * 2, [[None] * 2] * 2, [[None] * 2] * 2, None, "590.1", None, None, "0.1.0", 2)
TIMES = {"us_median", "us_min", "us_max", "replays", "repeats", "exact", "identical", "correctly_rounded"}


@pytest.fixture(autouse=True)
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PCIE_ALLREDUCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(where: Path) -> list[Path]:
    return sorted(where.glob("*")) if where.exists() else []


# On CPU ranks, for real


def test_cpu_ranks_are_tuned_and_all_candidates_written(tmp_path: Path, where: Path) -> None:
    path = tmp_path / "tune.json"
    words = ["--device", "cpu", "--ranks", "3", "--sizes", "43008,1024", "--repeats", "1", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pcie_allreduce", "tune", *words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(path.read_text())
    assert data["environment"]["kind"] == "cpu"
    assert data["margin"] == 0.03
    assert [size["bytes"] for size in data["sizes"]] == [1024, 43008]
    for size, untuned in zip(data["sizes"], ("one_shot", "two_shot"), strict=True):
        measured = {each["algorithm"]: each for each in size["candidates"]}
        assert list(measured) == ["one_shot", "two_shot", "none"]
        assert [each["backend"] for each in size["candidates"]] == ["pcie_allreduce", "pcie_allreduce", "gloo"]
        assert all(each.keys() > TIMES and each["exact"] is True for each in size["candidates"])
        assert [name for name, each in measured.items() if each["untuned"]] == [untuned] == [size["untuned"]]
        times = {name: each["us_median"] for name, each in measured.items()}
        assert size["best"] == min(("one_shot", "two_shot"), key=times.__getitem__)
        assert size["untuned_over_best"] == pytest.approx(times[untuned] / times[size["best"]], abs=1e-3)
        assert size["chosen"] in (untuned, size["best"], "fallback")
    (file,) = kept(where)
    assert data["kept"] == file.name and data["not_kept"] is None
    key = Key(**data["key"])
    assert (key.device, key.world) == ("cpu", 3)
    steps, _ = load_tuned(key)
    assert steps == tuple(Step(**step) for step in data["steps"])
    assert steps and steps[-1].up_to == 43008
    for told in ("1,024", "43,008", "untuned plan", "chosen", "gain", "at most", f"kept in {file}"):
        assert told in done.stdout, done.stdout


def test_the_benchmark_follows_a_table_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else its rows would pass for the untuned plan's."""
    path = tmp_path / "x.json"
    words = ["--device", "cpu", "--ranks", "3", "--sizes", "1024", "--repeats", "1", "--json", str(path)]
    assert main(["tune", *words]) == 0
    step = Step(2, 4096, "two_shot")  # the untuned plan is one_shot
    cache.save_tuned(Key(**json.loads(path.read_text())["key"]), (step,))
    found = []
    for ignored in ("1", "0"):
        monkeypatch.setenv("PCIE_ALLREDUCE_TUNED", ignored)
        assert main(["bench", *words, "--backends", "pcie_allreduce"]) == 0
        data = json.loads(path.read_text())
        told = "auto follows a table" in capsys.readouterr().out
        found.append((data["rows"][0]["algorithm"], data["environment"]["tuned"], told))
    assert found == [("two_shot", [asdict(step)], True), ("one_shot", None, False)]


def test_a_dry_run_keeps_nothing(where: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--sizes", "1024", "--repeats", "1", "--dtype", "fp32", "--dry-run"]
    assert main(["tune", *words]) == 0
    assert kept(where) == [] and not where.exists()
    assert capsys.readouterr().out.splitlines()[-1] == "not kept: --dry-run"


# Without ranks


LADDER = [
    [
        Candidate(Step(2, 43008, "one_shot"), "one_shot", (42, 64), untuned=True),
        Candidate(Step(2, 43008, "one_shot", 128), "one_shot", (21, 128)),
        Candidate(Step(2, 43008, fallback=True), "none"),
    ]
]
ROWS = [OURS, replace(OURS, us_median=2.0), NCCL]


class Ranks:
    """Stands for the rank processes of GPUs."""

    def __init__(self, rows: list[Row], error: BaseException | None = None) -> None:
        self.rows, self.error = rows, error
        self.environment: dict[str, str] = {}

    def __call__(self, settings: Any, work: Any, hear: Callable[[Message], None], body: Any) -> None:
        self.environment = work.environment
        assert next(job.backend for job in work.jobs) == "pcie_allreduce"
        assert settings.modes == ("graph",)
        hear(Message("ladder", (KEY, LADDER)))
        for row in self.rows:
            hear(Message("step", "a candidate"))
            hear(Message("row", row))
        if self.error is not None:
            raise self.error


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    monkeypatch.setattr(environment, "machine", lambda: Machine(gpus=2, cuda_build=True, mps=True))

    def started(ranks: Ranks, *words: str) -> int:
        monkeypatch.setattr(run, "run_pass", ranks)
        return main(["tune", "--sizes", "43008", *words])

    return started


def test_a_better_shape_is_kept_and_its_gain_told(tune: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    ranks = Ranks(ROWS)
    assert tune(ranks) == 0
    assert load_tuned(KEY)[0] == (Step(2, 43007), Step(2, 43008, "one_shot", 128))
    out = capsys.readouterr().out
    assert "replaced" not in out
    for told in ("one_shot 42x64", "one_shot 21x128", "2.25", "2.00", "11 %", "7.50", "at most 12 % longer"):
        assert told in out
    assert ranks.environment["PCIE_ALLREDUCE_TUNED"] == "0"  # or an earlier table would pass for untuned


def test_an_earlier_table_that_is_replaced_is_named(
    tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    wide = Step(4, 1 << 20, "two_shot")
    cache.save_tuned(KEY, (wide,))
    assert tune(Ranks(ROWS)) == 0
    assert "replaced" not in capsys.readouterr().out  # tables of other widths stay
    cache.save_tuned(KEY, (Step(2, 8192, "two_shot"), Step(2, 2097152, "one_shot")))
    assert tune(Ranks(ROWS), "--dry-run") == 0
    assert "replaced" not in capsys.readouterr().out
    assert tune(Ranks(ROWS)) == 0
    assert "replaced: the earlier table, of sizes up to 2,097,152 bytes; only" in capsys.readouterr().out
    assert load_tuned(KEY)[0] == (Step(2, 43007), Step(2, 43008, "one_shot", 128), wide)


def test_ranks_that_share_gpus_choose_nothing_unless_forced(
    tune: Callable[..., int], where: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(Ranks(ROWS), "--ranks", "8") == 0
    captured = capsys.readouterr()
    sentence = "an emulated run does not choose algorithms for real machines"
    assert sentence in captured.err and captured.out.splitlines()[-1].startswith("not kept: ranks share a GPU")
    assert kept(where) == []
    assert tune(Ranks(ROWS), "--ranks", "8", "--force") == 0
    assert sentence in capsys.readouterr().err
    assert len(kept(where)) == 1


def test_wrong_sums_are_exit_code_1_and_keep_nothing(
    tune: Callable[..., int], where: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(Ranks([OURS, replace(ROWS[1], identical=False), NCCL])) == 1
    captured = capsys.readouterr()
    assert "sums are not identical on all ranks" in captured.err
    assert captured.out.splitlines()[-1] == "not kept: sums are wrong"
    assert kept(where) == []


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (RanksFailed("rank 1 failed: because", "Traceback of rank 1"), 1, "rank 1 failed: because\n"),
        (KeyboardInterrupt(), 130, "interrupted; all ranks have been ended, and nothing was written\n"),
    ],
)
def test_a_run_that_ends_early_keeps_nothing(
    tune: Callable[..., int],
    where: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    told: str,
) -> None:
    assert tune(Ranks(ROWS[:2], error), "--json", str(tmp_path / "x.json")) == status
    assert capsys.readouterr().err == told
    assert kept(where) == [] and not (tmp_path / "x.json").exists()


def test_debug_shows_the_traceback(tune: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(Ranks([], RanksFailed("rank 1 failed: because", "Traceback of rank 1")), "--debug") == 1
    assert capsys.readouterr().err == "Traceback of rank 1\n"


def test_a_cache_that_cannot_be_written_is_said_before_the_run(
    tune: Callable[..., int], where: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where.write_text("a file in the folder's place")
    assert tune(Ranks(ROWS)) == 2
    assert capsys.readouterr().err.startswith("the cache cannot be written (")
    assert tune(Ranks(ROWS), "--dry-run") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ranks", "9"], "--ranks 9: an all-reduce here has 2 to 8 ranks"),
        (["--dtype", "int8"], "--dtype int8: known are bf16, fp16, fp32"),
        (["--sizes", "2147483648"], "--sizes 2147483648: a communicator serves at most 1073741824 bytes"),
        (["--json", "nowhere/x.json"], "--json nowhere/x.json: no file can be written there"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_exit_code_2(
    tune: Callable[..., int], words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(Ranks(ROWS), *words) == 2
    assert capsys.readouterr().err == f"{sentence}\n"


def test_a_failed_write_at_the_end_is_a_sentence(
    tune: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk must not cost the measurement."""

    def full(key: Key, steps: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "save_tuned", full)
    assert tune(Ranks(ROWS), "--json", str(tmp_path / "x.json")) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "not kept: [Errno 28] No space left on device"
    assert json.loads((tmp_path / "x.json").read_text())["kept"] is None
