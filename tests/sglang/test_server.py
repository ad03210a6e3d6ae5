"""SGLang's HTTP server at tensor parallel size 2, started as a user starts it, on our CPU ranks."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import launch
import pytest
import tiny_models

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

LAYERS, PROMPT, NEW_TOKENS = 2, [5, 7, 9, 11], 8
PER_FORWARD = 2 * LAYERS + 1
STOCK, OURS = ("-m", "sglang.launch_server"), ("-m", "pcie_allreduce.integrations.sglang_launch")
SERVE = (str(Path(sys.executable).with_name("sglang")), "serve")
# Else SGLang takes 5 s for its own diagnostics before it exits, and a minute more while a rank lives.
AT_ONCE = {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}
LIMITS = {"PCIE_ALLREDUCE_TIMEOUT": "15", "PCIE_ALLREDUCE_WARMUP_TIMEOUT": "15", "PCIE_ALLREDUCE_LOG_SECONDS": "0.2"}


@pytest.fixture(scope="module")
def tokens(two_layers: str, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Those of the server without our flag."""
    log = tmp_path_factory.mktemp("stock") / "log"
    with launch.server(STOCK, two_layers, log) as server:
        made = server.generate(PROMPT, NEW_TOKENS)
        assert "pcie-allreduce: " not in server.log
    assert len(set(made)) > NEW_TOKENS // 2
    return made


def served_all(server: launch.Server, *numbers: int) -> None:
    """The log comes to tell one of these numbers and no other afterwards; the engine has got nothing."""
    server.await_log(rf"group tp:0 served ({'|'.join(map(str, numbers))}) all-reduces ")
    time.sleep(1.0)  # more than the shortest time between two lines
    told = re.findall(r"pcie-allreduce: group tp:0 served (\d+) all-reduces \((\d+) went to the engine\)", server.log)
    assert int(told[-1][0]) in numbers
    assert {engine for _, engine in told} == {"0"}


def fails(server: launch.Server, call: int, sentence: str) -> None:
    """Asks for what will not be answered; the log must name rank 1, and the server end in failure."""
    server.ask(PROMPT, NEW_TOKENS)
    server.await_log(
        rf"pcie-allreduce: rank 0 waited \d+\.\d s in call {call} .*{sentence}.*\. This process ends", 60.0
    )
    assert server.await_end(10.0) != 0


def test_the_flag_serves_the_same_tokens_and_a_rank_that_stops_is_named(
    two_layers: str, tokens: list[int], tmp_path: Path
) -> None:
    calls = PER_FORWARD * NEW_TOKENS  # the prompt's forward gives the first token
    stops = {"FAIL_IN_CALL": str(2 * calls + 17), "FAIL_BY": "SIGSTOP"}
    variables = {**LIMITS, **stops, **AT_ONCE}
    with launch.server(STOCK, two_layers, tmp_path / "log", "--enable-pcie-allreduce", **variables) as server:
        assert server.generate(PROMPT, NEW_TOKENS) == tokens
        assert re.search(r"pcie-allreduce: on for group tp:0: 2 ranks, transport cpu, .* MB of memory", server.log)
        served_all(server, calls)
        assert server.generate(PROMPT, NEW_TOKENS) == tokens
        served_all(server, 2 * calls)
        fails(server, 2 * calls + 17, "rank 1 is missing")  # it is alive: nothing but the missed call tells


@pytest.mark.slow
def test_the_old_sglang_serves_them_by_our_launcher_and_a_rank_that_is_killed_is_named(
    two_layers: str, tokens: list[int], old_sglang: str, tmp_path: Path
) -> None:
    """0.5.9 does not look after its processes, as the new one does. It starts a forward more than it needs."""
    killed = {"FAIL_IN_CALL": "57", "FAIL_BY": "SIGKILL"}
    variables = {**LIMITS, **killed, **launch.old_environment(old_sglang)}
    with launch.server(OURS, two_layers, tmp_path / "log", "--enable-pcie-allreduce", **variables) as server:
        assert server.generate(PROMPT, NEW_TOKENS) == tokens
        served_all(server, PER_FORWARD * NEW_TOKENS, PER_FORWARD * (NEW_TOKENS + 1))
        fails(server, 57, "the process of rank 1 has ended")


# What runs with captured parts of a graph by default does so on a CPU, too, where there are none.
GRAPHS = dict.fromkeys(("0.5.11", "0.5.13"), ("--disable-piecewise-cuda-graph",))
OTHERS = sorted({*launch.folders()} - {"0.5.9"})


@pytest.mark.parametrize("version", OTHERS)
def test_other_versions_serve_the_same_tokens_by_the_flag(
    version: str, two_layers: str, tokens: list[int], tmp_path: Path
) -> None:
    """Those that a run for the table of versions has unpacked; none by default."""
    variables = {**LIMITS, **launch.old_environment(launch.folders()[version])}
    flags = ("--enable-pcie-allreduce", *GRAPHS.get(version, ()))
    with launch.server(STOCK, two_layers, tmp_path / "log", *flags, **variables) as server:
        assert server.generate(PROMPT, NEW_TOKENS) == tokens
        served_all(server, PER_FORWARD * NEW_TOKENS, PER_FORWARD * (NEW_TOKENS + 1))


@pytest.mark.slow
def test_the_old_sglang_serves_the_same_tokens_with_fused_calls(old_sglang: str, tmp_path: Path) -> None:
    """Of a model whose layers have the place for them in that version, which Llama's do not have there."""
    model = tiny_models.write_target(tmp_path / "qwen3", LAYERS, gain=1.7, qwen3=True)
    made = {}
    for fused in ("0", "1"):
        variables = {**LIMITS, **launch.old_environment(old_sglang), "PCIE_ALLREDUCE_FUSED": fused}
        with launch.server(OURS, model, tmp_path / f"log{fused}", "--enable-pcie-allreduce", **variables) as server:
            made[fused] = server.generate(PROMPT, NEW_TOKENS)
            served_all(server, PER_FORWARD * NEW_TOKENS, PER_FORWARD * (NEW_TOKENS + 1))
            told = "pcie-allreduce: group tp:0 fuses up to 8192 rows of 128 bfloat16"
            assert (told in server.log) == (fused == "1")  # it is told when a layer asks
    assert made["1"] == made["0"]
    assert len(set(made["0"])) > NEW_TOKENS // 2


@pytest.mark.slow
def test_requiring_what_cannot_be_had_fails_the_launch_with_the_reason(two_layers: str, tmp_path: Path) -> None:
    variables = {"PCIE_ALLREDUCE_MAX_BYTES": "1", **AT_ONCE}
    with launch.server(SERVE, two_layers, tmp_path / "log", "--pcie-allreduce-require", **variables) as server:
        assert server.await_end(launch.START_LIMIT) != 0
        server.await_log("SetupError: --pcie-allreduce-require: cannot serve group tp:0: .*max_bytes is 1;", 1.0)


@pytest.mark.slow
def test_a_setting_that_means_nothing_fails_the_launch(two_layers: str, tmp_path: Path) -> None:
    flags = ("--enable-pcie-allreduce",)
    with launch.server(STOCK, two_layers, tmp_path / "log", *flags, PCIE_ALLREDUCE_ON_FAULT="ignore") as server:
        assert server.await_end(launch.START_LIMIT) != 0
        server.await_log("pcie-allreduce: PCIE_ALLREDUCE_ON_FAULT is 'ignore': abort or raise is expected", 1.0)
