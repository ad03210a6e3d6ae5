"""A launcher like `pcie_allreduce.integrations.sglang_launch`, under which rank 1 sends itself a signal in some call.

A signal from outside would often meet it in one of SGLang's own collectives, of which nothing here can tell.

    FAIL_IN_CALL=60 FAIL_BY=SIGSTOP python failing_rank.py ARGUMENTS OF sglang.launch_server
"""

from __future__ import annotations

import os
import runpy
import signal

import torch

import pcie_allreduce.integrations.sglang_launch  # noqa: F401
from pcie_allreduce.integrations.adapter import EngineAllReduce

serve = EngineAllReduce.custom_all_reduce


def fail_or_serve(self: EngineAllReduce, inp: torch.Tensor) -> torch.Tensor:
    if self.communicator.rank == 1 and self.served == int(os.environ["FAIL_IN_CALL"]):
        os.kill(os.getpid(), signal.Signals[os.environ["FAIL_BY"]])
    return serve(self, inp)


EngineAllReduce.custom_all_reduce = fail_or_serve  # type: ignore[method-assign]

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
