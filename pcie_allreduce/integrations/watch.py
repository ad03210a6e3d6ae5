"""A fault during the replay of a CUDA graph passes no line of Python, so somebody has to look."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

INTERVAL = 0.2


class Watch:
    """Calls `look`, a bound method, every 0.2 s in a daemon thread, until stopped or until its object is gone."""

    def __init__(self, look: Callable[[], None], name: str) -> None:
        # Weak, so that the watch does not keep alive what its owner has let go of.
        self._look = weakref.WeakMethod(look)
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL) and self._looked():
            pass

    def _looked(self) -> bool:
        look = self._look()  # a local of this call, not of the loop: it must not live through the waiting
        if look is not None:
            look()
        return look is not None
