"""Reading, from folders that look like /sys and /proc: a machine that shows everything, and one that shows nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from doctor.boxes import HEALTHY, NO_GPU

from pcie_allreduce.doctor import config_space, reading
from pcie_allreduce.doctor.box import Box, Bridge
from pcie_allreduce.doctor.examine import examine
from pcie_allreduce.topology import Link, Snapshot

SECRETS = ("box17", "10.0.0.7", "8c1f0e2a-1111-2222-3333-444455556666", "alice", "1650222000123")
TWO = Snapshot(
    tuple(replace(gpu, bus_id=f"00000000:0{index + 4}:00.0") for index, gpu in enumerate(HEALTHY.topology.gpus[:2])),
    ((Link.SAME_GPU, Link.SINGLE_SWITCH), (Link.SINGLE_SWITCH, Link.SAME_GPU)),
    (("ok", "ok"), ("ok", "ok")),
)
NONE = Snapshot.unknown((), "no driver")


def config(kind: int, acs: int | None, before: int = 0) -> bytes:
    """4096 bytes: a PCI Express capability at 0x60 behind another, ACS at 0x148 behind advanced errors."""
    space = bytearray(4096)
    space[0x06] = 0x10
    space[0x34], space[0x40:0x42], space[0x60:0x64] = 0x40, b"\x01\x60", bytes([0x10, 0, kind << 4 | 2, 0])
    space[0x100:0x104] = (0x1 | 1 << 16 | (0x148 if acs is not None else 0) << 20).to_bytes(4, "little")
    if acs is not None:
        space[0x148:0x150] = (0xD | 1 << 16).to_bytes(4, "little") + b"\x5f\x00" + acs.to_bytes(2, "little")
    return bytes(space)


def lay(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two GPUs below a switch, whose second port redirects."""
    port = "sys/devices/pci0000:00/0000:00:01.1"
    switch = f"{port}/0000:02:00.0"
    gpus = {"0000:04:00.0": f"{switch}/0000:03:00.0", "0000:05:00.0": f"{switch}/0000:03:01.0"}
    lay(tmp_path, {
        f"{port}/config": config(4, 0x1D),
        f"{switch}/config": config(5, None),
        f"{switch}/0000:03:00.0/config": config(6, 0x00),
        f"{switch}/0000:03:01.0/config": config(6, 0x1D),
        "sys/kernel/iommu_groups/7/type": "DMA-FQ\n",
        "sys/class/iommu/ivhd0/x": "",
        "sys/devices/system/node/node0/cpulist": "0-15\n",
        "sys/devices/system/node/node1/cpulist": "16-31\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=8c1f ip=10.0.0.7 hostname=box17 amd_iommu=on iommu=nopt quiet\n",
        "proc/driver/nvidia/params": 'EnableMSI: 1\nRegistryDwords: "ForceP2P=0x11;RMForceP2PType=1"\nRmMsg: ""\n',
        "proc/self/status": "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n",
        "proc/self/mountinfo": "1 0 0:30 / / rw,relatime - overlay overlay rw\n",
        "proc/cpuinfo": "flags\t\t: fpu vme hypervisor\n",
        "dev/shm/x": "",
    })  # fmt: skip
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for address, above in gpus.items():
        lay(tmp_path, {f"{above}/{address}/vendor": "0x10de\n", f"{above}/{address}/class": "0x030200\n"})
        (tmp_path / above / address / "iommu_group").symlink_to(tmp_path / "sys/kernel/iommu_groups/7")
        (tmp_path / "sys/bus/pci/devices" / address).symlink_to(tmp_path / above / address)
    sound = "sys/bus/pci/devices/0000:04:00.1"  # NVIDIA's, too, but no GPU
    lay(tmp_path, {f"{sound}/vendor": "0x10de\n", f"{sound}/class": "0x040300\n"})
    (tmp_path / "proc/self/ns").mkdir()
    (tmp_path / "proc/self/ns/ipc").symlink_to("ipc:[4026532500]")
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    return tmp_path


def test_everything_is_read(machine: Path) -> None:
    box = reading.from_files(HEALTHY.found, TWO, machine)
    root, up = Bridge("0000:00:01.1", "root port", 0x1D), Bridge("0000:02:00.0", "upstream", 0)
    assert box.paths == (
        (Bridge("0000:03:00.0", "downstream", 0), up, root),
        (Bridge("0000:03:01.0", "downstream", 0x1D), up, root),
    )
    assert (box.iommu, box.iommus, box.nvidia_devices) == (("DMA-FQ", "DMA-FQ"), 1, 2)
    assert box.kernel_words == ("amd_iommu=on", "iommu=nopt")
    assert box.module == {"RegistryDwords": "ForceP2P=0x11;RMForceP2PType=1"}
    assert (box.node_cpus, box.allowed_cpus) == (((0, "0-15"), (1, "16-31")), "0-7")
    assert (box.own_ipc, box.own_pid, box.virtual) == (True, False, True)
    assert box.container == "its root is an overlay"
    assert box.shm_bytes is not None and box.shm_free is not None and 0 < box.shm_free <= box.shm_bytes
    assert box.unseen == ()
    problems = {finding.topic for finding in examine(box) if finding.level == 2}
    assert {"ACS", "module"} <= problems


