"""An engine that has changed is refused in a sentence, before anything of it is hooked. Needs no engine: modules that
are made here stand in for those of SGLang."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pcie_allreduce.errors import SetupError
from pcie_allreduce.integrations import hooks, seams, sglang, sglang_group
from pcie_allreduce.integrations.settings import Settings

STATE = "sglang.srt.distributed.parallel_state"
KNOWN = "docs/engines.md names the versions that are known"


def makes_groups(ranks: list[int], use_custom_allreduce: bool | None = None) -> None: ...


def makes_groups_otherwise(ranks: list[int], custom: bool | None = None) -> None: ...


class Arguments:
    @staticmethod
    def add_cli_args(parser: Any) -> None: ...

    @classmethod
    def from_cli_args(cls, args: Any) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes an SGLang of these modules and attributes; one that is None is not there."""

    def make(**attributes: Any) -> None:
        whole = {
            f"{STATE}.init_model_parallel_group": makes_groups,
            f"{STATE}._ENABLE_CUSTOM_ALL_REDUCE": True,
            sglang.ARGUMENTS: type("ServerArgs", (), dict(vars(Arguments))),
            **attributes,
        }
        for path, value in whole.items():
            if value is None:
                continue
            parts = path.split(".")
            for count in range(1, len(parts)):
                name = ".".join(parts[:count])
                if name not in sys.modules or not hasattr(sys.modules[name], "made_here"):
                    module = types.ModuleType(name)
                    module.made_here = True  # type: ignore[attr-defined]
                    module.__path__ = []
                    monkeypatch.setitem(sys.modules, name, module)
                    if count > 1:
                        setattr(sys.modules[".".join(parts[: count - 1])], parts[count - 1], module)
            setattr(sys.modules[".".join(parts[:-1])], parts[-1], value)

    monkeypatch.setattr(seams, "version", lambda name: "0.5.99")
    monkeypatch.setattr(hooks, "_registry", lambda: None)
    return make


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("", "_REQUIRE"):
        monkeypatch.delenv(f"PCIE_ALLREDUCE{name}", raising=False)
    for cached in (sglang._hook_groups, sglang._add_flags):
        cached.cache_clear()
    yield
    for cached in (sglang._hook_groups, sglang._add_flags):
        cached.cache_clear()


GONE = [
    ({f"{STATE}.init_model_parallel_group": None}, f"has no {STATE}.init_model_parallel_group"),
    (
        {f"{STATE}.init_model_parallel_group": makes_groups_otherwise},
        f"has a {STATE}.init_model_parallel_group that takes no use_custom_allreduce",
    ),
    ({f"{STATE}._ENABLE_CUSTOM_ALL_REDUCE": None}, f"has no {STATE}._ENABLE_CUSTOM_ALL_REDUCE"),
]


