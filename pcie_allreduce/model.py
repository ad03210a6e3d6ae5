"""What a call should take on machines that were never at hand: the plan's cost model as a table, with pull, NCCL's
published points and the floor beside it, and its distance from what others published.

A prediction is never a measurement: whatever leaves this module is labelled "modelled".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from pcie_allreduce.plan import ALGORITHMS, LinkFigures, candidates, cheapest, cost_us, serves, stages, wire_us
from pcie_allreduce.presets import PRESETS

NAMES = (*ALGORITHMS, "pull", "nccl", "floor")
SIZES = (1024, 4096, 14336, 43008, 57344, 131072, 524288, 1048576, 2097152)

# (preset, world) -> (bytes, us) of NCCL.
NCCL: dict[tuple[str, int], tuple[tuple[int, float], ...]] = {
    ("pcie5-switch", 8): ((32768, 24.5), (57344, 24.5)),  # published: tuned, graph file, switches
    ("nvlink", 2): ((14336, 7.49), (43008, 7.49), (57344, 6.99), (131072, 7.26), (524288, 9.88)),  # measured, two H200
}


class Published(NamedTuple):
    """A point of others, and the prediction that stands nearest to it."""

    system: str
    world: int
    nbytes: int
    us: float
    preset: str
    algorithm: str  # "best": the cheapest of ours
    remark: str


_PULL = "pull's figures are fitted to this"
_PAIRS = "its tuning table is for four switches over two sockets, which no preset is"
_SOMEWHERE = "the machine is not known"
PUBLISHED = (
    Published("b12x, pull one-shot", 8, 12288, 10.0, "pcie5-switch", "pull", _PULL),
    Published("b12x, pull one-shot", 8, 98304, 31.9, "pcie5-switch", "pull", _PULL),
    Published("pull one-shot, seven GPUs", 7, 40960, 17.1, "pcie5-switch", "pull", "not fitted"),
    Published("push all-gather with one-shot's traffic", 8, 43008, 13.2, "pcie5-switch", "one_shot", _SOMEWHERE),
    Published("FlashInfer pcie_ipc", 8, 12288, 5.3, "pcie5-4+4", "best", _PAIRS),
    Published("FlashInfer pcie_ipc", 8, 98304, 15.3, "pcie5-4+4", "best", _PAIRS),
)


class Distance(NamedTuple):
    point: Published
    algorithm: str
    us: float  # modelled
    ratio: float  # modelled / published


class Crossover(NamedTuple):
    """From `nbytes` on, `to` is cheaper than `before`."""

    nbytes: int
    before: str
    to: str


def predict(name: str, world: int, nbytes: int, dtype_bytes: int, islands: bool, figures: LinkFigures) -> float | None:
    """Microseconds of one call by an algorithm, "pull" or "floor"; None where it cannot run or a figure is unknown."""
    if name == "floor":
        return floor_us(world, nbytes, dtype_bytes, islands, figures)
    if name == "pull":  # one-shot by reading
        known = figures.read_us is not None and figures.read_gbps is not None
        pull = figures._replace(transport="pull")
        return cost_us("one_shot", world, nbytes, dtype_bytes, False, pull) if known else None
    if not serves(name, world, islands):
        return None
    return cost_us(name, world, nbytes, dtype_bytes, islands, figures)


def floor_us(world: int, nbytes: int, dtype_bytes: int, islands: bool, figures: LinkFigures) -> float:
    """A launch, and latency and bytes of whichever algorithm has least of them; no instruction in between."""
    return figures.launch_us + min(
        sum(wire_us(stage, figures) for stage in stages(name, world, nbytes, dtype_bytes, islands))
        for name in ALGORITHMS
        if serves(name, world, islands)
    )


def nccl_us(preset: str, world: int, nbytes: int) -> float | None:
    """Interpolated between known points, in the logarithm of the size; None outside of them."""
    points = NCCL.get((preset, world), ())
    for (low, low_us), (high, high_us) in pairwise(points):
        if low <= nbytes <= high:
            return low_us + (high_us - low_us) * math.log(nbytes / low) / math.log(high / low)
    return None


def best(world: int, nbytes: int, dtype_bytes: int, islands: bool, figures: LinkFigures) -> str:
    """The cheapest algorithm, whether it fits a mailbox or not."""
    return cheapest(candidates(world, islands), world, nbytes, dtype_bytes, islands, figures)


def crossovers(
    world: int, dtype_bytes: int, islands: bool, figures: LinkFigures, low: int = 16, high: int = 1 << 22
) -> list[Crossover]:
    """Where the cheapest algorithm changes between low and high bytes, to 16 bytes. Costs are straight lines over size
    but for the busier link of a stage, so eight samples an octave miss no reign that matters."""

    def reigns(nbytes: int) -> str:
        return best(world, nbytes, dtype_bytes, islands, figures)

    found = []
    steps = 8 * math.ceil(math.log2(high / low))
    sizes = [round(low * (high / low) ** (step / steps) / 16) * 16 for step in range(steps + 1)]
    for left, right in pairwise(sizes):
        begin = left
        while (before := reigns(begin)) != reigns(right):  # more than once where a short reign lies between two samples
            begin = _end_of_reign(begin, right, reigns, before)
            found.append(Crossover(begin, before, reigns(begin)))
    return found


def _end_of_reign(low: int, high: int, reigns: Callable[[int], str], name: str) -> int:
    """The smallest multiple of 16 at which another than name reigns, who does at low and not at high."""
    while high - low > 16:
        middle = (low + high) // 32 * 16
        low, high = (middle, high) if reigns(middle) == name else (low, middle)
    return high


def distances(points: Sequence[Published] = PUBLISHED) -> list[Distance]:
    """How far the model is from what others published, bf16."""
    result = []
    for point in points:
        preset = PRESETS[point.preset]
        about = (point.world, point.nbytes, 2, preset.islands and serves("island", point.world, True), preset.figures)
        name = best(*about) if point.algorithm == "best" else point.algorithm
        us = predict(name, *about)
        if us is not None:
            result.append(Distance(point, name, us, us / point.us))
    return result
