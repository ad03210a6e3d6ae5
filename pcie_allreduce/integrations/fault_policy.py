"""What a fault in serving leads to, in every engine: PCIE_ALLREDUCE_ON_FAULT."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from ..errors import PcieAllReduceError
from .settings import Settings

logger = logging.getLogger(__name__)


def on_fault(
    settings: Settings, tell_launcher: Callable[[], None] | None = None
) -> Callable[[PcieAllReduceError], None]:
    """A function that takes the fault. Where the process ends, `tell_launcher` is called before; an engine whose
    launcher watches its ranks' processes needs none."""

    def end_process(error: PcieAllReduceError) -> None:
        """Graphs would go on replaying, and serve NaN."""
        try:
            logger.critical(
                "pcie-allreduce: %s. This process ends, for a supervisor to start the server anew "
                "(PCIE_ALLREDUCE_ON_FAULT=raise would keep it).", error,
            )  # fmt: skip
            for handler in logging.getLogger().handlers:
                handler.flush()
        finally:
            try:
                if tell_launcher is not None:
                    tell_launcher()
            finally:  # a full disk, or a launcher that is gone
                os._exit(1)

    return end_process if settings.on_fault == "abort" else _only_say


def _only_say(error: PcieAllReduceError) -> None:
    logger.error("pcie-allreduce: %s", error)
