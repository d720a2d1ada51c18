"""Transactions (KIP-98, KIP-890): lost responses, refusals, fenced producers, and what readers see.

What the producer reports is compared with the log: a transaction that is committed is there once, and of one that is
not nothing is read. An application whose transaction fails aborts it, and begins the next one.
"""

from typing import Any, Final

from crucible_kafka.clients.application import Consumer, Producer
from crucible_kafka.clients.case import MUST, SHOULD, case
from crucible_kafka.clients.play import Play, one_of
from crucible_kafka.clients.protocol import PartitionOffset

TRANSACTIONS: Final = ("transactions",)
OFFSETS: Final = ("transactions", "send-offsets", "groups")
KIP_98: Final = "KIP-98; TransactionManager.java"
KIP_890: Final = "KIP-890"
KIP_447: Final = "KIP-447; TransactionManager.java, TxnOffsetCommitHandler"
WRITER: Final = "writer"
FEATURE: Final = "transaction.version"
EXPLICIT, IMPLICIT = 0, 2
"""Levels of the feature: with 2 a Produce adds its partitions by itself, and each transaction has its own epoch."""
IMPLICIT_END_TXN: Final = 5
"""The version of EndTxn from which a client speaks level 2."""
FENCED: Final = ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_FENCED", "ProducerFenced")
"""Names that clients have for it."""
WITH_GENERATION: Final = (3, 5)
"""Versions of TxnOffsetCommit that have the member's generation."""
MAX_RETRIES: Final = 3


def _writer(at: Play, **settings: Any) -> Producer:
    return at.producer(transactional_id=WRITER, **settings)


def _transaction(producer: Producer, topic: str, *values: str) -> bool:
    """Send values in a transaction of their own, and return whether the client says that it is committed."""
    return producer.begin() and bool(producer.send(topic, *values)) and producer.commit_transaction()


def _committed(at: Play, topic: str) -> list[str]:
    return [
        record.value.decode() for record in at.kafka.records(topic) if record.committed and record.value is not None
    ]


def _all_goes_well(at: Play, producer: Producer, topic: str) -> None:
    """Judge that two transactions are committed once and in order, whatever was planted, without an error."""
    at.data("the commit succeeds", _transaction(producer, topic, "a", "b"), True)
    at.data("the next commit succeeds", _transaction(producer, topic, "c"), True)
    at.data("committed values in the log", _committed(at, topic), ["a", "b", "c"])
    at.error("errors of the application", producer.errors, [])


def _next_works(at: Play, producer: Producer, topic: str, attempts: int = 1) -> None:
    """Abort a transaction that failed, and judge that the next one works, or one of several attempts, and that nothing
    else was committed."""
    is_committed = False
    while not is_committed and attempts:
        at.data("the abort succeeds", producer.abort_transaction(), True)
        is_committed = _transaction(producer, topic, "next")
        at.data("committed values in the log", _committed(at, topic), ["next"] if is_committed else [])
        attempts -= 1
    at.progress("a later transaction is committed", is_committed, producer.bound_s(), "request_timeout_ms")


# Responses that are lost


@case("transactions/end/response-lost", MUST, f"{KIP_98}, EndTxnHandler", needs=TRANSACTIONS)
def end_response_lost(at: Play) -> None:
    """The response to EndTxn is lost: the client repeats it, and the transaction is committed once."""
    topic = at.topic()
    producer = _writer(at)
    at.kafka.on("EndTxn").drop_response(times=1)
    _all_goes_well(at, producer, topic)


@case("transactions/add/response-lost", MUST, f"{KIP_98}, AddPartitionsToTxnHandler", needs=TRANSACTIONS)
def add_response_lost(at: Play) -> None:
    """The response to AddPartitionsToTxn is lost: the client repeats it, and the transaction is committed."""
    at.kafka.set_feature(FEATURE, EXPLICIT)
    topic = at.topic()
    producer = _writer(at)
    at.kafka.on("AddPartitionsToTxn").drop_response(times=1)
    _all_goes_well(at, producer, topic)


@case("transactions/init/response-lost", MUST, f"{KIP_98}, InitProducerIdHandler", needs=TRANSACTIONS)
def init_response_lost(at: Play) -> None:
    """The response to InitProducerId is lost: the client repeats it, and works with the epoch of the second one."""
    topic = at.topic()
    at.kafka.on("InitProducerId").drop_response(times=1)
    producer = _writer(at)
    _all_goes_well(at, producer, topic)


@case("transactions/produce/response-lost", MUST, f"{KIP_98}; Sender.java: sequence numbers", needs=TRANSACTIONS)
def produce_response_lost(at: Play) -> None:
    """The response to a Produce in a transaction is lost: the batch is sent again, and is in the log once."""
    topic = at.topic()
    producer = _writer(at)
    at.kafka.on("Produce").drop_response(times=1)
    _all_goes_well(at, producer, topic)


