"""Fetch sessions and topics that come and go."""

from typing import Any

from bench.probe.case import ANY, NotAdvertised, case, since_version
from bench.probe.context import ProbeContext, Topic, single
from bench.probe.data import FETCH, OPEN, PRODUCE, Session, batch, fetch_request, rows, values, wanted, write
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode



@case("fetch/session/topics/created-later", KIP_227, BY_NAME, since="1.1")
def created_later(at: ProbeContext) -> None:
    """A session by name serves a topic that did not exist at first, once it does."""
    name = at.topic_name()
    other = at.topic()
    topics = [(other, [wanted()]), (Topic(name, bytes(16), 1), [wanted()])]
    first = at.ask(FETCH, fetch_request(at, topics, session_epoch=OPEN))
    codes = {each.topic: single(each, "partitions").error_code for each in first.responses}
    at.expect("error code of the unknown topic", codes.get(name), ErrorCode.unknown_topic_or_partition)
    topic = at.create(name)
    write(at, topic, batch(b"v"))
    told = at.ask(FETCH, fetch_request(at, [], session_id=first.session_id, session_epoch=1))
    found = {each.topic: values(single(each, "partitions")) for each in told.responses}
    at.expect("values of the new topic", found.get(name), [b"v"])


@case("fetch/session/topics/deleted", "KIP-227, KIP-516", BY_ID, since="3.1")
def deleted(at: ProbeContext) -> None:
    """A topic that is deleted is told with an error: UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION."""
    topic = at.topic()
    session = Session(at, topic)
    at.delete(topic)
    codes = {index: data.error_code for index, data in rows(session.next()).items()}
    at.expect(
        "error code of the partition", codes.get(0), ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition
    )


@case("fetch/session/topics/recreated", "KIP-516; franz-go#1426", BY_ID, since="3.1")
def recreated(at: ProbeContext) -> None:
    """After a topic was made again the session has an error for its old ID, and serves the new ID once it is named."""
    old = at.topic()
    session = Session(at, old)
    at.delete(old)
    new = at.create(old.name)
    write(at, new, batch(b"v"))
    fields: dict[str, Any] = {"session_id": session.id, "session_epoch": 1}
    answer = at.ask(FETCH, fetch_request(at, [(new, [wanted()])], [(old, [0])], **fields))
    at.expect("error code", answer.error_code, ErrorCode.none)
    found = {each.topic_id == new.id: values(single(each, "partitions")) for each in answer.responses}
    at.expect("values of the new topic", found.get(True), [b"v"])


@case("fetch/session/topics/recreated-by-name", KIP_227, BY_NAME, since="1.1")
def recreated_by_name(at: ProbeContext) -> None:
    """A session by name serves the new topic of that name."""
    old = at.topic()
    session = Session(at, old)
    at.delete(old)
    new = at.create(old.name)
    write(at, new, batch(b"v"))
    told = rows(session.next(wanted()))
    at.expect("values of the new topic", values(told[0]) if 0 in told else [], [b"v"])


@case("fetch/session/topics/names-and-ids", "KIP-516", {**NEEDS, FETCH: since_version(13)}, since="3.1")
def names_and_ids(at: ProbeContext) -> None:
    """A session that began with topic names is refused in a version with IDs: FETCH_SESSION_TOPIC_ID_ERROR."""
    topic = at.topic()
    by_name = fetch_request(at, [(topic, [wanted()])], session_epoch=OPEN)
    by_name.topics[0].topic = topic.name  # type: ignore[misc]
    version = at.broker.version(FETCH, (7, 12))
    opened_by_name = at.ask(FETCH, by_name, version)
    if opened_by_name.session_id == 0:
        raise NotAdvertised("the broker made no session, as it may")
    fields: dict[str, Any] = {"session_id": opened_by_name.session_id, "session_epoch": 1}
    answer = at.ask(FETCH, fetch_request(at, [(topic, [wanted()])], **fields))
    at.expect("error code", answer.error_code, ErrorCode.fetch_session_topic_id_error)
