from __future__ import annotations

import pytest

from pcie_allreduce.integrations.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "",
        "_REQUIRE",
        "_ON_FAULT",
        "_TIMEOUT",
        "_WARMUP_TIMEOUT",
        "_MAX_BYTES",
        "_LOG_SECONDS",
        "_FUSED",
        "_GATHER",
    ):
        monkeypatch.delenv(f"PCIE_ALLREDUCE{name}", raising=False)


def test_off_by_default() -> None:
    settings = Settings.from_environment()
    assert settings == Settings()
    assert not settings.enabled and not settings.require and settings.on_fault == "abort"


@pytest.mark.parametrize(("text", "on"), [("1", True), ("true", True), ("0", False), ("off", False), ("", False)])
def test_the_switch(monkeypatch: pytest.MonkeyPatch, text: str, on: bool) -> None:
    monkeypatch.setenv("PCIE_ALLREDUCE", text)
    assert Settings.from_environment().enabled is on


@pytest.mark.parametrize(("text", "fused"), [("1", True), ("0", False), ("", None)])
def test_fusing_is_on_off_or_left_to_the_device(monkeypatch: pytest.MonkeyPatch, text: str, fused: bool | None) -> None:
    monkeypatch.setenv("PCIE_ALLREDUCE_FUSED", text)
    assert Settings.from_environment().fused is fused


@pytest.mark.parametrize(("text", "gather"), [("1", True), ("0", False), ("", False)])
def test_all_gathers_are_left_alone_unless_asked_for(monkeypatch: pytest.MonkeyPatch, text: str, gather: bool) -> None:
    monkeypatch.setenv("PCIE_ALLREDUCE_GATHER", text)
    assert Settings.from_environment().gather is gather


def test_requiring_is_enabling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCIE_ALLREDUCE_REQUIRE", "1")
    settings = Settings.from_environment()
    assert settings.enabled and settings.require


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCIE_ALLREDUCE_ON_FAULT", "raise")
    monkeypatch.setenv("PCIE_ALLREDUCE_TIMEOUT", "2.5")
    monkeypatch.setenv("PCIE_ALLREDUCE_WARMUP_TIMEOUT", "60")
    monkeypatch.setenv("PCIE_ALLREDUCE_MAX_BYTES", "1048576")
    settings = Settings.from_environment()
    assert (settings.on_fault, settings.timeout, settings.warmup_timeout) == ("raise", 2.5, 60.0)
    assert settings.max_bytes == 1 << 20


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PCIE_ALLREDUCE", "maybe"),
        ("PCIE_ALLREDUCE_ON_FAULT", "ignore"),
        ("PCIE_ALLREDUCE_TIMEOUT", "soon"),
        ("PCIE_ALLREDUCE_MAX_BYTES", "1M"),
    ],
)
def test_a_value_that_means_nothing_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=name) as caught:
        Settings.from_environment()
    assert repr(text) in str(caught.value)
