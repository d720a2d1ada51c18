"""Faults at calls of the object store: which a rule hits, what the node gets, and which evidence remains."""

from typing import Any

import pytest

from chaos.interceptor.interceptor import Interceptor
from chaos.interceptor.tests.intercepted import NOW, Ended, Log, interceptor, rule
from reference_broker.core.events import Closed, Effect, Event, StoreCall, StoreDone, StoreFailed
from reference_broker.ports.node_ports import Now
from reference_broker.ports.store import (
    Delete,
    FailureKind,
    Get,
    ListObjects,
    Put,
    PutFile,
    StoredObject,
    StoreFailure,
    StoreOperation,
)
from scenarios.model import Match, Range

ANY_EVENT = Closed(1)
OPERATIONS: dict[str, tuple[StoreOperation, ...]] = {
    "put": (Put("a.index", b"x"), PutFile("a.index", "file", 1)),
    "get": (Get("a.index", 0, 1),),
    "list": (ListObjects("a.index"),),
    "delete": (Delete(("b", "a.index")),),
}


def effects_of(subject: Interceptor, operation: StoreOperation, token: int = 7) -> list[Effect]:
    return list(subject.after(NOW, ANY_EVENT, [StoreCall(token, operation)]))


def given(log: Log) -> list[tuple[Event, int]]:
    later: Any = [(call[1], call[2]) for call in log.calls if call[0] == "deliver_later"]
    return list(later)


@pytest.mark.parametrize("name", OPERATIONS)
def test_rule_hits_its_operation_and_its_keys_only(name: str) -> None:
    for other, operations in OPERATIONS.items():
        for operation in operations:
            log = Log()
            subject = interceptor(log, rule("store_refused", on="store", match=Match(operation=name, path="*.index")))
            assert effects_of(subject, operation) == ([] if other == name else [StoreCall(7, operation)])
            assert [row.detail.split()[0] for row in log.rows] == ([name] if other == name else [])
            assert effects_of(subject, operation) == [StoreCall(7, operation)], "it fires once"
    log = Log()
    subject = interceptor(log, rule("store_refused", on="store", match=Match(path="*.log")))
    assert len(effects_of(subject, Get("a.index", 0, 1))) == 1
    assert not effects_of(subject, Get("a.log", 0, 1))


@pytest.mark.parametrize("failure", ["unavailable", "refused"])
def test_refused_call_never_reaches_the_store_and_fails_later(failure: str) -> None:
    log = Log()
    subject = interceptor(log, rule("store_refused", on="store", failure=failure, delay_ms=Range(5, 5)))
    assert not effects_of(subject, Put("a", b"x"))
    ((event, delay_us),) = given(log)
    assert isinstance(event, StoreFailed)
    assert (event.token, event.failure.kind, delay_us) == (7, FailureKind(failure), 5000)
    assert list(subject.before(NOW, event)) == [event]
    assert [row.detail for row in log.rows] == ["put a"]


def test_slow_response_comes_once_and_is_not_hit_again() -> None:
    log = Log()
    subject = interceptor(log, rule("store_slowed", on="store_result", delay_ms=Range(9, 9), times=0, every=1))
    effects_of(subject, Get("a", 0, 1))
    result = StoreDone(7, b"x")
    assert not subject.before(NOW, result)
    assert given(log) == [(result, 9000)]
    assert list(subject.before(NOW, result)) == [result]
    assert len(log.rows) == 1


def test_response_of_what_succeeded_is_lost_and_a_failure_is_left_alone() -> None:
    log = Log()
    subject = interceptor(log, rule("store_result_lost", on="store_result"))
    effects_of(subject, Put("a", b"x"), 7)
    effects_of(subject, Put("b", b"x"), 8)
    failed = StoreFailed(7, StoreFailure(FailureKind.REFUSED, "no"))
    assert list(subject.before(NOW, failed)) == [failed]
    assert not log.rows
    assert not subject.before(NOW, StoreDone(8, None))
    ((event, _),) = given(log)
    assert isinstance(event, StoreFailed)
    assert (event.token, event.failure.kind) == (8, FailureKind.UNAVAILABLE)
    assert list(subject.before(NOW, event)) == [event]


def test_late_list_lacks_what_was_just_put_and_nothing_else() -> None:
    log = Log()
    subject = interceptor(log, rule("store_listed_late", on="store_result", delay_ms=Range(100, 100), times=0, every=1))
    for token, key, mono_us in ((1, "old", 0), (2, "new", 90_000), (3, "lost", 95_000)):
        subject.after(Now(mono_us, 0), ANY_EVENT, [StoreCall(token, Put(key, b"x"))])
        done: Event = StoreDone(token, None)
        if key == "lost":
            done = StoreFailed(token, StoreFailure(FailureKind.UNAVAILABLE, "?"))
        assert list(subject.before(Now(mono_us, 0), done)) == [done]
    found = tuple(StoredObject(key, 1) for key in ("foreign", "lost", "new", "old"))
    seen = [list_at(subject, mono_us, found) for mono_us in (150_000, 190_000)]
    assert seen == [["foreign", "lost", "old"], ["foreign", "lost", "new", "old"]]
    assert len(log.rows) == 1, "a list that lacks nothing is no fault"


def list_at(subject: Interceptor, mono_us: int, found: tuple[StoredObject, ...]) -> list[str]:
    now = Now(mono_us, 0)
    subject.after(now, ANY_EVENT, [StoreCall(9, ListObjects(""))])
    (event,) = subject.before(now, StoreDone(9, found))
    assert isinstance(event, StoreDone)
    assert isinstance(event.result, tuple)
    return [each.key for each in event.result]


def test_node_dies_before_its_call_or_before_it_gets_the_response() -> None:
    log = Log()
    with pytest.raises(Ended):
        effects_of(interceptor(log, rule("node_killed", on="store", match=Match(operation="put"))), Put("a", b"x"))
    subject = interceptor(log, rule("node_killed", on="store_result", match=Match(path="b*")))
    assert len(effects_of(subject, Put("b.log", b"x"))) == 1
    with pytest.raises(Ended):
        subject.before(NOW, StoreDone(7, None))
    assert [row.detail for row in log.rows] == ["put a", "put b.log"]
