"""Checks and answers the requests of the quorum. The checks are in the order of Kafka's KafkaRaftClient.

If a request changes this node's role, the change is durable before the answer is sent.

Two checks are stricter than Kafka's. A node's request must name the cluster, so that a request that was meant for
another cluster, or made up, moves nothing here. An epoch above MAX_EPOCH is INVALID_REQUEST.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from reference_broker.quorum import messages
from reference_broker.quorum.follower import Follower
from reference_broker.quorum.leader import Leader
from reference_broker.quorum.messages import (
    Answer,
    EpochNews,
    Vote,
    begun,
    ended,
    read_begin_epoch,
    read_end_epoch,
    read_vote,
    voted,
)
from reference_broker.quorum.values import MAX_EPOCH, NO_NODE
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchResponse

if TYPE_CHECKING:
    from reference_broker.quorum.quorum import Quorum

AskedT = TypeVar("AskedT", Vote, EpochNews)
Reply: TypeAlias = Callable[[bool], None]
"""Gets whether a vote is granted. It is False for an answer that grants nothing."""


def vote(quorum: "Quorum", body: object, answer: Callable[[object], None]) -> None:
    def act(asked: Vote, reply: Reply) -> None:
        _judge(quorum, asked, asked.end.age >= quorum.log.end.age, reply)

    _handle(quorum, read_vote(body), answer, voted, _vote_error, act)


def _judge(quorum: "Quorum", asked: Vote, up_to_date: bool, reply: Reply) -> None:
    binding = not asked.pre_vote
    if asked.epoch > quorum.epoch:
        voted_id = asked.candidate_id if up_to_date and binding else NO_NODE
        quorum.become_unattached(asked.epoch, voted_id=voted_id, then=lambda: reply(up_to_date))
        return
    granted = quorum.state.would_vote(asked.candidate_id, up_to_date, asked.pre_vote)
    if granted and binding and quorum.voted_id != asked.candidate_id:
        quorum.become_unattached(asked.epoch, voted_id=asked.candidate_id, then=lambda: reply(True))
    else:
        reply(granted)


def begin_epoch(quorum: "Quorum", body: object, answer: Callable[[object], None]) -> None:
    def act(news: EpochNews, reply: Reply) -> None:
        state = quorum.state
        if news.epoch == quorum.epoch and isinstance(state, Follower):
            state.announced()
            reply(False)
        else:
            quorum.become_follower(news.epoch, news.leader_id, then=lambda: reply(False))

    _handle(quorum, read_begin_epoch(body), answer, begun, _news_error, act)


def end_epoch(quorum: "Quorum", body: object, answer: Callable[[object], None]) -> None:
    def act(news: EpochNews, reply: Reply) -> None:
        def hear() -> None:
            if isinstance(quorum.state, Follower):
                quorum.state.leader_resigned(news.successors)
            reply(False)

        if (news.epoch, news.leader_id) == (quorum.epoch, quorum.leader_id):
            hear()
        else:  # This node did not know that leader. It follows it, and then hears that it is gone.
            quorum.become_follower(news.epoch, news.leader_id, then=hear)

    _handle(quorum, read_end_epoch(body), answer, ended, _news_error, act)


def _handle(
    quorum: "Quorum",
    asked: AskedT | None,
    answer: Callable[[object], None],
    response: Callable[[Answer | Error], object],
    error_of: Callable[["Quorum", AskedT], Error | None],
    act: Callable[[AskedT, Reply], None],
) -> None:
    """Answers a request between voters with its error, or calls ``act``, which replies."""
    error = _whole_error(quorum, asked.cluster_id if asked else quorum.cluster_id, asked is not None)
    if asked is None or error is not None:
        answer(response(error or ErrorCode.invalid_request))
        return

    def reply(error: Error, granted: bool) -> None:
        answer(response(Answer(error, quorum.leader_id, quorum.epoch, granted)))

    error = error_of(quorum, asked)
    if error is not None:
        reply(error, False)
    else:
        act(asked, lambda granted: reply(ErrorCode.none, granted))


def fetch(quorum: "Quorum", request: FetchRequest, answer: Callable[[FetchResponse], None]) -> None:
    partition = messages.fetched_partition(request)
    is_consumer = request.replica_id < 0 and request.cluster_id is None  # It moves nothing, and knows no cluster ID.
    refused = _whole_error(quorum, quorum.cluster_id if is_consumer else request.cluster_id, partition is not None)
    if partition is None or refused is not None:
        answer(messages.fetch_refused(refused or ErrorCode.invalid_request))
        return
    state = quorum.state
    error = _fetch_error(request, partition) or quorum.leader_check(None, partition.current_leader_epoch)
    if error is None and isinstance(state, Leader):
        state.fetch(partition, request, answer)
        return
    answer(state.fetch_refused(error or ErrorCode.not_leader_or_follower))


def _whole_error(quorum: "Quorum", cluster_id: str | None, is_metadata: bool) -> Error | None:
    """The error of the request as a whole, or None."""
    if quorum.stopped:
        return ErrorCode.broker_not_available
    if cluster_id != quorum.cluster_id:
        return ErrorCode.inconsistent_cluster_id
    return None if is_metadata else ErrorCode.invalid_request


def _voter_error(quorum: "Quorum", remote_id: int, epoch: int, voter_id: int) -> Error | None:
    """The error of a request between voters, or None. ``voter_id`` is the voter that it is meant for, or -1 if the
    request does not say."""
    if epoch < quorum.epoch:
        return ErrorCode.fenced_leader_epoch
    if remote_id < 0 or remote_id == quorum.node_id or epoch > MAX_EPOCH:
        return ErrorCode.invalid_request
    if not quorum.is_voter or remote_id not in quorum.voters:
        return ErrorCode.inconsistent_voter_set
    return ErrorCode.invalid_voter_key if voter_id not in (NO_NODE, quorum.node_id) else None


def _vote_error(quorum: "Quorum", asked: Vote) -> Error | None:
    newest = asked.epoch if asked.pre_vote else asked.epoch - 1
    if asked.end.offset < 0 or not 0 <= asked.end.epoch <= newest:
        return ErrorCode.invalid_request
    return _voter_error(quorum, asked.candidate_id, asked.epoch, asked.voter_id)


def _news_error(quorum: "Quorum", news: EpochNews) -> Error | None:
    error = _voter_error(quorum, news.leader_id, news.epoch, news.voter_id)
    if error is None and news.epoch == quorum.epoch and quorum.leader_id not in (NO_NODE, news.leader_id):
        return ErrorCode.invalid_request  # One epoch cannot have two leaders.
    if error is None and news.epoch == quorum.epoch and quorum.has_led:
        return ErrorCode.invalid_request
    return error


def _fetch_error(request: FetchRequest, partition: FetchPartition) -> Error | None:
    fetched_epoch = partition.last_fetched_epoch
    is_sane = request.max_wait_ms >= 0 and partition.fetch_offset >= 0
    return None if is_sane and 0 <= fetched_epoch <= partition.current_leader_epoch else ErrorCode.invalid_request
