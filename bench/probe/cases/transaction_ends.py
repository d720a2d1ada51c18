"""How transactions end: EndTxn in both generations."""

from bench.probe.case import case
from bench.probe.data import values
from bench.probe.surroundings import Surroundings
from bench.probe.transactional import (
    COMMITTED,
    FENCED,
    NEEDS,
    NEEDS_2,
    Transactional,
    needs_version_2,
    read,
    settle,
)
from reference_broker.wire.errors import ErrorCode

KIP_98, KIP_890 = "KIP-98", "KIP-890"


# EndTxn, with an epoch that stays


@case("transactions/end/again", KIP_98, NEEDS, since="0.11")
def end_again(at: Surroundings) -> None:
    """A commit that comes again is acknowledged again, and so is an abort."""
    topic, producer = at.topic(), Transactional(at).take()
    for commits in (True, False):
        producer.begins(topic)
        producer.ends(commits=commits)
        settle(at, topic)
        at.expect("error code of the second", producer.end(commits=commits).error_code, ErrorCode.none)


@case("transactions/end/other-outcome", KIP_98, NEEDS, since="0.11")
def other_outcome(at: Surroundings) -> None:
    """What is committed cannot be aborted, and what is aborted cannot be committed: INVALID_TXN_STATE."""
    topic, producer = at.topic(), Transactional(at).take()
    for commits in (True, False):
        producer.begins(topic)
        producer.ends(commits=commits)
        settle(at, topic)
        at.expect("error code", producer.end(commits=not commits).error_code, ErrorCode.invalid_txn_state)


@case("transactions/end/nothing", KIP_98, NEEDS, since="0.11")
def nothing(at: Surroundings) -> None:
    """Where no transaction was begun there is none to commit: INVALID_TXN_STATE."""
    producer = Transactional(at).take()
    at.expect("error code", producer.end(commits=True).error_code, ErrorCode.invalid_txn_state)


@case("transactions/end/other-producer-id", KIP_98, NEEDS, since="0.11")
def end_other_producer_id(at: Surroundings) -> None:
    """A producer ID that is not that of the transactional ID: INVALID_PRODUCER_ID_MAPPING. The transaction stays
    open."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.begins(topic)
    told = producer.end(commits=True, producer_id=producer.producer_id + 1_000_000)
    at.expect("error code", told.error_code, ErrorCode.invalid_producer_id_mapping)
    producer.aborts(topic)


@case("transactions/end/fenced", KIP_98, NEEDS, since="0.11")
def end_fenced(at: Surroundings) -> None:
    """A producer with an older epoch cannot end the transaction of its successor: it is fenced."""
    topic, producer = at.topic(), Transactional(at).take()
    successor = producer.successor()
    successor.begins(topic)
    at.expect("error code", producer.end(commits=False).error_code, *FENCED)
    successor.commits(topic)


# EndTxn 5, which raises the epoch


@case("transactions/end/epoch-raised", KIP_890, NEEDS_2, since="4.0")
def epoch_raised(at: Surroundings) -> None:
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
def epoch_raised_again(at: Surroundings) -> None:
    """An end that comes again with the epoch before is acknowledged, and tells the same next epoch."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    producer.writes(topic)
    for _ in range(2):
        told = producer.end(commits=True)
        at.expect("error code", told.error_code, ErrorCode.none)
        at.expect("epoch", told.producer_epoch, 1)


@case("transactions/end/epoch-raised-other-outcome", KIP_890, NEEDS_2, since="4.0")
def epoch_raised_other_outcome(at: Surroundings) -> None:
    """An abort after the commit, with the epoch before it, is INVALID_TXN_STATE."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    producer.writes(topic)
    at.expect("error code of the commit", producer.end(commits=True).error_code, ErrorCode.none)
    at.expect("error code of the abort", producer.end(commits=False).error_code, ErrorCode.invalid_txn_state)


@case("transactions/end/abort-of-nothing", KIP_890, NEEDS_2, since="4.0")
def abort_of_nothing(at: Surroundings) -> None:
    """From version 5 on, a producer that does not know whether a transaction has begun may abort, and its epoch is
    raised."""
    needs_version_2(at)
    producer = Transactional(at).take()
    told = producer.end(commits=False)
    at.expect("error code", told.error_code, ErrorCode.none)
    at.expect("epoch", told.producer_epoch, producer.epoch + 1)


@case("transactions/end/commit-of-nothing", KIP_890, NEEDS_2, since="4.0")
def commit_of_nothing(at: Surroundings) -> None:
    """In version 5, too, a commit of nothing is INVALID_TXN_STATE."""
    needs_version_2(at)
    told = Transactional(at).take().end(commits=True)
    at.expect("error code", told.error_code, ErrorCode.invalid_txn_state)
