"""The doctor's report on machines that lack something. Nothing is started."""

import resource
import shutil
import socket
import subprocess
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from chaos.live import toxiproxy_server
from crucible_kafka import cli, doctor

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def java_prints(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let ``java -version`` print a text."""

    def print_version(text: str) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
        result = SimpleNamespace(stdout="", stderr=text)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: result)

    return print_version


@pytest.mark.parametrize(
    ("text", "found", "is_well"),
    [
        ('openjdk version "17.0.15" 2025-04-15\n', "17.0.15", True),
        ('java version "21" 2023-09-19\n', "21", True),
        ('openjdk version "1.8.0_412"\n', "1.8.0_412", False),
        ("what?", "it does not print its version", False),
    ],
)
def test_java_must_be_new_enough(java_prints: Any, text: str, found: str, is_well: bool) -> None:
    java_prints(text)
    finding = doctor.java()
    assert finding.found == found
    assert (not finding.cure) == is_well
    assert finding.is_needed


def test_each_lack_has_a_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(9, 8, 1))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**9))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    monkeypatch.setattr(toxiproxy_server, "home", lambda: tmp_path)
    monkeypatch.delenv(toxiproxy_server.ENVIRONMENT_VARIABLE, raising=False)
    lacking = {each.thing for each in doctor.examine() if each.cure}
    assert lacking >= {"Java", "Toxiproxy", "Go", "Maven", "git", "memory", "disk", "open files"}
    said = CliRunner().invoke(cli.main, ["doctor"])
    assert said.exit_code == 2
    assert "Java: install a Java runtime, 17 or newer" in said.output
    assert "open files: raise the limit" in said.output


def test_missing_loopback_port_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "create_server", refused)
    assert "Operation not permitted" in doctor.ports().cure


def test_missing_optional_tool_does_not_fail() -> None:
    useful = doctor.Finding("Maven", "not found", "peers", is_needed=False, cure="install it")
    assert doctor.exit_code([useful]) == 0
    assert doctor.exit_code([useful, doctor.Finding("Java", "not found", "all", cure="install it")]) == 2
