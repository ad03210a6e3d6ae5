"""How communicators end that nobody has closed: collected, open at exit, or copied by a fork."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .communicator import Communicator
    from .transport import Transport

_open: weakref.WeakKeyDictionary[Communicator, weakref.finalize[[Transport], Any]] = weakref.WeakKeyDictionary()
_kept: list[Transport] = []  # of communicators that went while a graph was captured
_captures = 0  # that go on, on whatever thread
_counting = threading.Lock()


def begin(communicator: Communicator, transport: Transport) -> None:
    """Lets go of the transport when the communicator is collected, or at exit; `end` ends that."""
    _open[communicator] = weakref.finalize(communicator, _let_go, transport)


def end(communicator: Communicator) -> None:
    _open.pop(communicator).detach()


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Surrounds the capture of a graph, which what other threads close would spoil, too."""
    global _captures
    with _counting:
        _captures += 1
    try:
        yield
    finally:
        with _counting:
            _captures -= 1


def in_capture() -> bool:
    """Whether a graph is captured: within `capturing` on any thread, or on this thread's current stream."""
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return _captures > 0 or (initialized and torch.cuda.is_current_stream_capturing())


def _let_go(transport: Transport) -> None:
    """No waiting, no collective. In the middle of a capture, which the calls of a close would spoil, all is kept until
    the process ends."""
    if in_capture():
        _kept.append(transport)
    else:
        transport.close(0.0)


def _abandon_in_child() -> None:
    for communicator, finalizer in list(_open.items()):
        communicator._closed = "was made before this process was forked, and belongs to the parent"
        finalizer.detach()


os.register_at_fork(after_in_child=_abandon_in_child)
