"""Offsets in a transaction of three nodes: they follow the outcome of the transaction, whichever node dies."""

from typing import Any

import pytest
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.static.primitive import i8

from reference_broker.core.tests.test_groups_of_a_node import body
from reference_broker.core.tests.test_transaction_coordinators import ID, TransactionsWorld
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, known_error

RETRIABLE_ERRORS = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.network_exception,
    ErrorCode.concurrent_transactions,
    ErrorCode.unstable_offset_commit,
)


class OffsetsWorld(TransactionsWorld):
    """The group ``g`` of the transactions' producer."""

    def group_coordinator(self) -> int:
        for _ in range(400):
            number = next(n for n, member in self.members.items() if member.alive)
            request = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=("g",))
            coordinator = self.request(number, ApiKey.FIND_COORDINATOR, 6, request).coordinators[0]
            if coordinator.error_code == ErrorCode.none and self.members[int(coordinator.node_id)].alive:
                return int(coordinator.node_id)
            self.run(50)
        raise AssertionError("the group gets no coordinator")

    def of_group(self, key: ApiKey, version: int, error_of: Any, **fields: Any) -> Any:
        """Send the request as a client does, with retries until the error is not retriable."""
        for _ in range(300):
            response = self.response_to(self.send(self.group_coordinator(), key, version, body(key, **fields)))
            if response is not None and known_error(int(error_of(response))) not in RETRIABLE_ERRORS:
                return response
            self.run(50)
        raise AssertionError(f"{key.name} got {response}")

    def commit_offset(self, offset: int) -> None:
        partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": None}]
        response = self.of_group(
            ApiKey.TXN_OFFSET_COMMIT,
            5,
            lambda response: response.topics[0].partitions[0].error_code,
            transactional_id=ID,
            group_id="g",
            producer_id=self.owner[0],
            producer_epoch=self.owner[1],
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": "t", "partitions": partitions}],
        )
        assert response.topics[0].partitions[0].error_code == ErrorCode.none

    def committed(self) -> int:
        """Return the committed offset as soon as it is stable."""
        groups = [
            {
                "group_id": "g",
                "topics": [{"name": "t", "partition_indexes": [0]}],
                "member_id": None,
                "member_epoch": -1,
            }
        ]
        response = self.of_group(
            ApiKey.OFFSET_FETCH,
            9,
            lambda response: response.groups[0].error_code or response.groups[0].topics[0].partitions[0].error_code,
            groups=groups,
            require_stable=True,
        )
        return int(response.groups[0].topics[0].partitions[0].committed_offset)


@pytest.mark.thorough
@pytest.mark.clause("X-8", "X-3")
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("delay_us", [*range(0, 2400, 300), 5000])
def test_offsets_follow_transaction_when_group_coordinator_dies(delay_us: int, commits: bool) -> None:
    """The coordinator dies this long after EndTxn arrived. Its successor loads the pending offsets, and gets the
    marker."""
    world = OffsetsWorld(is_modern=True, offsets_topic_num_partitions="1")
    world.init()
    world.commit_offset(5)
    world.send(world.coordinator(), ApiKey.END_TXN, 5, world.end_body(commits=commits))
    end_us = world.mono_us + delay_us
    world.run_until(lambda: world.mono_us >= end_us)
    dead = world.group_coordinator()
    world.kill(dead)
    error = world.end(commits=commits)
    outcome = world.settled()
    assert outcome == ("CompleteCommit" if commits else "CompleteAbort") or error is not ErrorCode.none
    assert world.committed() == (5 if outcome == "CompleteCommit" else -1)
    world.start(dead)
    world.ready()
    world.init()
    world.commit_offset(6)
    assert world.end() is ErrorCode.none
    assert world.committed() == 6
