"""Fetch sessions (KIP-227): every row of its table, what changes in a session, and topics that come and go."""

import time
from collections.abc import Sequence
from typing import Any

from bench.probe.case import ANY, SHOULD, NotAdvertised, case, since_version
from bench.probe.context import ProbeContext, Topic, single
from bench.probe.conversation import Conversation
from bench.probe.data import (
    CLOSE,
    FETCH,
    OPEN,
    PRODUCE,
    ProbeSession,
    batch,
    fetch_request,
    headers,
    produce,
    rows,
    values,
    wanted,
    write,
)
from bench.probe.transactional import until
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchRequest, FetchResponse

NEEDS = {FETCH: since_version(7), PRODUCE: since_version(3), ApiKey.CREATE_TOPICS: ANY}
BY_NAME = {**NEEDS, FETCH: (7, 12)}
BY_ID = {**NEEDS, FETCH: since_version(13)}
KIP_227 = "KIP-227"
WAIT_MS, LONG_MS = 400, 5_000
SOON_S = 2.0
BEYOND_DEFAULT_SLOTS = 1_100
TURNS = 30
"""Until then each of three partitions has had its turn, also where chance decides."""
NEAR = 10_000
"""Counted IDs of five sessions lie nearer, whatever others open beside them. Five that are drawn from 2^31 never do."""
BROKER_RESOURCE = 4
SELECTOR = "replica.selector.class"
KNOWN_WITHIN_S = 10.0
AT_ONCE = 100
"""Number of requests that are sent before their responses are read."""


def _alone(at: ProbeContext, session_id: int, epoch: int, topic: Topic | None = None) -> FetchResponse:
    """One fetch with this pair."""
    topics = [(topic, [wanted()])] if topic else []
    response = at.call(FETCH, fetch_request(at, topics, session_id=session_id, session_epoch=epoch))
    assert isinstance(response, FetchResponse)
    return response


def _is_gone(at: ProbeContext, session: ProbeSession) -> None:
    response = session.next(epoch=session.epoch)
    at.expect("error code of the old session", response.error_code, ErrorCode.fetch_session_id_not_found)
    at.expect("session ID of that response", response.session_id, 0)


def _empty(at: ProbeContext, response: FetchResponse) -> None:
    at.expect_no_error(response)
    at.expect("partitions in the response", sorted(rows(response)), [])


# The table


@case("fetch/session/none", KIP_227, NEEDS, since="1.1")
def none(at: ProbeContext) -> None:
    """Session ID 0 and epoch -1: a full fetch, and no session is made."""
    response = _alone(at, 0, CLOSE, at.topic())
    at.expect_no_error(response)
    at.expect("session ID", response.session_id, 0)
    at.expect("partitions in the response", sorted(rows(response)), [0])


@case("fetch/session/open", KIP_227, NEEDS, since="1.1", level=SHOULD)
def opened(at: ProbeContext) -> None:
    """Session ID 0 and epoch 0: a full fetch, and a session with a positive ID is made. A broker may have none."""
    response = at.call(FETCH, fetch_request(at, [(at.topic(2), [wanted(0), wanted(1)])], session_epoch=OPEN))
    at.expect("partitions in the response", sorted(rows(response)), [0, 1])
    at.expect("the ID is positive", response.session_id > 0, True)


@case("fetch/session/ids-differ", KIP_227, NEEDS, since="1.1")
def ids_differ(at: ProbeContext) -> None:
    """No two sessions have the same ID, and IDs are not counted."""
    topic = at.topic()
    ids = [ProbeSession(at, topic).id for _ in range(5)]
    at.expect("number of different IDs", len(set(ids)), 5)
    at.expect("all IDs lie close together, as counted ones do", max(ids) - min(ids) < NEAR, False)


@case("fetch/session/incremental", KIP_227, NEEDS, since="1.1")
def incremental(at: ProbeContext) -> None:
    """The session's ID and next epoch: the response has only what changed, and repeats the ID."""
    topic = at.topic(3)
    session = ProbeSession(at, topic, *(wanted(number) for number in range(3)))
    _empty(at, session.next())
    write(at, topic, batch(b"new"), partition=1)
    response = session.next()
    at.expect("the session ID is repeated", response.session_id == session.id, True)
    at.expect("partitions in the response", sorted(rows(response)), [1])
    at.expect("values", values(rows(response)[1]), [b"new"])


