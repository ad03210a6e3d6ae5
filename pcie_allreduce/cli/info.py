"""`pcie-allreduce info`: what a report of a problem should begin with. `missing` decides, from the findings alone."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from pcie_allreduce.cli.findings import Findings, Gpu, look


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "info", description="Says what is installed, which GPUs are here, and what is missing."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    found = look()
    print(as_json(found) if args.json else as_text(found))
    return 0


def missing(found: Findings) -> list[str]:
    """Sentences on whatever keeps this machine from all-reducing on its GPUs; empty when nothing does."""
    reasons = [*missing_build(found), *missing_driver(found), *missing_torch(found)]
    return [reason for reason in reasons if reason]


def as_json(found: Findings) -> str:
    return json.dumps({**asdict(found), "minimum_driver": found.minimum_driver, "missing": missing(found)}, indent=2)


def as_text(found: Findings) -> str:
    rows = [
        ("pcie_allreduce", f"{found.version} (Python {found.python}; {found.compiler or 'native module missing'})"),
        ("GPU code", _gpu_code(found)),
        ("NVIDIA driver", found.driver or "none"),
        *((f"GPU {gpu.index}", _described(gpu)) for gpu in found.gpus),
        ("torch", _torch_text(found)),
        *sorted(found.environment.items()),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    return "\n".join([*lines, *(f"- {reason}" for reason in missing(found))])


def _gpu_code(found: Findings) -> str:
    if not found.cuda:
        return "none"
    archs = ", ".join(f"sm_{arch}" for arch in found.cuda_archs)
    return f"{archs} (CUDA {found.toolkit}; needs driver {found.minimum_driver or 'unknown'} or newer)"


def _described(gpu: Gpu) -> str:
    return f"{gpu.name}, sm_{gpu.capability}, {gpu.memory_bytes / 2**30:.0f} GiB, {gpu.bus_id}, {gpu.uuid}"


def _torch_text(found: Findings) -> str:
    if not found.torch:
        return "missing"
    return f"{found.torch} (CUDA {found.torch_cuda}, {found.torch_gpus} GPUs)" if found.torch_cuda else found.torch


def missing_build(found: Findings) -> list[str]:
    if found.build_error:
        return [f"The native module cannot be imported: {found.build_error}."]
    if not found.cuda:
        why = f" ({found.cpu_only_reason})" if found.cpu_only_reason else ""
        return [f"This build has no GPU code{why}: only CPU ranks can run."]
    return [
        f"GPU {gpu.index} is sm_{gpu.capability}, for which this build has no code: build it again with "
        f'PCIE_ALLREDUCE_CUDA_ARCHS="{gpu.capability}".'
        for gpu in found.gpus
        if not _has_code(found.cuda_archs, gpu.capability)
    ]


def _has_code(archs: tuple[int, ...], capability: int) -> bool:
    """Machine code runs on later GPUs of its major version; the newest architecture is also there as PTX."""
    return any(arch <= capability and (arch // 10 == capability // 10 or arch == max(archs)) for arch in archs)


def missing_driver(found: Findings) -> list[str]:
    if found.driver is None:
        return [f"No NVIDIA driver answers ({found.driver_error})."]
    if not found.gpus:
        return [
            f"The NVIDIA driver {found.driver} shows no GPU{f' ({found.driver_error})' if found.driver_error else ''}."
        ]
    least = found.minimum_driver
    if least and _numbers(found.driver) < _numbers(least):
        return [f"The NVIDIA driver is {found.driver}; code built with CUDA {found.toolkit} needs {least} or newer."]
    return []


def missing_torch(found: Findings) -> list[str]:
    if found.torch is None:
        return [f"torch cannot be imported: {found.torch_error}."]
    if not found.gpus:
        return []
    if found.torch_cuda is None:
        return [f"torch {found.torch} is built without CUDA, so no tensor can lie on a GPU."]
    if found.torch_gpus < len(found.gpus):
        visible = found.environment.get("CUDA_VISIBLE_DEVICES")
        why = f" (CUDA_VISIBLE_DEVICES is {visible!r})" if visible is not None else ""
        return [f"torch sees {found.torch_gpus} of {len(found.gpus)} GPUs{why}."]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
