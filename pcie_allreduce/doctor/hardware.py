"""GPUs, their links and memory windows, and what the driver says of every pair."""

from __future__ import annotations

from pcie_allreduce.doctor.box import Box
from pcie_allreduce.doctor.finding import Finding, numbers, ok, pairs, problem, warning
from pcie_allreduce.topology import Link, decide_islands

MAX_RANKS = 8
NO_P2P = (
    "GPUs without P2P go through the host's memory, unasked and slower. For P2P see module, IOMMU and BAR1; the stock "
    "driver gives GeForce none."
)
ACROSS_SOCKETS = (
    "Such machines were seen slower with a custom all-reduce than with NCCL: `pcie-allreduce bench` shows both, `tune` "
    "keeps the better."
)
BYTES_DECIDE = "The start compares bytes over every pair, whatever the driver says; PCIE_ALLREDUCE_P2P=0 avoids P2P."


def check_gpus(box: Box) -> list[Finding]:
    gpus = box.topology.gpus
    if not gpus:
        return []  # the driver's finding says why
    kinds = sorted({(gpu.name or "of unknown name", gpu.sm or 0) for gpu in gpus})
    told = f"{len(gpus)}: " + "; ".join(f"{name}, sm_{sm or '?'}" for name, sm in kinds)
    sizes = sorted({round(gpu.memory_bytes / 2**30) for gpu in box.found.gpus})
    told += f", {' and '.join(map(str, sizes))} GiB." if sizes else "."
    if len(gpus) == 1:
        return [warning("GPUs", f"{told} One GPU has nobody to reduce with.")]
    if len(kinds) > 1:
        return [warning("GPUs", f"{told} They are of several kinds.", "Every call is as slow as the slowest.")]
    if len(gpus) > MAX_RANKS:
        return [warning("GPUs", told, f"A group has at most {MAX_RANKS} ranks.")]
    return [ok("GPUs", told)]


def check_mig(box: Box) -> list[Finding]:
    split = [index for index, gpu in enumerate(box.topology.gpus) if gpu.mig]
    if split:
        remedy = f"nvidia-smi -i {','.join(map(str, split))} -mig 0, with nothing running."
        return [problem("MIG", f"On for {numbers(split)}: its instances have no P2P.", remedy)]
    if any(gpu.mig is not None for gpu in box.topology.gpus):
        return [ok("MIG", "Off.")]
    return []


def check_link_width(box: Box) -> list[Finding]:
    gpus = box.topology.gpus
    known = [(i, g.pcie_width, g.pcie_max_width) for i, g in enumerate(gpus) if g.pcie_width and g.pcie_max_width]
    narrow = [f"GPU {index} x{now} of x{best}" for index, now, best in known if now < best]
    if narrow:
        remedy = "Seat card and riser again, look at the slot's wiring and at bifurcation in the BIOS."
        bad = any(now * 4 <= best for _, now, best in known)
        text = ", ".join(narrow) + ". Width does not change with load."
        return [(problem if bad else warning)("link width", text, remedy)]
    if known:
        return [ok("link width", f"As at best: x{', x'.join(map(str, sorted({now for _, now, _ in known})))}.")]
    return []


def check_link_generation(box: Box) -> list[Finding]:
    gpus = box.topology.gpus
    known = [
        (index, gpu.pcie_generation, gpu.pcie_max_generation)
        for index, gpu in enumerate(gpus)
        if gpu.pcie_generation and gpu.pcie_max_generation
    ]
    slow = [(index, now, best) for index, now, best in known if now < best]
    told = ", ".join(f"GPU {index} at {now} of {best}" for index, now, best in slow)
    if slow and len(slow) == len(known):
        told += ". Idle links slow down: this says nothing unless the GPUs are busy."
        return [ok("link generation", told, "Run this again while `pcie-allreduce bench` runs.")]
    if slow:
        remedy = "Run this again while `pcie-allreduce bench` runs; if it stays, look at riser, cable and BIOS."
        return [warning("link generation", f"{told}, the others at their best.", remedy)]
    best = ", ".join(map(str, sorted({now for _, now, _ in known})))
    return [ok("link generation", f"As at best: {best}.")] if known else []


def check_p2p(box: Box) -> list[Finding]:
    """Only the driver's word; the package sends known bytes over every pair when it starts."""
    matrix, every = box.topology.p2p, _every_pair(box)
    refused: dict[str, list[tuple[int, int]]] = {}
    for a, b in every:
        if matrix[a][b] != "ok":
            refused.setdefault(matrix[a][b] or "the driver does not tell", []).append((a, b))
    if refused:
        told = {why: f"{len(found)} of {len(every)} pairs, {pairs(found)}" for why, found in refused.items()}
        return [warning("P2P", f"None for {about}: {why}.", NO_P2P) for why, about in told.items()]
    return [ok("P2P", f"The driver says yes for all {len(every)} directed pairs.")] if every else []


def check_geforce(box: Box) -> list[Finding]:
    gpus, matrix = box.topology.gpus, box.topology.p2p
    peers = {a for a, b in _every_pair(box) if matrix[a][b] == "ok"}
    odd = sorted(a for a in peers if "GeForce" in (gpus[a].name or ""))
    text = f"P2P of GeForce, {numbers(odd)}: not the stock driver's. Some such say yes and deliver wrong bytes."
    return [warning("patched driver", text, BYTES_DECIDE)] if odd else []


def check_distance(box: Box) -> list[Finding]:
    farthest = box.topology.farthest()
    if farthest is None:
        return []
    islands = decide_islands(box.topology).reason
    text = f"At most {farthest.told}. Islands: {islands}."
    if farthest is Link.SYSTEM:
        return [warning("distance", text, ACROSS_SOCKETS)]
    return [ok("distance", text)]


def check_bar1(box: Box) -> list[Finding]:
    sizes = {gpu.index: gpu.memory_bytes for gpu in box.found.gpus}
    windows = {index: gpu.bar1_bytes for index, gpu in enumerate(box.topology.gpus) if gpu.bar1_bytes is not None}
    small = [index for index, window in windows.items() if window < sizes.get(index, 0)]
    if small:
        text = (
            f"{numbers(small)}: {windows[small[0]] / 2**20:,.0f} MiB for {sizes[small[0]] / 2**20:,.0f} MiB of memory."
        )
        remedy = "Switch on Above 4G Decoding and Resizable BAR in the BIOS; P2P without the driver's mailbox needs it."
        return [warning("BAR1", text, remedy)]
    return [ok("BAR1", f"{min(windows.values()) / 2**20:,.0f} MiB or more: all of the memory.")] if windows else []


def _every_pair(box: Box) -> list[tuple[int, int]]:
    count = range(len(box.topology.gpus))
    return [(a, b) for a in count for b in count if a != b]