@case("fetch/session/close", KIP_227, NEEDS, since="1.1")
def close(at: ProbeContext) -> None:
    """The session's ID and epoch -1: a full fetch, and the session is closed."""
    topic = at.topic()
    session = ProbeSession(at, topic)
    response = session.next(wanted(), epoch=CLOSE)
    at.expect_no_error(response)
    at.expect("session ID", response.session_id, 0)
    at.expect("partitions in the response", sorted(rows(response)), [0])
    _is_gone(at, session)


@case("fetch/session/replace", KIP_227, NEEDS, since="1.1")
def replace(at: ProbeContext) -> None:
    """The session's ID and epoch 0: a full fetch, the session is closed, and a new one is made."""
    session = ProbeSession(at, at.topic())
    response = session.next(wanted(), epoch=OPEN)
    at.expect_no_error(response)
    at.expect("a session with another ID is made", response.session_id not in (0, session.id), True)
    _is_gone(at, session)


@case("fetch/session/close-unknown", KIP_227, NEEDS, since="1.1")
def close_unknown(at: ProbeContext) -> None:
    """An unknown ID and epoch -1 or 0: a full fetch, and no error."""
    topic = at.topic()
    closed = _alone(at, 123_456, CLOSE, topic)
    at.expect("error code with epoch -1", closed.error_code, ErrorCode.none)
    at.expect("session ID with epoch -1", closed.session_id, 0)
    replaced = _alone(at, 123_456, OPEN, topic)
    at.expect("error code with epoch 0", replaced.error_code, ErrorCode.none)
    at.expect("partitions in the response", sorted(rows(replaced)), [0])


@case("fetch/session/unknown-id", KIP_227, NEEDS, since="1.1")
def unknown_id(at: ProbeContext) -> None:
    """An unknown ID and a positive epoch: FETCH_SESSION_ID_NOT_FOUND, no session and no partitions."""
    response = _alone(at, 123_456, 1, at.topic())
    at.expect_error(response, ErrorCode.fetch_session_id_not_found)
    at.expect("session ID", response.session_id, 0)
    at.expect("number of topics", len(response.responses), 0)


@case("fetch/session/no-id", KIP_227, NEEDS, since="1.1")
def no_id(at: ProbeContext) -> None:
    """ID 0 and a positive epoch: FETCH_SESSION_ID_NOT_FOUND."""
    response = _alone(at, 0, 5, at.topic())
    at.expect_error(response, ErrorCode.fetch_session_id_not_found)


@case("fetch/session/wrong-epoch", KIP_227, NEEDS, since="1.1")
def wrong_epoch(at: ProbeContext) -> None:
    """An epoch that is too high: INVALID_FETCH_SESSION_EPOCH. The session stays, and its right epoch still works."""
    session = ProbeSession(at, at.topic())
    response = session.next(epoch=5)
    at.expect_error(response, ErrorCode.invalid_fetch_session_epoch)
    at.expect("session ID", response.session_id, 0)
    at.expect("number of topics", len(response.responses), 0)
    _empty(at, session.next())


@case("fetch/session/repeated-epoch", KIP_227, NEEDS, since="1.1")
def repeated_epoch(at: ProbeContext) -> None:
    """An epoch that was used already: INVALID_FETCH_SESSION_EPOCH. The session stays."""
    session = ProbeSession(at, at.topic())
    _empty(at, session.next())
    at.expect_error(session.next(epoch=1), ErrorCode.invalid_fetch_session_epoch)
    _empty(at, session.next())


@case("fetch/session/negative-epoch", KIP_227, NEEDS, since="1.1")
def negative_epoch(at: ProbeContext) -> None:
    """An epoch below -1 is refused. The session stays."""
    session = ProbeSession(at, at.topic())
    codes = (ErrorCode.invalid_fetch_session_epoch, ErrorCode.fetch_session_id_not_found)
    at.expect("error code", session.next(epoch=-7).error_code, *codes)
    _empty(at, session.next())


# Partitions in the response


