"""The simulated store: what survives its nodes, and what they leave half done."""

from random import Random

import pytest

from chaos.sim.agenda import Agenda
from chaos.sim.store import PART_BYTES, SimStore
from chaos.sim.tests.stub_machine import StubMachine
from reference_broker.core.events import StoreCall, StoreDone, StoreFailed
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.store import FailureKind, ListObjects, Put, PutFile, StoreOperation

A_SECOND = 1_000_000
LARGE = bytes(range(256)) * 256


class StoreWorld:
    """A store, and a machine that records its events."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.store = SimStore(self.agenda, Random(3))
        self.machine = StubMachine(MemoryDisk({"large": bytearray(LARGE)}))

    def call(self, operation: StoreOperation) -> None:
        self.store.call(self.machine.as_machine(), StoreCall(1, operation))

    def run(self, us: int = A_SECOND) -> None:
        self.agenda.run_until(self.agenda.now_us + us)


def test_put_on_its_way_is_carried_out_although_its_node_dies() -> None:
    world = StoreWorld()
    world.call(Put("a", b"x"))
    world.machine.incarnation_alive = -1
    world.run()
    assert world.store.content.objects == {"a": b"x"}


def test_file_whose_node_dies_is_half_written_and_never_seen() -> None:
    world = StoreWorld()
    world.call(PutFile("a", "large", len(LARGE)))
    while not world.store.uploads[0].content:
        world.agenda.step(A_SECOND)
    world.machine.incarnation_alive, world.machine.incarnation = 1, 1
    world.run()
    assert world.machine.delivered == []
    assert world.store.half_written == ["a"]
    assert 0 < len(world.store.uploads[0].content) < len(LARGE)
    world.call(ListObjects(""))
    world.run()
    assert world.machine.delivered == [(1, StoreDone(1, ()))]
    world.call(PutFile("a", "large", 3))
    world.run()
    assert world.store.content.objects == {"a": LARGE[:3]}
    assert world.store.half_written == ["a"]


def test_stopped_node_sends_no_part_and_goes_on_when_it_wakes() -> None:
    world = StoreWorld()
    world.call(PutFile("a", "large", len(LARGE)))
    world.machine.paused, world.machine.paused_until_us = True, 2 * A_SECOND
    world.run(2 * A_SECOND - 1)
    assert not world.store.uploads[0].content
    world.machine.paused = False
    world.run()
    assert world.store.content.objects == {"a": LARGE}
    assert len(LARGE) > 2 * PART_BYTES


@pytest.mark.parametrize("left", [0, PART_BYTES + 1])
def test_file_that_shrinks_while_it_is_sent_is_not_put(left: int) -> None:
    world = StoreWorld()
    world.call(PutFile("a", "large", len(LARGE)))
    while not world.store.uploads[0].content:
        world.agenda.step(A_SECOND)
    world.machine.disk.truncate("large", left)
    world.run()
    ((_, event),) = world.machine.delivered
    assert isinstance(event, StoreFailed)
    assert event.failure.kind is FailureKind.MISSING
    assert not world.store.content.objects
    assert not world.store.uploads
