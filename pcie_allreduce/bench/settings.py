"""What a run is asked to do and what this machine allows.

Every rank must run the same cases with the same counts, so all of it is decided here, once, before a rank starts, by a
function of plain values that tests can call without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pcie_allreduce.bench.backends import catalogue
from pcie_allreduce.errors import PcieAllReduceError
from pcie_allreduce.memory.buffers import MAX_BYTES
from pcie_allreduce.plan import serves

# 14,336, 43,008 and 57,344 bytes are 1, 3 and 4 rows of 7168 bf16 values: one verify pass with 0, 2 and 3 draft tokens.
DEFAULT_SIZES = (1024, 4096, 14336, 43008, 57344, 131072, 524288, 1048576)
ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
MODES = ("graph", "eager")
ALGORITHMS = ("auto", "one_shot", "two_shot", "island", "pull")
MAX_WORLD = 8
DEFAULT_HIDDEN = 7168
DEFAULT_ROWS = (1, 2, 3, 4, 8, 16, 32)

START_MPS = (
    "export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps-log; nvidia-cuda-mps-control -d\n"
    "and stop it afterwards with\n"
    "    echo quit | nvidia-cuda-mps-control"
)


class CannotRun(PcieAllReduceError):
    """What was asked cannot be run here; the message says what is missing. Nothing has been started."""


@dataclass(frozen=True)
class Machine:
    """What decides whether a run is possible: GPUs that torch sees, CUDA kernels in this build, MPS answering."""

    gpus: int
    cuda_build: bool
    mps: bool


@dataclass(frozen=True)
class Recording:
    """What a recorded input file holds: its world, dtype and the bytes of one rank's tensor."""

    path: str
    world: int
    dtype: str
    nbytes: int


@dataclass(frozen=True)
class Request:
    """The command line as given; None and empty mean "not given"."""

    ranks: int | None = None
    sizes: tuple[int, ...] = ()
    dtype: str | None = None
    repeats: int = 3
    backends: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    device: str = "auto"
    algorithms: tuple[str, ...] = ("auto",)
    recording: Recording | None = None
    fused: bool = False
    hidden: int | None = None
    rows: tuple[int, ...] = ()
    halves: bool = False


@dataclass(frozen=True)
class Settings:
    """A run that can start. `gpus` is the number of GPUs that take part; 0 means CPU ranks. Sizes are in bytes."""

    ranks: int
    gpus: int
    sizes: tuple[int, ...]
    dtype: str
    repeats: int
    backends: tuple[str, ...]
    modes: tuple[str, ...]
    algorithms: tuple[str, ...]
    recording: Recording | None = None
    hidden: int | None = None  # residual and RMSNorm over rows of so many values are measured too
    halves: bool = False  # a reduce-scatter and an all-gather in place of the all-reduce are measured too
    notices: tuple[str, ...] = field(default=(), compare=False)

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def emulated(self) -> bool:
        """More ranks than GPUs: what is measured then is not what as many GPUs would do."""
        return 0 < self.gpus < self.ranks


def settle(request: Request, machine: Machine) -> Settings:
    """The settings of a run, or `CannotRun` with the reason."""
    device, notices = _device(request, machine)
    gpus_here = machine.gpus if device == "cuda" else 0
    ranks = request.ranks if request.ranks is not None else max(2, min(gpus_here, MAX_WORLD))
    _check_ranks(ranks, gpus_here, machine)
    dtype = _dtype(request)
    if request.repeats < 1:
        raise CannotRun(f"--repeats {request.repeats}: at least one repeat is needed")
    for algorithm in request.algorithms:
        if algorithm not in ALGORITHMS:
            raise CannotRun(f"--algorithm {algorithm}: known are {', '.join(ALGORITHMS)}")
    sizes, backends = _sizes(request, ranks, dtype), _backends(request, device)
    if "pcie_allreduce" in backends:
        _check_ours(ranks, sizes, request.algorithms)
    return Settings(
        ranks=ranks,
        gpus=min(ranks, gpus_here),
        sizes=sizes,
        dtype=dtype,
        repeats=request.repeats,
        backends=backends,
        modes=_modes(request, device),
        algorithms=tuple(dict.fromkeys(request.algorithms)),
        recording=request.recording,
        hidden=_hidden(request),
        halves=request.halves,
        notices=notices,
    )


def _device(request: Request, machine: Machine) -> tuple[str, tuple[str, ...]]:
    if request.device == "cpu":
        return "cpu", ()
    missing = _why_no_gpus(request, machine)
    if missing is None:
        return "cuda", ()
    if request.device == "cuda":
        raise CannotRun(f"--device cuda: {missing}")
    return "cpu", (f"CPU ranks are measured: {missing}",) if machine.gpus else ()


