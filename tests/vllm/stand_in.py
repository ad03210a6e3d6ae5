"""A process of vLLM's in which plug-ins are loaded: the stand-in in minimal/ is its vLLM."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pcie_allreduce.integrations import telling
from pcie_allreduce.integrations import vllm as plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranks import Rank

FOLDER = str(Path(__file__).parent / "minimal")
COMMUNICATORS = "vllm.distributed.device_communicators"


@contextlib.contextmanager
def vllm(**environment: str) -> Iterator[list[str]]:
    """Yields our lines of vLLM's log. Afterwards nothing is left, as rank processes serve more than one test."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "vllm"}
    loggers = logging.getLogger("vllm"), logging.getLogger("pcie_allreduce")
    before = loggers[0].handlers[:], loggers[1].parent
    lines: list[str] = []
    sys.path.insert(0, FOLDER)
    os.environ.update(environment)
    try:
        import vllm  # noqa: F401

        loggers[0].handlers[:] = [_Lines(lines)]
        yield lines
    finally:
        for name in environment:
            del os.environ[name]
        sys.path.remove(FOLDER)
        for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
            del sys.modules[name]
        sys.modules.update(kept)
        loggers[0].handlers[:], loggers[1].parent = before
        plugin._hook.cache_clear()
        telling.once.cache_clear()


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("pcie-allreduce:"):  # and not the communicator's own lines
            self._lines.append(text)


def communicator(me: Rank, name: str = "tp:0") -> Any:
    module = __import__(f"{COMMUNICATORS}.cuda_communicator", fromlist=["CudaCommunicator"])
    return module.CudaCommunicator(
        cpu_group=me.group, device=torch.device(me.device), device_group=me.group, unique_name=name
    )
