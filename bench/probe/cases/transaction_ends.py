"""How transactions end: EndTxn in both generations."""

from bench.probe.case import case
from bench.probe.context import ProbeContext, Topic
from bench.probe.data import PRODUCE, values
from bench.probe.transactional import (
    COMMITTED,
    FENCED,
    NEEDS,
    NEEDS_2,
    UNCOMMITTED,
    Transactional,
    latest,
    needs_version_2,
    read,
    settle,
)
from reference_broker.wire.errors import ErrorCode

SHORT_MS, SLOW_S = 1_000, 45.0
ABORTED_WITHIN_S = 30.0
"""Apache Kafka looks for transactions that timed out every ten seconds."""
ADDS_BY_ITSELF = 12
"""From this version on, Produce adds its partition to the transaction (KIP-890)."""


# EndTxn, with an epoch that stays


@case("transactions/end/again", KIP_98, NEEDS, since="0.11")
def end_again(at: ProbeContext) -> None:
    """A commit that comes again is acknowledged again, and so is an abort."""
    topic, producer = at.topic(), Transactional(at).take()
    for commits in (True, False):
        producer.begins(topic)
        producer.ends(commits=commits)
        settle(at, topic)
        at.expect("error code of the second", producer.end(commits=commits).error_code, ErrorCode.none)


@case("transactions/end/other-outcome", KIP_98, NEEDS, since="0.11")
def other_outcome(at: ProbeContext) -> None:
    """What is committed cannot be aborted, and what is aborted cannot be committed: INVALID_TXN_STATE."""
    topic, producer = at.topic(), Transactional(at).take()
    for commits in (True, False):
        producer.begins(topic)
        producer.ends(commits=commits)
        settle(at, topic)
        at.expect("error code", producer.end(commits=not commits).error_code, ErrorCode.invalid_txn_state)


@case("transactions/end/nothing", KIP_98, NEEDS, since="0.11")
def nothing(at: ProbeContext) -> None:
    """Where no transaction was begun there is none to commit: INVALID_TXN_STATE."""
    producer = Transactional(at).take()
    at.expect("error code", producer.end(commits=True).error_code, ErrorCode.invalid_txn_state)


@case("transactions/end/other-producer-id", KIP_98, NEEDS, since="0.11")
def end_other_producer_id(at: ProbeContext) -> None:
    """A producer ID that is not that of the transactional ID: INVALID_PRODUCER_ID_MAPPING. The transaction stays
    open."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.begins(topic)
    told = producer.end(commits=True, producer_id=producer.producer_id + 1_000_000)
    at.expect("error code", told.error_code, ErrorCode.invalid_producer_id_mapping)
    producer.aborts(topic)


@case("transactions/end/fenced", KIP_98, NEEDS, since="0.11")
def end_fenced(at: ProbeContext) -> None:
    """A producer with an older epoch cannot end the transaction of its successor: it is fenced."""
    topic, producer = at.topic(), Transactional(at).take()
    successor = producer.successor()
    successor.begins(topic)
    at.expect("error code", producer.end(commits=False).error_code, *FENCED)
    successor.commits(topic)


# EndTxn 5, which raises the epoch


@case("transactions/end/epoch-raised", KIP_890, NEEDS_2, since="4.0")
def epoch_raised(at: ProbeContext) -> None:
    """From version 5 on, the producer is told the next epoch, in which it goes on."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    for epoch in (1, 2):
        producer.writes(topic, b"%d" % epoch)
        told = producer.end(commits=True)
        at.expect("error code", told.error_code, ErrorCode.none)
        at.expect("the producer ID is the same", told.producer_id == producer.producer_id, True)
        at.expect("epoch", told.producer_epoch, epoch)
        producer.epoch = int(told.producer_epoch)
    settle(at, topic)
    at.expect("what is committed", values(read(at, topic, COMMITTED))[::2], [b"1", b"2"])


@case("transactions/end/epoch-raised-again", KIP_890, NEEDS_2, since="4.0")
def epoch_raised_again(at: ProbeContext) -> None:
    """An end that comes again with the epoch before is acknowledged, and tells the same next epoch."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    producer.writes(topic)
    for _ in range(2):
        told = producer.end(commits=True)
        at.expect("error code", told.error_code, ErrorCode.none)
        at.expect("epoch", told.producer_epoch, 1)


@case("transactions/end/epoch-raised-other-outcome", KIP_890, NEEDS_2, since="4.0")
def epoch_raised_other_outcome(at: ProbeContext) -> None:
    """An abort after the commit, with the epoch before it, is INVALID_TXN_STATE."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    producer.writes(topic)
    at.expect("error code of the commit", producer.end(commits=True).error_code, ErrorCode.none)
    at.expect("error code of the abort", producer.end(commits=False).error_code, ErrorCode.invalid_txn_state)


@case("transactions/end/abort-of-nothing", KIP_890, NEEDS_2, since="4.0")
def abort_of_nothing(at: ProbeContext) -> None:
    """From version 5 on, a producer that does not know whether a transaction has begun may abort, and its epoch is
    raised."""
    needs_version_2(at)
    producer = Transactional(at).take()
    told = producer.end(commits=False)
    at.expect("error code", told.error_code, ErrorCode.none)
    at.expect("epoch", told.producer_epoch, producer.epoch + 1)


