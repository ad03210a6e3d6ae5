"""Wires between CPU ranks that can be bad, for tests of what measures wires: the first exchange, a start-up probe.

A handle is data, so a rank can be given another slab than its peer's: here one of its own, which nobody reads. A thread
carries every word that is stored there to the peer's slab, as a wire does, or changes, loses or delays it. Nothing in
the package knows of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pcie_allreduce import _C
from pcie_allreduce.transport import CpuTransport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ranks import Rank

TOGETHER = 0.5
EMPTY = np.uint32(0x8000_0000)
CONTROL_WORDS = (_C.slab_bytes(0, False) - 4096) // 4  # of csrc/protocol/mailbox.h; 4096 bytes of greetings follow
ABORT_WORDS = _C.MAX_BLOCKS * 32 // 4  # behind the block states: one a source


@dataclass(frozen=True)
class Bad:
    """What is wrong with the wire from `source` to `reader`, from the `after`th word on.

    corrupt: a bit of one word of each load is flipped. lose: nothing arrives. slow: everything arrives `seconds` late.
    collapse: so it does where another wire of the same source carries something too, or has within TOGETHER seconds (a
    source stores to its peers one after the other), and at once otherwise.
    """

    source: int
    reader: int
    kind: str
    seconds: float = 0.0
    after: int = 0


class Wire:
    def __init__(self, source: int, reader: int, world: int, handle: bytes, bad: Sequence[Bad]) -> None:
        self._far = _words(handle)
        head = _C.slab_bytes(0, False)
        area_packs = (self._far.nbytes - head) // (_C.slab_bytes(1, False) - head)
        self._decoy = _C.CpuChannel(reader, world, area_packs, 1.0, 1.0, False, False)
        self.handle = self._decoy.handle()
        self._near = _words(self.handle)
        self._abort = ABORT_WORDS + source
        self._end = len(self._near)  # of what is carried
        if area_packs == _C.PROBE_AREA_PACKS:  # what its reader offers for reading lies beyond
            self._end = CONTROL_WORDS + 1024 + 4 * _C.PROBE_OUTBOX[0]
            self._near[self._end :] = self._far[self._end :]
        self._bad = [each for each in bad if (each.source, each.reader) == (source, reader)]
        self._carried = 0
        self._carried_at = -TOGETHER
        self._late: list[tuple[float, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []

    def named(self) -> None:
        """The rank has mapped the near end: its name may go, as that of every slab."""
        self._decoy.forget_names()

    def holds(self) -> bool:
        return bool((self._near[CONTROL_WORDS : self._end] != EMPTY).any()) or bool(self._late)

    def busy(self) -> bool:
        return self.holds() or time.monotonic() - self._carried_at < TOGETHER

    def carry(self, wires: Sequence[Wire]) -> None:
        places = np.flatnonzero(self._near[CONTROL_WORDS : self._end] != EMPTY) + CONTROL_WORDS
        words = self._near[places]
        self._near[places] = EMPTY
        if self._near[self._abort] != 0:
            places, words = np.append(places, self._abort), np.append(words, self._near[self._abort])
            self._near[self._abort] = 0
        delay = 0.0
        for bad in self._bad if len(places) else ():
            if self._carried < bad.after:
                continue
            if bad.kind == "corrupt":
                words[0] ^= 1
            elif bad.kind == "lose":
                places, words = places[:0], words[:0]
            elif bad.kind == "slow" or any(wire.busy() for wire in wires if wire is not self):
                delay = bad.seconds
        self._carried += len(places)
        if len(places):
            self._carried_at = time.monotonic()
            self._late.append((time.monotonic() + delay, places, words))
        while self._late and self._late[0][0] <= time.monotonic():
            _, places, words = self._late.pop(0)
            self._far[places] = words

    def cut(self) -> None:
        self._decoy.close()


@contextlib.contextmanager
def wires(me: Rank, *bad: Bad) -> Iterator[None]:
    """Inside, the communicators that this rank makes send over wires, and receive what the others' wires bring.

    What they read from each other is not changed: loads that are answered with other bytes are not known of.
    """
    real = CpuTransport.open
    laid: list[Wire] = []
    ended = threading.Event()

    def open_by_wire(transport: CpuTransport, handles: Sequence[bytes]) -> None:
        # No wire lies between a rank and the host's memory; and flags of a pull are too few to collapse.
        if transport.name in ("host", "pull"):
            real(transport, handles)
            return
        mine = {r: Wire(me.rank, r, me.world, handle, bad) for r, handle in enumerate(handles) if r != me.rank}
        real(transport, [mine[r].handle if r in mine else handle for r, handle in enumerate(handles)])
        for wire in mine.values():
            wire.named()
        laid.extend(mine.values())

    def carry() -> None:
        while not ended.is_set():
            for wire in list(laid):
                wire.carry(laid)
            time.sleep(0.0001)

    carrier = threading.Thread(target=carry)
    CpuTransport.open = open_by_wire  # type: ignore[method-assign]
    carrier.start()
    try:
        yield
    finally:
        CpuTransport.open = real  # type: ignore[method-assign]
        ended.set()
        carrier.join()
        for wire in laid:
            wire.carry([])
            wire.cut()


def _words(handle: bytes) -> np.ndarray[Any, Any]:
    return np.memmap("/dev/shm" + handle.decode(), dtype=np.uint32, mode="r+")