def _why_no_gpus(request: Request, machine: Machine) -> str | None:
    if machine.gpus == 0:
        return "torch sees no GPU here. `pcie-allreduce info` says why; --device cpu measures CPU ranks."
    if not machine.cuda_build:
        return (
            f"torch sees {machine.gpus} GPU(s), but this build of pcie_allreduce has no CUDA kernels. "
            "Install it again where nvcc is found; `pcie-allreduce info` says what is missing."
        )
    if machine.gpus == 1 and request.ranks is None and not machine.mps:
        return (
            "there is one GPU here, and an all-reduce needs two ranks. Two ranks share one GPU only under the CUDA "
            f"multi-process service, which does not answer. To use it, start it with\n    {START_MPS}"
        )
    return None


def _check_ranks(ranks: int, gpus: int, machine: Machine) -> None:
    if not 2 <= ranks <= MAX_WORLD:
        raise CannotRun(f"--ranks {ranks}: an all-reduce here has 2 to {MAX_WORLD} ranks")
    if 0 < gpus < ranks and not machine.mps:
        raise CannotRun(
            f"--ranks {ranks} on {gpus} GPU(s): ranks that share a GPU must run side by side, which takes the CUDA "
            f"multi-process service, and it does not answer here. Start it with\n    {START_MPS}\n"
            "or measure CPU ranks with --device cpu."
        )


def _check_ours(ranks: int, sizes: tuple[int, ...], algorithms: tuple[str, ...]) -> None:
    """What our communicator would refuse on every rank, once all of them have been started."""
    if max(sizes) > MAX_BYTES:
        raise CannotRun(f"--sizes {max(sizes)}: a communicator serves at most {MAX_BYTES} bytes")
    if "island" in algorithms and not serves("island", ranks, True):
        raise CannotRun(f"--algorithm island: it needs two halves of two ranks at least, and {ranks} ranks have none")


def _dtype(request: Request) -> str:
    recording = request.recording
    dtype = request.dtype or (recording.dtype if recording else "bf16")
    if dtype not in ITEM_BYTES:
        raise CannotRun(f"--dtype {dtype}: known are {', '.join(ITEM_BYTES)}")
    if recording and dtype != recording.dtype:
        raise CannotRun(f"--dtype {dtype}: {recording.path} was recorded in {recording.dtype}")
    return dtype


def _sizes(request: Request, ranks: int, dtype: str) -> tuple[int, ...]:
    recording = request.recording
    hidden = _hidden(request)
    if hidden is not None:
        return tuple(rows * hidden * ITEM_BYTES[dtype] for rows in dict.fromkeys(request.rows or DEFAULT_ROWS))
    sizes = request.sizes or ((recording.nbytes,) if recording else DEFAULT_SIZES)
    for size in sizes:
        if size <= 0 or size % ITEM_BYTES[dtype]:
            raise CannotRun(
                f"--sizes {size}: a size is a positive multiple of the {ITEM_BYTES[dtype]} bytes of {dtype}"
            )
        if request.halves and size % (ranks * ITEM_BYTES[dtype]):
            raise CannotRun(
                f"--sizes {size}: with --halves a size is a multiple of {ranks * ITEM_BYTES[dtype]} bytes, as many "
                f"{dtype} values for each of the {ranks} ranks"
            )
        if recording and size > recording.nbytes:
            raise CannotRun(f"--sizes {size}: {recording.path} holds {recording.nbytes} bytes per rank")
    if recording and recording.world % ranks:
        raise CannotRun(
            f"--ranks {ranks}: {recording.path} was recorded over {recording.world} ranks, whose partial sums can be "
            f"joined for {', '.join(str(n) for n in range(2, recording.world + 1) if recording.world % n == 0)} ranks"
        )
    return tuple(dict.fromkeys(sizes))


def _hidden(request: Request) -> int | None:
    """With --fused alone."""
    if not request.fused:
        if request.hidden is not None or request.rows:
            raise CannotRun("--hidden and --rows belong to --fused")
        return None
    if request.halves:
        raise CannotRun("--fused and --halves do not go together")
    if request.sizes or request.recording:
        raise CannotRun("--fused has --rows of --hidden values; --sizes and --input do not go with it")
    hidden = DEFAULT_HIDDEN if request.hidden is None else request.hidden
    if hidden < 1 or any(rows < 1 for rows in request.rows):
        raise CannotRun(f"--hidden {hidden} --rows {','.join(map(str, request.rows))}: both must be positive")
    return hidden


def _backends(request: Request, device: str) -> tuple[str, ...]:
    names = catalogue.names_for(device)
    if not request.backends:
        return names
    for name in request.backends:
        if name not in catalogue.all_names():
            raise CannotRun(f"--backends {name}: known are {', '.join(catalogue.all_names())}")
        if name not in names:
            raise CannotRun(f"--backends {name}: not on {device} ranks; there are {', '.join(names)}")
    return tuple(dict.fromkeys(request.backends))


def _modes(request: Request, device: str) -> tuple[str, ...]:
    if device == "cpu" and "graph" in request.modes:
        raise CannotRun("--mode graph: CUDA graphs need GPUs; CPU ranks are timed in --mode eager")
    for mode in request.modes:
        if mode not in MODES:
            raise CannotRun(f"--mode {mode}: known are {', '.join(MODES)}")
    return tuple(dict.fromkeys(request.modes)) or (MODES if device == "cuda" else ("eager",))
