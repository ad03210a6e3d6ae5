from __future__ import annotations

from typing import Any

import torch


class CustomAllreduce:
    """Refuses this machine, as the real one refuses more than two GPUs without NVLink."""

    def __init__(
        self, group: Any, device: torch.device, symm_mem_enabled: bool = False, *, register_graph_buffers: bool = True
    ) -> None:
        self.disabled = True

    @staticmethod
    def create_shared_buffer(size_in_bytes: int) -> list[int]:
        return [size_in_bytes]
