"""Handlers of Vote, BeginQuorumEpoch, EndQuorumEpoch and Fetch, with the checks in the order of KafkaRaftClient.

If a request changes this node's role, the change is durable before the response is sent.

Two checks are stricter than Kafka's. A node's request must name the cluster, so that a request that was meant for
another cluster, or made up, changes nothing here. An epoch above MAX_EPOCH is INVALID_REQUEST.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from reference_broker.quorum import messages
from reference_broker.quorum.follower import Follower
from reference_broker.quorum.leader import Leader
from reference_broker.quorum.messages import (
    EpochRequest,
    RaftResponse,
    Vote,
    begun,
    ended,
    read_begin_epoch,
    read_end_epoch,
    read_vote,
    voted,
)
from reference_broker.quorum.quorum import Quorum
from reference_broker.quorum.values import MAX_EPOCH, NO_NODE
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchResponse

RequestT = TypeVar("RequestT", Vote, EpochRequest)
Reply: TypeAlias = Callable[[bool], None]
"""Called with whether a vote is granted, which is False for the response to any other request."""


def handle_vote(quorum: Quorum, body: object, respond: Callable[[object], None]) -> None:
    def act(request: Vote, reply: Reply) -> None:
        _decide_vote(quorum, request, request.end.age >= quorum.log.end.age, reply)

    quorum.gate.run(lambda: _handle(quorum, read_vote(body), respond, voted, _vote_error, act))


def _decide_vote(quorum: Quorum, request: Vote, up_to_date: bool, reply: Reply) -> None:
    binding = not request.pre_vote
    if request.epoch > quorum.epoch:
        voted_id = request.candidate_id if up_to_date and binding else NO_NODE
        quorum.become_unattached(request.epoch, voted_id=voted_id, then=lambda: reply(up_to_date))
        return
    granted = quorum.state.would_vote(request.candidate_id, up_to_date, request.pre_vote)
    if granted and binding and quorum.voted_id != request.candidate_id:
        quorum.become_unattached(request.epoch, voted_id=request.candidate_id, then=lambda: reply(True))
    else:
        reply(granted)


def handle_begin_quorum_epoch(quorum: Quorum, body: object, respond: Callable[[object], None]) -> None:
    def act(request: EpochRequest, reply: Reply) -> None:
        state = quorum.state
        if request.epoch == quorum.epoch and isinstance(state, Follower):
            state.announced()
            reply(False)
        else:
            quorum.become_follower(request.epoch, request.leader_id, then=lambda: reply(False))

    quorum.gate.run(lambda: _handle(quorum, read_begin_epoch(body), respond, begun, _epoch_error, act))


def handle_end_quorum_epoch(quorum: Quorum, body: object, respond: Callable[[object], None]) -> None:
    def act(request: EpochRequest, reply: Reply) -> None:
        def take_note() -> None:
            if isinstance(quorum.state, Follower):
                quorum.state.leader_resigned(request.successors)
            reply(False)

        if (request.epoch, request.leader_id) == (quorum.epoch, quorum.leader_id):
            take_note()
        else:  # This node did not know that leader. It follows it, and then considers it gone.
            quorum.become_follower(request.epoch, request.leader_id, then=take_note)

    quorum.gate.run(lambda: _handle(quorum, read_end_epoch(body), respond, ended, _epoch_error, act))


def _handle(
    quorum: Quorum,
    request: RequestT | None,
    respond: Callable[[object], None],
    response: Callable[[RaftResponse | Error], object],
    error_of: Callable[[Quorum, RequestT], Error | None],
    act: Callable[[RequestT, Reply], None],
) -> None:
    """Respond to a request between voters with its error, or call ``act``, which replies."""
    error = _whole_error(quorum, request.cluster_id if request else quorum.cluster_id, request is not None)
    if request is None or error is not None:
        respond(response(error or ErrorCode.invalid_request))
        return

    def reply(error: Error, granted: bool) -> None:
        respond(response(RaftResponse(error, quorum.leader_id, quorum.epoch, granted)))

    error = error_of(quorum, request)
    if error is not None:
        reply(error, False)
    else:
        act(request, lambda granted: reply(ErrorCode.none, granted))


def handle_fetch(quorum: Quorum, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
    """Serve a fetch of the metadata log. It is parked until there are records, or a high watermark that is newer than
    the fetcher's (KIP-1166)."""
    quorum.gate.run(lambda: _fetch(quorum, request, respond))


def _fetch(quorum: Quorum, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
    partition = messages.fetched_partition(request)
    is_consumer = request.replica_id < 0 and request.cluster_id is None  # It changes nothing, and knows no cluster ID.
    refused = _whole_error(quorum, quorum.cluster_id if is_consumer else request.cluster_id, partition is not None)
    if partition is None or refused is not None:
        respond(messages.fetch_refused(refused or ErrorCode.invalid_request))
        return
    state = quorum.state
    error = _fetch_error(request, partition) or quorum.leader_check(None, partition.current_leader_epoch)
    if error is None and isinstance(state, Leader):
        state.fetch(partition, request, respond)
        return
    respond(quorum.fetch_refused(error or ErrorCode.not_leader_or_follower))


def _whole_error(quorum: Quorum, cluster_id: str | None, is_metadata: bool) -> Error | None:
    """Return the error of the request as a whole, or None."""
    if quorum.stopped:
        return ErrorCode.broker_not_available
    if cluster_id != quorum.cluster_id:
        return ErrorCode.inconsistent_cluster_id
    return None if is_metadata else ErrorCode.invalid_request


def _voter_error(quorum: Quorum, remote_id: int, epoch: int, voter_id: int) -> Error | None:
    """Return the error of a request between voters, or None. ``voter_id`` is the voter that it is meant for, or -1 if
    the request does not say."""
    if epoch < quorum.epoch:
        return ErrorCode.fenced_leader_epoch
    if remote_id < 0 or remote_id == quorum.node_id or epoch > MAX_EPOCH:
        return ErrorCode.invalid_request
    if not quorum.is_voter or remote_id not in quorum.voters:
        return ErrorCode.inconsistent_voter_set
    return ErrorCode.invalid_voter_key if voter_id not in (NO_NODE, quorum.node_id) else None


def _vote_error(quorum: Quorum, request: Vote) -> Error | None:
    newest = request.epoch if request.pre_vote else request.epoch - 1
    if request.end.offset < 0 or not 0 <= request.end.epoch <= newest:
        return ErrorCode.invalid_request
    return _voter_error(quorum, request.candidate_id, request.epoch, request.voter_id)


def _epoch_error(quorum: Quorum, request: EpochRequest) -> Error | None:
    error = _voter_error(quorum, request.leader_id, request.epoch, request.voter_id)
    if error is None and request.epoch == quorum.epoch and quorum.leader_id not in (NO_NODE, request.leader_id):
        return ErrorCode.invalid_request  # One epoch cannot have two leaders.
    if error is None and request.epoch == quorum.epoch and quorum.has_led:
        return ErrorCode.invalid_request
    return error


def _fetch_error(request: FetchRequest, partition: FetchPartition) -> Error | None:
    fetched_epoch = partition.last_fetched_epoch
    is_sane = request.max_wait_ms >= 0 and partition.fetch_offset >= 0
    return None if is_sane and 0 <= fetched_epoch <= partition.current_leader_epoch else ErrorCode.invalid_request
