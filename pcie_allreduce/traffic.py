"""What each rank stores into each other's mailbox in one call, pack by pack.

`plan.stages` has the formulas by which algorithms are chosen; this is what the sources in csrc/protocol/ send, tails
and signatures included, for whoever counts it on a machine. Nothing is sent for padding: a lane whose position lies
behind the payload's last unit sends nothing, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pcie_allreduce.plan import PACK_BYTES, lanes, spread, whole_lines
from pcie_allreduce.topology import Islands

Sent = tuple[int, int, int]  # source, destination, units


def packs_sent(
    algorithm: str, world: int, nbytes: int, dtype_bytes: int, islands: Islands | None = None, unit_packs: int = 1
) -> list[list[int]]:
    """[source][destination]: packs stored in one call of nbytes bytes.

    unit_packs is the step of a lane: 1 on GPUs, 4 on CPU ranks. islands: needed by "island" alone.
    """
    units = -(-nbytes // (PACK_BYTES * unit_packs))
    shard = whole_lines(lanes(algorithm, world, nbytes)) // unit_packs
    packs = [[int(source != reader) for reader in range(world)] for source in range(world)]  # the signature
    for source, reader, sent in _sends(algorithm, world, units, shard, spread(dtype_bytes), islands):
        packs[source][reader] += sent * unit_packs
    return packs


def across(packs: list[list[int]], islands: Islands) -> int:
    """Bytes that cross from the first island to the second."""
    return PACK_BYTES * sum(packs[source][reader] for source in islands[0] for reader in islands[1])


def _sends(algorithm: str, world: int, units: int, shard: int, spread: int, islands: Islands | None) -> Iterator[Sent]:
    if algorithm == "one_shot":
        yield from _to_all(range(world), [units] * world)
    elif algorithm == "two_shot":
        yield from _scatter_and_gather(range(world), _owned(units, shard, world))
    elif islands is not None:
        groups = [sorted(group) for group in islands]
        owned = _owned(units, shard, len(groups[0]))
        for group in groups:
            yield from _scatter_and_gather(group, owned)
        for place, (one, other) in enumerate(zip(*groups, strict=True)):
            yield one, other, spread * owned[place]
            yield other, one, spread * owned[place]
    else:
        raise ValueError(f"algorithm {algorithm!r} needs the islands' ranks")


def _scatter_and_gather(ranks: Sequence[int], owned: list[int]) -> Iterator[Sent]:
    """Everyone's part of a shard to its owner, and the owner's sums back."""
    for source, reader, units in _to_all(ranks, owned):
        yield reader, source, units
        yield source, reader, units


def _to_all(ranks: Sequence[int], units: list[int]) -> Iterator[Sent]:
    for source, sent in zip(ranks, units, strict=True):
        yield from ((source, reader, sent) for reader in ranks if reader != source)


def _owned(units: int, shard: int, owners: int) -> list[int]:
    """Units of each owner's shard that the payload reaches."""
    return [max(0, min(shard, units - place * shard)) for place in range(owners)]
