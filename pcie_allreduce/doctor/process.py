"""What this process was given: CPUs, shared memory, namespaces, and an environment."""

from __future__ import annotations

from pcie_allreduce.doctor.box import Box, cpu_numbers
from pcie_allreduce.doctor.finding import Finding, numbers, ok, problem, warning

NEAR = {"LOC", "NVL", "PIX", "0", "1", "2"}  # values of NCCL_P2P_LEVEL
SHARED_BYTES_A_RANK = 17 * 2**20  # what a rank of 8 takes for tensors of 2 MB, rounded up


def check_numa(box: Box) -> list[Finding]:
    nodes = {node: cpu_numbers(cpus) for node, cpus in box.node_cpus}
    places = {index: gpu.numa_node for index, gpu in enumerate(box.topology.gpus)}
    if not places or len(nodes) < 2:
        return [ok("NUMA", "One node.")] if places and nodes else []
    unknown = [gpu for gpu, node in places.items() if node is None]
    if unknown:
        text = f"{len(nodes)} nodes, and the kernel does not say to which {numbers(unknown)} belongs."
        return [warning("NUMA", text, "Look for NUMA settings in the BIOS, or in the virtual machine.")]
    if box.allowed_cpus is None:
        return []
    mine = cpu_numbers(box.allowed_cpus)
    far = [gpu for gpu, node in places.items() if node in nodes and not nodes[node] & mine]
    if far:
        text = f"This process may use CPUs {box.allowed_cpus}, none of the node of {numbers(far)}."
        remedy = "Right for a rank of another GPU; else give the rank CPUs of its GPU's node (numactl, --cpuset-cpus)."
        return [warning("NUMA", text, remedy)]
    return [ok("NUMA", f"{len(nodes)} nodes; this process may use CPUs of every GPU's.")]


def check_shared_memory(box: Box) -> list[Finding]:
    if box.shm_bytes is None or box.shm_free is None:
        return []
    ranks = max(2, len(box.topology.gpus))
    text = f"/dev/shm has {box.shm_bytes / 2**20:,.0f} MiB, {box.shm_free / 2**20:,.0f} MiB free."
    if box.shm_free >= ranks * SHARED_BYTES_A_RANK:
        return [ok("shared memory", text)]
    text += (
        f" {ranks} ranks without P2P take up to {ranks * SHARED_BYTES_A_RANK / 2**20:,.0f} MiB, NCCL and engines more."
    )
    judge = problem if _through_host_memory(box) else warning
    return [judge("shared memory", text, "--ipc=host or --shm-size=16g for a container; delete leftovers in /dev/shm.")]


def _through_host_memory(box: Box) -> bool:
    count = range(len(box.topology.gpus))
    pairs = [(a, b) for a in count for b in count if a != b]
    return not pairs or any(box.topology.p2p[a][b] != "ok" for a, b in pairs)


def check_namespaces(box: Box) -> list[Finding]:
    own = [name for name, is_own in (("IPC", box.own_ipc), ("PID", box.own_pid)) if is_own]
    where = f"A container ({box.container})" if box.container else "No container"
    if own:
        text = f"{where} with {' and '.join(own)} namespace of its own: ranks elsewhere cannot find those in it."
        remedy = "If ranks run in several containers: --ipc=host and one PID namespace (--pid=host) for all."
        return [warning("namespaces", text, remedy)]
    if box.own_ipc is None or box.own_pid is None:
        return []
    return [ok("namespaces", f"{where}; IPC and PID namespace are the machine's.")]


def check_visible_devices(box: Box) -> list[Finding]:
    text, count = box.found.environment.get("CUDA_VISIBLE_DEVICES"), len(box.topology.gpus)
    if text is None or not count:
        return []
    words = [word.strip() for word in text.split(",")]
    told = f"CUDA_VISIBLE_DEVICES={text!r}"
    wrong = [word for word in words if word.lstrip("-").isdecimal() and not 0 <= int(word) < count]
    if wrong or words == [""]:
        why = f"names {wrong[0]}, which is not there: it and what follows are hidden" if wrong else "hides every GPU"
        return [problem("visible GPUs", f"{told} {why}.", f"Unset it, or name GPUs 0 to {count - 1}.")]
    if len(set(words)) < len(words) and "-hidden" not in text:
        return [
            problem(
                "visible GPUs",
                f"{told} names a GPU twice.",
                "Name each once.",
            )
        ]
    return [ok("visible GPUs", f"{told}.")]


def check_nccl(box: Box) -> list[Finding]:
    """The fallback and the baseline are NCCL's, so what slows NCCL down flatters us, too."""
    env = box.found.environment
    protocols = env.get("NCCL_PROTO", "").upper()
    named = {word.strip() for word in protocols.lstrip("^").split(",")}
    without_ll = bool(protocols) and ("LL" in named) is protocols.startswith("^")
    hurts = {
        "NCCL_P2P_DISABLE": (env.get("NCCL_P2P_DISABLE") == "1", "NCCL goes through the host's memory"),
        "NCCL_P2P_LEVEL": (env.get("NCCL_P2P_LEVEL", "").upper() in NEAR, "NCCL uses P2P over one switch at most"),
        "NCCL_SHM_DISABLE": (env.get("NCCL_SHM_DISABLE") == "1", "pairs without P2P go over the network"),
        "NCCL_PROTO": (without_ll, "LL is the protocol of small messages"),
        "CUDA_LAUNCH_BLOCKING": (env.get("CUDA_LAUNCH_BLOCKING") == "1", "the host waits for every kernel"),
    }  # fmt: skip
    remedy = "Unset it, unless this machine needs it."
    found = [
        warning("NCCL and CUDA", f"{name}={env[name]}: {why}, which hurts small messages.", remedy)
        for name, (bad, why) in hurts.items()
        if bad
    ]
    return found or [ok("NCCL and CUDA", "No variable that slows small messages down is set.")]


def check_own_settings(box: Box) -> list[Finding]:
    if box.found.environment.get("PCIE_ALLREDUCE_P2P") != "0":
        return []
    text = "PCIE_ALLREDUCE_P2P=0: everything goes through the host's memory."
    return [warning("own settings", text, "Unset it where P2P works.")]


def check_allocator(box: Box) -> list[Finding]:
    env = box.found.environment
    set_to = env.get("PYTORCH_ALLOC_CONF", "") + env.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if "expandable_segments:true" not in set_to.replace(" ", "").lower():
        return []
    text = "expandable_segments is on, which does not matter here: tensors are never exported to other ranks."
    return [ok("allocator", text)]
