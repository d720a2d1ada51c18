"""Drafts: layouts of their messages in bytes, and versions that ApiVersions may list."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from kio.schema.api_versions.v4.response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kio.static.primitive import i16

from chaos.checks.requests.drafts import (
    AT_FIRST,
    EVERYWHERE,
    OF_METADATA_EPOCH,
    REQUESTS,
    RESPONSES,
    THEN_EACH,
    DraftLayout,
    DraftsUnnoticed,
    difference,
    read,
)
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubNode
from chaos.mutants import applied, by_name
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Reply, Request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    PartitionData,
)
from reference_broker.wire.tags import Tag

DRAFT = 1000
REQUEST = FetchRequest(
    replica_id=-1,
    max_wait_ms=5,
    min_bytes=1,
    max_bytes=99,
    session_id=1 << 40,
    session_epoch=3,
    topics=[FetchTopic("t", bytes(16), [FetchPartition(2, 7, 50)])],
    fetch_type=1,
)
RESPONSE = FetchResponse(
    session_id=1 << 40,
    responses=[
        FetchTopicResponse("t", bytes(16), [PartitionData(2, 0, 9, 9, 1, [AbortedTransaction(4, 5)], records=b"xyz")])
    ],
    response_flags=3,
)


def explanations(times: int = 1) -> list[str]:
    check = DraftLayout(check_context())
    node = StubNode().as_node()
    tag = Tag(ApiKey.FETCH, DRAFT, "me")
    request = Request(1, 8, ApiKey.FETCH, DRAFT, "me", REQUEST, tag)
    for _ in range(times):
        check.acted(0, node, request, [Reply(1, 8, ApiKey.FETCH, DRAFT, RESPONSE, tag)])
    return [violation.explanation for violation in check.violations]


@pytest.mark.clause("D-1", "G-12")
def test_draft_response_in_another_layout_is_a_violation() -> None:
    assert explanations() == []
    with applied(by_name("flags_before_the_session_id")):
        (explanation,) = explanations()
    assert "response of API 1: response.session_id is" in explanation


@pytest.mark.clause("G-12")
def test_partner_is_undone_with_its_mutant() -> None:
    mutant = by_name("flags_before_the_session_id")
    assert mutant.partner is not None
    with pytest.raises(Exception, match="no mutant"):
        by_name(mutant.partner.name)
    with applied(mutant):
        pass
    assert explanations() == []


@pytest.mark.clause("D-1")
def test_after_the_first_messages_only_a_sample_is_read() -> None:
    check = DraftLayout(check_context())
    read_ones = [number for number in range(1, 50) if check._is_read("request", ApiKey.FETCH)]
    assert read_ones == [*range(1, AT_FIRST + 1), THEN_EACH, 2 * THEN_EACH, 3 * THEN_EACH]
    assert not check._is_read("request", ApiKey.METADATA)


@dataclass
class Item:
    """An entry of ``Message.b``."""

    c: str


@dataclass
class Message:
    """A message of two fields, one of them an array."""

    a: int
    b: list[Item]


@pytest.mark.clause("G-12")
def test_difference_names_the_field_and_both_values() -> None:
    layout = (("a", "INT16"), ("b", [(("c", "STRING"),)]))
    data = b"\0\7\0\0\0\1\0\2hi"
    said, end = read(layout, data, 0)
    assert (said, end) == ({"a": 7, "b": [{"c": "hi"}]}, len(data))
    good = Message(a=7, b=[Item("hi")])
    assert difference(said, good, "x") == ""
    assert difference(said, Message(a=8, b=good.b), "x") == "x.a is 7, not 8"
    assert difference(said, Message(a=7, b=[]), "x") == "x.b has 1 items, not 0"
    assert difference(said, Message(a=7, b=[Item("ho")]), "x") == "x.b.c is 'hi', not 'ho'"
    for cut in range(len(data)):
        with pytest.raises(ValueError, match="byte"):
            read(layout, data[:cut], 0)
    assert set(REQUESTS) < set(RESPONSES)


ANNOUNCED = ApiVersionsResponse(
    error_code=ErrorCode.none,
    api_keys=tuple(ApiVersion(api_key=i16(key), min_version=i16(4), max_version=i16(9)) for key in (1, 3)),
    throttle_time=NO_THROTTLE,
    supported_features=tuple(
        SupportedFeatureKey(name=f"crucible.{name}", min_version=i16(1), max_version=i16(1))
        for name in (*EVERYWHERE, *OF_METADATA_EPOCH)
    ),
    finalized_features=tuple(
        FinalizedFeatureKey(name=f"crucible.{name}", min_version_level=i16(1), max_version_level=i16(1))
        for name in (*EVERYWHERE, *OF_METADATA_EPOCH)
    ),
)


def reported(*bodies: ApiVersionsResponse, version: int = 3, keeps_epoch: bool = True) -> list[str]:
    """Return what the check reports of these responses, which the node sends one after the other."""
    check = DraftsUnnoticed(check_context())
    config = replace(BrokerConfig(), crucible_metadata_epoch_enable=keeps_epoch)
    node = StubNode(StubBroker(config=config)).as_node()
    for body in bodies:
        check.acted(0, node, None, [Reply(1, 1, ApiKey.API_VERSIONS, version, body, Tag(18, version, "me"))])
    return [violation.explanation.removeprefix("node-0 sent me ") for violation in check.violations]


@pytest.mark.clause("D-3")
def test_other_peoples_clients_get_no_draft_and_ours_get_each() -> None:
    assert reported(ANNOUNCED) == []
    fetch = ANNOUNCED.api_keys[0]
    wide = replace(ANNOUNCED, api_keys=(replace(fetch, max_version=i16(1000)),))
    assert reported(wide) == ["API 1 in versions 4 to 1000, a draft among them"]
    updates = replace(
        ANNOUNCED,
        api_keys=(
            *ANNOUNCED.api_keys,
            replace(fetch, api_key=i16(6), min_version=i16(0)),
        ),
    )
    assert reported(updates) == ["API 6, which has drafts only"]
    few = replace(ANNOUNCED, supported_features=ANNOUNCED.supported_features[1:])
    assert reported(few) == ["0 features for the draft Fetch.1000"]
    assert reported(few, version=2) == [], "that version has no features"
    without = replace(ANNOUNCED, supported_features=ANNOUNCED.supported_features[: len(EVERYWHERE)])
    missing = [f"0 features for the draft Metadata.{version}" for version in (1000, 1001)]
    assert reported(without) == missing, "this listener takes no other of the APIs"
    twice = replace(ANNOUNCED, supported_features=(*ANNOUNCED.supported_features, ANNOUNCED.supported_features[-6]))
    assert reported(twice) == ["2 features for the draft UpdateMetadata.1000"]
    assert reported(without, keeps_epoch=False) == []
    open_ones = replace(ANNOUNCED, finalized_features=ANNOUNCED.finalized_features[1:])
    assert reported(open_ones) == ["the draft Fetch.1000 as a feature to upgrade"]


@pytest.mark.parametrize("part", ["api_keys", "supported_features", "finalized_features"])
def test_right_response_excuses_no_other_one(part: str) -> None:
    fetch, *others = ANNOUNCED.api_keys
    wrong: dict[str, Any] = {
        "api_keys": (replace(fetch, max_version=i16(1000)), *others),
        "supported_features": ANNOUNCED.supported_features[1:],
        "finalized_features": ANNOUNCED.finalized_features[1:],
    }
    another = replace(ANNOUNCED, **{part: wrong[part]})
    assert len(reported(ANNOUNCED, ANNOUNCED, another, another, ANNOUNCED)) == 2
