"""A process of its own: SGLang's engine with EAGLE-3 at tensor parallel size 2 on the CPU; prints one line of JSON.

SGLang builds the draft tree by a CUDA kernel, or, on one platform, by the same in Triton. Triton's interpreter runs the
latter here. What stands at top level runs in the spawned ranks, too.

    python eagle3_engine.py TARGET DRAFT RECORD PROMPT

RECORD is a file for what rank 0 calls with which shape, in order; PROMPT a list of token ids.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sglang.kernels.ops.speculative.spec_tree as spec_tree
import torch

NEW_TOKENS = 12

spec_tree._is_xpu = True
spec_tree.sgl_build_tree_kernel_efficient = spec_tree.sgl_build_tree_kernel_triton


def record_calls(path: Path) -> None:
    from pcie_allreduce.integrations.adapter import EngineAllReduce

    def recorded(name: str) -> Callable[..., Any]:
        serve = getattr(EngineAllReduce, name)

        def call(self: EngineAllReduce, inp: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.communicator.rank == 0:
                with path.open("a") as file:
                    file.write(f"{json.dumps([name, *inp.shape])}\n")
            return serve(self, inp, *args, **kwargs)

        return call

    for name in ("custom_all_reduce", "fused_allreduce_rmsnorm"):
        setattr(EngineAllReduce, name, recorded(name))


record_calls(Path(sys.argv[3]))


def main() -> None:
    import sglang

    engine = sglang.Engine(
        model_path=sys.argv[1],
        speculative_draft_model_path=sys.argv[2],
        speculative_algorithm="EAGLE3",
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        device="cpu",
        dtype="float16",  # Triton's interpreter computes in numpy, which has no bfloat16
        tp_size=2,
        skip_tokenizer_init=True,
        attention_backend="triton",
        sampling_backend="pytorch",
        grammar_backend="none",
        triton_attention_num_kv_splits=1,
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        max_total_tokens=2048,
        max_running_requests=4,
        context_length=256,
        mem_fraction_static=0.3,
        log_level="info",
    )
    answer = engine.generate(
        input_ids=[json.loads(sys.argv[4])],
        sampling_params={"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True},
    )[0]
    meta = answer["meta_info"]
    told = {name: meta[f"spec_{name}"] for name in ("verify_ct", "num_correct_drafts", "num_proposed_drafts")}
    print("RESULT", json.dumps({"tokens": answer["output_ids"], **told}), flush=True)
    time.sleep(3.0)  # the ranks are killed, and would not tell how many all-reduces they have served
    engine.shutdown()


if __name__ == "__main__":
    main()
