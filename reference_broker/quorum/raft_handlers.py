"""Handlers of Vote, BeginQuorumEpoch, EndQuorumEpoch and Fetch. The checks have the order of KafkaRaftClient.

If a request changes this node's role, the change is synced to disk before the response is sent.

Two checks are stricter than Kafka's. A node's request must name the cluster, so that a request that was meant for
another cluster, or made up, changes nothing here. An epoch above MAX_EPOCH is INVALID_REQUEST.
"""

from collections.abc import Callable

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


class RaftResponder:
    """The response to one request between voters.

    Every such response names the leader and the epoch that the node knows when it responds.
    """

    def __init__(
        self,
        quorum: Quorum,
        build: Callable[[RaftResponse | Error], object],
        respond: Callable[[object], None],
    ) -> None:
        self._quorum = quorum
        self._build = build
        """Builds the response of the request's API."""
        self._respond = respond

    def refuse_whole(self, error: Error) -> None:
        """Respond with an error of the whole request. Such a response names no partition."""
        self._respond(self._build(error))

    def refuse(self, error: Error) -> None:
        self._send(error, granted=False)

    def accept(self, *, granted: bool = False) -> None:
        """Respond without an error. ``granted`` is the result of a vote."""
        self._send(ErrorCode.none, granted)

    def _send(self, error: Error, granted: bool) -> None:
        self._respond(self._build(RaftResponse(error, self._quorum.leader_id, self._quorum.epoch, granted)))


# Vote


def handle_vote(quorum: Quorum, body: object, respond: Callable[[object], None]) -> None:
    quorum.gate.run(lambda: _vote(quorum, read_vote(body), RaftResponder(quorum, voted, respond)))


def _vote(quorum: Quorum, request: Vote | None, responder: RaftResponder) -> None:
    refused = _error_of_whole(quorum, request)
    if request is None or refused is not None:
        responder.refuse_whole(refused or ErrorCode.invalid_request)
        return
    error = _vote_error(quorum, request)
    if error is not None:
        responder.refuse(error)
    else:
        _decide_vote(quorum, request, request.end.age >= quorum.log.end.age, responder)


def _decide_vote(quorum: Quorum, request: Vote, up_to_date: bool, responder: RaftResponder) -> None:
    """Grant or refuse the vote. A vote that is granted is synced to disk before the response is sent."""
    candidate_id, binding = request.candidate_id, not request.pre_vote
    if request.epoch > quorum.epoch:  # Decision vote-epoch
        voted_id = candidate_id if up_to_date and binding else NO_NODE
        quorum.become_unattached(request.epoch, voted_id=voted_id, then=lambda: responder.accept(granted=up_to_date))
        return
    granted = quorum.state.would_vote(candidate_id, up_to_date, request.pre_vote)
    if granted and binding and quorum.voted_id != candidate_id:  # Decision vote-granted
        quorum.become_unattached(request.epoch, voted_id=candidate_id, then=lambda: responder.accept(granted=True))
    else:
        responder.accept(granted=granted)


# BeginQuorumEpoch and EndQuorumEpoch


def handle_begin_quorum_epoch(quorum: Quorum, body: object, respond: Callable[[object], None]) -> None:
    quorum.gate.run(lambda: _begin_epoch(quorum, read_begin_epoch(body), RaftResponder(quorum, begun, respond)))


def _begin_epoch(quorum: Quorum, request: EpochRequest | None, responder: RaftResponder) -> None:
    refused = _error_of_whole(quorum, request)
    if request is None or refused is not None:
        responder.refuse_whole(refused or ErrorCode.invalid_request)
        return
    error = _epoch_error(quorum, request)
    if error is not None:
        responder.refuse(error)
    elif request.epoch == quorum.epoch and isinstance(quorum.state, Follower):  # Decision begin-epoch-of-known-leader
        quorum.state.announced()
        responder.accept()
    else:
        quorum.become_follower(request.epoch, request.leader_id, then=responder.accept)


def handle_end_quorum_epoch(quorum: Quorum, body: object, respond: Callable[[object], None]) -> None:
    quorum.gate.run(lambda: _end_epoch(quorum, read_end_epoch(body), RaftResponder(quorum, ended, respond)))


def _end_epoch(quorum: Quorum, request: EpochRequest | None, responder: RaftResponder) -> None:
    refused = _error_of_whole(quorum, request)
    if request is None or refused is not None:
        responder.refuse_whole(refused or ErrorCode.invalid_request)
        return
    error = _epoch_error(quorum, request)
    if error is not None:
        responder.refuse(error)
        return
    successors = request.successors

    def leader_resigned() -> None:
        if isinstance(quorum.state, Follower):
            quorum.state.leader_resigned(successors)
        responder.accept()

    if (request.epoch, request.leader_id) == (quorum.epoch, quorum.leader_id):  # Decision resignation-of-known-leader
        leader_resigned()
    else:  # This node did not know the leader that resigns: it follows that leader, and then takes it for gone.
        quorum.become_follower(request.epoch, request.leader_id, then=leader_resigned)


# Fetch


def handle_fetch(quorum: Quorum, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
    """Serve a fetch of the metadata log. It is parked until there are records, or a high watermark that is newer than
    the fetcher's (KIP-1166)."""
    quorum.gate.run(lambda: _fetch(quorum, request, respond))


def _fetch(quorum: Quorum, request: FetchRequest, respond: Callable[[FetchResponse], None]) -> None:
    partition = messages.fetched_partition(request)
    # A consumer changes nothing and has no cluster ID.
    is_consumer = request.replica_id < 0 and request.cluster_id is None
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


# Errors


def _error_of_whole(quorum: Quorum, request: Vote | EpochRequest | None) -> Error | None:
    """Return the error of a request between voters as a whole, or None. The request is None if it does not name the
    metadata partition."""
    if request is None:
        return _whole_error(quorum, quorum.cluster_id, is_metadata=False)
    return _whole_error(quorum, request.cluster_id, is_metadata=True)


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
    if epoch < quorum.epoch:  # Decision raft-request-epoch
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
