"""A broker that is silent, or whose responses cannot all be decoded, is probed all the same, and in bounded time."""

import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import pytest

from bench.probe.broker import Address, NotKafka, ProbedBroker, meet
from bench.probe.case import PREPARING, CaseVerdict, ProbeCase, case
from bench.probe.context import Belongings, ProbeContext
from bench.probe.conversation import entity_of as made
from bench.probe.play import play_one
from bench.probe.tests.scripted_server import serving
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.messages import body_class, encode_response

VERSIONS_IN_FULL = {key: version[:2] for key, version in VERSIONS.items()}


@case("handshake/of-test", "a test", {}, since="0.9")
def needs_a_topic(at: ProbeContext) -> None:
    """A topic can be made."""
    at.topic()


def _seconds(played: ProbeCase, address: Address, belongings: Belongings) -> tuple[CaseVerdict, str, float]:
    broker = ProbedBroker(address, 0, address, address, {0: address}, VERSIONS_IN_FULL)
    began = time.monotonic()
    outcome = play_one(broker, played, belongings)
    return outcome.verdict, outcome.reason, time.monotonic() - began


def test_request_without_a_response_is_waited_for_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.probe.context.SETUP_LIMIT_S", 0.5)
    monkeypatch.setattr("bench.probe.context.SETUP_AGAIN_S", 0.1)
    belongings = Belongings()
    with serving(_until_end) as address:
        first = _seconds(needs_a_topic, address, belongings)
        second = _seconds(needs_a_topic, address, belongings)
    assert (
        first[:2]
        == second[:2]
        == (CaseVerdict.INCONSISTENT, f"{PREPARING}the broker does not respond to CreateTopics 7")
    )
    assert first[2] >= 0.5
    assert second[2] < 0.4


def _until_end(connection: socket.socket) -> None:
    while connection.recv(1024):
        pass


@pytest.mark.parametrize("unreadable_from", [14, 9])
def test_broker_is_met_though_its_newest_responses_cannot_be_decoded(unreadable_from: int) -> None:
    """librdkafka's mock cluster sends a byte too many from Metadata 9 on."""

    def serve(connection: socket.socket) -> None:
        while length := connection.recv(4):
            frame = connection.recv(int.from_bytes(length, "big"))
            api_key, version, correlation_id = struct.unpack_from(">hhi", frame)
            response = b"".join(
                encode_response(
                    api_key, version, correlation_id, made(body_class(api_key, "response"), RESPONSES[api_key])
                )
            )[4:]
            response += b"\0" * (api_key == ApiKey.METADATA and version >= unreadable_from)
            connection.sendall(len(response).to_bytes(4, "big") + response)

    with serving(serve) as address:
        assert meet(address).nodes == {7: ("here", 9092)}


def test_broker_whose_responses_cannot_be_decoded_is_not_met() -> None:
    with pytest.raises(NotKafka, match="Metadata 1 cannot be decoded"):
        test_broker_is_met_though_its_newest_responses_cannot_be_decoded(0)


RESPONSES: Mapping[int, Mapping[str, Any]] = {
    int(ApiKey.API_VERSIONS): {"api_keys": [{"api_key": 3, "min_version": 0, "max_version": 13}]},
    int(ApiKey.METADATA): {"brokers": [{"node_id": 7, "host": "here", "port": 9092}]},
}
