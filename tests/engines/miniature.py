"""SGLang in small: of 0.5.23 and of 0.5.9, what the contracts look at and no more, to be spoilt by tests.

Written for these tests; only the names are SGLang's.
"""

from __future__ import annotations

from pathlib import Path

STATE = "sglang/srt/distributed/parallel_state.py"
CUSTOM = "sglang/srt/distributed/device_communicators/custom_all_reduce.py"
ENGINE = "sglang/srt/entrypoints/engine.py"
ARGUMENTS = "sglang/srt/server_args.py"
PLUGINS = "sglang/srt/plugins/__init__.py"
REGISTRY = "sglang/srt/plugins/hook_registry.py"
SCHEDULER = "sglang/srt/managers/scheduler.py"
LAUNCH = "sglang/launch_server.py"
SERVE = "sglang/cli/serve.py"
RAY = "sglang/srt/ray/scheduler_actor.py"
BOUNDARY = "sglang/srt/layers/layer_boundary/fusions/allreduce.py"
OUTPUT = "sglang/srt/layers/layer_boundary/output.py"
DP = "sglang/srt/layers/dp_attention.py"
COMMUNICATOR = "sglang/srt/layers/communicator.py"
BATCH = "sglang/srt/model_executor/forward_batch_info.py"
LAYERNORM = "sglang/srt/layers/layernorm.py"

