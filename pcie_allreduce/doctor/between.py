"""What stands between two GPUs and may turn their stores away: ACS, the IOMMU, the driver's own settings for P2P."""

from __future__ import annotations

from pcie_allreduce.doctor.box import Box
from pcie_allreduce.doctor.config_space import REDIRECTS
from pcie_allreduce.doctor.finding import Finding, numbers, ok, problem, warning
from pcie_allreduce.topology import Link

DIRECT = 'NVreg_RegistryDwords="ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2;GrdmaPciTopoCheckOverride=1"'
STAGED = "242 us a call were published, 17 us without"
TAKE_OUT = "take the keys out of NVreg_RegistryDwords in /etc/modprobe.d and load the driver anew."
CLEAR_ACS = "Clear them as root at every boot (setpci -s ADDRESS ECAP_ACS+0x6.w=0000), or switch ACS off in the BIOS."
PASS_THROUGH = "Start the kernel with iommu=pt (or amd_iommu=off, intel_iommu=off); PCIE_ALLREDUCE_P2P=0 avoids P2P."
MEASURE = (
    f"Only where `pcie-allreduce bench` shows above 100 us at 43,008 bytes: options nvidia {DIRECT} in "
    "/etc/modprobe.d, and load the driver anew. Some machines lose P2P by it."
)

_FORCED, _KIND, _WAY = ("ForceP2P", "CLForceP2P"), "RMForceP2PType", "RMPcieP2PType"
_WRITES = 0x30  # of ForceP2P: 0 takes writes away, 1 gives them, 2 leaves them
_MAILBOX = 0  # of RMPcieP2PType, and its default


def check_acs(box: Box) -> list[Finding]:
    """A root port sends everything to the root complex anyway; a switch would not."""
    bridges = {bridge.address: bridge for path in box.paths for bridge in path}
    known = [bridge for bridge in bridges.values() if bridge.acs is not None]
    turned = [bridge.address for bridge in known if bridge.kind == "downstream" and _redirects(bridge.acs)]
    if turned and len(box.topology.gpus) > 1:
        where = ", ".join(sorted(turned)[:3])
        text = f"Redirect bits are set in {len(turned)} port(s) of switches ({where}): P2P goes up to the CPU and back."
        return [(problem if _translated(box) else warning)("ACS", text, CLEAR_ACS)]
    if known and len(known) == len(bridges):
        return [ok("ACS", f"No switch redirects, in {len(known)} bridges above the GPUs.")]
    return []


def _redirects(acs: int | None) -> bool:
    return any((acs or 0) & bit for bit in REDIRECTS)


def check_iommu(box: Box) -> list[Finding]:
    """Only what goes up to the root complex meets the IOMMU."""
    words = f" The kernel was started with {' '.join(box.kernel_words)}." if box.kernel_words else ""
    translated = _translated(box)
    if translated:
        text = (
            f"It translates the addresses of {numbers(translated)}.{words} On many such machines the first collective "
            "hangs or bytes are wrong."
        )
        judge = warning if _through_the_cpu(box) is None else problem
        return [judge("IOMMU", text, PASS_THROUGH)]
    if "identity" in box.iommu:
        return [ok("IOMMU", f"It passes the GPUs' addresses as they are.{words}")]
    if box.iommus == 0 and box.topology.gpus:
        return [ok("IOMMU", f"The kernel uses none.{words}")]
    return []


def _translated(box: Box) -> list[int]:
    return [gpu for gpu, kind in enumerate(box.iommu) if kind not in (None, "identity")]


def _through_the_cpu(box: Box) -> Link | None:
    """The farthest link, where P2P is used and that link leads through a host bridge."""
    farthest = box.topology.farthest()
    p2p = any("ok" in row[:a] + row[a + 1 :] for a, row in enumerate(box.topology.p2p))
    return farthest if p2p and farthest is not None and farthest >= Link.HOST_BRIDGE else None


def check_module(box: Box) -> list[Finding]:
    if box.module is None or not box.topology.gpus:
        return []
    keys = _keys(box.module.get("RegistryDwords", ""))
    told = "; ".join(f"{name}={keys[name]:#x}" for name in (*_FORCED, _KIND, _WAY) if name in keys)
    far = _through_the_cpu(box)
    if any(not keys[name] & _WRITES for name in _FORCED if name in keys):
        text = f"{told}: writes from GPU to GPU are switched off."
        return [problem("module", text, TAKE_OUT.capitalize())]
    if _KIND in keys and keys.get(_WAY, _MAILBOX) == _MAILBOX:
        text = f"{told}: P2P is staged through the driver's mailbox ({STAGED})."
        return [problem("module", text, f"Set {_WAY}=2, or {TAKE_OUT}")]
    if told:
        text = f"P2P is forced ({told}): the driver then says yes whether it works or not."
        return [warning("module", text, f"If the start fails or the sums are wrong, {TAKE_OUT}")]
    if far is not None:
        text = f"No parameter names a kind of P2P. Over {far.told} the driver may stage it ({STAGED})."
        return [warning("module", text, MEASURE)]
    return [ok("module", "No parameter forces or stages P2P.")]


def _keys(text: str) -> dict[str, int]:
    """ "ForceP2P=0x11;RMForceP2PType=1"; what is no number is not one of the keys that are judged."""
    found = {}
    for name, _, value in (part.partition("=") for part in text.split(";")):
        try:
            found[name.strip()] = int(value, 0)
        except ValueError:
            continue
    return found
