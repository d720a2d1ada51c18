"""Calls of the object store: each is one effect, and each result goes to its caller."""

from typing import cast

import pytest

from reference_broker.core.effect_ports import StoreCalls
from reference_broker.core.events import Effect, StoreCall, StoreDone, StoreFailed
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.ports.node_ports import StorePorts
from reference_broker.ports.store import Delete, FailureKind, Get, ListObjects, Put, StoreFailure

AWAY = StoreFailure(FailureKind.UNAVAILABLE, "away")


def test_result_goes_once_to_call_with_its_token() -> None:
    effects: list[Effect] = []
    calls, received = StoreCalls(effects), list[object]()
    calls.request(Get("a", 0, 1), lambda data: received.append(("one", data)), received.append)
    calls.request(Get("b", 0, 1), lambda data: received.append(("other", data)), received.append)
    calls.request(Delete(("c",)), received.append, lambda failure: received.append(("gone", failure)))
    assert effects == [StoreCall(1, Get("a", 0, 1)), StoreCall(2, Get("b", 0, 1)), StoreCall(3, Delete(("c",)))]
    calls.done(StoreDone(2, b"x"))
    calls.failed(StoreFailed(3, AWAY))
    calls.done(StoreDone(1, b"y"))
    assert received == [("other", b"x"), ("gone", AWAY), ("one", b"y")]
    with pytest.raises(KeyError):
        calls.done(StoreDone(2, b"x"))


def test_put_get_and_list_complete_in_later_events() -> None:
    world, received = NodeWorld(), list[object]()
    ports = cast(StorePorts, world.node.broker.ports)

    def read(_: None) -> None:
        ports.store(Get("topic/a", 1, 2), received.append, received.append)
        ports.store(ListObjects(""), received.append, received.append)
        ports.store(Get("topic/b", 0, 2), received.append, received.append)

    ports.store(Put("topic/a", b"data"), read, received.append)
    assert received == []
    world.close(99)  # Any event runs the calls.
    world.settle()
    assert received == [b"at", (("topic/a", 4),), StoreFailure(FailureKind.MISSING, "there is no topic/b")]