@case("transactions/end/commit-of-nothing", KIP_890, NEEDS_2, since="4.0")
def commit_of_nothing(at: ProbeContext) -> None:
    """In version 5, too, a commit of nothing is INVALID_TXN_STATE."""
    needs_version_2(at)
    told = Transactional(at).take().end(commits=True)
    at.expect("error code", told.error_code, ErrorCode.invalid_txn_state)


# After a timeout, and right behind an end


def _timed_out(at: ProbeContext) -> tuple[Topic, Transactional]:
    """A transaction with one record that its coordinator has aborted after its timeout."""
    topic, producer = at.topic(), Transactional(at).take(transaction_timeout=SHORT_MS)
    if at.version(PRODUCE) < ADDS_BY_ITSELF:
        producer.adds(topic)
    producer.writes(topic, b"a")
    settle(at, topic, within_s=ABORTED_WITHIN_S)
    end, stable = latest(at, topic, UNCOMMITTED), latest(at, topic, COMMITTED)
    at.expect("the transaction is over: log end and last stable offset", (end, stable), (2, 2))
    return topic, producer


@case("transactions/timeout/aborted", KIP_98, NEEDS, since="0.11", limit_s=SLOW_S)
def timeout_aborted(at: ProbeContext) -> None:
    """A transaction that is open for longer than its timeout is aborted by its coordinator."""
    topic, producer = _timed_out(at)
    found = read(at, topic, COMMITTED)
    aborted = [(int(each.producer_id), int(each.first_offset)) for each in found.aborted_transactions or ()]
    at.expect("the aborted transaction is told", aborted == [(producer.producer_id, 0)], True)


@case("transactions/timeout/late-end", KIP_98, NEEDS, since="0.11", limit_s=SLOW_S)
def late_end(at: ProbeContext) -> None:
    """Its producer can no longer commit it: the abort has raised the epoch, so the producer is fenced."""
    topic, producer = _timed_out(at)
    at.expect("error code", producer.end(commits=True).error_code, *FENCED)
    at.expect("log end", latest(at, topic, UNCOMMITTED), 2)


@case("transactions/timeout/late-produce", KIP_98, NEEDS, since="0.11", limit_s=SLOW_S)
def late_produce(at: ProbeContext) -> None:
    """Its producer can write nothing more, so that no record lands behind the abort."""
    topic, producer = _timed_out(at)
    told = producer.send(topic, b"late")
    at.expect("error code", told.error_code, *FENCED, ErrorCode.invalid_txn_state)
    at.expect("log end", latest(at, topic, UNCOMMITTED), 2)


@case("transactions/timeout/late-produce-raised", KIP_890, NEEDS_2, since="4.0", limit_s=SLOW_S)
def late_produce_raised(at: ProbeContext) -> None:
    """So it is where each end raises the epoch."""
    needs_version_2(at)
    topic, producer = _timed_out(at)
    at.expect("error code", producer.send(topic, b"late").error_code, *FENCED)
    at.expect("log end", latest(at, topic, UNCOMMITTED), 2)


@case("transactions/timeout/late-end-raised", KIP_890, NEEDS_2, since="4.0", limit_s=SLOW_S)
def late_end_raised(at: ProbeContext) -> None:
    """There, too, the producer can no longer commit."""
    needs_version_2(at)
    topic, producer = _timed_out(at)
    code = producer.end(commits=True).error_code
    at.expect("error code", code, *FENCED, ErrorCode.invalid_txn_state)
    at.expect("log end", latest(at, topic, UNCOMMITTED), 2)


@case("transactions/end/next-behind", KIP_890, NEEDS_2, since="4.0")
def next_behind(at: ProbeContext) -> None:
    """The next transaction's first batch may be sent right behind EndTxn. It is written once, and to its own
    transaction, also while the markers of the one before are still on their way."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    for number in range(10):
        producer.writes(topic, b"%d" % number)
        producer.ends(commits=number % 2 == 0)
    settle(at, topic)
    found = read(at, topic, COMMITTED)
    at.expect("number of aborted transactions", len(found.aborted_transactions or ()), 5)
    data = [value for value in values(read(at, topic, UNCOMMITTED)) if value and len(value) == 1]
    at.expect("records, each once and in order", data, [b"%d" % number for number in range(10)])
    at.expect("log end", latest(at, topic, UNCOMMITTED), 20)


@case("transactions/end/added-behind", KIP_98, NEEDS, since="0.11")
def added_behind(at: ProbeContext) -> None:
    """A partition that is added right behind EndTxn belongs to the next transaction, or the request is refused with
    CONCURRENT_TRANSACTIONS while the one before is still ending."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.begins(topic, b"a")
    producer.ends(commits=True)
    producer.adds(topic)
    settle(at, topic)
    producer.writes(topic, b"b")
    producer.aborts(topic)
    found = read(at, topic, COMMITTED)
    at.expect("aborted from", [int(each.first_offset) for each in found.aborted_transactions or ()], [2])
