from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import torch
import torch.distributed as dist


class CudaCommunicator:
    extra: ClassVar[dict[str, Any]] = {}  # what a version to come might pass

    def __init__(self, cpu_group: Any, device: Any = None, device_group: Any = None, unique_name: str = "") -> None:
        self.device_group = device_group
        self.world_size = dist.get_world_size(cpu_group)
        self.rank_in_group = dist.get_group_rank(cpu_group, dist.get_rank())
        from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce
        from vllm.distributed.parallel_state import _ENABLE_CUSTOM_ALL_REDUCE

        self.ca_comm: Any = None
        if unique_name.split(":")[0] == "tp" and _ENABLE_CUSTOM_ALL_REDUCE and self.world_size > 1:
            self.ca_comm = CustomAllreduce(
                group=cpu_group, device=device, symm_mem_enabled=False, register_graph_buffers=True, **self.extra
            )

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        ca_comm = self.ca_comm
        if ca_comm is not None and not ca_comm.disabled and ca_comm.should_custom_ar(input_):
            out: torch.Tensor = ca_comm.custom_all_reduce(input_)
            assert out is not None
            return out
        out = input_.clone()
        dist.all_reduce(out, group=self.device_group)
        return out

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        parts = [torch.empty_like(input_) for _ in range(self.world_size)]
        dist.all_gather(parts, input_, group=self.device_group)
        return torch.cat(parts, dim)

    def custom_all_gather(self, input_: torch.Tensor) -> Any:
        return None if self.ca_comm is None else self.ca_comm.custom_all_gather(input_.contiguous())

    def graph_capture(self) -> Any:
        return contextlib.nullcontext() if self.ca_comm is None else self.ca_comm.capture()

    def destroy(self) -> None:
        self.ca_comm = None
