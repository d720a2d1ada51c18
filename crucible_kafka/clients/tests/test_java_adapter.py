"""The adapter of Apache Kafka's Java client: what can be known of it without Java, and with Java its ordinary work."""

import re
from pathlib import Path

import pytest

from crucible_kafka.clients import bundled
from crucible_kafka.clients.bundled import ADAPTERS, AdapterNotFound, find
from crucible_kafka.clients.case import ClientCase, ClientVerdict
from crucible_kafka.clients.cases import chosen
from crucible_kafka.clients.play import play_case
from crucible_kafka.clients.protocol import FEATURES, SETTINGS, schema
from crucible_kafka.clients.report import detail_lines

FOLDER = ADAPTERS / "kafka_java"
SOURCE = (FOLDER / "Adapter.java").read_text(encoding="utf-8")


def test_it_serves_each_operation_of_the_protocol() -> None:
    served = set(re.findall(r'case "(\w+)" ->', SOURCE))
    assert served == set(schema()["$defs"]["Request"]["discriminator"]["mapping"])


def test_its_settings_and_features_are_those_of_the_protocol() -> None:
    named = set(re.findall(r'Map\.entry\("(\w+)"', SOURCE))
    assert named
    assert named <= set(SETTINGS)
    listed = SOURCE.partition("FEATURES = List.of(")[2].partition(");")[0]
    assert set(re.findall(r'"([\w-]+)"', listed)) == set(FEATURES)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all programs that the build may call, and a cache of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def _program(folder: Path, name: str, script: str = "exit 0") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_missing_programs_are_one_sentence(commands: Path) -> None:
    _program(commands, "java")
    with pytest.raises(AdapterNotFound) as refused:
        find("kafka-java", lambda _: None)
    assert str(refused.value) == "The adapter kafka-java is built with javac, jar, mvn, which this machine lacks."


@pytest.mark.live
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "[ERROR] Goal: Could not find artifact org.apache.kafka:kafka-clients:jar:9.9.9 in central "
            "(https://repo) -> [Help 1]\n[ERROR] [Help 1] http://cwiki",
            "Could not find artifact org.apache.kafka:kafka-clients:jar:9.9.9 in central",
        ),
        (
            "[ERROR] Could not transfer artifact a:b:jar:1 from/to central (https://repo): Unknown host\n[ERROR]",
            "Could not transfer artifact a:b:jar:1 from/to central",
        ),
        ("something else", "something else"),
    ],
)
def test_a_build_that_fails_is_one_sentence(commands: Path, said: str, why: str) -> None:
    for name in ("java", "javac", "jar"):
        _program(commands, name)
    _program(commands, "mvn", f"echo '{said}'\nexit 1")
    lines: list[str] = []
    with pytest.raises(AdapterNotFound) as refused:
        find("kafka-java@9.9.9", lines.append)
    assert f"failed ({why}); see {bundled.cache_folder()}" in str(refused.value)
    assert lines[0].startswith("building the adapter kafka-java 9.9.9")


@pytest.mark.peer
@pytest.mark.timeout(300)
@pytest.mark.parametrize("each", chosen(["ordinary"], []), ids=lambda each: each.id)
def test_java_client_does_ordinary_work(each: ClientCase) -> None:
    from crucible_kafka.clients.adapter import adapter_info

    command = find("kafka-java", lambda _: None)
    result = play_case(each, command, adapter_info(command))
    assert result.verdict is ClientVerdict.PASS, "\n".join(detail_lines(result, "kafka-java"))