# Coordinators


def _refused_at(at: Play, api: str, error: str, times: int, level: int | None = None) -> Producer:
    """Let an API be refused with a retriable error, and judge that the client repeats it until all goes well."""
    if level is not None:
        at.kafka.set_feature(FEATURE, level)
    topic = at.topic()
    rule = at.kafka.on(api).respond_error(error, times=times)
    producer = _writer(at)
    _all_goes_well(at, producer, topic)
    at.require(rule.fired == times, f"The client has met the error {rule.fired} times only")
    return producer


@case("transactions/init/concurrent", MUST, f"{KIP_98}, InitProducerIdHandler: retriable", needs=TRANSACTIONS)
def init_concurrent(at: Play) -> None:
    """InitProducerId is refused with CONCURRENT_TRANSACTIONS, since an older transaction is being completed: the client
    repeats it after its backoff."""
    _refused_at(at, "InitProducerId", "CONCURRENT_TRANSACTIONS", MAX_RETRIES)


@case("transactions/add/concurrent", MUST, f"{KIP_98}, AddPartitionsToTxnHandler: retriable", needs=TRANSACTIONS)
def add_concurrent(at: Play) -> None:
    """AddPartitionsToTxn is refused with CONCURRENT_TRANSACTIONS, since the last transaction has not got its markers:
    the client repeats it after its backoff."""
    _refused_at(at, "AddPartitionsToTxn", "CONCURRENT_TRANSACTIONS", MAX_RETRIES, level=EXPLICIT)


@case("transactions/end/loads", MUST, f"{KIP_98}, EndTxnHandler: retriable", needs=TRANSACTIONS)
def end_loads(at: Play) -> None:
    """EndTxn is refused with COORDINATOR_LOAD_IN_PROGRESS: the client repeats it after its backoff."""
    _refused_at(at, "EndTxn", "COORDINATOR_LOAD_IN_PROGRESS", MAX_RETRIES)


@case("transactions/end/not-coordinator", MUST, f"{KIP_98}, EndTxnHandler: find the coordinator", needs=TRANSACTIONS)
def end_not_coordinator(at: Play) -> None:
    """EndTxn is refused with NOT_COORDINATOR: the client finds the coordinator again, and repeats it there."""
    topic = at.topic()
    producer = _writer(at)
    rule = at.kafka.on("EndTxn").respond_error("NOT_COORDINATOR", times=1)
    _all_goes_well(at, producer, topic)
    at.wire("the client finds the coordinator again", bool(producer.exchanges("FindCoordinator", after=rule)), True)


@case("transactions/empty", MUST, f"{KIP_98}, beginCompletingTransaction; kafkajs#1388", needs=TRANSACTIONS)
def empty(at: Play) -> None:
    """An application aborts a transaction in which it has sent nothing, and commits another such one: neither fails,
    and the next transaction is committed."""
    topic = at.topic()
    producer = _writer(at)
    at.data("the abort of nothing succeeds", producer.begin() and producer.abort_transaction(), True)
    at.data("the commit of nothing succeeds", producer.begin() and producer.commit_transaction(), True)
    at.data("the next commit succeeds", _transaction(producer, topic, "a"), True)
    at.data("committed values in the log", _committed(at, topic), ["a"])
    at.error("errors of the application", producer.errors, [])


@case("transactions/coordinator-moves", MUST, f"{KIP_98}, lookupCoordinator", needs=TRANSACTIONS)
def coordinator_moves(at: Play) -> None:
    """Another node becomes the coordinator between the records and the commit: the client commits there."""
    kafka = at.cluster(nodes=3)
    topic = at.topic()
    producer = _writer(at)
    producer.begin()
    producer.send(topic, "a")
    producer.flush()
    kafka.move_coordinator(transactional_id=WRITER)
    at.data("the commit succeeds", producer.commit_transaction(), True)
    at.data("the next commit succeeds", _transaction(producer, topic, "b"), True)
    at.data("committed values in the log", _committed(at, topic), ["a", "b"])
    at.error("fatal errors of the application", producer.fatal, None)


# Refusals that the application has to know


@case("transactions/fenced", MUST, f"{KIP_98}: ProducerFencedException is fatal", needs=TRANSACTIONS)
def fenced(at: Play) -> None:
    """A second producer takes over the transactional ID: the first one's commit fails for good, nothing of it is
    committed, and the second one works."""
    topic = at.topic()
    first = _writer(at)
    first.begin()
    first.send(topic, "of the first")
    first.flush()
    second = _writer(at)
    at.data("the commit of the first fails", first.commit_transaction(), False)
    at.error("name of its error", first.errors[-1].failure.name, one_of(*FENCED))
    at.error("whether its error is fatal", first.errors[-1].failure.fatal, one_of(True, None))
    at.data("the second commits", _transaction(second, topic, "of the second"), True)
    at.data("committed values in the log", _committed(at, topic), ["of the second"])


