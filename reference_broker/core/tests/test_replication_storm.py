"""Random faults on three whole nodes: records acknowledged by all in-sync replicas are on each of them at the end,
once,
and their logs are equal byte by byte."""

from random import Random

import pytest

from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.records.record import read_all
from reference_broker.wire.errors import ErrorCode

STEPS = 60


class Storm:
    """``acked``: acknowledged values and their offsets."""

    def __init__(self, seed: int, revision: str) -> None:
        self.random = Random(seed)
        self.world = ClusterWorld(
            3,
            fetch_session_revision=revision,
            replica_lag_time_max_ms="1000",
            broker_session_timeout_ms="3000",
            broker_heartbeat_interval_ms="500",
        )
        self.world.ready()
        self.world.create("t", partitions=2, min_insync_replicas="2", segment_bytes="600")
        self.sent: dict[int, tuple[int, bytes]] = {}

    def play(self) -> None:
        for step in range(STEPS):
            self.random.choice((*(self._produce,) * 4, self._fault, self._repair))()
            self.world.run(self.random.choice((1, 5, 50, 300, 1500, 4000)))
            self._look(step)
        self.world.heal()
        for number, member in self.world.members.items():
            if not member.alive:
                self.world.start(number)
        self.world.run_until(self._is_whole, 60_000)
        self.world.run(2_000)

    def _produce(self) -> None:
        """Produce at a leader in the view of some node."""
        for _ in range(self.random.randrange(1, 6)):
            index = self.random.randrange(2)
            seen = self.random.choice(self.world.living).node.broker.loader.image.topics.get("t")
            leader = -1 if seen is None else seen.partitions[index].leader
            if leader >= 0 and self.world.members[leader].alive and self.world.members[leader].node.ready:
                value = b"%d" % len(self.sent)
                token = self.world.produce_at(leader, "t", value, index, self.random.choice((-1, -1, 1)))
                self.sent[token] = (index, value)

    def _fault(self) -> None:
        numbers = list(self.world.members)
        if self.random.random() < 0.5:
            self.world.sever(*self.random.sample(numbers, 2))
        elif len(self.world.living) == 3:
            self.world.kill(self.random.choice(numbers))

    def _repair(self) -> None:
        self.world.heal()
        for number, member in self.world.members.items():
            if not member.alive:
                self.world.start(number)

    def _look(self, step: int) -> None:
        for number, member in self.world.members.items():
            for log in member.node.logs() if member.alive else ():
                assert log.log_start_offset <= log.high_watermark <= log.log_end_offset, (step, number)

    def _is_whole(self) -> bool:
        return all(member.node.ready for member in self.world.members.values()) and all(
            len(self.world.state("t", index).isr) == 3 for index in range(2)
        )

    def values(self, number: int, index: int) -> list[bytes]:
        found = [record.value for _, record in read_all(self.world.bytes_of(number, "t", index))]
        return [value for value in found if value is not None]


def judge(storm: Storm) -> None:
    world = storm.world
    for index in range(2):
        replicas = [world.bytes_of(number, "t", index) for number in world.members]
        assert replicas[0] == replicas[1] == replicas[2], f"t-{index} differs"
        values = storm.values(0, index)
        for token, (where, value) in storm.sent.items():
            if where == index and token in world.replies:
                partition = world.replies[token].responses[0].partitions[0]
                is_acks_all = world.acks[token] == -1
                if partition.error_code == ErrorCode.none and is_acks_all:
                    assert values.count(value) == 1, f"{value!r} was acknowledged at {partition.base_offset}"
    assert not world.notes("truncated_below_high_watermark")


@pytest.mark.thorough
@pytest.mark.parametrize("revision", ["final", "first"])
@pytest.mark.parametrize("seed", range(2))
def test_acks_all_records_are_not_lost_and_replicas_end_equal(seed: int, revision: str) -> None:
    storm = Storm(seed, revision)
    storm.play()
    judge(storm)
