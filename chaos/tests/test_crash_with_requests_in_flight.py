"""A node that loses its power while several clients wait and syncs are slow: what was acknowledged is there."""

from random import Random
from typing import Any

import pytest

from chaos.tests.test_crash_at_every_operation import SYNCED, UNSYNCED, Cut, CutDisk
from reference_broker.core.tests.node_world import (
    NodeWorld,
    create_request,
    delete_request,
    produce_request,
    sent_batch,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

pytestmark = pytest.mark.simulated

TOPICS = ("a", "b", "c.d")
CLIENTS = 6
STEPS = 250


class Crowd:
    """Clients with one request each on its way; ``acked`` and ``gone`` are what the broker gave its word for.

    Each client is its own idempotent producer and retries a batch until it gets a response.
    """

    def __init__(self, world: NodeWorld, random: Random) -> None:
        self.world = world
        self.random = random
        self.open: dict[int, tuple[int, str, Any]] = {}
        self.sequences: dict[tuple[int, str], int] = {}
        self.acked: dict[str, dict[tuple[int, int], int]] = {}
        """Topic -> (producer, sequence) -> offset."""
        self.ids: dict[str, bytes | None] = {}
        self.unsure: dict[str, None] = {}
        """Topics with a creation or deletion on its way."""

    def step(self) -> None:
        kind = self.random.random()
        client = self.random.randrange(CLIENTS)
        if kind < 0.25 and self.world.syncs:
            self.world.complete_sync()
        elif kind < 0.35:
            self.world.advance(self.random.choice((1, 20)))
        elif client not in self.open:
            self._send(client)
        self._take_responses()

    def _send(self, client: int) -> None:
        topic = self.random.choice(TOPICS)
        there = self.ids.get(topic) is not None and topic not in self.unsure
        if there and self.random.random() < 0.9:
            sequence = self.sequences.get((client, topic), 0)
            body: object = produce_request(topic, 0, sent_batch(client, sequence, b"x" * self.random.randrange(80)))
            number = self.world.send(ApiKey.PRODUCE, 9, body, client)
            self.open[client] = (number, topic, sequence)
        elif topic not in self.unsure and not any(entry[1] == topic for entry in self.open.values()):
            self.unsure[topic] = None
            key, body = (20, delete_request(topic)) if there else (19, create_request(topic, 2))
            self.open[client] = (self.world.send(key, 6, body, client), topic, "delete" if there else "create")

    def _take_responses(self) -> None:
        for client, (number, topic, what) in list(self.open.items()):
            if number not in self.world.replies:
                continue
            del self.open[client]
            body: Any = self.world.replies[number].body
            if what == "delete":
                assert body.responses[0].error_code == ErrorCode.none
                self.ids[topic] = None
                self.unsure.pop(topic)
            elif what == "create":
                assert body.topics[0].error_code == ErrorCode.none
                self.ids[topic] = body.topics[0].topic_id.bytes
                self.acked[topic] = {}
                self.sequences = {key: value for key, value in self.sequences.items() if key[1] != topic}
                self.unsure.pop(topic)
            else:
                partition = body.responses[0].partitions[0]
                assert partition.error_code == ErrorCode.none, partition
                self.acked[topic][client, what] = partition.base_offset
                self.sequences[client, topic] = what + 1

    def check(self, world: NodeWorld) -> int:
        """Return the number of acknowledged records that were compared."""
        assert world.node.ready
        image = world.node.broker.controller.image
        looked = 0
        for topic, topic_id in self.ids.items():
            if topic in self.unsure:
                continue
            found = image.topics.get(topic)
            assert (None if found is None else found.topic_id) == topic_id
            for (client, sequence), offset in self.acked.get(topic, {}).items() if topic_id else ():
                data = world.log(topic).read(offset, 1, None, True)
                assert int.from_bytes(data[:8], "big") == offset
                assert int.from_bytes(data[43:51], "big") == client
                assert int.from_bytes(data[53:57], "big") == sequence
                looked += 1
        return looked


class AllOrNothing(Random):
    """A power loss with these numbers keeps all of a file's unsynced end or nothing: it cuts between batches."""

    def randint(self, a: int, b: int) -> int:
        return self.choice((a, b))


def _lost_its_power(seed: int, config: dict[str, str], of_disk: Random) -> tuple[Crowd, CutDisk]:
    random = Random(seed)
    disk = CutDisk(of_disk)
    world = NodeWorld(disk, **config)  # type: ignore[arg-type]
    world.hold_syncs = True
    crowd = Crowd(world, random)
    disk.cut_at = disk.changes + random.randrange(10, 250)
    try:
        for _ in range(STEPS):
            crowd.step()
    except Cut:
        crowd._take_responses()
    disk.cut_at = -1
    disk.power_loss()
    return crowd, disk


@pytest.mark.clause("P-6")
def test_acknowledged_records_survive_power_loss_with_requests_in_flight() -> None:
    looked = 0
    for seed in range(120):
        crowd, disk = _lost_its_power(seed, SYNCED, Random(seed))
        looked += crowd.check(NodeWorld(disk, seed=1, **SYNCED))
    assert looked > 1000


def test_power_loss_without_flush_policy_loses_only_end_of_log() -> None:
    cut = 0
    for seed in range(60):
        crowd, disk = _lost_its_power(seed, UNSYNCED, AllOrNothing(seed))
        world = NodeWorld(disk, seed=1, **UNSYNCED)
        for topic, topic_id in crowd.ids.items():
            if topic_id is None or topic in crowd.unsure:
                continue
            log = world.log(topic)
            for offset in range(log.log_start_offset, log.log_end_offset):
                data = log.read(offset, 1, log.log_end_offset, True)
                assert int.from_bytes(data[:8], "big") == offset, f"seed {seed}: a hole in {topic} at {offset}"
            cut += log.recovered.deleted_segments
    assert cut > 10, "segments behind a loss were met"
