"""All-gathers of one of SGLang's groups, such as that of the logits, by our communicator.

Of these a group asks nobody, as it asks `ca_comm` about all-reduces, so its method is replaced, on the group alone. On
GPUs that is the one in which every all-gather of equal pieces ends, inside an operator that Dynamo does not look into.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import gathering, seams
from .adapter import EngineAllReduce

NAMES = ("all_gather", "_all_gather_into_tensor")


def attach(group: Any, adapter: EngineAllReduce) -> str | None:
    """From now on the adapter, which is the group's, serves all-gathers; or why it does not."""
    reason = seams.without(group, NAMES)
    if reason is not None:
        return seams.sentence("SGLang", reason)
    refusal = adapter.route_gathers()
    if refusal is None:
        route(group)
    return refusal


def route(group: Any) -> None:
    if group.device.type == "cpu":  # SGLang gathers CPU tensors in this one, by gloo or its own shared memory
        group.all_gather = gathering.all_gather(group)
        return
    reference: Callable[[], Any] = weakref.ref(group)

    def into_tensor(output: torch.Tensor, input: torch.Tensor) -> None:
        owner = reference()
        if not (isinstance(owner.ca_comm, EngineAllReduce) and owner.ca_comm.gather_into(input, output)):
            type(owner)._all_gather_into_tensor(owner, output, input)

    group._all_gather_into_tensor = into_tensor
