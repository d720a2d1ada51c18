"""Frames of a stranger who pretends to be a voter, sent to whole nodes that form a quorum."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.apis.registry import SERVED
from reference_broker.core.tests.cluster_world import LOCAL, ClusterWorld
from reference_broker.quorum.messages import (
    VoteRequest,
    build_begin_quorum_epoch_request,
    build_end_quorum_epoch_request,
    build_vote_request,
)
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.serve.request_decoder import decode
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import encode_request

GREATEST_INT32 = 2**31 - 1
END = OffsetAndEpoch(2**40, 1)


def forged_begin(cluster_id: str | None) -> tuple[ApiKey, int, Any]:
    """Return a request that is in version 0, without a cluster ID, the frame of 60 bytes that once ended whole
    clusters."""
    body = replace(build_begin_quorum_epoch_request("", -1, 1, GREATEST_INT32), cluster_id=cluster_id)
    return ApiKey.BEGIN_QUORUM_EPOCH, 0, body


def forged_vote(cluster_id: str | None) -> tuple[ApiKey, int, Any]:
    return ApiKey.VOTE, 2, build_vote_request(VoteRequest(cluster_id, -1, 1, GREATEST_INT32, END, False))


def forged_end(cluster_id: str | None) -> tuple[ApiKey, int, Any]:
    return (
        ApiKey.END_QUORUM_EPOCH,
        1,
        replace(build_end_quorum_epoch_request("", 1, GREATEST_INT32, (2,)), cluster_id=cluster_id),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("forged", [forged_begin, forged_vote, forged_end])
@pytest.mark.parametrize("cluster_id", [None, "cluster"])
def test_forged_greatest_epoch_ends_no_node_and_no_restart(forged: Any, cluster_id: str | None) -> None:
    world = ClusterWorld()
    world.ready()
    world.create("t")
    epoch = world.members[world.controller].node.broker.quorum.epoch
    api_key, version, body = forged(cluster_id)
    frame = b"".join(bytes(each) for each in encode_request(api_key, version, 7, "evil", body))
    assert forged is not forged_begin or cluster_id is not None or len(frame) == 60
    for number, member in world.members.items():
        world._take(member, member.node.handle(world.now, decode(LOCAL + number, memoryview(frame)[4:], SERVED)))
    world.run(5000)
    assert world.members[world.controller].node.broker.quorum.epoch == epoch
    assert world.produce("t").error_code == ErrorCode.none
    for number in range(3):
        world.kill(number)
    for number in range(3):
        world.start(number)
    world.ready()
    assert world.produce("t").error_code == ErrorCode.none
