"""The adapters of clients in Go: what can be known of them without Go, and with Go their ordinary work."""

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
from msgspec import convert

from crucible_kafka.clients.adapter import adapter_info
from crucible_kafka.clients.bundled import ADAPTERS, find
from crucible_kafka.clients.case import ClientCase, ClientVerdict
from crucible_kafka.clients.cases import chosen
from crucible_kafka.clients.play import play_case
from crucible_kafka.clients.protocol import FEATURES, SETTINGS, AdapterInfo, schema
from crucible_kafka.clients.report import detail_lines

LACKS = {
    "franz-go": {"send-offsets", "group-protocol-consumer"},
    "kafka-go": {
        *("idempotence", "transactions", "send-offsets", "group-protocol-consumer", "cooperative"),
        *("static-membership", "pause", "rack"),
    },
    "sarama": {"send-offsets", "group-protocol-consumer", "cooperative", "pause"},
}
"""The features that each adapter does not claim."""
OF_FEATURES = {
    "transactions": {"begin", "commit_transaction", "abort_transaction"},
    "send-offsets": {"send_offsets"},
    "pause": {"pause", "resume"},
}
"""Operations that only clients with a feature have. sarama pauses, but returns what it had fetched before."""


def source(name: str) -> str:
    folder = ADAPTERS / name.replace("-", "_")
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.go")))


@pytest.mark.parametrize("name", LACKS)
def test_it_serves_each_operation_but_those_whose_feature_it_lacks(name: str) -> None:
    served = set(re.findall(r'^\tcase "(\w+)":', source(name), re.MULTILINE)) - {"consumer", "producer"}  # Roles.
    lacking = {operation for feature in LACKS[name] for operation in OF_FEATURES.get(feature, ())} - served
    assert served == set(schema()["$defs"]["Request"]["discriminator"]["mapping"]) - lacking
    assert "send_offsets" in lacking
    listed = source(name).partition("features = []string{")[2].partition("}")[0]
    assert set(re.findall(r'"([\w-]+)"', listed)) == set(FEATURES) - LACKS[name]


@pytest.mark.parametrize("name", LACKS)
def test_its_settings_are_those_of_the_protocol(name: str) -> None:
    table = source(name).partition("var settings = ")[2].partition("\n}\n")[0]
    named = set(re.findall(r'^\t"(\w+)":', table, re.MULTILINE))
    assert len(named) > 18
    assert named <= set(SETTINGS)


@pytest.mark.live
@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_template_replies_to_hello_and_to_what_it_does_not_know() -> None:
    lines: list[dict[str, Any]] = [
        {"op": "hello", "id": 1},
        {"op": "open", "id": 2, "client": "c", "role": "consumer", "bootstrap": "a:1", "settings": {"rack": "r"}},
        {"op": "dance", "id": 3, "client": "c"},
    ]
    output = subprocess.run(
        ["go", "run", str(ADAPTERS / "go" / "template.go")],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    hello, opened, unknown = (json.loads(line) for line in output.splitlines())
    assert convert(hello["result"], AdapterInfo).language == "Go"
    assert opened["result"] == {"ignored": ["rack"]}
    assert unknown["error"]["message"] == "dance is not supported"


@pytest.mark.peer
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LACKS)
@pytest.mark.parametrize("each", chosen(["ordinary"], []), ids=lambda each: each.id)
def test_client_does_ordinary_work(name: str, each: ClientCase) -> None:
    command = find(name, lambda _: None)
    result = play_case(each, command, adapter_info(command))
    assert result.verdict is ClientVerdict.PASS, "\n".join(detail_lines(result, name))
