"""What an engine's log says of a group that is served, in the same words for every engine."""

from __future__ import annotations

import functools
import logging

from .adapter import EngineAllReduce

logger = logging.getLogger(__name__)


def on(adapter: EngineAllReduce) -> None:
    comm = adapter.communicator
    logger.info(
        "pcie-allreduce: on for group %s: %d ranks, transport %s, %.1f MB of memory a rank, tensors up to %d bytes",
        adapter.name, comm.world_size, comm.transport, comm.memory_bytes / 1e6, comm.max_bytes,
    )  # fmt: skip


def fused(adapter: EngineAllReduce, refusal: str | None) -> None:
    told = "where the engine's layers ask for it" if refusal is None else refusal
    are = "are" if refusal is None else "are not"
    logger.info(
        "pcie-allreduce: all-reduces of group %s %s fused with the residual and RMSNorm behind them: %s",
        adapter.name, are, told,
    )  # fmt: skip


def gathers(adapter: EngineAllReduce, refusal: str | None) -> None:
    told = f"up to {adapter.communicator.max_bytes} bytes of all ranks together" if refusal is None else refusal
    are = "are" if refusal is None else "are not"
    logger.info("pcie-allreduce: all-gathers of group %s %s served: %s", adapter.name, are, told)


@functools.cache
def once(text: str) -> None:
    logger.info("pcie-allreduce: %s", text)