@case("fetch/session/tracking/nothing-new", "KIP-227; redpanda#1123", NEEDS, since="1.1")
def nothing_new(at: ProbeContext) -> None:
    """An incremental fetch without a change waits for max_wait_ms, and then returns no partitions."""
    session = ProbeSession(at, at.topic())
    began = time.monotonic()
    response = session.next(max_wait_ms=WAIT_MS)
    at.expect("max_wait_ms was waited", time.monotonic() - began >= 0.9 * WAIT_MS / 1000, True)
    _empty(at, response)


@case("fetch/session/tracking/woken", KIP_227, NEEDS, since="1.1")
def woken(at: ProbeContext) -> None:
    """A parked incremental fetch gets its response when records arrive."""
    topic = at.topic(2)
    session = ProbeSession(at, topic, wanted(0), wanted(1))
    fields: dict[str, Any] = {"session_id": session.id, "session_epoch": 1, "max_wait_ms": LONG_MS}
    request = at.send(FETCH, fetch_request(at, [], **fields))
    began = time.monotonic()
    time.sleep(0.1)
    produce(at, topic, batch(b"wake"), 1, on=at.connect())
    response = at.main.receive(request)
    at.expect("partitions in the response", sorted(rows(response)), [1])
    at.expect("values", values(rows(response)[1]), [b"wake"])
    at.expect("before max_wait_ms", time.monotonic() - began < LONG_MS / 1000 - 1, True)


@case("fetch/session/tracking/same-offset", KIP_227, NEEDS, since="1.1")
def same_offset(at: ProbeContext) -> None:
    """A fetcher that does not move its offset gets the same records again."""
    topic = at.topic()
    write(at, topic, batch(b"a"))
    session = ProbeSession(at, topic)
    for _ in range(2):
        at.expect("values", values(rows(session.next())[0]), [b"a"])


@case("fetch/session/tracking/moved-offset", KIP_227, NEEDS, since="1.1")
def moved_offset(at: ProbeContext) -> None:
    """A partition that is named again has the new offset from then on."""
    topic = at.topic()
    write(at, topic, batch(b"a"), batch(b"b"))
    session = ProbeSession(at, topic)
    at.expect("values", values(rows(session.next(wanted(offset=1)))[0]), [b"b"])
    at.expect("values without naming it", values(rows(session.next())[0]), [b"b"])
    _empty(at, session.next(wanted(offset=2)))


@case("fetch/session/tracking/moved-limit", KIP_227, NEEDS, since="1.1")
def moved_limit(at: ProbeContext) -> None:
    """A partition that is named again has the new limit from then on."""
    topic = at.topic()
    write(at, topic, batch(b"a"), batch(b"b"))
    session = ProbeSession(at, topic, wanted(max_bytes=1))
    at.expect("batches within the small limit", len(headers(rows(session.first)[0])), 1)
    at.expect("batches within the large limit", len(headers(rows(session.next(wanted()))[0])), 2)
    at.expect("batches without naming it", len(headers(rows(session.next())[0])), 2)


@case("fetch/session/tracking/added", KIP_227, NEEDS, since="1.1")
def added(at: ProbeContext) -> None:
    """A partition that is new to the session is always returned, and then only when it changes."""
    session = ProbeSession(at, at.topic(2), wanted(0))
    response = session.next(wanted(1))
    at.expect("partitions in the response", sorted(rows(response)), [1])
    _empty(at, session.next())


@case("fetch/session/tracking/log-start", "KIP-227, KIP-107", {**NEEDS, ApiKey.DELETE_RECORDS: ANY}, since="1.1")
def log_start(at: ProbeContext) -> None:
    """A log start that moves is returned, though there are no records."""
    topic = at.topic()
    write(at, topic, batch(b"a", b"b"))
    session = ProbeSession(at, topic, wanted(offset=2))
    partitions = [{"partition_index": 0, "offset": 1}]
    at.call(ApiKey.DELETE_RECORDS, {"topics": [{"name": topic.name, "partitions": partitions}], "timeout": 5_000})
    results = rows(session.next())
    at.expect("partitions in the response", sorted(results), [0])
    at.expect("log start offset", results[0].log_start_offset, 1)
    _empty(at, session.next())