def _produce_refused(at: Play, error: str) -> tuple[Producer, str, bool]:
    """Let a Produce be refused once, and judge that the client says that the transaction is committed only if the
    record is. Return the producer, the topic, and what it says."""
    topic = at.topic()
    producer = _writer(at)
    at.kafka.on("Produce").respond_error(error, times=1)
    is_committed = _transaction(producer, topic, "refused")
    at.data("committed values in the log", _committed(at, topic), ["refused"] if is_committed else [])
    return producer, topic, is_committed


@case("transactions/produce/refused", MUST, f"{KIP_98}, transitionToAbortableError", needs=TRANSACTIONS)
def produce_refused(at: Play) -> None:
    """A Produce is refused with MESSAGE_TOO_LARGE, so its record is not written: the commit fails. After the abort a
    later transaction works, and none is reported as committed that is not."""
    producer, topic, is_committed = _produce_refused(at, "MESSAGE_TOO_LARGE")
    if not is_committed:
        _next_works(at, producer, topic, MAX_RETRIES)


@case(
    "transactions/produce/next", SHOULD, f"{KIP_98}, adjustSequencesDueToFailedBatch; waterdrop#501", needs=TRANSACTIONS
)
def produce_next(at: Play) -> None:
    """A Produce is refused with MESSAGE_TOO_LARGE, and the transaction is aborted: the next one begins with a sequence
    number that the broker expects, so it is committed."""
    producer, topic, is_committed = _produce_refused(at, "MESSAGE_TOO_LARGE")
    if not is_committed:
        _next_works(at, producer, topic)


@case("transactions/produce/invalid-epoch", MUST, "KIP-588; Sender.java: INVALID_PRODUCER_EPOCH", needs=TRANSACTIONS)
def invalid_epoch(at: Play) -> None:
    """A Produce is refused with INVALID_PRODUCER_EPOCH, so its record is not written: the client writes it after all,
    or the commit fails."""
    _produce_refused(at, "INVALID_PRODUCER_EPOCH")


@case("transactions/produce/epoch-abortable", SHOULD, "KIP-588: only PRODUCER_FENCED is fatal", needs=TRANSACTIONS)
def epoch_abortable(at: Play) -> None:
    """A Produce is refused with INVALID_PRODUCER_EPOCH: the producer can abort, and its next transaction works."""
    producer, topic, is_committed = _produce_refused(at, "INVALID_PRODUCER_EPOCH")
    at.error("fatal errors of the application", producer.fatal, None)
    if not is_committed:
        _next_works(at, producer, topic)


@case("transactions/produce/out-of-order", MUST, f"{KIP_98}, Sender.java; librdkafka#3575", needs=TRANSACTIONS)
def out_of_order(at: Play) -> None:
    """The second Produce of a transaction is refused with OUT_OF_ORDER_SEQUENCE_NUMBER: the commit fails, or both
    records are committed. A client that bumps its epoch ends the transaction, and must not report a new one."""
    topic = at.topic()
    producer = _writer(at)
    producer.begin()
    producer.send(topic, "a")
    producer.flush()
    at.kafka.on("Produce").respond_error("OUT_OF_ORDER_SEQUENCE_NUMBER", times=1)
    producer.send(topic, "b")
    is_committed = producer.commit_transaction()
    at.data("committed values in the log", _committed(at, topic), ["a", "b"] if is_committed else [])


@case("transactions/end/unknown-error", MUST, f"{KIP_98}, EndTxnHandler; franz-go 1.21.4", needs=TRANSACTIONS)
def end_unknown_error(at: Play) -> None:
    """EndTxn is refused with UNKNOWN_SERVER_ERROR: the client reports a commit if there is one, and otherwise an
    error. It does not hang."""
    topic = at.topic()
    producer = _writer(at)
    at.kafka.on("EndTxn").respond_error("UNKNOWN_SERVER_ERROR", times=1)
    is_committed = _transaction(producer, topic, "a")
    at.data("committed values in the log", _committed(at, topic), ["a"] if is_committed else [])
    at.error("whether the application got an error", bool(producer.errors), not is_committed)


# Readers


