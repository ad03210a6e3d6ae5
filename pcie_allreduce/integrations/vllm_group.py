"""What happens to the custom all-reduce of vLLM's tensor parallel group when ours is on.

vLLM asks `ca_comm.should_custom_ar(x)` and then calls `ca_comm.custom_all_reduce(x)`, both inside an operator that
torch.compile does not look into, and captures graphs inside `ca_comm.capture()`. Its own class, which refuses more than
two GPUs without NVLink, is what is made where ours cannot be.
"""

from __future__ import annotations

import inspect
import logging
import os
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import SetupError
from . import fault_policy, gathering, telling
from .adapter import EngineAllReduce
from .settings import REQUIRE, Settings

logger = logging.getLogger(__name__)

# What vLLM passes beside group and device. The first makes room for a neighbour of its own kernel, the second is about
# buffers that ours does not register: neither concerns us.
IGNORED = {"symm_mem_enabled", "register_graph_buffers"}

# Who is asked before a custom all-reduce, and by what it is turned on.
ASKED_FIRST = {
    "fi_pcie_ipc_ar_comm": "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC",
    "fi_ar_comm": "VLLM_ALLREDUCE_USE_FLASHINFER",
}


@dataclass(frozen=True)
class Place:
    """For which group a custom all-reduce is being made, and what reduces there otherwise."""

    name: str = "tp"
    device_group: Any = None


_place: ContextVar[Place] = ContextVar("place")


class VllmAllReduce(EngineAllReduce):
    """With the rest of what vLLM reads off its custom all-reduce: that other collectives and NVLink are not served."""

    fully_connected = False
    mnnvl_lamport_ag_multicast_ptr = 0

    def custom_all_gather(self, inp: torch.Tensor) -> None:
        """None: vLLM takes another."""

    def custom_reduce_scatter(self, inp: torch.Tensor) -> None:
        """None: vLLM takes another."""

    def register_graph_buffers(self) -> None:
        """Graphs hold our own buffers, which all ranks know."""


def in_place_of(stock: type) -> type:
    """The class that stands where `stock`, vLLM's own, did: it makes a VllmAllReduce, or else a `stock`."""

    class CustomAllreduce(stock):  # type: ignore[misc]  # for what is reached through the class itself
        def __new__(cls, group: Any, device: Any, **options: Any) -> Any:
            made = _make(group, device, options)
            return stock(group=group, device=device, **options) if made is None else made

    return CustomAllreduce


def make_communicator(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Goes around CudaCommunicator.__init__, in which a group's all-reduces are made."""
    arguments = inspect.signature(original).bind(*args, **kwargs).arguments
    place = Place(arguments.get("unique_name", "tp"), arguments.get("device_group"))
    token = _place.set(place)
    try:
        original(*args, **kwargs)
    finally:
        _place.reset(token)
    communicator = args[0]
    adapter = getattr(communicator, "ca_comm", None)
    if isinstance(adapter, VllmAllReduce):
        _count_the_rest(communicator)
        if Settings.from_environment().gather:
            _gather(communicator, adapter)
        _tell_who_is_asked_first(communicator)
    elif adapter is None and place.name.split(":")[0] == "tp" and communicator.world_size > 1:
        _not_wanted(place.name, communicator.rank_in_group == 0)


def _make(group: Any, device: Any, options: dict[str, Any]) -> VllmAllReduce | None:
    settings, place = Settings.from_environment(), _place.get(Place())
    try:
        unknown = options.keys() - IGNORED
        if unknown:
            raise SetupError(f"this vLLM makes a custom all-reduce with {', '.join(sorted(unknown))}, unknown here")
        adapter = VllmAllReduce(
            group,
            torch.device("cuda", device) if isinstance(device, int) else torch.device(device),
            name=place.name,
            settings=settings,
            fallback=place.device_group,
            # Which kernel serves a tensor, and in which order it sums, would depend on how many tokens share the batch.
            every_size=batch_invariant(),
            on_fault=fault_policy.on_fault(settings),
        )
    except Exception as error:
        if settings.require:
            raise SetupError(f"{REQUIRE} is on: cannot serve group {place.name}: {error}") from error
        if group.rank() == 0:
            logger.warning("pcie-allreduce: off for group %s, vLLM's own is used: %s", place.name, error)
        return None
    if group.rank() == 0:
        telling.on(adapter)
        if batch_invariant():
            telling.once("VLLM_BATCH_INVARIANT: larger tensors are reduced in pieces, all in rank order")
    return adapter


def batch_invariant() -> bool:
    return os.environ.get("VLLM_BATCH_INVARIANT", "").strip() not in ("", "0")


def _not_wanted(name: str, speaks: bool) -> None:
    reason = "vLLM makes no custom all-reduce: --disable-custom-all-reduce is given, or vLLM decided so; leave it out"
    if Settings.from_environment().require:
        raise SetupError(f"{REQUIRE} is on: cannot serve group {name}: {reason}")
    if speaks:
        logger.warning("pcie-allreduce: off for group %s, vLLM's own is used: %s", name, reason)


def _tell_who_is_asked_first(communicator: Any) -> None:
    if communicator.rank_in_group != 0:
        return
    for name, variable in ASKED_FIRST.items():
        other = getattr(communicator, name, None)
        if other is not None and not other.disabled:
            telling.once(f"{variable} is on: vLLM asks it first, and us for what it does not take")
    if os.environ.get("VLLM_USE_NCCL_SYMM_MEM", "").strip() not in ("", "0"):
        telling.once("VLLM_USE_NCCL_SYMM_MEM is on: vLLM asks NCCL first for the sizes that it holds to be NCCL's")


def _gather(communicator: Any, adapter: VllmAllReduce) -> None:
    """Every all-gather of the group goes through one method, inside an operator that Dynamo does not look into."""
    refusal = adapter.route_gathers()
    if refusal is None:
        communicator.all_gather = gathering.all_gather(communicator)
    if communicator.rank_in_group == 0:
        telling.gathers(adapter, refusal)


def _count_the_rest(communicator: Any) -> None:
    """Every all-reduce of the group goes through this method; those that did not come to us went to the engine."""
    reference: Callable[[], Any] = weakref.ref(communicator)

    def all_reduce(input_: torch.Tensor) -> Any:
        owner = reference()
        adapter = owner.ca_comm
        if not isinstance(adapter, VllmAllReduce):
            return type(owner).all_reduce(owner, input_)
        before = adapter.served + adapter.declined
        result = type(owner).all_reduce(owner, input_)
        adapter.declined += adapter.served + adapter.declined == before
        return result

    communicator.all_reduce = all_reduce
