"""A server of SGLang in processes of its own: started, asked, watched and reaped, with its whole log in hand."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START_LIMIT = 240.0
CPU_ARGUMENTS = (
    "--skip-tokenizer-init --device cpu --tp 2 --max-total-tokens 2048 --max-running-requests 4 --context-length 256 "
    "--disable-cuda-graph --mem-fraction-static 0.3 --attention-backend torch_native --sampling-backend pytorch "
    "--grammar-backend none --disable-radix-cache --host 127.0.0.1 --skip-server-warmup"
).split()


def environment(**more: str) -> dict[str, str]:
    """For a process that imports SGLang on a machine without a GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PCIE_ALLREDUCE", "SGLANG_"))}
    ours = {"PYTHONPATH": str(HERE / "stubs"), "SGLANG_CPU_OMP_THREADS_BIND": "0|1", "GLOO_SOCKET_IFNAME": "lo"}
    return {**kept, **ours, **more}


def old_environment(folder: str) -> dict[str, str]:
    """More of it for another version of SGLang, from its folder."""
    return {"SGLANG_FOLDER": folder, "PYTHONPATH": os.pathsep.join([folder, str(HERE / "stubs")])}


def folders() -> dict[str, str]:
    """Of the versions that were unpacked into folders of their own, by version; SGLANG_FOLDERS lists them."""
    listed = [folder for folder in os.environ.get("SGLANG_FOLDERS", "").split(os.pathsep) if folder]
    return {found.version: folder for folder in listed for found in distributions(name="sglang", path=[folder])}


@dataclass(frozen=True)
class Installed:
    """A version of SGLang: the folder that has it, and what its processes need in their environment."""

    version: str
    folder: Path
    variables: dict[str, str]


def results(script: str, variables: dict[str, str], *arguments: str) -> list[dict[str, Any]]:
    """What one of the scripts here prints: a document for each rank."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=280,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert told, f"exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return list(json.loads(told[0].removeprefix("RESULT ")))


class Server:
    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self._port = port
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def generate(self, tokens: list[int], new: int) -> list[int]:
        """Greedy continuation, by HTTP; waits for a server that is still starting."""
        return list(self._post("/generate", _request(tokens, new))["output_ids"])

    def ask(self, tokens: list[int], new: int) -> None:
        """The same, without waiting for an answer: a server that fails gives none."""
        threading.Thread(target=self._ask, args=(tokens, new), daemon=True).start()

    def _ask(self, tokens: list[int], new: int) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self._post("/generate", _request(tokens, new))

    def await_log(self, pattern: str, limit: float = 20.0) -> re.Match[str]:
        deadline = time.monotonic() + limit
        while (found := re.search(pattern, self.log)) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"after {limit} s the log has no {pattern!r}; its end:\n{self.tail()}")
            time.sleep(0.1)
        return found

    def await_end(self, limit: float) -> int:
        """Exit status of the launcher; fails when it, or a rank, still lives after `limit` seconds."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server still runs after {limit} s; the end of its log:\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        return "\n".join(line[:300] for line in self.log.splitlines()[-lines:])

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        deadline = time.monotonic() + START_LIMIT
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return dict(json.load(answer))
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"{path}: {error}; the end of the log:\n{self.tail()}") from error
            time.sleep(0.3)


@contextlib.contextmanager
def server(how: tuple[str, ...], model: str, log: Path, *arguments: str, **variables: str) -> Iterator[Server]:
    """A server at tensor parallel size 2 on the CPU, by what Python runs first; gone afterwards, with all its ranks."""
    port = _free_port()
    command = [sys.executable, *how, "--model-path", model, *CPU_ARGUMENTS, "--port", str(port), *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(**variables),
            cwd=log.parent,  # `-m` puts it in front of what is installed
            start_new_session=True,
        )
    try:
        yield Server(process, port, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its ranks, too: they stay in its group
        process.wait(30)


def _request(tokens: list[int], new: int) -> dict[str, Any]:
    return {
        "input_ids": tokens,
        "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True},
    }


def _free_port() -> int:
    for port in random.sample(range(20000, 50000), 100):  # some versions take one that is 10000 higher, too
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port was found")
