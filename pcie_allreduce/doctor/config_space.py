"""A bridge's PCI configuration space as sysfs gives it: 64 bytes to everyone, the capabilities behind to root alone."""

from __future__ import annotations

from pcie_allreduce.doctor.box import Bridge

REDIRECTS = {0x04: "requests", 0x08: "completions"}  # bits of the ACS control register

_HEADER, _EXTENDED = 64, 256
_STATUS_HAS_LIST, _EXPRESS, _ACS = 0x10, 0x10, 0x0D
_KINDS = {4: "root port", 5: "upstream", 6: "downstream"}


def bridge(address: str, config: bytes) -> Bridge:
    """`acs` is 0 where there is no such capability, and None where it cannot be read."""
    kind = _kind(config)
    return Bridge(address, kind, None if kind is None else _acs_control(config))


def _word(config: bytes, at: int) -> int:
    return int.from_bytes(config[at : at + 2], "little")


def _kind(config: bytes) -> str | None:
    if len(config) <= _HEADER or not _word(config, 0x06) & _STATUS_HAS_LIST:
        return None
    at = config[0x34] & 0xFC
    for _ in range(48):  # a list that is broken may be a circle
        if at < _HEADER or at + 4 > len(config):
            return None
        if config[at] == _EXPRESS:
            return _KINDS.get(_word(config, at + 2) >> 4 & 0xF, "other")
        at = config[at + 1] & 0xFC
    return None


def _acs_control(config: bytes) -> int | None:
    if len(config) <= _EXTENDED:
        return None
    at = _EXTENDED
    for _ in range(960):
        if at + 8 > len(config):
            return None
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return _word(config, at + 6)
        at = header >> 20 & 0xFFC
        if at < _EXTENDED:
            return 0
    return None
