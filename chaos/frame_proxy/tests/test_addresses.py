"""Clients get the proxy's addresses: golden responses of each API that carries one, in each version of it."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.api_versions.v4.response import ApiVersion, ApiVersionsResponse
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.metadata.v13.response import MetadataResponseBroker

from chaos.frame_proxy.tests.talk import SHOWN_PORT, Talk
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchResponse, FetchTopicResponse, NodeEndpoint, PartitionData
from reference_broker.wire.messages import decode_response, encode_response
from reference_broker.wire.produce import ProducePartitionResponse, ProduceResponse, ProduceTopicResponse
from reference_broker.wire.retired_fields import MetadataResponse

make: Any = {each.__name__: each for each in (MetadataResponse, MetadataResponseBroker, FindCoordinatorResponse)}
make |= {each.__name__: each for each in (Coordinator, DescribeClusterResponse, DescribeClusterBroker)}
make |= {each.__name__: each for each in (ApiVersion, ApiVersionsResponse)}
NOW: Any = {"throttle_time": timedelta(0)}


def metadata(host: str, port: int) -> object:
    brokers = (make["MetadataResponseBroker"](node_id=2, host=host, port=port, rack=None),)
    return make["MetadataResponse"](**NOW, brokers=brokers, topics=(), error_code=ErrorCode.none)


def coordinator(host: str, port: int) -> object:
    found = make["Coordinator"](key="", node_id=2, host=host, port=port, error_code=ErrorCode.none, error_message=None)
    return make["FindCoordinatorResponse"](**NOW, coordinators=(found,))


def cluster(host: str, port: int) -> object:
    brokers = (make["DescribeClusterBroker"](broker_id=2, host=host, port=port, rack="r", is_fenced=False),)
    return make["DescribeClusterResponse"](**NOW, error_code=ErrorCode.none, cluster_id="c", brokers=brokers)


def fetched(host: str, port: int) -> object:
    data = [PartitionData(0, 6, 2, records=b"records" * 1000)]
    topics = [FetchTopicResponse("", bytes(range(16)), data)]
    return FetchResponse(responses=topics, node_endpoints=[NodeEndpoint(2, host, port)])


def produced(host: str, port: int) -> object:
    topics = [ProduceTopicResponse("hot", bytes(16), [ProducePartitionResponse(0, 6)])]
    return ProduceResponse(topics, node_endpoints=[NodeEndpoint(2, host, port)])


CARRIERS = [
    *((ApiKey.METADATA, version, metadata) for version in range(14)),
    *((ApiKey.FIND_COORDINATOR, version, coordinator) for version in range(7)),
    *((ApiKey.DESCRIBE_CLUSTER, version, cluster) for version in range(3)),
    *((ApiKey.FETCH, version, fetched) for version in (16, 17, 18)),
    *((ApiKey.PRODUCE, version, produced) for version in (10, 11, 12)),
]


def send_request(talk: Talk, api: int, version: int) -> None:
    flexible = b"\0" if VERSIONS[api][2] <= version else b""
    head = b"".join(number.to_bytes(2, "big") for number in (api, version))
    body = head + (5).to_bytes(4, "big") + (1).to_bytes(2, "big") + b"c" + flexible + b"\0\0\x01" + bytes(20)
    talk.conversation.from_client(len(body).to_bytes(4, "big") + body)


def frame(api: int, version: int, body: object) -> bytes:
    return b"".join(bytes(part) for part in encode_response(api, version, 5, body))


@pytest.mark.parametrize(("api", "version", "body"), CARRIERS)
def test_address_becomes_the_proxys(api: int, version: int, body: Any) -> None:
    talk = Talk().connect()
    send_request(talk, api, version)
    talk.conversation.from_node(frame(api, version, body("broker.example", 9092)))
    assert talk.client.got == frame(api, version, body("proxy", SHOWN_PORT + 2))


def test_response_without_coordinator_is_unchanged() -> None:
    talk = Talk().connect()
    send_request(talk, ApiKey.FIND_COORDINATOR, 6)
    no_coordinator = frame(ApiKey.FIND_COORDINATOR, 6, coordinator("", -1))
    talk.conversation.from_node(no_coordinator)
    assert talk.client.got == no_coordinator


def test_response_that_may_carry_an_address_and_cannot_be_read_passes_with_one_line() -> None:
    talk = Talk().connect()
    send_request(talk, ApiKey.METADATA, 14)
    unread = b"\0\0\0\x08\0\0\0\x05what"
    talk.conversation.from_node(unread)
    assert talk.client.got == unread
    assert talk.logged == ["addresses_unread", "response"]


def versions(*offered: tuple[int, int]) -> object:
    keys = tuple(make["ApiVersion"](api_key=key, min_version=0, max_version=most) for key, most in offered)
    return make["ApiVersionsResponse"](**NOW, error_code=ErrorCode.none, api_keys=keys)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_caps_apis_with_addresses_at_readable_versions(version: int) -> None:
    offered = versions((ApiKey.METADATA, 20), (ApiKey.HEARTBEAT, 20), (ApiKey.FETCH, 12), (ApiKey.SHARE_FETCH, 1))
    talk = Talk().connect()
    send_request(talk, ApiKey.API_VERSIONS, version)
    talk.conversation.from_node(frame(ApiKey.API_VERSIONS, version, offered))
    _, seen = decode_response(ApiKey.API_VERSIONS, version, memoryview(talk.client.got)[4:])
    found = {int(key.api_key): int(key.max_version) for key in seen.api_keys}  # type: ignore[attr-defined]
    assert found == {ApiKey.METADATA: 13, ApiKey.HEARTBEAT: 20, ApiKey.FETCH: 12}


def test_offer_that_can_be_read_passes_as_it_is() -> None:
    talk = Talk().connect()
    send_request(talk, ApiKey.API_VERSIONS, 4)
    offered = frame(ApiKey.API_VERSIONS, 4, versions((ApiKey.METADATA, 13), (999, 7)))
    talk.conversation.from_node(offered)
    assert talk.client.got == offered


def test_unknown_api_versions_version_gets_version_0_response() -> None:
    talk = Talk().connect()
    send_request(talk, ApiKey.API_VERSIONS, 9)
    correlation, seen = decode_response(ApiKey.API_VERSIONS, 0, memoryview(talk.client.got)[4:])
    body: Any = seen
    assert correlation == 5
    assert body.error_code == ErrorCode.unsupported_version
    assert talk.node.got == b""
    assert [(int(key.api_key), int(key.max_version)) for key in body.api_keys] == [(ApiKey.API_VERSIONS, 4)]
    send_request(talk, ApiKey.API_VERSIONS, 4)
    assert talk.node.got


UNKNOWN_TAG = b"\x63\x03new"
"""Tag 99 with three bytes."""
AT_THE_END = [
    (ApiKey.METADATA, 13, metadata),
    (ApiKey.FIND_COORDINATOR, 6, coordinator),
    (ApiKey.DESCRIBE_CLUSTER, 2, cluster),
    (ApiKey.FETCH, 17, fetched),
    (ApiKey.PRODUCE, 12, produced),
]


def newer(known: bytes, tags_before: int) -> bytes:
    """The response of a newer broker, with one more tagged field at the end. ``tags_before`` is the size of
    the tag buffer there, whose first byte is the number of tags."""
    at = len(known) - tags_before
    data = known[4:at] + bytes((known[at] + 1,)) + known[at + 1 :] + UNKNOWN_TAG
    return len(data).to_bytes(4, "big") + data


def tag_bytes(api: int, host: str) -> int:
    """The size of the tag buffer at the end of these responses: only Fetch and Produce have a field there."""
    if api not in (ApiKey.FETCH, ApiKey.PRODUCE):
        return 1
    return 1 + 2 + 1 + 4 + 1 + len(host) + 4 + 1 + 1


@pytest.mark.parametrize(("api", "version", "body"), AT_THE_END)
def test_tagged_fields_that_we_do_not_know_stay(api: int, version: int, body: Any) -> None:
    talk = Talk().connect()
    send_request(talk, api, version)
    talk.conversation.from_node(newer(frame(api, version, body("broker", 9092)), tag_bytes(api, "broker")))
    assert talk.client.got == newer(frame(api, version, body("proxy", SHOWN_PORT + 2)), tag_bytes(api, "proxy"))


def test_offer_that_is_cut_keeps_tagged_fields_that_we_do_not_know() -> None:
    talk = Talk().connect()
    send_request(talk, ApiKey.API_VERSIONS, 4)
    whole, cut = (frame(ApiKey.API_VERSIONS, 4, versions((ApiKey.METADATA, most))) for most in (20, 13))
    talk.conversation.from_node(newer(whole, 1))
    assert talk.client.got == newer(cut, 1)


def test_address_in_another_place_of_the_response_stays() -> None:
    """Records may hold the very bytes of an address."""
    written = (2).to_bytes(4, "big") + b"\x07broker" + (9092).to_bytes(4, "big")
    endpoint = b"\x00\x12\x02" + written + b"\0\0"

    def of(host: str, port: int) -> object:
        data = [PartitionData(0, 6, 2, records=endpoint * 2)]
        return FetchResponse(
            responses=[FetchTopicResponse("", bytes(16), data)], node_endpoints=[NodeEndpoint(2, host, port)]
        )

    talk = Talk().connect()
    send_request(talk, ApiKey.FETCH, 17)
    talk.conversation.from_node(frame(ApiKey.FETCH, 17, of("broker", 9092)))
    assert talk.client.got == frame(ApiKey.FETCH, 17, of("proxy", SHOWN_PORT + 2))
