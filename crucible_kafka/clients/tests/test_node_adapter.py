"""The adapters of clients in JavaScript: what can be known of them without Node, and with Node their ordinary work."""

import json
import re
import shutil
import subprocess

import pytest

from crucible_kafka.clients.adapter import AdapterCommand, AdapterProcess, adapter_info
from crucible_kafka.clients.bundled import ADAPTERS, find
from crucible_kafka.clients.case import ClientCase, ClientVerdict
from crucible_kafka.clients.cases import chosen
from crucible_kafka.clients.play import play_case
from crucible_kafka.clients.protocol import FEATURES, SETTINGS, schema
from crucible_kafka.clients.report import detail_lines

LACKS = {
    "kafkajs": {"group-protocol-consumer", "cooperative", "static-membership", "lz4", "zstd"},
    "platformatic-kafka": {"send-offsets", "group-protocol-consumer", "cooperative", "pause"},
}
"""The features that each adapter does not claim."""
OPERATIONS_LACKING = {"kafkajs": set(), "platformatic-kafka": {"send_offsets", "pause", "resume"}}
TEMPLATE = ADAPTERS / "javascript"


def source(name: str) -> str:
    return (ADAPTERS / name.replace("-", "_") / "adapter.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LACKS)
def test_it_serves_each_operation_but_those_whose_feature_it_lacks(name: str) -> None:
    table = source(name).partition("\nserve(")[2].partition("}, {")[2].partition("}, failure")[0]
    shorthand = re.findall(r"(?<![\w:.])(\w+)(?=,)", table.partition("commit_transaction")[0])
    served = set(shorthand) | set(re.findall(r"^  (\w+):", table, re.MULTILINE))
    wanted = set(schema()["$defs"]["Request"]["discriminator"]["mapping"]) - {"hello"}
    assert served == wanted - OPERATIONS_LACKING[name]
    listed = source(name).partition("FEATURES = [")[2].partition("]")[0]
    assert set(re.findall(r'"([\w-]+)"', listed)) == set(FEATURES) - LACKS[name]


@pytest.mark.parametrize("name", LACKS)
def test_its_settings_are_those_of_the_protocol(name: str) -> None:
    table = source(name).partition("const SETTINGS = ")[2].partition("\n};\n")[0]
    named = set(re.findall(r"^  (\w+):", table, re.MULTILINE))
    assert len(named) > 18
    assert named <= set(SETTINGS)


@pytest.mark.live
@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_template_replies_to_hello_and_to_what_it_does_not_know() -> None:
    process = AdapterProcess(AdapterCommand("template", ["node", str(TEMPLATE / "template.js")]))
    assert (process.about.name, process.about.language) == ("my-client", "JavaScript")
    assert process.end() == ""
    lines = [{"op": "dance", "id": 1}, {"op": "open", "id": 2, "client": "c", "role": "consumer", "bootstrap": "a:1"}]
    lines[1] |= {"client_id": "c", "settings": {"reset": "earliest", "rack": "r"}}
    output = subprocess.run(
        ["node", str(TEMPLATE / "template.js")],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    replies = [json.loads(line) for line in output.splitlines()]
    assert replies[0]["error"]["message"] == "dance is not supported"
    assert replies[1] == {"id": 2, "result": {"ignored": ["rack"]}}


@pytest.mark.peer
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LACKS)
@pytest.mark.parametrize("each", chosen(["ordinary"], []), ids=lambda each: each.id)
def test_client_does_ordinary_work(name: str, each: ClientCase) -> None:
    command = find(name, lambda _: None)
    result = play_case(each, command, adapter_info(command))
    assert result.verdict is ClientVerdict.PASS, "\n".join(detail_lines(result, name))
