"""Rank processes for the tests.

Importing torch takes seconds and eight ranks need it eight times, so rank processes are forked from a server that has
imported torch and nothing else, and are kept between tests. A test hands over a module-level function; each rank calls
it with a `Rank` and the given arguments, inside a gloo group that was made for this one job, so that nothing of a
failed test reaches the next. Whatever a rank does, the caller gets an answer before the timeout: results, or one
`RanksError` that shows each rank's traceback, its signal, or the Python stack in which it hung.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import faulthandler
import importlib.util
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import types
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_WORLD = 9  # one more than the package serves, so that its refusal can be tested
START_LIMIT = 180.0  # seconds until a new rank process must have said hello; eight start at once on two loaded cores
GRACE = 10.0  # seconds that ranks still get after the first of them has failed
STACK_LIMIT = 2.0  # seconds in which a hung rank must have written its stack

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "numpy"])


@dataclass(frozen=True)
class Rank:
    """What a test function knows of itself. `device` is "cpu" or "cuda:3"; the default group is gloo over all ranks."""

    rank: int
    world: int
    device: str
    store: dist.Store  # of this job; the test's process reads it through `Pool.await_told`
    options: dict[str, Any] = field(default_factory=dict)  # of every communicator that the job makes

    @property
    def group(self) -> dist.ProcessGroup:
        group = dist.group.WORLD
        assert group is not None
        return group

    def communicator(self, **options: Any) -> Any:
        """A Communicator over all ranks, with deadlines that end before the test's own."""
        import pcie_allreduce

        group = options.pop("group", self.group)
        device = options.pop("device", self.device)
        deadlines = {"timeout": 20.0, "warmup_timeout": 20.0}
        return pcie_allreduce.Communicator(group, device, **{**deadlines, **self.options, **options})

    def meet(self) -> None:
        dist.barrier()

    def tell(self, event: str) -> None:
        self.store.add(event, 1)

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values


@dataclass(frozen=True)
class Outcome:
    """How one rank ended a job: one of returned, raised, died and hung."""

    rank: int
    kind: str
    value: Any = None  # the result, or the exception where it can be pickled
    text: str = ""  # the remote traceback, the exit code, or the stacks of a hung rank


class RanksError(AssertionError):
    """At least one rank did not return. `outcomes` has one entry per rank."""

    def __init__(self, outcomes: list[Outcome], waited: float) -> None:
        self.outcomes = outcomes
        told: dict[tuple[str, str], list[int]] = {}  # ranks that failed alike are told of once
        for outcome in outcomes:
            if outcome.kind != "returned":
                told.setdefault((outcome.kind, outcome.text), []).append(outcome.rank)
        details = [f"--- {_ranks(ranks)} {kind} ---\n{text}" for (kind, text), ranks in told.items()]
        heads = ", ".join(f"{_ranks(ranks)} {kind}" for (kind, _), ranks in told.items())
        super().__init__("\n".join([f"after {waited:.1f} s of {len(outcomes)} ranks: {heads}", *details]))

    def ranks(self, kind: str) -> list[int]:
        return [outcome.rank for outcome in self.outcomes if outcome.kind == kind]


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


@dataclass(frozen=True)
class _Job:
    name: str
    world: int
    device: str
    port: int
    function: tuple[str, str, str]  # module, its file, name in it: pytest imports modules under names of its own
    args: bytes  # pickled; unpickled inside the job, so that what fails to load is the job's failure


def run_ranks(n: int, fn: Callable[..., Any], *args: Any, device: str = "cpu", timeout: float = 90.0) -> list[Any]:
    """The results of fn(Rank, *args) of n ranks, in rank order; raises `RanksError` after at most about `timeout` s.

    `device` is "cpu" or "cuda" (rank r then has GPU r modulo the number of GPUs; skips where that cannot be).
    """
    require(n, device)
    pool = _shared_pool()
    outcomes: list[Outcome] = []
    begun = time.monotonic()
    try:
        pool.submit(n, fn, args, device)
        outcomes = pool.collect(timeout)
    finally:
        if not outcomes or any(outcome.kind != "returned" for outcome in outcomes):
            close_pool()
    if any(outcome.kind != "returned" for outcome in outcomes):
        raise RanksError(outcomes, time.monotonic() - begun)
    return [outcome.value for outcome in outcomes]


@contextlib.contextmanager
def start_ranks(n: int, fn: Callable[..., Any], *args: Any, device: str = "cpu") -> Iterator[Pool]:
    """Rank processes of their own that run fn(Rank, *args), for tests that kill or stop some of them."""
    require(n, device)
    pool = Pool()
    try:
        pool.submit(n, fn, args, device)
        yield pool
    finally:
        pool.close()


def require(n: int, device: str) -> None:
    """Skips the calling test where this machine or this build cannot give n ranks such a device."""
    if not 1 <= n <= MAX_WORLD:
        raise ValueError(f"{n} ranks asked for; the pool serves 1 to {MAX_WORLD}")
    if device == "cpu":
        return
    gpus = torch.cuda.device_count()
    if gpus == 0:
        pytest.skip("no GPU here")
    if n > gpus and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ:
        pytest.skip(f"{n} ranks on {gpus} GPU(s) need the multi-process service (CUDA_MPS_PIPE_DIRECTORY is not set)")
    from pcie_allreduce import _C

    if not _C.build_info()["cuda"]:
        pytest.skip("this build of pcie_allreduce has no CUDA kernels")


