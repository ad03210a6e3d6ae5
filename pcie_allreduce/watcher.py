"""No Python runs while a CUDA graph replays, so a thread has to look for what a kernel reported."""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable

from .errors import ClosedError, PcieAllReduceError

logger = logging.getLogger("pcie_allreduce")

Callback = Callable[[PcieAllReduceError], None]


class Watcher:
    """Calls `check` at an interval from a daemon thread until it raises or `stop()`; a fault is told once.

    Holds its communicator weakly: a watcher does not keep alive what its owner has let go of.
    """

    def __init__(self, check: Callable[[], None], callback: Callback | None, interval: float, abort: bool) -> None:
        self._check = weakref.WeakMethod(check)
        self._callback = callback
        self._interval = interval
        self._abort = abort
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="pcie_allreduce-watcher", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread within one interval. Idempotent."""
        self._stopped.set()

    def _run(self) -> None:
        puzzled = False
        while not self._stopped.wait(self._interval):
            check = self._check()
            if check is None:
                return
            try:
                check()
            except ClosedError:
                return
            except PcieAllReduceError as error:
                self._tell(error)
                return
            except Exception as error:  # not a fault of a call: whoever relies on this thread still does
                if not puzzled:
                    logger.warning("a look for faults failed, and is repeated: %s: %s", type(error).__name__, error)
                puzzled = True
            del check

    def _tell(self, error: PcieAllReduceError) -> None:
        logger.error("%s", error)
        try:
            if self._callback is not None:
                self._callback(error)
        finally:
            if self._abort:
                logger.error("the process ends now: a replayed graph would go on with outputs that are NaN")
                os.kill(os.getpid(), signal.SIGABRT)
