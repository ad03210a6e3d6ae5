"""`pcie-allreduce doctor`: exit codes, files, and that the page about it shows what the command prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doctor.boxes import HEALTHY, NO_GPU, TRANSLATED

from pcie_allreduce.cli.main import main
from pcie_allreduce.doctor.box import Box

SNAPSHOTS = Path(__file__).parents[1] / "doctor" / "snapshots"
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
KEPT = {"healthy": HEALTHY, "translated": TRANSLATED}


@pytest.mark.parametrize(("box", "code"), [(HEALTHY, 0), (NO_GPU, 0), (TRANSLATED, 1)])
def test_the_exit_code_is_that_of_the_worst_finding(
    box: Box, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "box.json").write_text(json.dumps(box.to_dict()))
    words = ["doctor", "--snapshot", str(tmp_path / "box.json"), "--json", str(tmp_path / "told.json")]
    assert main([*words, "--save-snapshot", str(tmp_path / "again.json")]) == code
    assert Box.from_dict(json.loads((tmp_path / "again.json").read_text())) == box
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["exit_code"] == code
    assert ("problem" in {finding["level"] for finding in told["findings"]}) is bool(code)
    assert "problem(s)" in capsys.readouterr().out.splitlines()[-1]


def test_this_machine_is_judged_and_its_snapshot_judged_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "here.json")
    code = main(["doctor", "--save-snapshot", file])
    here = capsys.readouterr().out
    assert main(["doctor", "--snapshot", file]) == code
    assert capsys.readouterr().out == here


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}', "no JSON"])
def test_what_is_no_snapshot_is_refused_with_its_name(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.json").write_text(text)
    assert main(["doctor", "--snapshot", str(tmp_path / "odd.json")]) == 2
    assert "odd.json" in capsys.readouterr().err
    assert main(["doctor", "--snapshot", str(tmp_path / "missing.json")]) == 2


def test_a_value_of_another_kind_is_refused_with_the_files_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((SNAPSHOTS / "healthy.json").read_text())
    data["topology"]["gpus"][0]["bar1_bytes"] = "much"
    (tmp_path / "odd.json").write_text(json.dumps(data))
    assert main(["doctor", "--snapshot", str(tmp_path / "odd.json")]) == 2
    assert "odd.json: a value in it is of another kind" in capsys.readouterr().err


def test_help_says_what_the_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["doctor", "--help"])
    assert "0 all right or warnings alone, 1 a problem" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", KEPT)
def test_the_page_shows_what_the_command_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = SNAPSHOTS / f"{name}.json"
    assert Box.from_dict(json.loads(file.read_text())) == KEPT[name]
    main(["doctor", "--snapshot", str(file)])
    printed = capsys.readouterr().out
    assert printed.strip() and printed in PAGE.read_text()
