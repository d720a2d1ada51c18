"""UpdateMetadata with metadata epochs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from reference_broker.apis.metadata import k06_update_metadata
from reference_broker.metadata.cache import MetadataCache
from reference_broker.metadata.tests.metadata_world import ManualPorts
from reference_broker.ports.node_ports import Now
from reference_broker.wire.drafts import (
    FULL_UPDATE,
    INCREMENTAL_UPDATE,
    UpdateMetadataPartition1001,
    UpdateMetadataRequest1001,
)
from reference_broker.wire.errors import ErrorCode


@dataclass
class Call:
    api_version: int = 1001
    listener: str = ""
    responses: list[Any] = field(default_factory=list)

    def respond(self, body: object) -> None:
        self.responses.append(body)

    def run(self, work: Callable[[], object]) -> bool:
        work()
        return True


def broker_with(ports: ManualPorts) -> Any:
    """Return the parts of a broker that UpdateMetadata uses."""
    return SimpleNamespace(
        ports=ports,
        now=Now(ports.now_us, 0),
        metadata=MetadataCache(cluster_id="c"),
        lifecycle=SimpleNamespace(registered_epoch=3),
    )


class UpdateMetadataWorld:
    def __init__(self) -> None:
        self.ports = ManualPorts()
        self.broker = broker_with(self.ports)
        self.api = k06_update_metadata.UpdateMetadata(self.broker)

    def send(self, epoch: int, partitions: int = 0, controller_epoch: int = 1, update_type: int = FULL_UPDATE) -> Call:
        states = tuple(
            UpdateMetadataPartition1001(
                topic="t0", partition=index, controller_epoch=controller_epoch, leader=1, leader_epoch=0, zk_version=0
            )
            for index in range(partitions)
        )
        body = UpdateMetadataRequest1001(
            controller_id=1,
            controller_epoch=controller_epoch,
            metadata_epoch=epoch,
            partition_states=states,
            live_brokers=(),
            broker_epoch=3,
            type=update_type,
        )
        call = Call()
        response = self.api.handle(call, body)  # type: ignore[arg-type]
        if response is not None:
            call.respond(response)
        return call

    @property
    def epoch(self) -> int:
        return int(self.broker.metadata.metadata_epoch)


def codes(*calls: Call) -> list[list[int]]:
    return [[response.error_code for response in call.responses] for call in calls]


@pytest.mark.clause("M-3")
def test_update_is_applied_noted_and_acknowledged() -> None:
    world = UpdateMetadataWorld()
    call = world.send(4, partitions=2)
    assert (codes(call), world.epoch) == ([[0]], 4)
    assert len(world.broker.metadata.topics["t0"].partitions) == 2
    assert world.ports.notes_of("update_metadata_applied") == [{"epoch": 4, "controller_epoch": 1, "controller_id": 1}]


@pytest.mark.clause("M-3")
def test_large_updates_are_applied_in_slices_and_in_order() -> None:
    world = UpdateMetadataWorld()
    first, second, overtaken = world.send(4, partitions=2000), world.send(6), world.send(5)
    assert codes(first, second, overtaken) == [[], [], []]
    assert world.epoch == -1
    world.ports.run()
    assert codes(first, second, overtaken) == [[0], [0], [0]]
    assert world.ports.events >= 2000 // 500
    assert world.epoch == 6
    assert [note["epoch"] for note in world.ports.notes_of("update_metadata_applied")] == [4, 6]


@pytest.mark.clause("M-3")
def test_stale_controller_epoch_is_rejected_also_during_newer_update() -> None:
    world = UpdateMetadataWorld()
    newer, older = world.send(4, partitions=2000, controller_epoch=2), world.send(9, controller_epoch=1)
    world.ports.run()
    assert codes(newer, older) == [[0], [ErrorCode.stale_controller_epoch]]
    assert world.ports.notes_of("update_metadata_refused") == [
        {"epoch": 9, "controller_epoch": 1, "controller_id": 1, "error": 11}
    ]
    assert world.epoch == 4


@pytest.mark.clause("M-14")
@pytest.mark.parametrize("update_type", [FULL_UPDATE, INCREMENTAL_UPDATE])
def test_update_is_discarded_if_metadata_epoch_is_disabled_during_it(update_type: int) -> None:
    world = UpdateMetadataWorld()
    world.send(3)
    by_image = replace(world.broker.metadata, metadata_epoch=-1, overtaken_epoch=4)
    call = world.send(4, partitions=2000, update_type=update_type)
    world.broker.metadata = by_image
    world.ports.run()
    assert world.broker.metadata is by_image
    assert codes(call) == [[0]] if update_type == FULL_UPDATE else [[ErrorCode.invalid_request]]
    world.send(5)
    assert world.epoch == 5


@pytest.mark.thorough
def test_updates_beyond_pending_limit_are_rejected() -> None:
    world = UpdateMetadataWorld()
    calls = [world.send(1, partitions=2000) for _ in range(k06_update_metadata.MAX_WAITING + 1)]
    assert codes(calls[-1]) == [[ErrorCode.broker_not_available]]
    world.ports.run()
    assert codes(*calls[:-1]) == [[0]] * (len(calls) - 1)
