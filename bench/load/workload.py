"""OpenMessaging Benchmark's YAML files, read into one value.

What a file says is read strictly: an unknown key, an impossible number or a field that this suite does not carry out
ends with one sentence. OpenMessaging's project: https://github.com/openmessaging/benchmark (``Workload.java``).
"""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import msgspec

from bench.fleet.values import smallest_size_bytes
from bench.load.clients import CLIENTS, JAVA, NATIVE
from bench.load.connections import connection_plans
from bench.load.faults import Fault
from bench.load.record_batches import MessageSizes, RecordHeaders
from bench.load.yaml_file import YamlError, read_yaml

KEYS: Final = {"NO_KEY": 0, "KEY_ROUND_ROBIN": 10_000, "RANDOM_NANO": 10_000}
"""Number of keys that take turns in each partition. OpenMessaging draws the key of RANDOM_NANO by the clock; here keys
take turns, so that the same workload sends the same records."""
MAX_PADDING_BYTES: Final = 1 << 20
Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Minutes = Annotated[float, msgspec.Meta(gt=0, le=7 * 24 * 60)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


MAX_RECORDS_PER_S: Final = 100_000_000
"""No machine makes more records than this in a second."""


class WorkloadError(Exception):
    """The message is one sentence that names the file and the key."""


class UnplayableError(Exception):
    """A workload cannot be carried out as it is wanted. The message is the end of a sentence, without a full stop."""


class Transactions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Limits of producers' transactions: they end after a number of records, or after seconds. Readers are
    read_committed.

    Transactions have whole batches. A batch has no more records than a transaction.
    """

    records: NotNegative = 0
    seconds: Annotated[float, msgspec.Meta(ge=0, le=600)] = 0.0
    abort_ratio: Share = 0.0


class Transform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The transformation between producers and readers: clients that consume, transform and produce exactly once."""

    instances: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    """Members of the group that reads a topic."""
    commit_interval_s: Annotated[float, msgspec.Meta(gt=0, le=30)] = 0.1
    """The duration of a transaction. Kafka Streams has 100 ms with exactly_once_v2."""
    abort_ratio: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """The share of transactions that are aborted and made again."""


class Extensions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Fields of this suite beyond OpenMessaging's: the mapping under the key ``crucible``."""

    fetch_sessions: bool = True
    """Readers fetch in sessions (KIP-227), if the broker opens them."""
    topic_config: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    """Settings of the topics, by Kafka's names."""
    transactions: Transactions | None = None
    transform: Transform | None = None
    connections: Annotated[int, msgspec.Meta(ge=0, le=20_000)] = 0
    """Idle connections beside the load."""
    connection_storm: Annotated[float, msgspec.Meta(ge=0, le=5_000)] = 0.0
    """New connections in a second, which close at once."""
    read_from_start: bool = False
    """One more reader of each topic begins with the seconds that count, at the start of the log."""
    broker_config: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    """Settings of brokers that this suite starts, by Kafka's names."""
    groups: bool = False
    """Readers are members of consumer groups, one for each subscription of a topic."""
    faults: list[Fault] = msgspec.field(default_factory=list)
    """Faults of nodes during the measurement."""

    message_sizes: MessageSizes | None = None
    """Sizes of values, in place of the one of ``messageSize``."""
    headers: RecordHeaders | None = None
    client: str = "native"
    """The library of producers and readers (``clients.CLIENTS``)."""

    @property
    def topic_settings(self) -> dict[str, str]:
        """``topic_config`` as CreateTopics carries it."""
        return _texts(self.topic_config)

    @property
    def broker_settings(self) -> dict[str, str]:
        """``broker_config`` as a file of properties has it."""
        return _texts(self.broker_config)


def _texts(settings: Mapping[str, str | int | float | bool]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The fields of OpenMessaging Benchmark's workloads, with its defaults.

    ``producer_rate`` is that of all producers together, in records a second; 0 stands for as much as the responses
    allow, which OpenMessaging has no word for.
    """

    name: str = ""
    topics: Positive = 1
    partitions_per_topic: Positive = 1
    key_distributor: str = "NO_KEY"
    message_size: Positive = 1024
    use_randomized_payloads: bool = False
    random_bytes_ratio: Share = 0.0
    randomized_payload_pool_size: NotNegative = 0
    payload_file: str = ""
    subscriptions_per_topic: NotNegative = 1
    consumer_per_subscription: Positive = 1
    producers_per_topic: Positive = 1
    producer_rate: Annotated[int, msgspec.Meta(ge=0, le=MAX_RECORDS_PER_S)] = 0
    consumer_backlog_size_gb: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(
        default=0, name="consumerBacklogSizeGB"
    )
    """The size of the backlog in units of 2**30 bytes. OpenMessaging takes whole numbers only."""
    backlog_drain_ratio: Share = 1.0
    test_duration_minutes: Minutes = 5
    warmup_duration_minutes: Annotated[float, msgspec.Meta(ge=0, le=60)] = 1
    crucible: Extensions = Extensions()

    padding: bytes = b""
    """Padding of values behind their proof: the payload file's bytes, or random ones. No key of files."""

    @property
    def keys(self) -> int:
        return KEYS[self.key_distributor]

    @property
    def producers(self) -> int:
        return self.topics * self.producers_per_topic

    @property
    def readers(self) -> int:
        return self.topics * self.subscriptions_per_topic * self.consumer_per_subscription

    @property
    def needs_links(self) -> bool:
        """Whether clients must reach their nodes through links, which faults cut or delay."""
        return any(fault.is_of_link for fault in self.crucible.faults)

    @property
    def clients(self) -> int:
        own = self.crucible
        beside = len(connection_plans((), own.connections, own.connection_storm)) + self.topics * own.read_from_start
        return self.producers + self.readers + self.transformers + beside

    @property
    def value_bytes(self) -> int:
        """The mean size of a value."""
        sizes = self.crucible.message_sizes
        return self.message_size if sizes is None else round(sizes.mean)

    @property
    def largest_value_bytes(self) -> int:
        sizes = self.crucible.message_sizes
        return self.message_size if sizes is None else sizes.largest

    @property
    def record_bytes(self) -> int:
        """The mean size of a value and the headers of its record."""
        headers = self.crucible.headers
        return self.value_bytes + (0 if headers is None else headers.size_bytes)

    @property
    def transformers(self) -> int:
        transform = self.crucible.transform
        return 0 if transform is None else self.topics * transform.instances


MAX_MESSAGE_BYTES: Final = 64 << 20
MAX_PARTITIONS: Final = 100_000
MAX_CLIENTS: Final = 10_000


def read_workload(path: Path) -> Workload:
    """:raises WorkloadError: it or its payload file cannot be read, or it cannot be carried out."""
    try:
        table = read_yaml(path)
    except YamlError as error:
        raise WorkloadError(str(error)) from error
    workload = workload_of(table, path.name, path.stem)
    return msgspec.structs.replace(workload, padding=_padding(workload, path))


def _padding(workload: Workload, path: Path) -> bytes:
    """Return the bytes of the payload file, or random ones of the share that the workload wants. Random bytes are those
    of its name, so they are always the same."""
    if workload.payload_file:
        return _payload(workload.payload_file, path)
    share = workload.random_bytes_ratio if workload.use_randomized_payloads else 1.0
    size = min(workload.largest_value_bytes, MAX_MESSAGE_BYTES)
    random_bytes = int(size * share)
    return Random(workload.name).randbytes(random_bytes) + bytes(size - random_bytes)


def _payload(name: str, path: Path) -> bytes:
    """Return the first bytes of a payload file, which is named from the workload's folder or the one above."""
    places = [folder / name for folder in (path.parent, path.parent.parent)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise WorkloadError(
            f"{path.name}: payloadFile {name} does not exist: neither {places[0]} nor {places[1]} is a file; put it "
            "there, or remove the key and get random bytes."
        )
    try:
        with file.open("rb") as payload:
            return payload.read(MAX_PADDING_BYTES)
    except OSError as error:
        raise WorkloadError(f"{path.name}: payloadFile {file} cannot be read: {error.strerror}.") from error


def workload_of(table: Any, where: str, name: str) -> Workload:
    """Return the workload of a table. ``where`` is named in errors. ``name`` is the workload's, if it has none."""
    if not isinstance(table, Mapping):
        raise WorkloadError(f"{where}: is no workload, whose keys are topics, messageSize, producerRate and so on.")
    try:
        workload = msgspec.convert({"name": name, **table}, Workload)
    except msgspec.ValidationError as error:
        raise WorkloadError(
            f"{where}: {str(error).replace(' - at `$.', ' in `').replace('Object', 'The file')}."
        ) from error
    try:
        _check(workload)
    except UnplayableError as error:
        raise WorkloadError(f"{where}: {error}.") from error
    return workload


def _check(workload: Workload) -> None:
    """:raises UnplayableError: parts of the workload do not fit together, or are too many."""
    least = smallest_size_bytes(longest_writer(workload))
    if workload.padding:
        raise UnplayableError("padding is no key of workloads: give a payloadFile")
    if workload.crucible.client not in CLIENTS:
        raise UnplayableError(f"client {workload.crucible.client!r} is none of {', '.join(CLIENTS)}")
    if workload.key_distributor not in KEYS:
        raise UnplayableError(f"keyDistributor {workload.key_distributor!r} is none of {', '.join(KEYS)}")
    if workload.consumer_backlog_size_gb and not workload.producer_rate:
        raise UnplayableError("consumerBacklogSizeGB needs a producerRate, with which the backlog is built")
    if workload.consumer_backlog_size_gb and not workload.subscriptions_per_topic:
        raise UnplayableError("consumerBacklogSizeGB needs readers: set subscriptionsPerTopic to 1 or more")
    sizes = workload.crucible.message_sizes
    if sizes is not None and sizes.complaint:
        raise UnplayableError(f"crucible.messageSizes {sizes.complaint}")
    if sizes is not None and sizes.smallest < least:
        raise UnplayableError(
            f"crucible.messageSizes have {sizes.smallest}, too small for a value that proves itself: at least {least}"
        )
    if workload.message_size < least:
        raise UnplayableError(
            f"messageSize {workload.message_size} is too small for a value that proves itself: at least {least}"
        )
    if workload.message_size > MAX_MESSAGE_BYTES:
        raise UnplayableError(
            f"messageSize {workload.message_size:,} is too large: the most are {MAX_MESSAGE_BYTES:,} bytes"
        )
    if workload.topics * workload.partitions_per_topic > MAX_PARTITIONS:
        partitions = workload.topics * workload.partitions_per_topic
        raise UnplayableError(f"it has {partitions:,} partitions; the most are {MAX_PARTITIONS:,}")
    if workload.clients > MAX_CLIENTS:
        raise UnplayableError(f"it has {workload.clients:,} clients; the most are {MAX_CLIENTS:,}")
    transactions = workload.crucible.transactions
    if transactions is not None and bool(transactions.records) == bool(transactions.seconds):
        raise UnplayableError("crucible.transactions end after records or after seconds: give one of both")
    transform = workload.crucible.transform
    if transform is not None and transform.instances > workload.partitions_per_topic:
        raise UnplayableError(
            "crucible.transform.instances is more than partitionsPerTopic, so an instance would have no partition"
        )
    if transform is not None and workload.crucible.read_from_start:
        raise UnplayableError("crucible.transform does not go together with readFromStart: give it another workload")
    if workload.consumer_per_subscription > workload.partitions_per_topic:
        raise UnplayableError(
            "consumerPerSubscription is more than partitionsPerTopic, so a consumer would have no partition"
        )
    check_client(workload, workload.crucible.client)


def check_client(workload: Workload, client: str) -> None:
    """:raises UnplayableError: the workload has what another client than the native one does not carry out."""
    keys: dict[str, object] = {
        "crucible.transactions": workload.crucible.transactions,
        "crucible.transform": workload.crucible.transform,
        "crucible.messageSizes": workload.crucible.message_sizes,
        "crucible.headers": workload.crucible.headers,
        "crucible.groups": workload.crucible.groups,
        "crucible.readFromStart": workload.crucible.read_from_start,
        "consumerBacklogSizeGB": workload.consumer_backlog_size_gb,
    }
    if client == JAVA:
        own = workload.crucible
        keys |= {"crucible.faults": own.faults, "crucible.connections": own.connections}
        keys |= {"crucible.connectionStorm": own.connection_storm}
    wanted = [name for name, value in keys.items() if value]
    if wanted and client != NATIVE:
        raise UnplayableError(f"the client {client} does not carry out {wanted[0]}; {NATIVE} does")


def is_compacted(topic_settings: Mapping[str, str]) -> bool:
    return "compact" in topic_settings.get("cleanup.policy", "")


def check_topics(workload: Workload, topic_settings: Mapping[str, str]) -> None:
    """:raises UnplayableError: the workload cannot be verified on topics with these settings."""
    if is_compacted(topic_settings) and not workload.keys:
        raise UnplayableError("cleanup.policy compact needs keys: set keyDistributor to KEY_ROUND_ROBIN")
    if is_compacted(topic_settings) and workload.crucible.transform is not None:
        raise UnplayableError("crucible.transform needs all records of its input: cleanup.policy compact removes some")
    if is_compacted(topic_settings) and workload.producers_per_topic > 1:
        raise UnplayableError(
            "cleanup.policy compact needs producersPerTopic 1, so that the last record of each key is known"
        )


def longest_writer(workload: Workload) -> str:
    return writer_of(workload.producers - 1)


def writer_of(producer: int) -> str:
    """Return the name of a producer, which its values carry."""
    return f"p{producer}"
