"""Handlers of Vote, BeginQuorumEpoch, EndQuorumEpoch and Fetch. The checks have the order of KafkaRaftClient.

If a request changes this node's role, the change is synced to disk before the response is sent.

Two checks are stricter than Kafka's. A node's request must name the cluster, so that a request that was meant for
another cluster, or made up, changes nothing here. An epoch above MAX_EPOCH is INVALID_REQUEST.
"""

from collections.abc import Callable

from reference_broker.quorum import messages
from reference_broker.quorum.follower import FollowerState
from reference_broker.quorum.leader import LeaderState
from reference_broker.quorum.messages import (
    QuorumEpochRequest,
    RaftResponse,
    VoteRequest,
    build_begin_quorum_epoch_response,
    build_end_quorum_epoch_response,
    build_vote_response,
    read_begin_quorum_epoch_request,
    read_end_quorum_epoch_request,
    read_vote_request,
)
from reference_broker.quorum.raft_client import KafkaRaftClient
from reference_broker.quorum.values import MAX_EPOCH, NO_NODE
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchResponse


class RaftResponder:
    """Sends the response to one request between voters. The response names the leader and the epoch that this node
    knows when it sends it, which may be later than the request."""

    def __init__(
        self,
        quorum: KafkaRaftClient,
        build: Callable[[RaftResponse | Error], object],
        respond: Callable[[object], None],
    ) -> None:
        self._quorum = quorum
        self._build = build
        """Builds the response of the request's API."""
        self._respond = respond

    def top_level_error(self, error: Error) -> None:
        """Respond with a top-level error, in a response without the partition."""
        self._respond(self._build(error))

    def partition_error(self, error: Error) -> None:
        self._send(error, granted=False)

    def accept(self, *, granted: bool = False) -> None:
        """Respond without an error. ``granted`` is the result of a vote."""
        self._send(ErrorCode.none, granted)

    def _send(self, error: Error, granted: bool) -> None:
        self._respond(self._build(RaftResponse(error, self._quorum.leader_id, self._quorum.epoch, granted)))


# Vote


def handle_vote(quorum: KafkaRaftClient, body: object, respond: Callable[[object], None]) -> None:
    responder = RaftResponder(quorum, build_vote_response, respond)
    quorum.event_queue.append(lambda: _handle_vote(quorum, read_vote_request(body), responder))


def _handle_vote(quorum: KafkaRaftClient, request: VoteRequest | None, responder: RaftResponder) -> None:
    top_level_error = _top_level_error_of(quorum, request)
    if request is None or top_level_error is not None:
        responder.top_level_error(top_level_error or ErrorCode.invalid_request)
        return
    error = _validate_vote_request(quorum, request)
    if error is not None:
        responder.partition_error(error)
    else:
        _decide_vote(quorum, request, request.end.age >= quorum.log.end.age, responder)


def _decide_vote(
    quorum: KafkaRaftClient, request: VoteRequest, is_log_up_to_date: bool, responder: RaftResponder
) -> None:
    """Grant or refuse the vote. A vote that is granted is synced to disk before the response is sent."""
    candidate_id, binding = request.candidate_id, not request.pre_vote
    if request.epoch > quorum.epoch:  # Decision vote-epoch
        voted_id = candidate_id if is_log_up_to_date and binding else NO_NODE
        quorum.transition_to_unattached(
            request.epoch, voted_id=voted_id, then=lambda: responder.accept(granted=is_log_up_to_date)
        )
        return
    granted = quorum.state.can_grant_vote(candidate_id, is_log_up_to_date, request.pre_vote)
    if granted and binding and quorum.voted_id != candidate_id:  # Decision vote-granted
        quorum.transition_to_unattached(
            request.epoch, voted_id=candidate_id, then=lambda: responder.accept(granted=True)
        )
    else:
        responder.accept(granted=granted)


# BeginQuorumEpoch and EndQuorumEpoch


def handle_begin_quorum_epoch(quorum: KafkaRaftClient, body: object, respond: Callable[[object], None]) -> None:
    responder = RaftResponder(quorum, build_begin_quorum_epoch_response, respond)
    quorum.event_queue.append(
        lambda: _handle_begin_quorum_epoch(quorum, read_begin_quorum_epoch_request(body), responder)
    )


def _handle_begin_quorum_epoch(
    quorum: KafkaRaftClient, request: QuorumEpochRequest | None, responder: RaftResponder
) -> None:
    top_level_error = _top_level_error_of(quorum, request)
    if request is None or top_level_error is not None:
        responder.top_level_error(top_level_error or ErrorCode.invalid_request)
        return
    error = _validate_quorum_epoch_request(quorum, request)
    if error is not None:
        responder.partition_error(error)
    # Decision begin-epoch-of-known-leader
    elif request.epoch == quorum.epoch and isinstance(quorum.state, FollowerState):
        quorum.state.leader_announced()
        responder.accept()
    else:
        quorum.transition_to_follower(request.epoch, request.leader_id, then=responder.accept)


def handle_end_quorum_epoch(quorum: KafkaRaftClient, body: object, respond: Callable[[object], None]) -> None:
    responder = RaftResponder(quorum, build_end_quorum_epoch_response, respond)
    quorum.event_queue.append(lambda: _handle_end_quorum_epoch(quorum, read_end_quorum_epoch_request(body), responder))


