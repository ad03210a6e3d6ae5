"""What a result is stamped with, so that a reader can tell what it says and what it does not.

Everything is looked up and nothing guessed: what cannot be found out is null. The name of the host is left out.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pcie_allreduce import _C
from pcie_allreduce.bench import procedure
from pcie_allreduce.bench.backends import catalogue
from pcie_allreduce.bench.settings import Machine, Settings
from pcie_allreduce.cache import cpu_model

TOOL_LIMIT = 20.0  # seconds that nvidia-smi, git and the like may take


def machine() -> Machine:
    """What this process can see, without starting CUDA in it."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Machine(gpus=gpus, cuda_build=bool(_C.build_info()["cuda"]), mps=gpus > 0 and mps_answers())


def mps_answers() -> bool:
    """Whether a control daemon of the CUDA multi-process service answers, at CUDA_MPS_PIPE_DIRECTORY if set."""
    answer = run_tool("nvidia-cuda-mps-control", stdin="get_server_list\n")
    return answer is not None and "Cannot find" not in answer


def stamp(settings: Settings, here: Machine) -> dict[str, Any]:
    """All that the parent process knows; `rank_facts` adds what takes a GPU context or a library that ranks load."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kind": kind(settings),
        "label": label(settings),
        "version": metadata.version("pcie-allreduce"),
        "commit": commit(),
        "build": dict(_C.build_info()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "cpu": {"model": cpu_model(), "cores": os.cpu_count()},
        "driver": _driver() if settings.gpus else None,
        "mps": here.mps,
        "topology": _topology() if settings.gpus else None,
        "tuned": None,
        "gpus": [],
        "p2p": None,
        "nccl": {
            "version": None,
            "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
            "set_for": {entry.name: dict(entry.environment) for entry in catalogue.ENTRIES if entry.environment},
        },
        "settings": _asked(settings),
        "method": (procedure.__doc__ or "").strip(),
        "input": None,
        "not_run": {},
    }


def kind(settings: Settings) -> str:
    """`cpu`, `measured` (a GPU for each rank) or `emulated` (ranks that share GPUs): never to be put in one table."""
    return ("emulated" if settings.emulated else "measured") if settings.gpus else "cpu"


def label(settings: Settings) -> str:
    if settings.emulated:
        return f"emulated: {settings.ranks} ranks share {settings.gpus} GPU(s) under the multi-process service"
    if settings.gpus:
        return f"measured: {settings.ranks} ranks, each with a GPU of its own"
    return f"CPU ranks: {settings.ranks} processes, no GPU took part"


def rank_facts(gpus: int) -> dict[str, Any]:
    """What rank 0 adds to the stamp: the GPUs as CUDA numbers them, P2P between them, NCCL's version."""
    if not gpus:
        return {}
    version = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None  # type: ignore[no-untyped-call]
    return {
        "gpus": [_gpu(index) for index in range(gpus)],
        "p2p": [[a == b or torch.cuda.can_device_access_peer(a, b) for b in range(gpus)] for a in range(gpus)],
        "nccl_version": ".".join(map(str, version)) if version else None,
    }


def add_rank_facts(environment: dict[str, Any], facts: dict[str, Any]) -> None:
    if facts:
        environment["gpus"], environment["p2p"] = facts["gpus"], facts["p2p"]
        environment["nccl"]["version"] = facts["nccl_version"]


def commit() -> str | None:
    """The commit of the checkout that this package lies in (or is installed inside), with `-dirty` where its sources
    differ from it; elsewhere what PCIE_ALLREDUCE_COMMIT says, or None."""
    folder = str(Path(__file__).resolve().parent)
    top = run_tool("git", "-C", folder, "rev-parse", "--show-toplevel")
    if top is None or not (Path(top) / "pcie_allreduce" / "bench" / "environment.py").is_file():
        return os.environ.get("PCIE_ALLREDUCE_COMMIT")
    head = run_tool("git", "-C", top, "rev-parse", "--verify", "HEAD")
    sources = ("csrc", "cmake", "pcie_allreduce", "CMakeLists.txt", "pyproject.toml", "setup.py")
    changes = run_tool("git", "-C", top, "status", "--porcelain", "--", *sources)
    return f"{head}-dirty" if head and changes else head


def run_tool(*command: str, stdin: str | None = None) -> str | None:
    """What a command prints, without the space around it; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TOOL_LIMIT, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "sm": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_mib": properties.total_memory >> 20,
    }


def _driver() -> str | None:
    versions = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return versions.splitlines()[0] if versions else None


def _topology() -> str | None:
    text = run_tool("nvidia-smi", "topo", "-m")
    return re.sub(r"\x1b\[[0-9;]*m", "", text) if text else None  # its heading is underlined


def _asked(settings: Settings) -> dict[str, Any]:
    asked = asdict(settings)
    del asked["recording"], asked["notices"]  # `input` says it without the path
    return asked