@case("fetch/session/tracking/error-stays", KIP_227, NEEDS, since="1.1")
def error_stays(at: ProbeContext) -> None:
    """A partition with an error is in each response, and once more when the error is gone."""
    session = ProbeSession(at, at.topic(), wanted(offset=9))
    for response in (session.first, session.next(), session.next()):
        codes = {index: data.error_code for index, data in rows(response).items()}
        at.expect("error code of the partition", codes.get(0), ErrorCode.offset_out_of_range)
    results = {index: data.error_code for index, data in rows(session.next(wanted(offset=0))).items()}
    at.expect("error code when the offset is right", results.get(0), ErrorCode.none)
    _empty(at, session.next())


@case("fetch/session/tracking/no-starving", "KIP-227, KAFKA-12330", NEEDS, since="1.1")
def no_starving(at: ProbeContext) -> None:
    """Where each response has room for one partition, all get their turn."""
    topic = at.topic(3)
    session = ProbeSession(at, topic, *(wanted(number) for number in range(3)))
    for index in range(3):
        write(at, topic, batch(b"v"), partition=index)
    served = set()
    for _ in range(TURNS):
        served |= {index for index, data in rows(session.next(max_bytes=1)).items() if data.records}
        if len(served) == 3:
            break
    at.expect("partitions that were served", sorted(served), [0, 1, 2])


# What is forgotten


@case("fetch/session/forgotten/one", "KIP-227; platformatic/kafka#321", NEEDS, since="1.1")
def forget_one(at: ProbeContext) -> None:
    """A partition that is forgotten is not returned any more."""
    topic = at.topic(2)
    session = ProbeSession(at, topic, wanted(0), wanted(1))
    _empty(at, session.next(forget=[0]))
    for index in range(2):
        write(at, topic, batch(), partition=index)
    at.expect("partitions in the response", sorted(rows(session.next())), [1])


@case("fetch/session/forgotten/all", KIP_227, NEEDS, since="1.1", level=SHOULD)
def forget_all(at: ProbeContext) -> None:
    """A session whose last partition is forgotten is closed, and the response has session ID 0."""
    session = ProbeSession(at, at.topic(2), wanted(0), wanted(1))
    response = session.next(forget=[0, 1])
    at.expect_no_error(response)
    at.expect("session ID", response.session_id, 0)
    _is_gone(at, session)


@case("fetch/session/forgotten/stranger", KIP_227, NEEDS, since="1.1")
def forget_stranger(at: ProbeContext) -> None:
    """To forget a partition that the session does not have is no error."""
    session = ProbeSession(at, at.topic(2), wanted(0))
    _empty(at, session.next(forget=[1]))


@case("fetch/session/forgotten/and-back", KIP_227, NEEDS, since="1.1")
def and_back(at: ProbeContext) -> None:
    """A partition that was forgotten and is named again is new to the session."""
    session = ProbeSession(at, at.topic(2), wanted(0), wanted(1))
    _empty(at, session.next(forget=[0]))
    at.expect("partitions in the response", sorted(rows(session.next(wanted(0)))), [0])


@case("fetch/session/forgotten/and-named", "FetchSession.scala", NEEDS, since="1.1", level=SHOULD)
def and_named(at: ProbeContext) -> None:
    """Of a partition that one request both names and forgets, it is forgotten."""
    topic = at.topic(2)
    session = ProbeSession(at, topic, wanted(0), wanted(1))
    session.next(wanted(0), forget=[0])
    write(at, topic, batch())
    at.expect("partitions in the response", sorted(rows(session.next())), [])


# Sessions side by side


@case("fetch/session/other-connection", KIP_227, NEEDS, since="1.1")
def other_connection(at: ProbeContext) -> None:
    """A session belongs to no connection."""
    session = ProbeSession(at, at.topic())
    _empty(at, session.next(on=at.connect()))
    _empty(at, session.next())


@case("fetch/session/side-by-side", KIP_227, NEEDS, since="1.1")
def side_by_side(at: ProbeContext) -> None:
    """Each session returns a change once for itself."""
    topic = at.topic()
    one, two = ProbeSession(at, topic), ProbeSession(at, topic)
    write(at, topic, batch(b"v"))
    for session in (one, two):
        at.expect("values", values(rows(session.next())[0]), [b"v"])
    _empty(at, one.next(wanted(offset=1)))
    at.expect("values of the other session", values(rows(two.next())[0]), [b"v"])


