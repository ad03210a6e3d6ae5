"""Hooks by assignment, as for SGLang before 0.5.11; the registry of later versions is tested with SGLang itself."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from pcie_allreduce.integrations import hooks


class Owner:
    @staticmethod
    def stands(x: int) -> int:
        return x

    @classmethod
    def belongs(cls, x: int) -> tuple[type, int]:
        return cls, x

    def acts(self, x: int) -> tuple[Owner, int]:
        return self, x


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = types.ModuleType("engine_of_a_test")
    made.Owner = type("Owner", (), dict(vars(Owner)))  # type: ignore[attr-defined]
    made.function = lambda x: x  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "engine_of_a_test", made)
    monkeypatch.setattr(hooks, "_registry", lambda: None)
    return made


def twice(original: Callable[..., Any], *args: Any) -> Any:
    return "hooked", original(*args)


def test_functions_and_every_kind_of_method(module: Any) -> None:
    for name in ("function", "Owner.stands", "Owner.belongs", "Owner.acts"):
        hooks.around(f"engine_of_a_test.{name}", twice)
    owner = module.Owner()
    assert module.function(3) == ("hooked", 3)
    assert module.Owner.stands(3) == owner.stands(3) == ("hooked", 3)
    assert module.Owner.belongs(3) == ("hooked", (module.Owner, 3))
    assert owner.acts(3) == ("hooked", (owner, 3))
