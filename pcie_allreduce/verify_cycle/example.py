"""Reported figures worked through, in words and a table. Nothing is measured here."""

from __future__ import annotations

from pcie_allreduce.verify_cycle.speculation import VERIFY_SHARE, Reported

COMPUTE_MS = (4, 8, 12)
STEPS_US = (200, 100, 50, 25, 10, 5)


def worked(reported: Reported | None = None) -> str:
    seen = reported or Reported()
    total = seen.all_reduces * seen.all_reduce_us / 1e3
    lines = [
        "Reported by the owner of eight RTX PRO 6000, without this package:",
        f"{seen.plain:g} tokens/s without speculation, 54 to 60 with it (here {seen.speculative:g}), and",
        f"{seen.all_reduces} all-reduces x {seen.all_reduce_us:g} us = {total:.1f} ms in a verify pass.",
        "",
        "    tokens/s = acceptance x verify share / (all-reduces x us each + compute)",
        "",
        f"The verify share was {VERIFY_SHARE:g}. What the matmuls of a pass took was not told, but a token without "
        "speculation took",
        f"{1e3 / seen.plain:.1f} ms in all, so it was less than that. For three guesses, the acceptance that "
        f"{seen.speculative:g} tokens/s imply, and what",
        "the same acceptance makes of a faster all-reduce:",
        "",
        "compute, ms              " + "".join(f"{ms:>9}" for ms in COMPUTE_MS),
        "acceptance, implied      " + "".join(f"{seen.acceptance(ms * 1e3):>9.2f}" for ms in COMPUTE_MS),
    ]
    for us in STEPS_US:
        rates = "".join(f"{seen.tokens_per_second(us, ms * 1e3):>9.0f}" for ms in COMPUTE_MS)
        lines.append(f"tokens/s at {us:>3} us each  {rates}")
    even = "".join(f"{seen.even_us(ms * 1e3):>9.0f}" for ms in COMPUTE_MS)
    lines.append(f"us for {seen.plain:g} tokens/s       {even}")
    return "\n".join([*lines, "", "Arithmetic, not a measurement: this package has never run on eight such GPUs."])
