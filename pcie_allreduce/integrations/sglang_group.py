"""What happens to one of SGLang's groups when our all-reduce is on.

`init_model_parallel_group` makes every group whose all-reduces matter, in every version from 0.5.9 on, and `ca_comm` is
where a group looks for an all-reduce that is not NCCL's. So one hook serves: have the group made without SGLang's own
custom all-reduce (which refuses more than two GPUs without NVLink), then fill the place; if that fails, fill it with
SGLang's own, as SGLang would have.
"""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import os
import pkgutil
import signal
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..errors import PcieAllReduceError, SetupError
from . import fault_policy, seams, sglang_fused, sglang_gather, telling
from .adapter import EngineAllReduce
from .settings import Settings

logger = logging.getLogger(__name__)

STATE = "sglang.srt.distributed.parallel_state"
ALLOWED = f"{STATE}._ENABLE_CUSTOM_ALL_REDUCE"  # what --disable-custom-all-reduce turns off
SWITCH = "use_custom_allreduce"  # the argument of init_model_parallel_group, and the attribute of a group
DISPATCH = "sglang.srt.distributed.device_communicators.custom_all_reduce.dispatch_custom_allreduce"
# What is read from a group or put in its place. A place that SGLang no longer has would be filled, and never asked.
GROUP = tuple(
    "world_size rank_in_group unique_name device cpu_group device_group ca_comm use_custom_allreduce pymscclpp_comm "
    "is_symmetric_memory_enabled all_reduce _all_reduce_in_place _all_reduce_out_place".split()
)


def init_model_parallel_group(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Goes around SGLang's function of this name."""
    arguments = inspect.signature(original).bind(*args, **kwargs).arguments
    wanted = arguments.get(SWITCH)
    if wanted is False:  # SGLang never gives this group a custom all-reduce
        return original(*args, **kwargs)
    allowed = pkgutil.resolve_name(ALLOWED) if wanted is None else wanted
    arguments[SWITCH] = False
    group = original(**arguments)
    if getattr(group, "world_size", 2) > 1:
        _serve(group, Settings.from_environment(), allowed)
    return group


def _serve(group: Any, settings: Settings, allowed: bool) -> None:
    speaks = getattr(group, "rank_in_group", 0) == 0
    try:
        reason = _not_known(group) or _gives_way_to(group)
        if reason is not None:
            raise SetupError(reason)
        adapter = _make(group, settings)
    except Exception as error:
        name = getattr(group, "unique_name", "without a name")
        if settings.require:
            raise SetupError(f"--pcie-allreduce-require: cannot serve group {name}: {error}") from error
        if speaks:
            logger.warning("pcie-allreduce: off for group %s, SGLang's own is used: %s", name, error)
        if allowed:
            _engines_own(group)
        return
    group.ca_comm = adapter
    group.use_custom_allreduce = True
    if group.device.type == "cpu":
        _route_cpu_tensors(group)
    else:
        _count_the_rest(group)
    not_fused = sglang_fused.attach(adapter)
    not_gathered = sglang_gather.attach(group, adapter) if settings.gather else None
    if speaks:
        _announce(group, adapter, allowed)
        telling.fused(adapter, not_fused)
        if settings.gather:
            telling.gathers(adapter, not_gathered)


def _not_known(group: Any) -> str | None:
    reason = seams.without(group, GROUP)
    return None if reason is None else seams.sentence("SGLang", reason)


def _gives_way_to(group: Any) -> str | None:
    """SGLang versions differ in whether these are asked before or after a custom all-reduce: one of them has to go."""
    if group.is_symmetric_memory_enabled():
        return "--enable-symm-mem lets NCCL reduce in place before any custom all-reduce is asked; leave one out"
    if group.pymscclpp_comm is not None:
        return "--enable-mscclpp takes the same calls; leave one out"
    return None


def deterministic() -> bool:
    """Whether SGLang runs with --enable-deterministic-inference; it tells its ranks by this variable."""
    return os.environ.get("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "").lower() in ("1", "true", "yes", "y", "t", "on")


def _make(group: Any, settings: Settings) -> EngineAllReduce:
    return EngineAllReduce(
        group.cpu_group,
        group.device,
        name=group.unique_name,
        settings=settings,
        fallback=group.device_group,
        # Tensors over max_bytes would go to NCCL, whose sums differ in their rounding: which one a token gets would
        # depend on how many tokens share the batch.
        every_size=deterministic(),
        on_fault=on_fault(settings),
    )


def _engines_own(group: Any) -> None:
    try:
        dispatch = pkgutil.resolve_name(DISPATCH)
        place = {"group": group.cpu_group, "device": group.device}
        chosen = dispatch(**place) if inspect.signature(dispatch).parameters else dispatch()  # 0.5.9 takes none
        group.ca_comm = chosen(**place)
        group.use_custom_allreduce = True
    except Exception as error:  # as SGLang does: NCCL is left
        logger.warning("pcie-allreduce: SGLang's own custom all-reduce is not available: %r", error)


def _announce(group: Any, adapter: EngineAllReduce, allowed: bool) -> None:
    telling.on(adapter)
    if deterministic():
        telling.once("deterministic inference: larger tensors are reduced in pieces, all in rank order")
    elif not allowed:
        telling.once(
            "--disable-custom-all-reduce turns off SGLang's own; --enable-pcie-allreduce is served all the same"
        )
    if getattr(group, "pcie_ipc_comm", None) is not None:
        telling.once(
            "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is on, too: it gets what is not served here, and takes its memory"
        )


def _route_cpu_tensors(group: Any) -> None:
    """SGLang reduces CPU tensors by gloo (or its own shared memory) before it looks at ca_comm; CPU ranks are served by
    standing in front of that. On this group alone: nothing that GPUs run, or Dynamo traces, changes."""
    reference: Callable[[], Any] = weakref.ref(group)

    def all_reduce(input_: torch.Tensor) -> Any:
        owner = reference()
        adapter = owner.ca_comm
        if isinstance(adapter, EngineAllReduce):
            if adapter.should_custom_ar(input_):
                return adapter.custom_all_reduce(input_)
            adapter.declined += 1
        return type(owner).all_reduce(owner, input_)

    group.all_reduce = all_reduce


def _count_the_rest(group: Any) -> None:
    """Every all-reduce of a GPU group ends in one of two methods; those that did not come to us went to the engine.
    Where one of the two calls the other, that has counted."""
    reference: Callable[[], Any] = weakref.ref(group)

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            owner = reference()
            adapter = owner.ca_comm
            if not isinstance(adapter, EngineAllReduce):
                return getattr(type(owner), name)(owner, *args, **kwargs)
            before = adapter.served + adapter.declined
            result = getattr(type(owner), name)(owner, *args, **kwargs)
            adapter.declined += adapter.served + adapter.declined == before
            return result

        return call

    for name in ("_all_reduce_in_place", "_all_reduce_out_place"):
        setattr(group, name, counted(name))


def on_fault(settings: Settings) -> Callable[[PcieAllReduceError], None]:
    """What a fault leads to, by PCIE_ALLREDUCE_ON_FAULT."""
    return fault_policy.on_fault(settings, _tell_launcher)


def _tell_launcher() -> None:
    """SIGQUIT is how SGLang's ranks tell the launcher that one has failed; it then ends all of them."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        os.kill(parent.pid, signal.SIGQUIT)
