"""Losses and errors: a committed transaction is in the log whole, a failed one is not there, and one with an unknown
outcome is whole or not there."""

import random

import pytest

from reference_broker.client.tests.transaction_world import (
    FOO0,
    FOO1,
    LOST,
    ME,
    NOT_ARRIVED,
    OFFSETS,
    ProducerWorld,
    record,
)
from reference_broker.client.transaction_manager import Outcome, State
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

KEYS = (
    ApiKey.PRODUCE,
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
TROUBLES = (
    LOST,
    LOST,
    NOT_ARRIVED,
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.transaction_abortable,
)
TRANSACTIONS = 25


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("seed", range(8))
def test_log_matches_reported_outcomes(level: int, seed: int) -> None:
    chance = random.Random(f"{level} {seed}")
    world = ProducerWorld.of(level).ready()
    outcomes: dict[str, Outcome | None] = {}
    for number in range(TRANSACTIONS):
        for _ in range(chance.choice((0, 0, 1, 2))):
            world.broker.will(chance.choice(KEYS), chance.choice(TROUBLES))
        outcomes.update(play(world, str(number), chance))
        world.broker.script.clear()
        recover(world)
        if world.producer.state is not State.READY:
            break
    found = [value for _, value in world.broker.committed]
    for value, outcome in outcomes.items():
        expected = {Outcome.OK: (2,), Outcome.FAILED: (0,)}.get(outcome or Outcome.FAILED, (0, 2))
        assert found.count(value) in expected, f"{value} was reported as {outcome}"
    assert Outcome.OK in outcomes.values()
    assert len(outcomes) > TRANSACTIONS / 2


def play(world: ProducerWorld, value: str, chance: random.Random) -> dict[str, Outcome | None]:
    """Run one transaction with the value in two partitions. Return the producer's result."""
    producer = world.producer
    producer.begin()
    producer.send(world.now_us, FOO0, [record(value)])
    if chance.random() < 0.5:
        world.run()
    if producer.state is State.IN_TRANSACTION:
        producer.send(world.now_us, FOO1, [record(value)])
        producer.send_offsets(OFFSETS, ME)
        if chance.random() < 0.7:
            producer.commit()
            world.run()
            return {value: producer.outcome}
    return {value: Outcome.FAILED}


def recover(world: ProducerWorld) -> None:
    if world.producer.state in (State.ABORTABLE_ERROR, State.IN_TRANSACTION):
        world.producer.abort()
    world.run()
