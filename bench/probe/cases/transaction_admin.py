"""Administration of transactions: DescribeTransactions, ListTransactions, DescribeProducers."""

from collections.abc import Sequence
from typing import Any

from bench.probe.case import ANY, SHOULD, Versions, case, since_version
from bench.probe.context import ByKey, ProbeContext, Topic, single
from bench.probe.transactional import (
    COMMITTED,
    NEEDS,
    OWNED,
    TIMEOUT_MS,
    UNCOMMITTED,
    Transactional,
    allowed,
    latest,
    read,
    until,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

KIP_98, KIP_664 = "KIP-98", "KIP-664"
DESCRIBE, LIST = int(ApiKey.DESCRIBE_TRANSACTIONS), int(ApiKey.LIST_TRANSACTIONS)
PRODUCERS, MARK = int(ApiKey.DESCRIBE_PRODUCERS), int(ApiKey.WRITE_TXN_MARKERS)
DESCRIBED: dict[int, Versions] = {**NEEDS, DESCRIBE: ANY}
LISTED: dict[int, Versions] = {**NEEDS, LIST: ANY}
DESCRIBES_PRODUCERS: dict[int, Versions] = {**NEEDS, PRODUCERS: ANY}
LONG_MS = 3_600_000


def _described(producer: Transactional, *, seen: bool = True) -> Any:
    request = {"transactional_ids": [producer.name]}
    if not seen:
        return single(producer.at.call_unseen(DESCRIBE, request, producer.on), "transaction_states")
    result = single(producer.at.call(DESCRIBE, request, on=producer.on), "transaction_states")
    producer.at.expect("error code of DescribeTransactions", result.error_code, ErrorCode.none)
    return result


def _begun(at: ProbeContext) -> tuple[Topic, Transactional]:
    topic, producer = at.topic(2), Transactional(at).take()
    producer.adds(topic, 0, 1)
    producer.writes(topic, b"a", b"b")
    return topic, producer


# DescribeTransactions


@case("transactions/describe/ongoing", KIP_664, DESCRIBED, since="3.0")
def ongoing(at: ProbeContext) -> None:
    """An open transaction is described with its state, producer, timeout and partitions."""
    topic, producer = _begun(at)
    result = _described(producer)
    at.expect("state", result.transaction_state, "Ongoing")
    at.expect("the producer ID is returned", result.producer_id == producer.producer_id, True)
    at.expect("epoch", result.producer_epoch, producer.epoch)
    at.expect("timeout in ms", round(result.transaction_timeout.total_seconds() * 1000), TIMEOUT_MS)
    at.expect("partitions", sorted(single(result, "topics").partitions), [0, 1])
    at.expect("the topic is returned", single(result, "topics").topic == topic.name, True)


@case("transactions/describe/empty", KIP_664, {**OWNED, DESCRIBE: ANY}, since="3.0")
def empty(at: ProbeContext) -> None:
    """A transactional ID without a transaction yet is Empty and has no partitions."""
    result = _described(Transactional(at).take())
    at.expect("state", result.transaction_state, "Empty")
    at.expect("number of topics", len(result.topics), 0)


@case("transactions/describe/complete", KIP_664, DESCRIBED, since="3.0")
def complete(at: ProbeContext) -> None:
    """A transaction that is over is CompleteCommit or CompleteAbort and has no partitions."""
    topic, producer = _begun(at)
    for commits, state in ((True, "CompleteCommit"), (False, "CompleteAbort")):
        producer.adds(topic)
        producer.ends(commits=commits)
        until(at, lambda state=state: _described(producer, seen=False).transaction_state == state)  # type: ignore[misc]
        result = _described(producer)
        at.expect("state", result.transaction_state, state)
        at.expect("number of topics", len(result.topics), 0)


@case("transactions/describe/unknown", KIP_664, {**OWNED, DESCRIBE: ANY}, since="3.0")
def unknown(at: ProbeContext) -> None:
    """A transactional ID that no producer has taken: TRANSACTIONAL_ID_NOT_FOUND."""
    stranger = Transactional(at)
    stranger.await_coordinator()
    result = single(at.call(DESCRIBE, {"transactional_ids": [stranger.name]}, on=stranger.on), "transaction_states")
    at.expect_error(result, ErrorCode.transactional_id_not_found)


@case("transactions/describe/several", KIP_664, {**OWNED, DESCRIBE: ANY}, since="3.0")
def described_several(at: ProbeContext) -> None:
    """Several transactional IDs are described in one response, each with an error code of its own."""
    known = Transactional(at).take()
    stranger = Transactional(at, on_node_of=known)
    response = at.call(DESCRIBE, {"transactional_ids": [stranger.name, known.name]}, on=known.on)
    codes = ByKey({str(state.transactional_id): int(state.error_code) for state in response.transaction_states})
    at.expect("error code of the known one", codes[known.name], ErrorCode.none)
    at.expect("error code of the other one", codes[stranger.name], ErrorCode.transactional_id_not_found)


# ListTransactions


def _listed(producer: Transactional, **filters: object) -> Any:
    """Repeat ListTransactions until all transactions are loaded."""
    response = producer.call(LIST, filters)
    producer.at.expect("error code of ListTransactions", response.error_code, ErrorCode.none)
    return response


def _has(response: Any, producer: Transactional) -> bool:
    return any(state.transactional_id == producer.name for state in response.transaction_states)


def _expect_listed(at: ProbeContext, producers: Sequence[Transactional], wanted: Sequence[bool], **by: object) -> None:
    results = _listed(producers[0], **by)
    at.expect("they are listed", [_has(results, producer) for producer in producers], list(wanted))


@case("transactions/list/all", KIP_664, LISTED, since="3.0")
def all_of_them(at: ProbeContext) -> None:
    """Without a filter each transactional ID is listed with its producer ID and state."""
    _, producer = _begun(at)
    found = [state for state in _listed(producer).transaction_states if state.transactional_id == producer.name]
    at.expect("number of entries", len(found), 1)
    at.expect("state", found[0].transaction_state, "Ongoing")
    at.expect("the producer ID is returned", found[0].producer_id == producer.producer_id, True)


@case("transactions/list/by-state", KIP_664, LISTED, since="3.0")
def by_state(at: ProbeContext) -> None:
    """A filter by states lists transactions in these states only."""
    _, producer = _begun(at)
    idle = Transactional(at, on_node_of=producer).take()
    _expect_listed(at, (producer, idle), (True, False), state_filters=["Ongoing"])
    _expect_listed(at, (producer, idle), (False, True), state_filters=["Empty", "CompleteCommit"])


@case("transactions/list/unknown-state", KIP_664, LISTED, since="3.0")
def unknown_state(at: ProbeContext) -> None:
    """A state that does not exist is returned as unknown, and lists nothing."""
    results = _listed(Transactional(at).take(), state_filters=["Sleeping"])
    at.expect("unknown states", list(results.unknown_state_filters), ["Sleeping"])
    at.expect("number of transactions", len(results.transaction_states), 0)


@case("transactions/list/by-producer", KIP_664, LISTED, since="3.0")
def by_producer(at: ProbeContext) -> None:
    """A filter by producer IDs lists their transactions only."""
    one = Transactional(at).take()
    two = Transactional(at, on_node_of=one).take()
    _expect_listed(at, (one, two), (True, False), producer_id_filters=[one.producer_id])


@case("transactions/list/by-duration", "KIP-994", {**LISTED, LIST: since_version(1)}, since="3.7")
def by_duration(at: ProbeContext) -> None:
    """A filter by duration lists transactions that have run for longer only."""
    _, producer = _begun(at)
    until(at, lambda: _has(at.call_unseen(LIST, {"duration_filter": 1}, producer.on), producer))
    _expect_listed(at, (producer,), (True,), duration_filter=1)
    _expect_listed(at, (producer,), (False,), duration_filter=LONG_MS)


@case("transactions/list/by-pattern", "KIP-1152", {**LISTED, LIST: since_version(2)}, since="4.1")
def by_pattern(at: ProbeContext) -> None:
    """A filter by a regular expression lists transactional IDs that match as a whole only."""
    one = Transactional(at).take()
    two = Transactional(at, on_node_of=one).take()
    _expect_listed(at, (one, two), (True, False), transactional_id_pattern=f"{one.name[:-1]}[{one.name[-1]}]")
    _expect_listed(at, (one, two), (False, False), transactional_id_pattern=one.name[:-1])


@case("transactions/list/bad-pattern", "KIP-1152", {**LISTED, LIST: since_version(2)}, since="4.1")
def bad_pattern(at: ProbeContext) -> None:
    """What is no regular expression is refused with INVALID_REGULAR_EXPRESSION."""
    producer = Transactional(at).take()
    request = {"transactional_id_pattern": "(unclosed"}
    response = producer.call(LIST, request)
    at.expect_error(response, ErrorCode.invalid_regular_expression)


# DescribeProducers


def _producer(at: ProbeContext, topic: Topic, partition: int = 0) -> Any:
    request = {"topics": [{"name": topic.name, "partition_indexes": [partition]}]}
    return single(at.call(PRODUCERS, request), "topics", "partitions")


@case("transactions/producers/open", KIP_664, DESCRIBES_PRODUCERS, since="2.8")
def producer_open(at: ProbeContext) -> None:
    """A producer with an open transaction is described with its epoch, last sequence and the transaction's first
    offset."""
    topic, producer = _begun(at)
    result = _producer(at, topic)
    at.expect_no_error(result)
    found = single(result, "active_producers")
    at.expect("the producer ID is returned", found.producer_id == producer.producer_id, True)
    at.expect("epoch", found.producer_epoch, producer.epoch)
    at.expect("last sequence", found.last_sequence, 1)
    at.expect("first offset of the transaction", found.current_txn_start_offset, 0)


@case("transactions/producers/over", KIP_664, DESCRIBES_PRODUCERS, since="2.8")
def producer_over(at: ProbeContext) -> None:
    """After the transaction the response has no first offset, and the epoch of the coordinator that ended it."""
    topic, producer = _begun(at)
    producer.commits(topic)
    found = single(_producer(at, topic), "active_producers")
    at.expect("first offset of the transaction", found.current_txn_start_offset, -1)
    at.expect("the coordinator's epoch is returned", found.coordinator_epoch >= 0, True)


@case("transactions/producers/unknown-partition", KIP_664, DESCRIBES_PRODUCERS, since="2.8")
def producer_unknown(at: ProbeContext) -> None:
    """A partition that does not exist: UNKNOWN_TOPIC_OR_PARTITION."""
    result = _producer(at, at.topic(), 7)
    at.expect_error(result, ErrorCode.unknown_topic_or_partition)


# WriteTxnMarkers, which needs rights that a client may lack


@case("transactions/markers/older-coordinator", KIP_98, {**DESCRIBES_PRODUCERS, MARK: ANY}, since="0.11", level=SHOULD)
def older_coordinator(at: ProbeContext) -> None:
    """A marker of an older coordinator than the last one's is refused with TRANSACTION_COORDINATOR_FENCED, and not
    written."""
    topic, producer = _begun(at)
    producer.commits(topic)
    producer.begins(topic, b"open")
    response = at.call(MARK, {"markers": [_mark(topic, producer, 0, -1)]})
    code = int(single(response, "markers", "topics", "partitions").error_code)
    allowed(code)
    at.expect("error code", code, ErrorCode.transaction_coordinator_fenced)
    found = single(_producer(at, topic), "active_producers")
    at.expect("the transaction is open", found.current_txn_start_offset >= 0, True)


@case("transactions/markers/unknown-partition", KIP_98, {**NEEDS, MARK: ANY}, since="0.11", level=SHOULD)
def marker_unknown(at: ProbeContext) -> None:
    """A marker for a partition that does not exist: UNKNOWN_TOPIC_OR_PARTITION."""
    response = at.call(MARK, {"markers": [_mark(at.topic(), Transactional(at).take(), 7, 0)]})
    code = int(single(response, "markers", "topics", "partitions").error_code)
    allowed(code)
    at.expect("error code", code, ErrorCode.unknown_topic_or_partition)


@case("transactions/markers/repeated", KIP_98, {**DESCRIBES_PRODUCERS, MARK: ANY}, since="0.11", level=SHOULD)
def marker_repeated(at: ProbeContext) -> None:
    """A marker of the same coordinator that comes again, as after a lost response, is taken, and changes nothing for
    readers."""
    topic, producer = _begun(at)
    producer.aborts(topic)
    marker = _mark(topic, producer, 0, int(single(_producer(at, topic), "active_producers").coordinator_epoch))
    code = int(single(at.call(MARK, {"markers": [marker]}), "markers", "topics", "partitions").error_code)
    allowed(code)
    at.expect("error code", code, ErrorCode.none)
    found = single(_producer(at, topic), "active_producers")
    at.expect("first offset of the transaction", found.current_txn_start_offset, -1)
    seen = read(at, topic, COMMITTED).aborted_transactions or ()
    at.expect("aborted from", [int(transaction.first_offset) for transaction in seen], [0])
    at.expect("last stable offset", latest(at, topic, COMMITTED) == latest(at, topic, UNCOMMITTED), True)


def _mark(topic: Topic, producer: Transactional, partition: int, coordinator_epoch: int) -> dict[str, object]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "transaction_result": False,
        "coordinator_epoch": coordinator_epoch,
        "topics": [{"name": topic.name, "partition_indexes": [partition]}],
    }
