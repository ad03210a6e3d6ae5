"""vLLM's communication layer, run from its published files on a machine without a GPU and without vLLM's requirements.

A module of vLLM's is fetched when it is imported. Stand-ins that answer everything take the place of its compiled
extension, of its configuration, of what it does for AMD, and of the packages that it imports and that are not here.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from published import Published

ANSWERED = ("vllm.config", "vllm._aiter_ops", "vllm._C", "vllm._C_stable_libtorch")
ABSENT = {"triton"}  # what vLLM and torch can do without, and look for


def borrow(published: Published) -> None:
    """From now on this process imports that vLLM; for a process that serves nothing else."""
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Files(published))
    sys.meta_path.append(_StandIns())  # asked last: for what nobody has
    _configure()


def _configure() -> None:
    """No configuration, no AMD, and a platform that has vLLM's GPU communicator reduce CPU tensors."""
    config, amd = importlib.import_module("vllm.config"), importlib.import_module("vllm._aiter_ops")
    vars(config).update(get_current_vllm_config=lambda: None, get_current_vllm_config_or_none=lambda: None)
    vars(amd)["rocm_aiter_ops"] = types.SimpleNamespace(
        is_custom_all_reduce_enabled=lambda: False, is_enabled=lambda: False
    )
    platforms = importlib.import_module("vllm.platforms")
    unspecified: Any = importlib.import_module("vllm.platforms.interface").UnspecifiedPlatform
    communicator = "vllm.distributed.device_communicators.cuda_communicator.CudaCommunicator"
    members = {"dispatch_key": "CPU", "get_device_communicator_cls": classmethod(lambda cls: communicator)}
    vars(platforms)["_current_platform"] = type("CpuRanks", (unspecified,), members)()


class _Files(importlib.abc.MetaPathFinder):
    def __init__(self, published: Published) -> None:
        self._published = published

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != "vllm":
            return None
        if any(name == answered or name.startswith(answered + ".") for answered in ANSWERED):
            return importlib.machinery.ModuleSpec(name, _StandIns(), is_package=True)
        stem = name.replace(".", "/")
        for file in (f"{stem}/__init__.py", f"{stem}.py"):
            if file in self._published.names:
                return importlib.util.spec_from_file_location(name, self._published.file(file))
        return None


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self._given: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.split(".")[0]
        if top in ABSENT or top == "vllm" or not (top in self._given or _importer().split(".")[0] == "vllm"):
            return None
        self._given.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _importer() -> str:
    """The name of the module whose import statement runs."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Anything:
    """A class, function, decorator, type or value: whatever a module asks for while it is imported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else _Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __getitem__(self, key: Any) -> Any:
        return self

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())
