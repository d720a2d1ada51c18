"""Producers and admins that keep the metadata epoch (M-5), against nodes of which one is cut off."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias
from uuid import UUID

import pytest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreateTopicsResponse

from bench.fleet.behaviours.admin import Admin, AdminPlan
from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.behaviours.protocol import ClientSettings, TopicPartition
from bench.fleet.tests.conftest import FleetWorld
from bench.fleet.tests.groups import GroupsBroker
from reference_broker.wire.errors import ErrorCode
from reports.rows import MetadataEpochRow

HOT = tuple(TopicPartition("hot", number) for number in range(4))
OLD, NEW, CUT_OFF = 5, 7, 2
INTERVAL_US = 200_000
Made: TypeAlias = Callable[[ClientSettings, bool], ClusterScript]


class EpochsBroker(GroupsBroker):
    """Each requested topic exists."""

    def create_topics(self, body: CreateTopicsRequest) -> CreateTopicsResponse:
        self.ids.update({topic.name: UUID(int=9) for topic in body.topics})
        response = super().create_topics(body)
        created = [replace(topic, error_code=ErrorCode.none) for topic in response.topics]
        return replace(response, topics=tuple(created))


def producer(settings: ClientSettings, metadata_epoch: bool) -> ClusterScript:
    plan = ProducerPlan("p", HOT, metadata_epoch=metadata_epoch, metadata_interval_us=INTERVAL_US)
    return KeyedProducer(plan, settings, Random(4))


def admin(settings: ClientSettings, metadata_epoch: bool) -> ClusterScript:
    plan = AdminPlan("a", "t", {"create": 1}, 100_000, metadata_epoch=metadata_epoch, metadata_interval_us=INTERVAL_US)
    return Admin(plan, settings, Random(4))


def played(make: Made, settings: ClientSettings, *, drafts: set[int], metadata_epoch: bool = True) -> list[object]:
    """The rows of metadata epochs, after 10 s in which one node returns older metadata."""
    broker = EpochsBroker({"hot": 4})
    broker.drafts, broker.epoch = drafts, OLD
    broker.grow_old(CUT_OFF)
    broker.epoch = NEW
    world = FleetWorld(broker)
    subject = make(settings, metadata_epoch)
    world.start(subject)
    world.run(10)
    world.stop(subject)
    world.run(10)
    assert subject.process in world.finished
    assert all(row.type == "ok" for row in world.rows("operations") if row.f in ("produce", "create_topics"))
    if metadata_epoch and drafts:
        assert subject.metadata.metadata_epoch == NEW
    return world.rows("metadata_epochs")


@pytest.mark.clause("M-5")
@pytest.mark.parametrize("make", [producer, admin])
def test_metadata_older_than_last_accepted_is_dropped(make: Made, settings: ClientSettings) -> None:
    rows = played(make, settings, drafts={0, 1, 2})
    assert len(rows) > 5
    dropped = []
    known = -1
    for row in rows:
        assert isinstance(row, MetadataEpochRow)
        assert row.accepted is (row.metadata_epoch >= known)
        known = max(known, row.metadata_epoch)
        if not row.accepted:
            dropped.append((row.node, row.metadata_epoch))
    assert dropped
    assert {*dropped} == {(CUT_OFF, OLD)}


@pytest.mark.clause("M-5", "M-14")
@pytest.mark.parametrize("make", [producer, admin])
@pytest.mark.parametrize(("drafts", "metadata_epoch"), [(set(), True), ({0, 1, 2}, False)])
def test_metadata_without_drafts_has_no_epoch_and_is_accepted(
    make: Made, settings: ClientSettings, drafts: set[int], metadata_epoch: bool
) -> None:
    assert played(make, settings, drafts=drafts, metadata_epoch=metadata_epoch) == []
