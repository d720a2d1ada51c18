"""The coordinator of transactions: how it is found, IDs and epochs, partitions, and EndTxn in both generations."""

from bench.probe.case import ANY, SHOULD, Versions, case, since_version
from bench.probe.context import ProbeContext, Topic, single
from bench.probe.data import PRODUCE, values
from bench.probe.transactional import (
    ADD,
    COMMITTED,
    FENCED,
    FIND,
    INIT,
    NEEDS,
    NEEDS_2,
    OF_TRANSACTIONS,
    OWNED,
    UNCOMMITTED,
    Transactional,
    allowed,
    codes,
    latest,
    needs_version_2,
    read,
    settle,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

KIP_98, KIP_360, KIP_890 = "KIP-98", "KIP-360", "KIP-890"
WITH_EXPECTED: dict[int, Versions] = {**OWNED, INIT: since_version(3)}
BY_BROKERS: dict[int, Versions] = {**NEEDS, ADD: since_version(4)}
LONGEST = 0x7FFFFFFF
SEVERAL = 3
OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL: dict[int, Versions] = {**NEEDS, ApiKey.DESCRIBE_GROUPS: ANY}


# FindCoordinator


@case("transactions/find/coordinator", KIP_98, {FIND: since_version(1)}, since="0.11")
def coordinator(at: ProbeContext) -> None:
    """FindCoordinator with key type 1 returns a node of the cluster for a transactional ID."""
    name = Transactional(at).name
    request = {"key_type": OF_TRANSACTIONS, "coordinator_keys": [name]}
    result = single(at.call(FIND, request), "coordinators")
    at.expect_no_error(result)
    at.expect("the node is one of the cluster", int(result.node_id) in at.broker.nodes, True)


@case("transactions/find/several", "KIP-699", {FIND: since_version(4)}, since="3.0")
def several(at: ProbeContext) -> None:
    """The coordinators of several transactional IDs are returned in one response, each with its ID."""
    names = [Transactional(at).name for _ in range(SEVERAL)]
    response = at.call(FIND, {"key_type": OF_TRANSACTIONS, "coordinator_keys": names})
    at.expect("error codes", [int(each.error_code) for each in response.coordinators], [0] * SEVERAL)
    at.expect("every ID is returned", {str(each.key) for each in response.coordinators} == {*names}, True)


# InitProducerId


@case("transactions/init/new", KIP_98, OWNED, since="0.11")
def new(at: ProbeContext) -> None:
    """A new transactional ID gets a producer ID and epoch 0."""
    producer = Transactional(at).take()
    at.expect("the producer ID is 0 or more", producer.producer_id >= 0, True)
    at.expect("epoch", producer.epoch, 0)


@case("transactions/init/again", KIP_98, OWNED, since="0.11")
def again(at: ProbeContext) -> None:
    """A producer that takes a transactional ID again gets the same producer ID with the next epoch."""
    first = Transactional(at).take()
    second = first.successor()
    at.expect("the producer ID is the same", second.producer_id == first.producer_id, True)
    at.expect("epochs", [first.epoch, second.epoch], [0, 1])


@case("transactions/init/ids-differ", KIP_98, OWNED, since="0.11")
def ids_differ(at: ProbeContext) -> None:
    """Different transactional IDs have different producer IDs."""
    ids = {Transactional(at).take().producer_id for _ in range(SEVERAL)}
    at.expect("number of different producer IDs", len(ids), SEVERAL)


@case("transactions/init/aborts", KIP_98, NEEDS, since="0.11")
def aborts_open(at: ProbeContext) -> None:
    """A producer that takes a transactional ID aborts the open transaction."""
    topic, first = at.topic(), Transactional(at).take()
    first.begins(topic, b"left")
    second = first.successor()
    second.begins(topic, b"done")
    second.commits(topic)
    found = read(at, topic, COMMITTED)
    aborted = {transaction.producer_id for transaction in found.aborted_transactions or ()}
    at.expect("the open transaction was aborted", first.producer_id in aborted, True)


@case("transactions/init/timeout-too-long", KIP_98, OWNED, since="0.11")
def timeout_too_long(at: ProbeContext) -> None:
    """A transaction may not last longer than the broker allows: INVALID_TRANSACTION_TIMEOUT."""
    response = Transactional(at).init(transaction_timeout=LONGEST)
    at.expect_error(response, ErrorCode.invalid_transaction_timeout)


@case("transactions/init/timeout-zero", "Apache Kafka's TransactionCoordinator", OWNED, since="0.11", level=SHOULD)
def timeout_zero(at: ProbeContext) -> None:
    """A transaction that may last no time is refused: INVALID_TRANSACTION_TIMEOUT."""
    response = Transactional(at).init(transaction_timeout=0)
    at.expect_error(response, ErrorCode.invalid_transaction_timeout)


@case("transactions/init/empty-id", "Apache Kafka's TransactionCoordinator", OWNED, since="0.11", level=SHOULD)
def empty_id(at: ProbeContext) -> None:
    """An empty transactional ID is refused with INVALID_REQUEST."""
    response = Transactional(at).init(transactional_id="")
    at.expect_error(response, ErrorCode.invalid_request)


@case("transactions/init/expected", KIP_360, WITH_EXPECTED, since="2.5")
def expected(at: ProbeContext) -> None:
    """A producer that sends its ID and epoch gets the next epoch."""
    producer = Transactional(at).take()
    had = producer.producer_id, producer.epoch
    producer.take(producer_id=producer.producer_id, producer_epoch=producer.epoch)
    at.expect("the producer ID is the same", producer.producer_id == had[0], True)
    at.expect("epoch", producer.epoch, had[1] + 1)


@case("transactions/init/expected-again", KIP_360, WITH_EXPECTED, since="2.5")
def expected_again(at: ProbeContext) -> None:
    """A producer that lost the response with its new epoch retries with its old one, and gets the same."""
    producer = Transactional(at).take()
    request = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    at.expect("epoch", producer.take(**request).epoch, 1)
    at.expect("epoch of the second response", producer.take(**request).epoch, 1)


@case("transactions/init/expected-fenced", KIP_360, WITH_EXPECTED, since="2.5")
def expected_fenced(at: ProbeContext) -> None:
    """A producer whose ID another one took cannot get the next epoch: it is fenced."""
    first = Transactional(at).take()
    first.successor()
    response = first.init(producer_id=first.producer_id, producer_epoch=first.epoch)
    at.expect("error code", response.error_code, *FENCED)


@case("transactions/init/expected-other-id", KIP_360, WITH_EXPECTED, since="2.5")
def expected_other_id(at: ProbeContext) -> None:
    """A producer with another producer ID than that of the transactional ID is fenced."""
    producer = Transactional(at).take()
    response = producer.init(producer_id=producer.producer_id + 1_000_000, producer_epoch=producer.epoch)
    at.expect("error code", response.error_code, *FENCED)


@case("transactions/init/expected-by-halves", "Apache Kafka's KafkaApis", WITH_EXPECTED, since="2.5", level=SHOULD)
def expected_by_halves(at: ProbeContext) -> None:
    """A producer ID without an epoch is refused with INVALID_REQUEST."""
    producer = Transactional(at).take()
    response = producer.init(producer_id=producer.producer_id, producer_epoch=-1)
    at.expect_error(response, ErrorCode.invalid_request)


# AddPartitionsToTxn


@case("transactions/add/partitions", KIP_98, NEEDS, since="0.11")
def partitions(at: ProbeContext) -> None:
    """Partitions of several topics are added, also when they were added before."""
    one, two, producer = at.topic(2), at.topic(), Transactional(at).take()
    for _ in range(2):
        results = producer.add({one.name: [0, 1], two.name: [0]})
        at.expect("error codes", sorted(results.values()), [0, 0, 0])


@case("transactions/add/unknown-partition", "AddPartitionsToTxnResponse.json", NEEDS, since="0.11")
def unknown_partition(at: ProbeContext) -> None:
    """If a partition does not exist none is added: it gets UNKNOWN_TOPIC_OR_PARTITION, and the others get
    OPERATION_NOT_ATTEMPTED."""
    topic, producer = at.topic(), Transactional(at).take()
    results = producer.add({topic.name: [0, 7]})
    at.expect("error code of the unknown one", results[topic.name, 7], ErrorCode.unknown_topic_or_partition)
    at.expect("error code of the other one", results[topic.name, 0], ErrorCode.operation_not_attempted)


@case("transactions/add/other-producer-id", KIP_98, NEEDS, since="0.11")
def other_producer_id(at: ProbeContext) -> None:
    """A producer ID that is not that of the transactional ID: INVALID_PRODUCER_ID_MAPPING."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.producer_id += 1_000_000
    at.expect("error code", producer.add_one(topic), ErrorCode.invalid_producer_id_mapping)


@case("transactions/add/unknown-id", KIP_98, NEEDS, since="0.11")
def unknown_id(at: ProbeContext) -> None:
    """A transactional ID that no producer has taken: INVALID_PRODUCER_ID_MAPPING."""
    topic, producer = at.topic(), Transactional(at)
    producer.producer_id, producer.epoch = 1, 0
    at.expect("error code", producer.add_one(topic), ErrorCode.invalid_producer_id_mapping)


@case("transactions/add/fenced", KIP_98, NEEDS, since="0.11")
def add_fenced(at: ProbeContext) -> None:
    """A producer with an older epoch is fenced."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.successor()
    at.expect("error code", producer.add_one(topic), *FENCED)


@case("transactions/add/future-epoch", KIP_98, NEEDS, since="0.11")
def future_epoch(at: ProbeContext) -> None:
    """A producer with an epoch that was not given out is fenced, too."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.epoch += 1
    at.expect("error code", producer.add_one(topic), *FENCED)


@case("transactions/add/batched", "AddPartitionsToTxnRequest.json, KIP-890", BY_BROKERS, since="3.5", level=SHOULD)
def batched(at: ProbeContext) -> None:
    """From version 4 on, several transactions are in one request, each with results of its own."""
    topic, good, bad = at.topic(), Transactional(at).take(), Transactional(at).take()
    bad.producer_id += 1_000_000
    topics = [{"name": topic.name, "partitions": [0]}]
    response = at.call(ADD, {"transactions": [{**each.owner, "topics": topics} for each in (good, bad)]}, on=good.on)
    allowed(int(response.error_code))
    by_id = {str(result.transactional_id): result for result in response.results_by_transaction}
    at.expect("both are returned", by_id.keys() == {good.name, bad.name}, True)
    found = [
        int(single(by_id[each.name], "topic_results", "results_by_partition").partition_error_code)
        for each in (good, bad)
    ]
    at.expect("error code of the first", found[0], ErrorCode.none)
    at.expect("error code of the second", found[1], ErrorCode.invalid_producer_id_mapping)


@case("transactions/add/verify-only", KIP_890, BY_BROKERS, since="3.5")
def verify_only(at: ProbeContext) -> None:
    """A broker may verify that partitions belong to the open transaction, and those that do not are
    TRANSACTION_ABORTABLE (INVALID_TXN_STATE before it was known)."""
    topic, producer = at.topic(2), Transactional(at).take()
    _verified(producer, topic.name)
    at.expect("error code of what is added", producer.add_one(topic), ErrorCode.none)
    result = _verified(producer, topic.name)
    at.expect("error code of the added one", result[topic.name, 0], ErrorCode.none)
    strange = ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state
    at.expect("error code of the other one", result[topic.name, 1], *strange)
    again = _verified(producer, topic.name)
    at.expect("error code of the other one, verified again", again[topic.name, 1], *strange)


def _verified(producer: Transactional, topic: str) -> dict[tuple[str, int], int]:
    topics = [{"name": topic, "partitions": [0, 1]}]
    request = {"transactions": [{**producer.owner, "topics": topics, "verify_only": True}]}
    response = producer.at.call(ADD, request, on=producer.on)
    allowed(int(response.error_code))
    return codes(response)


@case("transactions/add/internal-topic", "Apache Kafka's KafkaApis", INTERNAL, since="0.11", level=SHOULD, hostile=True)
def add_internal_topic(at: ProbeContext) -> None:
    """A client cannot add an internal topic: TOPIC_AUTHORIZATION_FAILED. Nothing of the request is added then, and the
    other partitions have OPERATION_NOT_ATTEMPTED."""
    at.coordinator(at.group())
    topic, producer = at.topic(), Transactional(at).take()
    results = producer.add({OFFSETS_TOPIC: [0], topic.name: [0]})
    at.expect("error code of the internal one", results[OFFSETS_TOPIC, 0], ErrorCode.topic_authorization_failed)
    at.expect("error code of the other", results[topic.name, 0], ErrorCode.operation_not_attempted)
    at.expect("error code of EndTxn", producer.end(commits=True).error_code, ErrorCode.invalid_txn_state)


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
        at.expect_error(producer.end(commits=not commits), ErrorCode.invalid_txn_state)


@case("transactions/end/nothing", KIP_98, NEEDS, since="0.11")
def nothing(at: ProbeContext) -> None:
    """A commit without a transaction gets INVALID_TXN_STATE."""
    producer = Transactional(at).take()
    at.expect_error(producer.end(commits=True), ErrorCode.invalid_txn_state)


@case("transactions/end/other-producer-id", KIP_98, NEEDS, since="0.11")
def end_other_producer_id(at: ProbeContext) -> None:
    """A producer ID that is not that of the transactional ID: INVALID_PRODUCER_ID_MAPPING. The transaction stays
    open."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.begins(topic)
    response = producer.end(commits=True, producer_id=producer.producer_id + 1_000_000)
    at.expect_error(response, ErrorCode.invalid_producer_id_mapping)
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
    """From version 5 on, the producer gets the next epoch, in which it goes on."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    for epoch in (1, 2):
        producer.writes(topic, b"%d" % epoch)
        response = producer.end(commits=True)
        at.expect_no_error(response)
        at.expect("the producer ID is the same", response.producer_id == producer.producer_id, True)
        at.expect("epoch", response.producer_epoch, epoch)
        producer.epoch = int(response.producer_epoch)
    settle(at, topic)
    at.expect("what is committed", values(read(at, topic, COMMITTED))[::2], [b"1", b"2"])


@case("transactions/end/epoch-raised-again", KIP_890, NEEDS_2, since="4.0")
def epoch_raised_again(at: ProbeContext) -> None:
    """An end that is retried with the epoch before is acknowledged, and returns the same next epoch."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    producer.writes(topic)
    for _ in range(2):
        response = producer.end(commits=True)
        at.expect_no_error(response)
        at.expect("epoch", response.producer_epoch, 1)


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
    response = producer.end(commits=False)
    at.expect_no_error(response)
    at.expect("epoch", response.producer_epoch, producer.epoch + 1)


@case("transactions/end/commit-of-nothing", KIP_890, NEEDS_2, since="4.0")
def commit_of_nothing(at: ProbeContext) -> None:
    """In version 5, too, a commit of nothing is INVALID_TXN_STATE."""
    needs_version_2(at)
    response = Transactional(at).take().end(commits=True)
    at.expect_error(response, ErrorCode.invalid_txn_state)


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
    aborted = [
        (int(transaction.producer_id), int(transaction.first_offset))
        for transaction in found.aborted_transactions or ()
    ]
    at.expect("the aborted transaction is returned", aborted == [(producer.producer_id, 0)], True)


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
    result = producer.send(topic, b"late")
    at.expect("error code", result.error_code, *FENCED, ErrorCode.invalid_txn_state)
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
    at.expect("aborted from", [int(transaction.first_offset) for transaction in found.aborted_transactions or ()], [2])