@pytest.mark.parametrize(("changed", "told"), GONE)
def test_a_seam_that_is_gone_leaves_the_engine_alone_and_is_named_with_the_version(
    engine: Callable[..., None],
    changed: dict[str, Any],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine(**changed)
    assert not sglang.install()
    assert caplog.messages == []  # the switch is off, and nothing was looked for
    monkeypatch.setenv("PCIE_ALLREDUCE", "1")
    assert sglang.install()
    assert caplog.messages == [
        f"pcie-allreduce: off, SGLang's own is used: this SGLang (0.5.99) {told}; {KNOWN}",
    ]
    assert not hasattr(getattr(sys.modules[STATE], "init_model_parallel_group", None), "__wrapped__")


@pytest.mark.parametrize(("changed", "told"), GONE)
def test_requiring_it_ends_the_process_with_the_reason(
    engine: Callable[..., None], changed: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(**changed)
    monkeypatch.setenv("PCIE_ALLREDUCE_REQUIRE", "1")
    with pytest.raises(SystemExit) as caught:
        sglang.install()
    assert str(caught.value) == (
        f"pcie-allreduce: --pcie-allreduce-require: nothing can be served: this SGLang (0.5.99) {told}; {KNOWN}"
    )


def test_an_engine_that_has_all_is_hooked(engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    engine()
    monkeypatch.setenv("PCIE_ALLREDUCE", "1")
    sglang.register()
    assert sys.modules[STATE].init_model_parallel_group.__wrapped__ is makes_groups


def test_flags_that_cannot_be_added_leave_the_variable(
    engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SGLang swallows what a plug-in raises: if this raised, the switch would do nothing, and require nothing."""
    engine(**{sglang.ARGUMENTS: type("ServerArgs", (), {})})
    monkeypatch.setenv("PCIE_ALLREDUCE", "1")
    sglang.register()
    assert caplog.messages == [
        "pcie-allreduce: no flags, PCIE_ALLREDUCE=1 turns it on: "
        f"this SGLang (0.5.99) has no {sglang.ARGUMENTS}.add_cli_args; {KNOWN}"
    ]
    assert sys.modules[STATE].init_model_parallel_group.__wrapped__ is makes_groups


def test_a_registry_that_refuses_fails_a_launch_that_requires(
    engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine()
    monkeypatch.setattr(hooks, "_registry", lambda: types.SimpleNamespace(HookRegistry=object, HookType=object))
    monkeypatch.setenv("PCIE_ALLREDUCE_REQUIRE", "1")
    with pytest.raises(SystemExit, match=rf"takes no hook on {STATE}\.init_model_parallel_group: AttributeError"):
        sglang.register()
    assert "no flags" in caplog.messages[0]


@pytest.mark.parametrize("require", [False, True])
@pytest.mark.parametrize("flag", ["use_ray", "enable_pdmux"])
def test_what_is_not_served_is_refused_by_its_flag(
    engine: Callable[..., None],
    flag: str,
    require: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SGLang loads no plug-ins in Ray's actors: our flag would be known, and would do nothing. Streams of a part of the
    GPU cannot hold all blocks of a call at once."""
    engine()
    monkeypatch.setenv("PCIE_ALLREDUCE_REQUIRE", "0")  # so that it is put back
    monkeypatch.setenv("PCIE_ALLREDUCE", "0")
    arguments = argparse.Namespace(enable_pcie_allreduce=True, pcie_allreduce_require=require, **{flag: True})
    told = sglang.NOT_WITH[flag]
    if require:
        with pytest.raises(SystemExit, match=told):
            sglang._from_cli_args(lambda cls, args: None, object, arguments)
    else:
        sglang._from_cli_args(lambda cls, args: None, object, arguments)
        assert caplog.messages == [f"pcie-allreduce: off, SGLang's own is used: {told}"]
        assert os.environ["PCIE_ALLREDUCE"] == "0"
        setattr(arguments, flag, False)
        sglang._from_cli_args(lambda cls, args: None, object, arguments)
        assert os.environ["PCIE_ALLREDUCE"] == "1"
        assert len(caplog.messages) == 1


class Group:
    """All that a group of SGLang's has, and nothing that works: it is not to be used."""

    unique_name, rank_in_group, world_size = "tp:0", 0, 2
    device = cpu_group = device_group = ca_comm = use_custom_allreduce = pymscclpp_comm = None
    is_symmetric_memory_enabled = all_reduce = _all_reduce_in_place = _all_reduce_out_place = None


def make_without(*names: str) -> Any:
    left = {key: value for key, value in vars(Group).items() if not key.startswith("__") and key not in names}
    return type("GroupCoordinator", (), left)()


@pytest.mark.parametrize("name", sglang_group.GROUP)
def test_a_group_without_what_is_read_is_left_alone(
    engine: Callable[..., None], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A place for the all-reduce that SGLang has renamed would be filled, and nobody would ask there."""
    engine()
    group = make_without(name)
    caplog.set_level(logging.INFO)
    sglang_group._serve(group, Settings(enabled=True), allowed=False)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith(f"this SGLang (0.5.99) has a GroupCoordinator without {name}; {KNOWN}")
    assert vars(group) == {}
    with pytest.raises(SetupError, match=rf"cannot serve group .* without {name}"):
        sglang_group._serve(group, Settings(enabled=True, require=True), allowed=False)


def test_what_fails_to_import_is_not_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "an_engine").mkdir()
    (tmp_path / "an_engine" / "__init__.py").touch()
    (tmp_path / "an_engine" / "broken.py").write_text("import no_such_library\n")
    (tmp_path / "an_engine" / "whole.py").write_text("class A:\n    def f(self, x): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert seams.lacks("an_engine.whole.A.f", "x") is None
    assert seams.lacks("an_engine.whole.A.f", "y") == "has a an_engine.whole.A.f that takes no y"
    assert seams.lacks("an_engine.whole.A.g") == "has no an_engine.whole.A.g"
    assert seams.lacks("an_engine.other.A") == "has no an_engine.other.A"
    assert seams.lacks("an_engine.broken.A") == "cannot import an_engine.broken.A: No module named 'no_such_library'"
    assert seams.lacks("no_such_engine.A") == "cannot import no_such_engine.A: No module named 'no_such_engine'"
