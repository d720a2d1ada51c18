"""The adapter of franz-go: what can be known of it without Go, and with Go its ordinary work."""

import re

import pytest

from crucible_kafka.clients.adapter import adapter_info
from crucible_kafka.clients.bundled import ADAPTERS, find
from crucible_kafka.clients.case import ClientCase, ClientVerdict
from crucible_kafka.clients.cases import chosen
from crucible_kafka.clients.play import play_case
from crucible_kafka.clients.protocol import FEATURES, SETTINGS, schema
from crucible_kafka.clients.report import detail_lines

FOLDER = ADAPTERS / "franz_go"
ADAPTER = (FOLDER / "adapter.go").read_text(encoding="utf-8")
VALUES = (FOLDER / "values.go").read_text(encoding="utf-8")


def test_it_serves_each_operation_but_the_one_whose_feature_it_lacks() -> None:
    served = set(re.findall(r'^\tcase "(\w+)":', ADAPTER, re.MULTILINE)) - {"consumer", "producer"}  # Roles.
    assert served == set(schema()["$defs"]["Request"]["discriminator"]["mapping"]) - {"send_offsets"}
    listed = ADAPTER.partition("features = []string{")[2].partition("}")[0]
    assert set(re.findall(r'"([\w-]+)"', listed)) == set(FEATURES) - {"send-offsets", "group-protocol-consumer"}


def test_its_settings_are_those_of_the_protocol() -> None:
    table = VALUES.partition("var settings = ")[2].partition("\n}\n")[0]
    named = set(re.findall(r'^\t"(\w+)":', table, re.MULTILINE))
    assert len(named) > 20
    assert named <= set(SETTINGS)


@pytest.mark.peer
@pytest.mark.timeout(600)
@pytest.mark.parametrize("each", chosen(["ordinary"], []), ids=lambda each: each.id)
def test_franz_go_does_ordinary_work(each: ClientCase) -> None:
    command = find("franz-go", lambda _: None)
    result = play_case(each, command, adapter_info(command))
    assert result.verdict is ClientVerdict.PASS, "\n".join(detail_lines(result, "franz-go"))