@case("fetch/session/slots", KIP_227, NEEDS, since="1.1", alone=True, limit_s=30.0)
def slots(at: ProbeContext) -> None:
    """Where no slot is free, a session is declined with ID 0, and the data is returned all the same."""
    topic = at.topic()
    write(at, topic, batch(b"v"))
    version = at.version(FETCH)
    quiet = at.connect()
    request = fetch_request(at, [(topic, [wanted()])], session_epoch=OPEN)
    responses = _pipelined(quiet, version, [request] * BEYOND_DEFAULT_SLOTS)
    del at.lines[6:-6]  # They are all the same.
    found = len(at.lines)
    opened = {response.session_id for response in responses} - {0}
    _pipelined(
        quiet, version, [fetch_request(at, [], session_id=session_id, session_epoch=CLOSE) for session_id in opened]
    )
    del at.lines[found:]
    at.expect("error codes", sorted({response.error_code for response in responses}), [0])
    have_it = all(values(single(response, "responses", "partitions")) == [b"v"] for response in responses)
    at.expect("each response has the record", have_it, True)


def _pipelined(on: Conversation, version: int, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
    """Send many at once, for far brokers, and return the responses."""
    responses: list[FetchResponse] = []
    for begin in range(0, len(requests), AT_ONCE):
        sent = [on.send(FETCH, version, request) for request in requests[begin : begin + AT_ONCE]]
        responses += [on.receive(each) for each in sent]
    return responses


@case("fetch/session/rack", "KIP-392", {**NEEDS, FETCH: since_version(11)}, since="2.4")
def rack(at: ProbeContext) -> None:
    """A consumer that names its rack reads from the leader, in a session too, while no replica is preferred."""
    topic = at.topic()
    session = ProbeSession(at, topic, rack_id="a-rack")
    at.expect("preferred replica", rows(session.first)[0].preferred_read_replica, -1)
    write(at, topic, batch(b"a"))
    row = rows(session.next(rack_id="a-rack"))[0]
    at.expect("preferred replica of the incremental fetch", row.preferred_read_replica, -1)
    at.expect("values", values(row), [b"a"])


@case(
    "fetch/session/preferred-replica",
    "KIP-392, KIP-227",
    {**NEEDS, FETCH: since_version(11), ApiKey.METADATA: since_version(1), ApiKey.DESCRIBE_CONFIGS: ANY},
    since="2.4",
)
def preferred_replica(at: ProbeContext) -> None:
    """A consumer whose session names the rack of a follower is sent there by each response, without records, although
    its fetches name no partition. Once it names no rack, it reads from the leader."""
    follower, rack_id = _elsewhere(at)
    topic = at.topic(followers=[follower])
    session = ProbeSession(at, topic, rack_id=rack_id)
    known = rows(session.first)[0].preferred_read_replica

    def is_known() -> bool:
        """The leader knows what the follower has once that has fetched."""
        nonlocal known
        for data in rows(session.next(rack_id=rack_id)).values():
            known = data.preferred_read_replica
        return known == follower

    until(at, is_known, KNOWN_WITHIN_S)
    at.expect("preferred replica", known, follower)
    write(at, topic, batch(b"a"))
    for _ in range(2):
        found = rows(session.next(rack_id=rack_id))
        at.expect("partitions in the response", sorted(found), [0])
        at.expect("preferred replica", found[0].preferred_read_replica, follower)
        at.expect("values", values(found[0]), [])
    found = rows(session.next(rack_id=""))
    at.expect("partitions in the response without a rack", sorted(found), [0])
    at.expect("preferred replica of that response", found[0].preferred_read_replica, -1)
    at.expect("values of that response", values(found[0]), [b"a"])


def _elsewhere(at: ProbeContext) -> tuple[int, str]:
    """A node in another rack than the leader's, and that rack. Raise NotAdvertised if leaders send no consumer
    there."""
    racks = {int(broker.node_id): broker.rack for broker in at.call(ApiKey.METADATA, {"topics": ()}).brokers}
    own = racks[at.broker.node_id]
    other = next((each for each, name in racks.items() if name and own and name != own), None)
    if other is None:
        raise NotAdvertised("no other node is in another rack")
    resource = {
        "resource_type": BROKER_RESOURCE,
        "resource_name": str(at.broker.node_id),
        "configuration_keys": [SELECTOR],
    }
    result = single(at.call(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]}), "results")
    if not any(config.value for config in result.configs if config.name == SELECTOR):
        raise NotAdvertised("the leader prefers no replica: it has no replica.selector.class")
    return other, str(racks[other])


