"""Files of published versions of vLLM, for tests that read or run them.

They are read out of the wheels on PyPI one by one, since a wheel is a zip of hundreds of MB and PyPI serves parts of a
file. They are kept under build/ and never in the repository.
"""

from __future__ import annotations

import ast
import contextlib
import email
import functools
import io
import json
import os
import platform
import urllib.request
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import pytest
from packaging.specifiers import SpecifierSet

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = Path(__file__).resolve().parents[2] / "build" / "vllm"
INDEX = "https://pypi.org/simple/vllm/"
PATIENCE = 10.0  # seconds for one answer
AHEAD = 1 << 16  # bytes asked for at once: most files with one request

VERSIONS = ["0.11.0", "0.15.1", "0.20.2", "0.28.0", "0.33.0"]


class Unreachable(pytest.skip.Exception):
    """PyPI did not answer: whatever test needs the file is skipped, and the text says why."""


class Published:
    """One version's files, by their names in the wheel: `vllm/envs.py`."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.folder = CACHE / version
        self._list = self.folder / "names.json"
        if not self._list.exists():
            _write(self._list, json.dumps(self._wheel.namelist()).encode())
        self.names = frozenset(json.loads(self._list.read_text()))

    @functools.cached_property
    def _wheel(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(io.BufferedReader(_Remote(_wheels()[self.version]), AHEAD))

    def runs_here(self) -> bool:
        """Whether it is made for this Python: its sources use what an older one has not."""
        metadata = email.message_from_string(self.file(f"vllm-{self.version}.dist-info/METADATA").read_text())
        return SpecifierSet(metadata["Requires-Python"]).contains(platform.python_version())

    def file(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            _write(path, self._wheel.read(name))
        return path

    def tree(self, name: str) -> ast.Module:
        return ast.parse(self.file(name).read_text())


def _write(path: Path, data: bytes) -> None:
    """At once, since ranks write the same files at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_bytes(data)
    beside.replace(path)


@functools.cache
def _wheels() -> dict[str, str]:
    """Version to address, of wheels for this kind of machine or any other: the Python in them is the same."""
    page = json.loads(_get(INDEX, Accept="application/vnd.pypi.simple.v1+json"))
    names = {file["filename"]: urljoin(INDEX, file["url"]) for file in page["files"]}
    return {name.split("-")[1]: url for name, url in names.items() if name.endswith(".whl")}


def _get(url: str, **headers: str) -> bytes:
    with _answer(urllib.request.Request(url, headers=headers)) as answer:
        if "Range" in headers and answer.status != 206:
            raise Unreachable(f"{url} is not served in parts")
        data: bytes = answer.read()
        return data


@contextlib.contextmanager
def _answer(request: urllib.request.Request) -> Iterator[Any]:
    """The first failure holds for the whole run: without a network, each test would wait for it anew."""
    if _failures:
        raise Unreachable(_failures[0])
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            yield answer
    except OSError as error:  # urllib's errors and timeouts are
        _failures.append(f"{request.full_url}: {error}")
        raise Unreachable(_failures[0]) from None


_failures: list[str] = []


class _Remote(io.RawIOBase):
    """A file on a server that serves parts of it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._place = 0
        with _answer(urllib.request.Request(url, method="HEAD")) as answer:
            self._size = int(answer.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self._place + len(buffer), self._size)
        if end <= self._place:
            return 0
        data = _get(self._url, Range=f"bytes={self._place}-{end - 1}")
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
