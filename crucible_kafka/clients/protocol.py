"""The protocol of adapters: JSON lines on standard input and output.

The suite writes requests, one a line. The adapter writes one reply to each, and events whenever they happen. The
structs below are the whole protocol; ``schema`` makes docs/client-adapters.schema.json from them.
"""

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

SCHEMA_VERSION: Final = 1
"""Raised whenever an adapter that was written before would no longer work."""

Text: TypeAlias = Annotated[str | None, Meta(description="UTF-8, or null.")]
ClientName: TypeAlias = Annotated[str, Meta(description="The name that open gave to the client.")]
Setting: TypeAlias = bool | int | str


class Wire(Struct, omit_defaults=True, kw_only=True):
    """Base of all structs. Fields with defaults may be missing; fields that are unknown are ignored."""


class PartitionOffset(Wire):
    """A partition, and an offset where one is meant."""

    topic: str
    partition: int
    offset: int | None = None
    metadata: str | None = None
    """The application's own text, in commits."""
    leader_epoch: int | None = None


class Failure(Wire):
    """The reason why an operation failed, or a record was not written."""

    name: str
    """Kafka's name of the error (NOT_COORDINATOR) if the client has it, otherwise the client's own name."""
    message: str = ""
    retriable: bool | None = None
    """As the client classifies it; null if it does not."""
    fatal: bool | None = None
    """Whether this client object is of no more use; null if the client does not say."""


# Requests


class Request(Wire, tag_field="op"):
    """A request. ``id`` is repeated in its reply."""

    id: int


class Hello(Request, tag="hello"):
    """The first request. Result: ``AdapterInfo``."""

    schema: int = SCHEMA_VERSION


class Open(Request, tag="open"):
    """Make a client. A transactional producer is initialised, too. Result: ``Opened``."""

    client: ClientName
    role: str
    """producer, consumer or admin."""
    bootstrap: str
    """HOST:PORT, with commas between several."""
    client_id: str
    settings: dict[str, Setting] = {}
    """Portable settings (``SETTINGS``). A setting that is missing keeps the client's default."""


class ClientRequest(Request):
    """A request to one client."""

    client: ClientName


class Send(ClientRequest, tag="send"):
    """Send a record and reply at once. Its outcome is an event: acknowledged or failed."""

    record: int
    """A number that the event repeats."""
    topic: str
    partition: int | None = None
    key: Text = None
    value: Text = None
    headers: list[tuple[str, Text]] = []


class Flush(ClientRequest, tag="flush"):
    """Wait until every record has its outcome. The events come before the reply."""

    timeout_ms: int


class Subscribe(ClientRequest, tag="subscribe"):
    """Subscribe to topics, as a member of the group of the settings."""

    topics: list[str]


class Assign(ClientRequest, tag="assign"):
    """Read these partitions, from an offset or else from where the settings say."""

    partitions: list[PartitionOffset]


class Seek(ClientRequest, tag="seek"):
    """Go on reading at an offset."""

    partition: PartitionOffset


class Pause(ClientRequest, tag="pause"):
    """Return no records of these partitions until they are resumed."""

    partitions: list[PartitionOffset]


class Resume(ClientRequest, tag="resume"):
    """Return records of these partitions again."""

    partitions: list[PartitionOffset]


class Poll(ClientRequest, tag="poll"):
    """Let the consumer work for at most this time, and return as soon as there are records. They are events, which
    come before the reply."""

    timeout_ms: int


class Commit(ClientRequest, tag="commit"):
    """Commit and wait: these offsets, or with null what was read so far."""

    offsets: list[PartitionOffset] | None = None


class Committed(ClientRequest, tag="committed"):
    """Return the group's committed offsets. Result: ``PartitionOffsets``, without partitions that have none."""

    partitions: list[PartitionOffset]


class Position(ClientRequest, tag="position"):
    """Return the next offset that would be read. Result: ``PartitionOffsets``."""

    partitions: list[PartitionOffset]


class Begin(ClientRequest, tag="begin"):
    """Begin a transaction."""


class SendOffsets(ClientRequest, tag="send_offsets"):
    """Make offsets of a consumer in this process part of the transaction (KIP-447)."""

    consumer: ClientName
    offsets: list[PartitionOffset]


class CommitTransaction(ClientRequest, tag="commit_transaction"):
    """Commit the transaction and wait."""


class AbortTransaction(ClientRequest, tag="abort_transaction"):
    """Abort the transaction and wait."""


class CreateTopic(ClientRequest, tag="create_topic"):
    """Create a topic with an admin client."""

    topic: str
    partitions: int = 1


class Close(ClientRequest, tag="close"):
    """Close the client, as at the end of an application."""


AnyRequest: TypeAlias = (
    Hello
    | Open
    | Send
    | Flush
    | Subscribe
    | Assign
    | Seek
    | Pause
    | Resume
    | Poll
    | Commit
    | Committed
    | Position
    | Begin
    | SendOffsets
    | CommitTransaction
    | AbortTransaction
    | CreateTopic
    | Close
)

# Replies


class AdapterInfo(Wire):
    """The result of hello."""

    schema: int
    """The version of the protocol that the adapter speaks: 1."""
    name: str
    version: str
    """The client's own, not the adapter's."""
    features: list[str]
    """Those of ``FEATURES`` that the client has."""
    language: str = ""


class Opened(Wire):
    """The result of open."""

    ignored: list[str] = []
    """Settings that this client does not have."""


class PartitionOffsets(Wire):
    """The result of committed and position."""

    partitions: list[PartitionOffset] = []


class Reply(Wire):
    """A reply has a result, which may be empty, or an error."""

    id: int
    result: dict[str, Any] = {}
    error: Failure | None = None


