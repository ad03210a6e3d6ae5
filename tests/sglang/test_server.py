"""SGLang's HTTP server at tensor parallel size 2, started as a user starts it, on our CPU ranks."""

from __future__ import annotations

import re
import time
from pathlib import Path

import launch
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

LAYERS, PROMPT, NEW_TOKENS = 2, [5, 7, 9, 11], 8
STOCK, OURS = "sglang.launch_server", "pcie_allreduce.integrations.sglang_launch"
FAILING = str(Path(__file__).with_name("failing_rank.py"))
QUICK = {"PCIE_ALLREDUCE_TIMEOUT": "4", "PCIE_ALLREDUCE_WARMUP_TIMEOUT": "4", "PCIE_ALLREDUCE_LOG_SECONDS": "0.2"}


@pytest.fixture(scope="module")
def tokens(two_layers: str, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Those of the server without our flag."""
    log = tmp_path_factory.mktemp("stock") / "log"
    with launch.server(STOCK, two_layers, log) as server:
        made = server.generate(PROMPT, NEW_TOKENS)
        assert "pcie-allreduce: " not in server.log
    assert len(set(made)) > NEW_TOKENS // 2
    return made


def served_so_far(server: launch.Server) -> tuple[int, int]:
    """Served by us and by the engine, when the last line about it is older than the shortest time between two."""
    time.sleep(1.5)
    lines = re.findall(r"pcie-allreduce: group tp:0 served (\d+) all-reduces \((\d+) went to the engine\)", server.log)
    assert lines, server.tail()
    return int(lines[-1][0]), int(lines[-1][1])


def test_the_flag_serves_the_same_tokens(two_layers: str, tokens: list[int], tmp_path: Path) -> None:
    with launch.server(STOCK, two_layers, tmp_path / "log", "--enable-pcie-allreduce", **QUICK) as server:
        assert server.generate(PROMPT, NEW_TOKENS) == tokens
        assert re.search(r"pcie-allreduce: on for group tp:0: 2 ranks, transport cpu, .* MB of memory", server.log)
        before, engine = served_so_far(server)
        assert engine == 0
        assert server.generate(PROMPT, NEW_TOKENS) == tokens
        per_forward = 2 * LAYERS + 1  # the prompt's forward gives the first token
        assert served_so_far(server) == (before + per_forward * NEW_TOKENS, 0)


def test_the_old_sglang_serves_the_same_tokens_by_our_launcher(
    two_layers: str, tokens: list[int], old_sglang: str, tmp_path: Path
) -> None:
    variables = {**QUICK, **launch.old_environment(old_sglang)}
    with launch.server(OURS, two_layers, tmp_path / "log", "--enable-pcie-allreduce", **variables) as server:
        assert server.generate(PROMPT, NEW_TOKENS) == tokens
        assert served_so_far(server) == ((2 * LAYERS + 1) * NEW_TOKENS, 0)


def fails_in(server: launch.Server, tokens: list[int], sentence: str) -> None:
    """Rank 1 fails in the second request; the first has made 40 calls."""
    assert server.generate(PROMPT, NEW_TOKENS) == tokens
    server.ask(PROMPT, NEW_TOKENS)
    server.await_log(rf"pcie-allreduce: rank 0 waited \d+\.\d s in call 57 .*{sentence}.*\. This process ends", 60.0)
    assert server.await_end(10.0) != 0


def test_a_rank_that_stops_while_serving_is_named_and_the_server_ends(
    two_layers: str, tokens: list[int], tmp_path: Path
) -> None:
    """It is alive: nothing but the missed call tells."""
    fails = {"FAIL_IN_CALL": "57", "FAIL_BY": "SIGSTOP"}
    # Else SGLang takes 5 s for its own diagnostics before it exits, and a minute more while a rank lives.
    at_once = {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}
    variables = {**QUICK, **fails, **at_once}
    with launch.server(FAILING, two_layers, tmp_path / "log", "--enable-pcie-allreduce", **variables) as server:
        fails_in(server, tokens, "rank 1 is missing")


def test_a_rank_that_is_killed_while_serving_is_named_and_the_server_ends(
    two_layers: str, tokens: list[int], old_sglang: str, tmp_path: Path
) -> None:
    """The old SGLang does not look after its processes, as the new one does."""
    variables = {**QUICK, **launch.old_environment(old_sglang), "FAIL_IN_CALL": "57", "FAIL_BY": "SIGKILL"}
    with launch.server(FAILING, two_layers, tmp_path / "log", "--enable-pcie-allreduce", **variables) as server:
        fails_in(server, tokens, "the process of rank 1 has ended")


def test_requiring_what_cannot_be_had_fails_the_launch_with_the_reason(two_layers: str, tmp_path: Path) -> None:
    flags = ("--pcie-allreduce-require",)
    with launch.server(STOCK, two_layers, tmp_path / "log", *flags, PCIE_ALLREDUCE_MAX_BYTES="1") as server:
        assert server.await_end(launch.START_LIMIT) != 0
        server.await_log("SetupError: --pcie-allreduce-require: cannot serve group tp:0: .*max_bytes is 1;", 1.0)


def test_a_setting_that_means_nothing_fails_the_launch(two_layers: str, tmp_path: Path) -> None:
    flags = ("--enable-pcie-allreduce",)
    with launch.server(STOCK, two_layers, tmp_path / "log", *flags, PCIE_ALLREDUCE_ON_FAULT="ignore") as server:
        assert server.await_end(launch.START_LIMIT) != 0
        server.await_log("pcie-allreduce: PCIE_ALLREDUCE_ON_FAULT is 'ignore': abort or raise is expected", 1.0)