MAKING = """
_ENABLE_CUSTOM_ALL_REDUCE = True

def set_custom_all_reduce(enable):
    global _ENABLE_CUSTOM_ALL_REDUCE
    _ENABLE_CUSTOM_ALL_REDUCE = enable

def init_world_group(ranks):
    return GroupCoordinator(ranks, use_custom_allreduce=False)

def init_model_parallel_group(ranks, use_custom_allreduce=None, group_name=None):
    if use_custom_allreduce is None:
        use_custom_allreduce = _ENABLE_CUSTOM_ALL_REDUCE
    return GroupCoordinator(ranks, use_custom_allreduce=use_custom_allreduce)

def initialize_model_parallel():
    _TP = init_model_parallel_group(ranks, group_name="tp")
    _ATTN_TP = init_model_parallel_group(ranks, use_custom_allreduce=None, group_name="attention_tp")
    _PP = init_model_parallel_group(ranks, use_custom_allreduce=False, group_name="pp")

def reg_all_gather_into_tensor(output, input, group_name):
    group = _groups[group_name]()
    group._all_gather_into_tensor(output, input)

def graph_capture():
    with get_tp_group().graph_capture() as context:
        yield context
"""
GROUP = """
class GroupCoordinator:
    ca_comm: Optional[Any]

    def __init__(self, ranks, use_custom_allreduce):
        self.world_size = self.rank_in_group = self.unique_name = self.device = self.cpu_group = None
        self.device_group = self.pymscclpp_comm = None
        self.use_custom_allreduce = use_custom_allreduce
        self.is_symmetric_memory_enabled = is_symmetric_memory_enabled
        CAClass = dispatch_custom_allreduce(ARGUMENTS)
        self.ca_comm = CAClass(group=self.cpu_group, device=self.device)

    def graph_capture(self):
        with self.ca_comm.capture():
            yield

    def _all_reduce_out_place(self, input_, method):
        ca_comm = self.ca_comm
        assert not ca_comm.disabled
        return ca_comm.custom_all_reduce(input_)

    def _all_reduce_in_place(self, input_): ...

    def all_gather(self, input_, dim=-1, output_tensor_list=None):
        self.all_gather_into_tensor(output, input_)

    def _all_gather_into_tensor(self, output, input): ...
"""
NEW_WAY = """
    def all_reduce(self, input_):
        if self.world_size == 1:
            return input_
        if input_.is_cpu:
            return input_
        wanted = self.ca_comm is not None and self.ca_comm.should_custom_ar(input_)
        if self.is_symmetric_memory_enabled() and not wanted:
            with self.pynccl_comm.change_state(enable=True):
                return input_
        return self._resolve_outplace_all_reduce_method(input_)

    def _resolve_outplace_all_reduce_method(self, input_):
        if not self.ca_comm.disabled and self.ca_comm.should_custom_ar(input_):
            return "ca"
        if self.pcie_ipc_comm.should_pcie_ipc_ar(input_):
            return "pcie_ipc"

    def fused(self, input_):
        ca_comm = self.ca_comm
        if hasattr(ca_comm, "fused_by_another"):
            return ca_comm.fused_by_another(input_)
        if is_hip():
            return ca_comm.of_amd(input_)
        if isinstance(ca_comm, CustomAllReduceV2) and ca_comm.has_multicast:
            return None
"""
OLD_WAY = """
    def all_reduce(self, input_):
        if self.is_symmetric_memory_enabled():
            with self.pynccl_comm.change_state(enable=True):
                return input_
        if self.ca_comm is not None and not self.ca_comm.disabled and self.ca_comm.should_custom_ar(input_):
            return outplace_all_reduce(input_, "ca")
"""
DP_ATTENTION = "def is_dp_attention_enabled(): ..."
BATCHES = """
class ForwardBatch:
    can_run_tbo: bool = False
"""
NORM = """
class RMSNorm:
    def __init__(self, var_hidden_size, has_weight, cast_x_before_out_mul, fp32_residual, override_orig_dtype): ...

    def forward_with_allreduce_fusion(self, x, residual=None, post_residual_addition=NoneMORE): ...
"""
BOTH = {
    ENGINE: """
class Engine:
    def __init__(self, **kwargs):
        load_plugins()
        server_args = self.server_args_class(**kwargs)

def _set_envs():
    signal.signal(signal.SIGQUIT, handler)
    mp.set_start_method("spawn", force=True)
""",
    ARGUMENTS: """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser): ...

    @classmethod
    def from_cli_args(cls, args): ...

def prepare_server_args(argv):
    parser = ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return ServerArgs.from_cli_args(parser.parse_args(argv))
""",
    LAUNCH: """
if __name__ == "__main__":
    load_plugins()
    server_args = prepare_server_args(sys.argv[1:])
""",
}
NEW = {
    **BOTH,
    STATE: MAKING + GROUP.replace("ARGUMENTS", "group=self.cpu_group, device=self.device") + NEW_WAY,
    CUSTOM: "def dispatch_custom_allreduce(group, device): ...",
    PLUGINS: """
GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"

def load_plugins():
    for name, func in load_plugins_by_group(GENERAL_PLUGINS_GROUP).items():
        func()
    HookRegistry.apply_hooks()
""",
    REGISTRY: """
class HookType(Enum):
    AROUND = "around"

class HookRegistry:
    @classmethod
    def register(cls, target, hook, hook_type=None, *, source=None): ...

def _wrap_fn(original_fn, hook, hook_type):
    def wrapper(*args, **kwargs):
        return hook(original_fn, *args, **kwargs)
    return wrapper
""",
    SCHEDULER: """
def run_scheduler_process(server_args):
    load_plugins()
    scheduler = Scheduler(server_args)
""",
    SERVE: """
def serve(args, argv):
    if "-h" in argv:
        return backend.run(argv)
    load_plugins()
    backend.run(argv)
""",
    RAY: "class SchedulerActor: ...",
    BOUNDARY: """
from sglang.srt.layers.layer_boundary.output import UnreducedOutput

def get_parallel(): ...

def get_exec(): ...

def fused_ffn_input(plan, hidden_states, residual, forward_batch):
    return None

def fused_attn_input(plan, owed, residual, forward_batch, post_residual_addition, *, keep_bf16):
    return None
""",
    OUTPUT: """
class UnreducedOutput:
    partial: Tensor
    group: Group
    reduce_to_dp_local: Callable
    complete_sum: Callable
""",
    BATCH: BATCHES,
    LAYERNORM: NORM.replace("MORE", ", use_attn_tp_group=True"),
    DP: DP_ATTENTION,
}
OLD = {
    **BOTH,
    STATE: MAKING + GROUP.replace("ARGUMENTS", "") + OLD_WAY,
    CUSTOM: "def dispatch_custom_allreduce(): ...",
    COMMUNICATOR: """
def apply_flashinfer_allreduce_fusion(batch_size): ...

def get_attn_tp_context(): ...

def get_tp_group(): ...

class ScatterMode:
    TP_ATTN_FULL = 1

class CommunicateWithAllReduceAndLayerNormFn:
    @staticmethod
    def _gather_hidden_states_and_residual(hidden_states, *, residual_input_mode): ...

class LayerCommunicator:
    def prepare_mlp(self, hidden_states, residual, forward_batch, cache=None): ...
""",
    BATCH: BATCHES,
    LAYERNORM: NORM.replace("MORE", ""),
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root