@case(
    "transactions/read-committed",
    MUST,
    "KIP-98; CompletedFetch.java, consumeAbortedTransactionsUpTo",
    needs=TRANSACTIONS,
)
def read_committed(at: Play) -> None:
    """Two producers write to a partition by turns, and one of them aborts: a reader with read_committed gets nothing
    beyond the first open transaction, and in the end what is committed, in order."""
    topic = at.topic()
    keeps, aborts = (at.producer(transactional_id=name) for name in ("keeps", "aborts"))
    reader: Consumer = at.consumer(isolation="read_committed")
    reader.assign(topic)
    at.data("a first commit succeeds", _transaction(keeps, topic, "kept-1"), True)
    for producer in (keeps, aborts):
        producer.begin()
    for number in (2, 3):
        keeps.send(topic, f"kept-{number}")
        keeps.flush()
        aborts.send(topic, f"aborted-{number}")
        aborts.flush()
    at.reads(reader, ["kept-1"])
    at.data("the abort succeeds", aborts.abort_transaction(), True)
    at.data("the second commit succeeds", keeps.commit_transaction(), True)
    at.reads(reader, ["kept-1", "kept-2", "kept-3"])
    at.error("errors of the application", reader.errors, [])


# Offsets


def _reads_and_writes(at: Play) -> tuple[Consumer, Producer, str]:
    """Return a member that has read five records, a producer in the same process, and the topic."""
    topic = at.topic()
    member = at.consumer(group="readers")
    member.subscribe(topic)
    at.reads(member, at.write(topic, 5))
    return member, at.producer(beside=member, transactional_id=WRITER), topic


@case("transactions/offsets/response-lost", MUST, KIP_447, needs=OFFSETS)
def offsets_response_lost(at: Play) -> None:
    """The response to TxnOffsetCommit is lost: the client repeats it, and the offsets are committed with the
    transaction."""
    member, producer, topic = _reads_and_writes(at)
    at.kafka.on("TxnOffsetCommit").drop_response(times=1)
    producer.begin()
    at.data(
        "the offsets are sent", producer.send_offsets(member, PartitionOffset(topic=topic, partition=0, offset=5)), True
    )
    at.data("the commit succeeds", producer.commit_transaction(), True)
    at.kafka.records(topic)  # It waits for the markers of transactions.
    at.data("committed offsets", at.kafka.committed("readers"), {(topic, 0): 5})


@case("transactions/offsets/illegal-generation", MUST, f"{KIP_447}: CommitFailedException is abortable", needs=OFFSETS)
def offsets_illegal_generation(at: Play) -> None:
    """TxnOffsetCommit is refused with ILLEGAL_GENERATION, since the member's partitions are another's now: the
    transaction fails without its offsets, and after its abort the next one works."""
    member, producer, topic = _reads_and_writes(at)
    output = at.topic()
    at.kafka.on("TxnOffsetCommit", versions=WITH_GENERATION).respond_error("ILLEGAL_GENERATION", times=1)
    producer.begin()
    producer.send(output, "fenced")
    sent = producer.send_offsets(member, PartitionOffset(topic=topic, partition=0, offset=5))
    versions = [exchange.request.version for exchange in producer.exchanges("TxnOffsetCommit")]
    at.supported(
        max(versions, default=0) >= WITH_GENERATION[0], "The client sends no generation with offsets (KIP-447)"
    )
    at.data("the transaction is committed", sent and producer.commit_transaction(), False)
    at.data("committed offsets", at.kafka.committed("readers"), {})
    at.error("fatal errors of the application", producer.fatal, None)
    _next_works(at, producer, output)


# Levels of transaction.version


@case("transactions/version-0", MUST, "KIP-98; AddPartitionsToTxnRequest.json", needs=TRANSACTIONS)
def version_0(at: Play) -> None:
    """The cluster has transaction.version 0: each partition is added with AddPartitionsToTxn before its first
    Produce."""
    at.kafka.set_feature(FEATURE, EXPLICIT)
    topic = at.topic()
    producer = _writer(at)
    _all_goes_well(at, producer, topic)
    adds, writes = producer.exchanges("AddPartitionsToTxn"), producer.exchanges("Produce")
    at.wire("number of AddPartitionsToTxn", len(adds), 2)
    at.wire("the first one is before the first Produce", adds[0].request.at_s < writes[0].request.at_s, True)


@case("transactions/version-2", MUST, f"{KIP_890}; EndTxnResponse.json, version 5", needs=TRANSACTIONS)
def version_2(at: Play) -> None:
    """The cluster has transaction.version 2: EndTxn returns the epoch of the next transaction, and the client uses
    it."""
    at.kafka.set_feature(FEATURE, IMPLICIT)
    topic = at.topic()
    producer = _writer(at)
    _all_goes_well(at, producer, topic)
    first, second, *_ = producer.exchanges("EndTxn")
    at.supported(first.request.version >= IMPLICIT_END_TXN, "The client does not speak transaction.version 2")
    given = first.response.body["producer_epoch"] if first.response else None
    at.wire("producer epoch of the second transaction", second.body["producer_epoch"], given)
    at.wire("number of AddPartitionsToTxn", len(producer.exchanges("AddPartitionsToTxn")), 0)
