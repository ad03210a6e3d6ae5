"""vLLM: the plug-in that it loads in every process, before a worker makes its groups. It does nothing unless the switch
is on.

A group's communicator imports the class of its custom all-reduce when it is made, and from a module, so a class in its
place serves, in every version from 0.11 on. That class is not told which group it is for, nor the group that reduces on
the GPU; who makes it is, and so both are hooked.
"""

from __future__ import annotations

import functools
import logging
import pkgutil
import sys

from . import hooks, settings

logger = logging.getLogger(__name__)

SEAM = "vllm.distributed.device_communicators.custom_all_reduce.CustomAllreduce"
MAKER = "vllm.distributed.device_communicators.cuda_communicator.CudaCommunicator"


def register() -> None:
    """The entry point `vllm.general_plugins`: hooks vLLM in this process if PCIE_ALLREDUCE is on, at the first call.

    Raises SystemExit where PCIE_ALLREDUCE_REQUIRE is on and this vLLM has nothing to hook.
    """
    try:
        chosen = settings.Settings.from_environment()
    except ValueError as error:
        sys.exit(f"pcie-allreduce: {error}")
    if not chosen.enabled:
        return
    _log_where_vllm_does()
    missing = _hook()
    if missing and chosen.require:
        sys.exit(f"pcie-allreduce: {settings.REQUIRE} is on, and nothing can be served: {missing}")
    if missing:
        logger.warning("pcie-allreduce: off, vLLM's own is used: %s", missing)


@functools.cache
def _hook() -> str:
    """Says what is missing, and then hooks nothing."""
    from . import vllm_group  # not before the switch is on

    for path in (SEAM, MAKER):
        try:
            pkgutil.resolve_name(path)
        except Exception as error:  # importing a part of vLLM may fail in any way
            return f"this vLLM has no {path} ({error})"
    module, name = SEAM.rsplit(".", 1)
    owner = pkgutil.resolve_name(module)
    setattr(owner, name, vllm_group.in_place_of(getattr(owner, name)))
    hooks.replace(f"{MAKER}.__init__", vllm_group.make_communicator)
    return ""


def _log_where_vllm_does() -> None:
    """vLLM gives handlers and a level to its own loggers alone, in some versions later; our lines would be lost."""
    logging.getLogger("pcie_allreduce").parent = logging.getLogger("vllm")