# Events


class Event(Wire, tag_field="event"):
    """Something that happened in a client."""

    client: ClientName


class Acknowledged(Event, tag="acknowledged"):
    """A record is written."""

    record: int
    partition: int
    offset: int = -1
    """-1 where the client does not say."""


class Failed(Event, tag="failed"):
    """A record is not written, or it is unknown whether it is. Without a record: an error beside all operations."""

    error: Failure
    record: int | None = None


class Record(Event, tag="record"):
    """A record was returned to the application."""

    topic: str
    partition: int
    offset: int
    key: Text = None
    value: Text = None
    headers: list[tuple[str, Text]] = []


class Assigned(Event, tag="assigned"):
    """The consumer got partitions: all of them with an eager assignor, the new ones with a cooperative one."""

    partitions: list[PartitionOffset]


class Revoked(Event, tag="revoked"):
    """Partitions are taken from the consumer, which can still commit their offsets."""

    partitions: list[PartitionOffset]


class Lost(Event, tag="lost"):
    """Partitions are gone, and their offsets cannot be committed any more."""

    partitions: list[PartitionOffset]


class CommitCompleted(Event, tag="committed"):
    """A commit that nobody waits for has ended."""

    error: Failure | None = None


class Log(Event, tag="log"):
    """A line of the client's log."""

    text: str


AnyEvent: TypeAlias = Acknowledged | Failed | Record | Assigned | Revoked | Lost | CommitCompleted | Log

# What settings and features are called

SETTINGS: Final[dict[str, str]] = {
    "request_timeout_ms": "how long the client waits for a response",
    "retry_backoff_ms": "the wait before a retry",
    "reconnect_backoff_ms": "the wait before the next connection to the same node",
    "metadata_max_age_ms": "how old metadata may get",
    "connections_max_idle_ms": "when an idle connection is closed",
    "rack": "the client's rack (KIP-392)",
    "acks": "all, 1 or 0",
    "idempotence": "whether the producer is idempotent",
    "transactional_id": "makes the producer transactional",
    "transaction_timeout_ms": "after which the coordinator aborts a transaction",
    "linger_ms": "how long a batch is collected",
    "batch_bytes": "the size of a batch",
    "compression": "none, gzip, snappy, lz4 or zstd",
    "in_flight": "the limit of requests in flight to one node",
    "delivery_timeout_ms": "after which a record fails",
    "group": "the group's name",
    "instance": "group.instance.id: a static member",
    "group_protocol": "classic, or consumer (KIP-848)",
    "assignor": "range, roundrobin or cooperative-sticky",
    "session_timeout_ms": "after which the group goes on without a silent member",
    "heartbeat_interval_ms": "the time between heartbeats",
    "max_poll_interval_ms": "after which a member that does not poll leaves",
    "isolation": "read_committed or read_uncommitted",
    "reset": "where reading begins without a committed offset: earliest, latest or none",
    "auto_commit": "whether the consumer commits by itself",
    "auto_commit_interval_ms": "how often it does",
    "fetch_max_wait_ms": "how long a Fetch may wait for data",
    "fetch_min_bytes": "how much data it waits for",
    "fetch_max_bytes": "the limit of one Fetch response",
    "partition_max_bytes": "its limit for one partition",
    "check_crcs": "whether batches' checksums are checked",
}
"""The portable settings, in one dictionary for all roles."""

FEATURES: Final[dict[str, str]] = {
    "producer": "sends records outside of transactions",
    "idempotence": "idempotent producers (KIP-98)",
    "transactions": "transactional producers, and reading committed records",
    "send-offsets": "offsets as part of transactions (KIP-447)",
    "consumer": "reads assigned partitions",
    "groups": "reads as a member of a group (classic protocol)",
    "group-protocol-consumer": "the consumer protocol of groups (KIP-848)",
    "cooperative": "cooperative rebalances (KIP-429)",
    "static-membership": "static members (KIP-345)",
    "pause": "pauses partitions",
    "rack": "reads from followers (KIP-392)",
    "admin": "creates topics",
    "gzip": "",
    "snappy": "",
    "lz4": "",
    "zstd": "",
}
"""Features that a client may lack. A case that needs a feature is "not supported" without it."""

encode: Final = msgspec.json.Encoder().encode
_MESSAGE: Final = msgspec.json.Decoder(dict[str, Any])


class InvalidMessage(Exception):  # noqa: N818 - says what came
    """A line that is no message of the protocol. The text is the end of a sentence: ``the adapter wrote ...``."""


def decode(line: bytes) -> Reply | AnyEvent:
    """Return the message of one line of the adapter. Raise InvalidMessage."""
    try:
        message = _MESSAGE.decode(line)
    except msgspec.MsgspecError:
        raise InvalidMessage(f"a line that is no JSON object: {_shown(line)}") from None
    kind: Any = AnyEvent if "event" in message else Reply
    try:
        return msgspec.convert(message, kind)  # type: ignore[no-any-return]
    except msgspec.ValidationError as wrong:
        raise InvalidMessage(f"a message that the protocol does not have ({wrong}): {_shown(line)}") from None


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 120 else f"{text[:120]}...")


def schema() -> dict[str, Any]:
    """Return the JSON schema of requests, replies and events."""
    kinds: list[Any] = [AnyRequest, Reply, AnyEvent, AdapterInfo, Opened, PartitionOffsets]
    (request, reply, event, *_), definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Adapters of crucible client, version {SCHEMA_VERSION}",
        "$defs": {**definitions, "Request": request, "AnyReply": reply, "Event": event},
    }
