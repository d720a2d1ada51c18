"""Values that the simulator passes, compared with their encoding and decoding."""

from dataclasses import dataclass, replace
from enum import IntEnum

import pytest

from bench.fleet.behaviours.protocol import Request
from chaos.sim import network
from chaos.sim.codec_check import CodecMismatchError, differences, same_after_codec_reply, same_after_codec_request
from chaos.sim.one_seed import play_seed
from reference_broker.core.events import Reply
from reference_broker.wire.apis import DRAFTS, FETCH_TOMBSTONE_HORIZON, ApiKey
from reference_broker.wire.drafts import MetadataResponse1000
from reference_broker.wire.fetch import FetchRequest, FetchResponse, FetchTopic
from reference_broker.wire.fetch_drafts import decode_draft_request
from reference_broker.wire.tags import Tag
from reports.verdict import Outcome
from scenarios import loader

PLAYED = (
    "06-epoch-wrap@first",
    "coordinator-killed",
    "damaged-segments",
    "leader-killed-under-acks-all",
    "leader-killed-under-acks-all@first",
    "metadata-version-raised",
    "mirror",
    "swarm",
)
"""Quick scenarios that together use every version of every API of all scenarios."""
MIN_VERSIONS = 35
"""Least number of versions that these runs use. Some requests depend on the seed."""
NEVER_PLAYED = {
    (ApiKey.FETCH_SNAPSHOT, 1000),
    (ApiKey.FETCH, FETCH_TOMBSTONE_HORIZON),
    (ApiKey.UPDATE_METADATA, 1000),
}
"""Nodes use UpdateMetadata 1001."""


class Number(IntEnum):
    ONE = 1


@dataclass
class Old:
    name: str
    items: object = ()


@dataclass
class New:
    name: str
    items: object = ()
    epoch: int = -1


def request_of(version: int, body: FetchRequest) -> Request:
    return Request(ApiKey.FETCH, version, "me", body, 0)


def reply_of(api_key: int, version: int, body: object) -> Reply:
    return Reply(1, 7, api_key, version, body, Tag(api_key, version, "me"))


@pytest.mark.parametrize(
    ("before", "after"),
    [([1, (2, 3)], (1, [2, 3])), (b"ab", memoryview(b"ab")), (Number.ONE, 1), (Old("a", [b"c"]), Old("a", (b"c",)))],
)
def test_equal_values_of_different_types_do_not_differ(before: object, after: object) -> None:
    assert list(differences(before, after, "request")) == []
    assert list(differences(after, before, "request")) == []


@pytest.mark.parametrize(
    ("before", "after", "places"),
    [
        ((1, 2), (1,), ["request"]),
        (b"ab", b"ac", ["request"]),
        (b"", None, ["request"]),
        (None, [], ["request"]),
        (Old("a"), Old("b", (1,)), ["request.name", "request.items"]),
        (New("a", (), 3), Old("a"), ["request.epoch"]),
        (Old("a"), New("a"), ["request.epoch"]),
        (Old("a", [New("b", (), 1), New("c", (), 2)]), Old("a", [New("b", (), 1), New("c")]), ["request.items.epoch"]),
    ],
)
def test_differing_values_are_reported_with_their_fields(before: object, after: object, places: list[str]) -> None:
    assert [place for place, _, _ in differences(before, after, "request")] == places


@pytest.mark.parametrize(
    ("version", "body", "place"),
    [
        (12, FetchRequest(replica_epoch=5), "request.replica_epoch"),
        (17, FetchRequest(topics=[FetchTopic("t", b"i" * 16, [])]), "request.topics.topic"),
        (1000, FetchRequest(rack_id="r"), "request.rack_id"),
    ],
)
def test_field_of_a_request_that_its_version_drops_is_found(version: int, body: FetchRequest, place: str) -> None:
    with pytest.raises(CodecMismatchError, match=f"{place} of API 1 v{version}: .* became"):
        same_after_codec_request(request_of(version, body), 1)


def test_field_of_a_response_that_its_version_drops_is_found() -> None:
    with pytest.raises(CodecMismatchError, match=r"response\.response_flags of API 1 v17: 2 became 0"):
        same_after_codec_reply(reply_of(ApiKey.FETCH, 17, FetchResponse(response_flags=2)))
    flagged = FetchResponse(response_flags=2)
    assert same_after_codec_reply(reply_of(ApiKey.FETCH, 1000, flagged)) == flagged


def test_response_made_for_another_version_is_found() -> None:
    from kio.schema.metadata.v13.response import MetadataResponseTopic

    topic = MetadataResponseTopic(error_code=0, name="t", topic_id=None, partitions=())  # type: ignore[arg-type]
    body = MetadataResponse1000(brokers=(), topics=(topic,))  # type: ignore[arg-type]
    with pytest.raises(CodecMismatchError, match=r"response\.topics\.topic_id of API 3 v1000"):
        same_after_codec_reply(reply_of(ApiKey.METADATA, 1000, body))


@pytest.mark.simulated
@pytest.mark.rotated(8)
@pytest.mark.parametrize("name", PLAYED)
def test_scenario_passes_with_every_message_encoded(name: str) -> None:
    """The guarantees also hold if all messages arrive as bytes."""
    assert_passed_in_bytes(name)


@pytest.mark.nightly
@pytest.mark.simulated
def test_these_scenarios_have_messages_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, int]] = set()

    def checked(reply: Reply) -> object:
        seen.add((reply.api_key, reply.api_version))
        return same_after_codec_reply(reply)

    monkeypatch.setattr(network, "same_after_codec_reply", checked)
    for name in PLAYED:
        assert_passed_in_bytes(name)
    assert len(seen) >= MIN_VERSIONS
    assert set(DRAFTS) - seen == NEVER_PLAYED


def assert_passed_in_bytes(name: str) -> None:
    outcome, _ = play_seed(loader.find(name), 1, coded_share=1.0)
    assert outcome.outcome is Outcome.PASSED, (name, outcome.violations, outcome.reasons)


@pytest.mark.thorough
def test_version_without_followers_fields_ends_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(version: int, frame: memoryview, offset: int) -> tuple[FetchRequest, int]:
        request, end = decode_draft_request(version, frame, offset)
        return replace(request, replica_epoch=-1), end

    monkeypatch.setattr("reference_broker.wire.messages.decode_draft_request", forgetful)
    outcome, _ = play_seed(loader.find("leader-killed-under-acks-all@first"), 1)
    assert outcome.outcome is Outcome.CRASHED
    assert "request.replica_epoch of API 1 v1002" in outcome.reasons[0]