def _handle_end_quorum_epoch(
    quorum: KafkaRaftClient, request: QuorumEpochRequest | None, responder: RaftResponder
) -> None:
    top_level_error = _top_level_error_of(quorum, request)
    if request is None or top_level_error is not None:
        responder.top_level_error(top_level_error or ErrorCode.invalid_request)
        return
    error = _validate_quorum_epoch_request(quorum, request)
    if error is not None:
        responder.partition_error(error)
        return
    preferred_successors = request.preferred_successors

    def leader_resigned() -> None:
        if isinstance(quorum.state, FollowerState):
            quorum.state.leader_resigned(preferred_successors)
        responder.accept()

    if (request.epoch, request.leader_id) == (quorum.epoch, quorum.leader_id):  # Decision resignation-of-known-leader
        leader_resigned()
    else:  # This node did not know the leader that resigns: it follows that leader, and then takes it for gone.
        quorum.transition_to_follower(request.epoch, request.leader_id, then=leader_resigned)


# Fetch


def handle_fetch(quorum: KafkaRaftClient, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
    """Respond to a fetch of the metadata log, or park it until there are records or a high watermark above the
    fetcher's (KIP-1166)."""
    quorum.event_queue.append(lambda: _handle_fetch(quorum, request, respond))


def _handle_fetch(quorum: KafkaRaftClient, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
    partition = messages.metadata_partition_of(request)
    # A consumer changes nothing and has no cluster ID.
    is_consumer = request.replica_id < 0 and request.cluster_id is None
    cluster_id = quorum.cluster_id if is_consumer else request.cluster_id
    top_level_error = _top_level_error(quorum, cluster_id, partition is not None)
    if partition is None or top_level_error is not None:
        respond(messages.build_fetch_error_response(top_level_error or ErrorCode.invalid_request))
        return
    state = quorum.state
    error = _validate_fetch_request(request, partition) or quorum.validate_leader_only_request(
        None, partition.current_leader_epoch
    )
    if error is None and isinstance(state, LeaderState):
        state.fetch(partition, request, respond)
        return
    respond(quorum.fetch_error_response(error or ErrorCode.not_leader_or_follower))


# Errors


def _top_level_error_of(quorum: KafkaRaftClient, request: VoteRequest | QuorumEpochRequest | None) -> Error | None:
    """Return the top-level error of a request between voters, or None. The request is None if it does not name exactly
    the metadata partition."""
    if request is None:
        return _top_level_error(quorum, quorum.cluster_id, is_metadata=False)
    return _top_level_error(quorum, request.cluster_id, is_metadata=True)


def _top_level_error(quorum: KafkaRaftClient, cluster_id: str | None, is_metadata: bool) -> Error | None:
    """Return Kafka's top-level error of a raft request, or None."""
    if quorum.stopped:
        return ErrorCode.broker_not_available
    if cluster_id != quorum.cluster_id:
        return ErrorCode.inconsistent_cluster_id
    return None if is_metadata else ErrorCode.invalid_request


def _validate_voter_only_request(quorum: KafkaRaftClient, remote_id: int, epoch: int, voter_id: int) -> Error | None:
    """Return the error of a request that only a voter sends to another voter, or None. ``voter_id`` is the voter that
    the request is for, or -1 if it names none."""
    if epoch < quorum.epoch:  # Decision raft-request-epoch
        return ErrorCode.fenced_leader_epoch
    if remote_id < 0 or remote_id == quorum.node_id or epoch > MAX_EPOCH:
        return ErrorCode.invalid_request
    if not quorum.is_voter or remote_id not in quorum.voters:
        return ErrorCode.inconsistent_voter_set
    return ErrorCode.invalid_voter_key if voter_id not in (NO_NODE, quorum.node_id) else None


def _validate_vote_request(quorum: KafkaRaftClient, request: VoteRequest) -> Error | None:
    newest = request.epoch if request.pre_vote else request.epoch - 1
    if request.end.offset < 0 or not 0 <= request.end.epoch <= newest:
        return ErrorCode.invalid_request
    return _validate_voter_only_request(quorum, request.candidate_id, request.epoch, request.voter_id)


def _validate_quorum_epoch_request(quorum: KafkaRaftClient, request: QuorumEpochRequest) -> Error | None:
    error = _validate_voter_only_request(quorum, request.leader_id, request.epoch, request.voter_id)
    if error is None and request.epoch == quorum.epoch and quorum.leader_id not in (NO_NODE, request.leader_id):
        return ErrorCode.invalid_request  # One epoch cannot have two leaders.
    if error is None and request.epoch == quorum.epoch and quorum.has_led:
        return ErrorCode.invalid_request
    return error


def _validate_fetch_request(request: FetchRequest, partition: FetchPartition) -> Error | None:
    fetched_epoch = partition.last_fetched_epoch
    is_sane = request.max_wait_ms >= 0 and partition.fetch_offset >= 0
    return None if is_sane and 0 <= fetched_epoch <= partition.current_leader_epoch else ErrorCode.invalid_request
