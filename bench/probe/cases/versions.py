"""Each version of an API that the broker advertises must work."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.probe.case import ANY, Case, Unsupported, case
from bench.probe.context import ProbeContext, Topic
from bench.probe.conversation import Broken
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic


class Own(NamedTuple):
    """What a request is made for."""

    topic: Topic
    group: str
    version: int

    @property
    def named(self) -> tuple[str, bytes]:
        """The topic's name or its ID, whichever Fetch and Produce have in this version."""
        return (self.topic.name, NO_TOPIC_ID) if self.version < 13 else ("", self.topic.id)


Body = Callable[[Own], object]


def _fetch(own: Own) -> object:
    return FetchRequest(max_wait_ms=0, topics=[FetchTopic(*own.named, [FetchPartition(0, 0, 1024)])])


def _produce(own: Own) -> object:
    batch = build([Record(value=b"v")])
    return ProduceRequest(-1, 5_000, [ProduceTopic(*own.named, [ProducePartition(0, batch)])])


def _partitions(field: str, **values: object) -> Body:
    """One partition of the topic, in the fields of an API's request."""
    return lambda own: {
        "topics": [
            {("topic" if field == "partition" else "name"): own.topic.name, "partitions": [{field: 0, **values}]}
        ]
    }


def _nobody(own: Own) -> dict[str, object]:
    """A producer whose transactional ID nobody has."""
    return {"transactional_id": own.topic.name, "producer_id": 1, "producer_epoch": 0}


def _all_of(own: Own) -> list[dict[str, object]]:
    return [{"name": own.topic.name, "partitions": [0]}]


BODIES: Sequence[tuple[int, Body]] = (
    (ApiKey.API_VERSIONS, lambda _: {"client_software_name": "crucible", "client_software_version": "1"}),
    (ApiKey.METADATA, lambda own: {"topics": [{"name": own.topic.name}]}),
    (ApiKey.PRODUCE, _produce),
    (ApiKey.FETCH, _fetch),
    (ApiKey.LIST_OFFSETS, _partitions("partition_index", timestamp=-1)),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, _partitions("partition", leader_epoch=0)),
    (ApiKey.FIND_COORDINATOR, lambda own: {"coordinator_keys": [own.group]}),
    (ApiKey.LIST_GROUPS, lambda _: {}),
    (ApiKey.DESCRIBE_GROUPS, lambda own: {"groups": [own.group]}),
    (ApiKey.DESCRIBE_CONFIGS, lambda own: {"resources": [{"resource_type": 2, "resource_name": own.topic.name}]}),
    (ApiKey.DESCRIBE_CLUSTER, lambda _: {"endpoint_type": 1}),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, lambda own: {"topics": [{"name": own.topic.name}]}),
    (ApiKey.INIT_PRODUCER_ID, lambda _: {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}),
    (ApiKey.DELETE_GROUPS, lambda own: {"groups_names": [own.group]}),
    (ApiKey.ADD_PARTITIONS_TO_TXN, lambda own: {"transactions": [{**_nobody(own), "topics": _all_of(own)}]}),
    (ApiKey.ADD_OFFSETS_TO_TXN, lambda own: {**_nobody(own), "group_id": own.group}),
    (ApiKey.TXN_OFFSET_COMMIT, lambda own: {**_nobody(own), "group_id": own.group}),
    (ApiKey.END_TXN, lambda own: {**_nobody(own), "committed": False}),
    (ApiKey.DESCRIBE_PRODUCERS, lambda own: {"topics": [{"name": own.topic.name, "partition_indexes": [0]}]}),
    (ApiKey.DESCRIBE_TRANSACTIONS, lambda own: {"transactional_ids": [own.topic.name]}),
    (ApiKey.LIST_TRANSACTIONS, lambda _: {}),
)
"""APIs that answer something sensible to a topic that is there, and to a group and a transactional ID that are not."""


def _every_version(api_key: int, body: Body) -> Case:
    def play(at: ProbeContext) -> None:
        topic, group = at.topic(), at.group()
        for version in at.broker.spoken(api_key):
            with at.connect() as connection:
                try:
                    answer = connection.ask(api_key, version, body(Own(topic, group, version)), 5.0)
                except Broken as error:
                    raise Unsupported(f"version {version} is advertised, but {error}") from None
            code = getattr(answer, "error_code", ErrorCode.none)
            if code == ErrorCode.unsupported_version:
                raise Unsupported(f"version {version} is advertised, but answered with UNSUPPORTED_VERSION")
            at.expect_that(f"version {version} is answered", True, True, "True")

    play.__doc__ = f"Every version of {api_name(api_key)} that is advertised is answered in its own layout."
    name = api_name(api_key)
    schemas = f"{name}Request.json, {name}Response.json"
    return case(f"handshake/versions/{name}", schemas, {api_key: ANY}, since="0.10.0")(play)


CASES = tuple(_every_version(int(api_key), body) for api_key, body in BODIES)
