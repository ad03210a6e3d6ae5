"""One page that needs nothing else, and shows what the commands said; a browser, where there is one, must agree."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pcie_allreduce.cli.main import main
from pcie_allreduce.reporting import sections
from pcie_allreduce.reporting.page import page, write_page
from pcie_allreduce.reporting.sections import SECTIONS, Options, output_of, run_sections, words

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "h200x2-ranks2.json"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="321" height="123"><rect width="321" height="123"/></svg>'
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the commands leave it."""
    for section in SECTIONS:
        (tmp_path / f"{section.name}.txt").write_text(f"$ pcie-allreduce {section.name}\n1 < 2 & 3 > 2\n")
        (tmp_path / f"{section.name}.json").write_text(json.dumps({"name": section.name, "tag": "</pre><script>"}))
        if section.draws:
            (tmp_path / f"{section.name}.svg").write_text(SVG)
    return tmp_path


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else(folder: Path) -> None:
    text = page(folder)
    reader = Reader(text)
    assert reader.open == []
    assert "script" not in {tag for tag, _ in reader.tags} and "link" not in {tag for tag, _ in reader.tags}
    sources = [each["src"] for tag, each in reader.tags if tag == "img"]
    assert len(sources) == sum(section.draws for section in SECTIONS)
    assert all(source and source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert base64.b64decode(str(sources[0]).partition(",")[2]).decode() == SVG
    targets = {each["href"] for tag, each in reader.tags if tag == "a"}
    assert targets == {f"#{each['id']}" for tag, each in reader.tags if tag == "section"}
    assert text.count("1 &lt; 2 &amp; 3 &gt; 2") == len(SECTIONS)


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "doctor.txt").write_text("all right")
    text = page(tmp_path)
    assert "all right" in text and 'id="bench"' not in text


@pytest.mark.skipif(not RESULT.is_file(), reason="the tests run without the repository around them")
def test_the_head_says_which_machine_and_how_it_was_measured(folder: Path) -> None:
    shutil.copy(RESULT, folder / "bench.json")
    assert "measured: 2 ranks, each with a GPU of its own<br>2 x NVIDIA H200" in page(folder)


def test_what_is_there_is_not_run_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def note(command: list[str], where: Path) -> str:
        ran.append(command[0])
        return ""

    monkeypatch.setattr(sections, "output_of", note)
    run_sections(folder, Options(), print)
    assert ran == []
    (folder / "bench.txt").unlink()
    run_sections(folder, Options(), print)
    assert ran == ["bench"]


def test_the_options_reach_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "find_spec", lambda name: None)
    by_name = {section.name: words(section, Options("cpu", 4, quick=True), tmp_path) for section in SECTIONS}
    assert by_name["doctor"] == ["doctor", "--json", str(tmp_path / "doctor.json")]
    assert by_name["bench"][3:7] == ["--device", "cpu", "--ranks", "4"]
    assert "--plot" not in by_name["bench"] and "--repeats" in by_name["bench"]
    monkeypatch.setattr(sections, "find_spec", lambda name: object())
    assert str(tmp_path / "bench.svg") in words(SECTIONS[2], Options(), tmp_path)


def test_a_command_that_fails_is_shown_with_its_complaint(tmp_path: Path) -> None:
    text = output_of(["bench", "--ranks", "9", "--device", "cpu", "--json", str(tmp_path / "bench.json")], tmp_path)
    assert text.startswith("$ pcie-allreduce bench --ranks 9 --device cpu --json bench.json\n")
    assert "--ranks 9: an all-reduce here has 2 to 8 ranks\nexit code 2" in text


def test_a_command_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "LIMIT", 0.01)
    assert output_of(["info"], tmp_path).endswith("ended after 0 s\n")


@pytest.mark.slow
@pytest.mark.slow
def test_a_report_of_cpu_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "report"
    assert main(["report", str(folder), "--device", "cpu", "--quick"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(folder / "report.html")
    text = (folder / "report.html").read_text()
    assert "CPU ranks: 2 processes, no GPU took part" in text and "problem(s)" in text and "a verify pass" in text
    assert str(tmp_path) not in text  # nothing of where it was made
    assert "exit code" not in text


def test_a_folder_that_cannot_be_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / "file")]) == 2
    assert "file" in capsys.readouterr().err


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_every_section_and_picture(folder: Path) -> None:
    """The page is opened with a line of script behind it, which writes down what the browser made of it."""
    path = write_page(folder)
    probe = (
        "<script>onload = () => { document.body.dataset.seen = JSON.stringify({"
        "images: [...document.images].map(i => i.naturalWidth), sections: document.querySelectorAll('section').length, "
        "wide: document.documentElement.scrollWidth <= window.innerWidth }) }</script>"
    )
    path.write_text(path.read_text().replace("</body>", f"{probe}</body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}"]
    done = subprocess.run(
        [str(BROWSER), *options, "--virtual-time-budget=5000", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, done.stderr
    seen = json.loads(found[1].replace("&quot;", '"'))
    assert seen == {"images": [321, 321, 321], "sections": len(SECTIONS), "wide": True}
