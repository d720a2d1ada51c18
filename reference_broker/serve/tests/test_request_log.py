"""The request log: one line for each request if it is enabled, and none otherwise."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from reference_broker.blocking.transport import Connection
from reference_broker.core.events import Closed, Request
from reference_broker.ports.node_ports import Now
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.node_log import RequestLog
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from reference_broker.serve.tests.conftest import Broker

SECOND_US = 1_000_000


def fetch(connection: Connection, request: FetchRequest) -> FetchResponse:
    response = connection.call(ApiKey.FETCH, 12, request)
    assert isinstance(response, FetchResponse)
    return response


@pytest.mark.live
@pytest.mark.clause("F-23")
def test_fetch_is_logged_with_session_id_and_epoch(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker("--config", "crucible.request.log.enable=true")
    connection = Connection.open(*broker.address, 5 * SECOND_US, "reader")
    full = FetchRequest(
        max_wait_ms=0, session_epoch=0, topics=[FetchTopic("t", NO_TOPIC_ID, [FetchPartition(0, 0, 100)])]
    )
    session_id = fetch(connection, full).session_id
    for epoch in (1, 7):
        fetch(connection, FetchRequest(max_wait_ms=0, session_id=session_id, session_epoch=epoch))
    connection.close()
    lines = broker.await_log("request", 3)
    logged = [(line["session_id"], line["session_epoch"], line["response_session_id"], line["error"]) for line in lines]
    assert logged == [(0, 0, session_id, 0), (session_id, 1, session_id, 0), (session_id, 7, 0, 71)]
    assert {(line["api"], line["version"], line["client_id"]) for line in lines} == {("Fetch", 12, "reader")}
    assert all(0 <= line["took_us"] < 5 * SECOND_US for line in lines)


@pytest.mark.live
def test_requests_are_not_logged_by_default(broker: "Broker") -> None:
    connection = Connection.open(*broker.address, 5 * SECOND_US, "reader")
    fetch(connection, FetchRequest(max_wait_ms=0))
    connection.close()
    assert broker.stop() == 0
    assert broker.log_events("request") == []


def request(connection: int) -> Request:
    return Request(connection, 5, ApiKey.FETCH, 12, "c", FetchRequest(), Tag(ApiKey.FETCH, 12, "c"), 60)


def test_connection_closed_while_request_is_parked_is_dropped() -> None:
    log = RequestLog(LogLines(1))
    for connection in range(100):
        log.before(Now(1, 1), request(connection))
        log.after(Now(1, 1), request(connection), ())
        log.after(Now(2, 1), Closed(connection), ())
    assert log._arrived_us == {}
