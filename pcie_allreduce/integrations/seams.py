"""Whether the engine that is here has what is about to be hooked: looked at before, so that another version of it is
refused in a sentence, and is not met in a traceback, or, worse, by a hook that nothing calls.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PAGE = "docs/engines.md names the versions that are known"


def lacks(target: str, *arguments: str) -> str | None:
    """Why what the dotted path names cannot be used, as the end of a sentence that begins with the engine; None if it
    can: it is there, and takes arguments of these names."""
    try:
        found = _resolve(target)
    except AttributeError:
        return f"has no {target}"
    except ImportError as error:
        return f"cannot import {target}: {error}"
    known = inspect.signature(found).parameters if arguments else {}
    gone = [name for name in arguments if name not in known]
    return f"has a {target} that takes no {', '.join(gone)}" if gone else None


def without(thing: Any, names: Iterable[str]) -> str | None:
    """The same of an object and its attributes."""
    gone = [name for name in names if not hasattr(thing, name)]
    return f"has a {type(thing).__name__} without {', '.join(gone)}" if gone else None


def sentence(engine: str, reason: str) -> str:
    """`reason` is what one of the above has said."""
    try:
        number = f" ({version(engine.lower())})"
    except PackageNotFoundError:
        number = ""
    return f"this {engine}{number} {reason}; {PAGE}"


def _resolve(target: str) -> Any:
    """As pkgutil.resolve_name, which takes a module that fails to import for one that is not there."""
    parts = target.split(".")
    found = importlib.import_module(parts[0])
    for count, name in enumerate(parts[1:], start=2):
        if not hasattr(found, name) and inspect.ismodule(found):
            module = ".".join(parts[:count])
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module and hasattr(found, "__path__"):
                    raise
        found = getattr(found, name)
    return found
