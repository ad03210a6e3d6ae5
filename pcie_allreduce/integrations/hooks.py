"""Putting a function around one of SGLang's.

SGLang 0.5.11 and later keep a registry of such hooks, which names in the log who has hooked what, composes several
plug-ins' hooks on one target, applies them in every process and repairs `from x import y` copies. Before that there is
only assignment.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

REGISTRY = "sglang.srt.plugins.hook_registry"
Hook = Callable[..., Any]


def around(target: str, hook: Hook) -> None:
    """From now on `target` (a dotted path) is hook(original, *args, **kwargs).

    With a registry, from the moment at which the engine applies its hooks, which it does first thing in each process.
    """
    registry = _registry()
    if registry is None:
        replace(target, hook)
    else:
        registry.HookRegistry.register(target, hook, registry.HookType.AROUND)


def _registry() -> Any:
    try:
        return importlib.import_module(REGISTRY)
    except ModuleNotFoundError:
        return None


def replace(target: str, hook: Hook) -> None:
    """`around` at once, and without a registry: for an engine that has none."""
    path, name = target.rsplit(".", 1)
    owner = pkgutil.resolve_name(path)
    found = vars(owner)[name]
    original = getattr(found, "__func__", found)

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    kind = type(found) if isinstance(found, staticmethod | classmethod) else None
    setattr(owner, name, hooked if kind is None else kind(hooked))