def test_without_root_the_acs_bits_are_unseen_and_said_once(machine: Path) -> None:
    for file in machine.rglob("config"):
        file.write_bytes(file.read_bytes()[:64])
    box = reading.from_files(HEALTHY.found, TWO, machine)
    assert {bridge.acs for path in box.paths for bridge in path} == {None}
    assert [line for line in box.unseen if "ACS" in line] == list(box.unseen)
    assert len(box.unseen) == 1 and "root alone" in box.unseen[0]


def test_what_is_missing_is_a_sentence_each(tmp_path: Path) -> None:
    box = reading.from_files(NO_GPU.found, NONE, tmp_path)
    wanted = ("command line", "parameters of the NVIDIA", "IOMMUs", "PCI bus", "what this process may use", "/dev/shm",
              "ipc namespace", "pid namespace", "the CPU")  # fmt: skip
    for what in wanted:
        assert [line for line in box.unseen if what in line], what
    assert (box.iommus, box.module, box.own_ipc, box.virtual, box.shm_bytes) == (None,) * 5
    assert [finding for finding in examine(box) if finding.level == 2] == []


def test_a_folder_that_may_not_be_read_is_a_sentence(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    box = reading.from_files(HEALTHY.found, TWO, machine)
    assert box.unseen == ("Not seen: the configuration space of the bridges above the GPUs (Permission denied).",)


def test_a_snapshot_names_nobody(machine: Path) -> None:
    """Host, address, serial number and home are put wherever they may come from, and none may come out."""
    uuid = f"GPU-{SECRETS[2]}"
    gpus = tuple(replace(gpu, uuid=uuid) for gpu in TWO.gpus)
    found = replace(
        HEALTHY.found,
        gpus=tuple(replace(gpu, uuid=uuid) for gpu in HEALTHY.found.gpus),
        build_error="/home/alice/lib/_C.so: undefined symbol",
        environment={"PCIE_ALLREDUCE_CACHE": "/home/alice/cache"},
    )
    variables = {"CUDA_VISIBLE_DEVICES": f"{uuid},1", "MASTER_ADDR": "10.0.0.7", "HOSTNAME": "box17",
                 "PCIE_ALLREDUCE_CACHE": "/home/alice/cache", "NCCL_PROTO": "LL"}  # fmt: skip
    topology = reading.nameless(replace(TWO, gpus=gpus))
    box = reading.from_files(reading.anonymous(found, variables), topology, machine)
    text = json.dumps(box.to_dict())
    assert [secret for secret in SECRETS if secret in text] == []
    assert box.found.environment == {"CUDA_VISIBLE_DEVICES": "GPU-hidden,1", "NCCL_PROTO": "LL"}
    assert box.found.build_error == "(a path): undefined symbol"
    assert [gpu.uuid for gpu in box.topology.gpus] == ["GPU-0", "GPU-1"]


def test_what_the_driver_does_not_tell_is_said(machine: Path) -> None:
    silent = replace(
        TWO,
        links=((Link.SAME_GPU, None), (None, Link.SAME_GPU)),
        gpus=(TWO.gpus[0], replace(TWO.gpus[1], bar1_bytes=None)),
    )
    assert reading.from_files(HEALTHY.found, silent, machine).unseen == (
        "Not seen: BAR1 of GPU 1 (the driver does not tell).",
        "Not seen: what lies between the GPUs (the driver does not tell of every pair).",
    )


@pytest.mark.parametrize(
    ("space", "bridge"),
    [
        (config(6, 0x1D), Bridge("a", "downstream", 0x1D)),
        (config(6, None), Bridge("a", "downstream", 0)),
        (config(6, 0x1D)[:256], Bridge("a", "downstream", None)),
        (config(6, 0x1D)[:0x148], Bridge("a", "downstream", None)),
        (config(6, 0x1D)[:64], Bridge("a")),
        (b"", Bridge("a")),
        (b"\xff" * 4096, Bridge("a")),  # a device that fell off the bus
        (config(9, 0), Bridge("a", "other", 0)),
    ],
)
def test_configuration_spaces(space: bytes, bridge: Bridge) -> None:
    assert config_space.bridge("a", space) == bridge


def test_this_machine_is_read() -> None:
    box = reading.read()
    assert Box.from_dict(json.loads(json.dumps(box.to_dict()))) == box
    assert box.found.python and box.shm_bytes