class Pool:
    """Rank processes; one job at a time, over the first n of them."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._workers: list[_Worker] = []
        self._jobs = itertools.count()
        self._job = ""
        self._world = 0

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def submit(self, n: int, fn: Callable[..., Any], args: tuple[Any, ...], device: str) -> None:
        while len(self._workers) < n:
            self._workers.append(_Worker(len(self._workers), Path(self._folder.name)))
        limit = time.monotonic() + START_LIMIT
        for worker in self._workers[:n]:
            worker.await_hello(limit - time.monotonic())
        self._world = n
        function = (fn.__module__, fn.__code__.co_filename, fn.__qualname__)
        if not fn.__qualname__.isidentifier():
            raise ValueError(f"{fn.__qualname__} is not a function of a module: the ranks could not find it")
        self._job = f"job{next(self._jobs)}"
        for worker in self._workers[:n]:
            worker.connection.send(_Job(self._job, n, device, self._store.port, function, pickle.dumps(args)))

    def await_told(self, event: str, timeout: float = 60.0) -> None:
        """Until every rank has said `Rank.tell(event)`."""
        store = dist.PrefixStore(self._job, self._store)
        limit = time.monotonic() + timeout
        while (told := store.add(event, 0)) < self._world:
            if time.monotonic() > limit:
                raise TimeoutError(f"after {timeout} s {told} of {self._world} ranks have said {event!r}")
            time.sleep(0.01)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self._workers[rank].pid, number)

    def collect(self, timeout: float) -> list[Outcome]:
        """One outcome per rank. Ranks that are silent at the end of `timeout` are reported with their stacks."""
        waiting = {worker.connection: worker for worker in self._workers[: self._world]}
        outcomes: dict[int, Outcome] = {}
        limit = time.monotonic() + timeout
        while waiting and (left := limit - time.monotonic()) > 0:
            for connection in wait(list(waiting), left):
                outcome = waiting.pop(connection).answer()  # type: ignore[call-overload]
                outcomes[outcome.rank] = outcome
                if outcome.kind == "raised":
                    limit = min(limit, time.monotonic() + GRACE)
        outcomes.update((worker.rank, worker.hung()) for worker in waiting.values())
        return [outcomes[rank] for rank in range(self._world)]

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._folder.cleanup()


class _Worker:
    def __init__(self, rank: int, folder: Path) -> None:
        self.rank = rank
        self.connection, theirs = _context.Pipe()
        self._stacks = folder / f"stacks{rank}"
        self._process = _context.Process(target=_serve, args=(theirs, rank, str(self._stacks)), daemon=True)
        self._process.start()
        theirs.close()
        self._greeted = False

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def await_hello(self, limit: float) -> None:
        if self._greeted:
            return
        if not self.connection.poll(max(limit, 0.0)):
            raise RanksError([self.hung()], START_LIMIT)
        self.connection.recv_bytes()
        self._greeted = True

    def answer(self) -> Outcome:
        try:
            outcome: Outcome = pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            self._process.join(5.0)
            return Outcome(self.rank, "died", text=f"exit code {self._process.exitcode}")
        return outcome

    def hung(self) -> Outcome:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)  # a stopped process would not run the handler
            os.kill(self.pid, signal.SIGUSR1)
        limit = time.monotonic() + STACK_LIMIT
        text = ""
        while time.monotonic() < limit and not text.endswith("\n"):
            time.sleep(0.05)
            text = self._stacks.read_text() if self._stacks.exists() else ""
        return Outcome(self.rank, "hung", text=text or "no stack: the process did not react")

    def end(self) -> None:
        self.connection.close()  # an idle rank leaves by itself, running its exit handlers
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def _serve(connection: Connection, rank: int, stacks: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    with Path(stacks).open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
        connection.send_bytes(b"hello")
        with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
            while True:
                connection.send_bytes(_pickled(_perform(rank, connection.recv())))


def _perform(rank: int, job: _Job) -> Outcome:
    try:
        return Outcome(rank, "returned", _call(rank, job))
    except BaseException as error:  # whatever a rank raises is the test's to judge
        text = traceback.format_exc()
        return Outcome(rank, "raised", error.with_traceback(None), text)


def _call(rank: int, job: _Job) -> Any:
    device = job.device
    if device == "cuda":
        device = f"cuda:{rank % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    store = dist.PrefixStore(job.name, dist.TCPStore("127.0.0.1", job.port, is_master=False))
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job.world, timeout=limit)
    try:
        module, path, name = job.function
        fn = getattr(_module(module, path), name)
        return fn(Rank(rank, job.world, device, store), *pickle.loads(job.args))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _module(name: str, path: str) -> types.ModuleType:
    if name not in sys.modules:
        parent = name.rpartition(".")[0]
        if parent:  # a folder without __init__.py, which the test's process has under this name
            sys.modules.setdefault(parent, types.ModuleType(parent))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _pickled(outcome: Outcome) -> bytes:
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
        return data
    except Exception:  # the text says it all where the value cannot travel
        problem = f"{outcome.text}\nits value cannot be pickled: {outcome.value!r}"
        return pickle.dumps(Outcome(outcome.rank, "raised", None, problem))


_pool: Pool | None = None


def _shared_pool() -> Pool:
    global _pool
    if _pool is None:
        _pool = Pool()
    return _pool


def close_pool() -> None:
    """Ends the shared ranks; the next `run_ranks` starts new ones."""
    global _pool
    if _pool is not None:
        pool, _pool = _pool, None
        pool.close()


def shared_memory() -> set[str]:
    """The package's names in shared memory, whoever made them."""
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("pcie_allreduce")}


def left_in_shared_memory(before: set[str], patience: float = 5.0) -> set[str]:
    """Names that are there now and were not before; other processes' live for moments only, so it looks again."""
    limit = time.monotonic() + patience
    while (left := shared_memory() - before) and time.monotonic() < limit:
        time.sleep(0.1)
    return left


atexit.register(close_pool)