@case("fetch/session/topics/created-later", KIP_227, BY_NAME, since="1.1")
def created_later(at: ProbeContext) -> None:
    """A session by name serves a topic that did not exist at first, once it does."""
    name = at.topic_name()
    other = at.topic()
    topics = [(other, [wanted()]), (Topic(name, bytes(16), 1), [wanted()])]
    first = at.call(FETCH, fetch_request(at, topics, session_epoch=OPEN))
    codes = {
        fetch_response.topic: single(fetch_response, "partitions").error_code for fetch_response in first.responses
    }
    at.expect("error code of the unknown topic", codes.get(name), ErrorCode.unknown_topic_or_partition)
    topic = at.create(name)
    write(at, topic, batch(b"v"))
    response = at.call(FETCH, fetch_request(at, [], session_id=first.session_id, session_epoch=1))
    found = {
        fetch_response.topic: values(single(fetch_response, "partitions")) for fetch_response in response.responses
    }
    at.expect("values of the new topic", found.get(name), [b"v"])


@case("fetch/session/topics/deleted", "KIP-227, KIP-516", BY_ID, since="3.1")
def deleted(at: ProbeContext) -> None:
    """A topic that is deleted gets an error: UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION."""
    topic = at.topic()
    session = ProbeSession(at, topic)
    at.delete(topic)
    codes = {index: data.error_code for index, data in rows(session.next()).items()}
    at.expect(
        "error code of the partition", codes.get(0), ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition
    )


@case("fetch/session/topics/recreated", "KIP-516; franz-go#1426", BY_ID, since="3.1")
def recreated(at: ProbeContext) -> None:
    """After a topic was made again the session has an error for its old ID, and serves the new ID once it is named."""
    old = at.topic()
    session = ProbeSession(at, old)
    at.delete(old)
    new = at.create(old.name)
    write(at, new, batch(b"v"))
    fields: dict[str, Any] = {"session_id": session.id, "session_epoch": 1}
    response = at.call(FETCH, fetch_request(at, [(new, [wanted()])], [(old, [0])], **fields))
    at.expect_no_error(response)
    found = {
        fetch_response.topic_id == new.id: values(single(fetch_response, "partitions"))
        for fetch_response in response.responses
    }
    at.expect("values of the new topic", found.get(True), [b"v"])


@case("fetch/session/topics/recreated-by-name", KIP_227, BY_NAME, since="1.1")
def recreated_by_name(at: ProbeContext) -> None:
    """A session by name serves the new topic of that name."""
    old = at.topic()
    session = ProbeSession(at, old)
    at.delete(old)
    new = at.create(old.name)
    write(at, new, batch(b"v"))
    results = rows(session.next(wanted()))
    at.expect("values of the new topic", values(results[0]) if 0 in results else [], [b"v"])


@case("fetch/session/topics/names-and-ids", "KIP-516", {**NEEDS, FETCH: since_version(13)}, since="3.1")
def names_and_ids(at: ProbeContext) -> None:
    """A session that began with topic names is refused in a version with IDs: FETCH_SESSION_TOPIC_ID_ERROR."""
    topic = at.topic()
    by_name = fetch_request(at, [(topic, [wanted()])], session_epoch=OPEN)
    by_name.topics[0].topic = topic.name  # type: ignore[misc]
    version = at.broker.version(FETCH, (7, 12))
    opened_by_name = at.call(FETCH, by_name, version)
    if opened_by_name.session_id == 0:
        raise NotAdvertised("the broker made no session, as it may")
    fields: dict[str, Any] = {"session_id": opened_by_name.session_id, "session_epoch": 1}
    response = at.call(FETCH, fetch_request(at, [(topic, [wanted()])], **fields))
    at.expect_error(response, ErrorCode.fetch_session_topic_id_error)
