"""SGLang: three doors to one `install()`, and none of them does anything unless the switch is on.

- SGLang 0.5.11 and later call `register` in every process, through the entry point `sglang.srt.plugins`.
- Any version: `python -m pcie_allreduce.integrations.sglang_launch` in place of `python -m sglang.launch_server`.
- The Engine API has no flags: set PCIE_ALLREDUCE=1.

Without the switch SGLang's argument parser knows two more flags, and nothing else is different.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from . import hooks, seams, settings

logger = logging.getLogger(__name__)

ARGUMENTS = "sglang.srt.server_args.ServerArgs"
NOT_WITH = {  # by the name of SGLang's argument
    "use_ray": "--use-ray makes ranks of Ray's actors, in which SGLang loads no plug-ins",
    "enable_pdmux": "--enable-pdmux gives its streams some of the multiprocessors, and launches count on all of them",
}
SEAM = "sglang.srt.distributed.parallel_state.init_model_parallel_group"


def register() -> None:
    """The entry point: teaches SGLang's parser our flags, and installs if the switch is on already."""
    _add_flags()
    install()


def install() -> bool:
    """Hooks SGLang's groups of this process if PCIE_ALLREDUCE is on; says whether it is. May be called many times.

    Raises SystemExit where PCIE_ALLREDUCE_REQUIRE is on and this SGLang has nothing to hook.
    """
    try:
        chosen = settings.Settings.from_environment()
    except ValueError as error:
        sys.exit(f"pcie-allreduce: {error}")
    reason = _hook_groups() if chosen.enabled else None
    if reason is not None:
        _refuse(chosen, seams.sentence("SGLang", reason))
    return chosen.enabled


def _refuse(chosen: settings.Settings, told: str) -> None:
    if chosen.require:
        sys.exit(f"pcie-allreduce: --pcie-allreduce-require: nothing can be served: {told}")
    logger.warning("pcie-allreduce: off, SGLang's own is used: %s", told)


@functools.cache
def _add_flags() -> None:
    """SGLang swallows what a plug-in raises, so this must raise nothing: the switch may be on without the flags."""
    adds, makes = f"{ARGUMENTS}.add_cli_args", f"{ARGUMENTS}.from_cli_args"
    reason = seams.lacks(adds) or seams.lacks(makes) or _around(adds, _add_cli_args) or _around(makes, _from_cli_args)
    if reason is not None:
        told = seams.sentence("SGLang", reason)
        logger.warning("pcie-allreduce: no flags, %s=1 turns it on: %s", settings.ENABLE, told)


@functools.cache
def _hook_groups() -> str | None:
    """Why not, or None."""
    from . import sglang_group  # not before the switch is on

    reason = seams.lacks(SEAM, sglang_group.SWITCH) or seams.lacks(sglang_group.ALLOWED)
    return reason or _around(SEAM, sglang_group.init_model_parallel_group)


def _around(target: str, hook: hooks.Hook) -> str | None:
    """Why not, or None. SGLang swallows what a plug-in raises, and a launch that must fail would go on."""
    try:
        hooks.around(target, hook)
    except Exception as error:
        return f"takes no hook on {target}: {error!r}"
    return None


def _add_cli_args(original: Callable[..., Any], parser: argparse.ArgumentParser) -> Any:
    result = original(parser)
    flags = parser.add_argument_group("pcie-allreduce")
    flags.add_argument(
        "--enable-pcie-allreduce",
        action="store_true",
        help="Serve the all-reduces of tensor parallel groups by pcie_allreduce, for GPUs without NVLink.",
    )
    flags.add_argument(
        "--pcie-allreduce-require",
        action="store_true",
        help="The same, and fail the launch, with the reason, where a group cannot be served.",
    )
    return result


def _from_cli_args(original: Callable[..., Any], cls: type, args: argparse.Namespace) -> Any:
    if getattr(args, "pcie_allreduce_require", False):
        os.environ[settings.REQUIRE] = "1"
    if getattr(args, "enable_pcie_allreduce", False):
        os.environ[settings.ENABLE] = "1"
    on = install()  # this process makes no group; but what cannot be served is said before ranks start
    told = next((why for flag, why in NOT_WITH.items() if getattr(args, flag, False)), None)
    if on and told is not None:
        _refuse(settings.Settings.from_environment(), told)
        os.environ[settings.ENABLE] = "0"
    return original(cls, args)
