"""All-gathers of one of SGLang's groups, such as that of the logits, by our communicator.

Of these a group asks nobody, as it asks `ca_comm` about all-reduces, so its method is replaced, on the group alone. On
GPUs that is the one in which every all-gather of equal pieces ends, inside an operator that Dynamo does not look into.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import seams
from .adapter import EngineAllReduce

NAMES = ("all_gather", "_all_gather_into_tensor")


def attach(group: Any, adapter: EngineAllReduce) -> str | None:
    """From now on the adapter, which is the group's, serves all-gathers; or why it does not."""
    transport = adapter.communicator.transport
    if transport not in ("peer", "cpu"):
        return f"transport {transport} would make all-reduces of them"
    reason = seams.without(group, NAMES)
    if reason is not None:
        return seams.sentence("SGLang", reason)
    adapter.gathers = True
    route(group)
    return None


def route(group: Any) -> None:
    name = "all_gather" if group.device.type == "cpu" else "_all_gather_into_tensor"
    reference: Callable[[], Any] = weakref.ref(group)

    def all_gather(input_: torch.Tensor, dim: int = -1, *more: Any, **options: Any) -> Any:
        """SGLang gathers CPU tensors by gloo (or its own shared memory) in this method, so we stand in front of it."""
        owner = reference()
        if not more and not options and -input_.dim() <= dim < input_.dim():
            stacked = input_.new_empty((owner.world_size, *input_.shape))
            if _gather(owner, stacked, input_):
                return stacked.movedim(0, dim % input_.dim()).flatten(dim % input_.dim(), dim % input_.dim() + 1)
        return type(owner).all_gather(owner, input_, dim, *more, **options)

    def into_tensor(output: torch.Tensor, input: torch.Tensor) -> None:
        owner = reference()
        if not _gather(owner, output, input):
            type(owner)._all_gather_into_tensor(owner, output, input)

    setattr(group, name, all_gather if name == "all_gather" else into_tensor)


def _gather(group: Any, output: torch.Tensor, input_: torch.Tensor) -> bool:
    adapter = group.ca_comm
    if not isinstance(adapter, EngineAllReduce):
        return False
    served = adapter.should_gather(input_, output)
    if served:
        adapter.gather_into(input_, output)
    else:
        adapter.declined += 1
    return served
