"""The operations of a script on topics, and its writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from chaos.search.differ_world import (
    BY_ID_SINCE,
    GROUP,
    TIER_CONFIGS,
    TIMESTAMPS_MS,
    TRANSACTION,
    ClientRequests,
    ClientResult,
    Partition,
    code_name,
    first_of,
    first_partition,
    own_error,
    rounded,
)
from chaos.sim.agenda import START_WALL_MS
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceTopic

TRANSACTION_MS: Final = 800_000
"""Timeout of transactions. No script takes so long."""


@dataclass(slots=True)
class Producer:
    """A producer of the script."""

    name: str
    transactional_id: str
    """empty for an idempotent producer"""
    is_new: bool
    """whether it has the protocol of transaction.version 2, with which each transaction has an epoch of its own"""
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[Partition, int] = field(default_factory=dict)
    sent: dict[Partition, list[bytes]] = field(default_factory=dict)
    """the batches of this epoch, in order"""
    added: set[Partition] = field(default_factory=set)
    """partitions of the open transaction"""


@dataclass
class WritingClient(ClientRequests):
    """Each public method is one operation, and returns its result."""

    producers: dict[str, Producer] = field(default_factory=dict)
    """by the script's names"""
    compacted: set[str] = field(default_factory=set)
    """topics with compaction"""
    _producers_named: dict[int, str] = field(default_factory=dict)
    """by producer ID"""

    # Topics

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> ClientResult:
        if configs.get("cleanup.policy") == "compact":
            self.compacted.add(name)
        elif self.world.way.tiered:
            configs = {**configs, **TIER_CONFIGS}
        rows = [{"name": key, "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": -1, "configs": rows}
        code = self.controller_request(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout": 5000}, first_of("topics"))
        self._forget(name)
        return (("error", code_name(code)),)

    def delete_topic(self, name: str) -> ClientResult:
        values = {"topics": [{"name": name}], "timeout": 5000}
        code = self.controller_request(ApiKey.DELETE_TOPICS, values, first_of("responses"))
        self.topic_leaders.pop(name, None)  # Its ID stays: a fetch by ID shows that the topic is gone.
        return (("error", code_name(code)),)

    def _forget(self, topic: str) -> None:
        self.topic_leaders.pop(topic, None)
        self.topic_ids.pop(topic, None)

    def add_partitions(self, name: str, count: int) -> ClientResult:
        values = {"topics": [{"name": name, "count": count, "assignments": None}], "timeout": 5000}
        code = self.controller_request(ApiKey.CREATE_PARTITIONS, values, first_of("results"))
        self.topic_leaders.pop(name, None)
        return (("error", code_name(code)),)

    def alter_config(self, name: str, key: str, value: str | None) -> ClientResult:
        row = {"name": key, "config_operation": 1 if value is None else 0, "value": value}
        values = {"resources": [{"resource_type": 2, "resource_name": name, "configs": [row]}]}
        code = self.controller_request(ApiKey.INCREMENTAL_ALTER_CONFIGS, values, first_of("responses"))
        return (("error", code_name(code)),)

    def describe_configs(self, name: str) -> ClientResult:
        values = {
            "resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None}],
            "include_synonyms": True,
        }
        response = self.call(0, ApiKey.DESCRIBE_CONFIGS, values)
        if response is None:
            return (("error", "no response"),)
        (resource,) = response.results
        rows = [
            (
                str(config.name),
                (config.value, int(config.config_source), tuple((s.name, s.value) for s in config.synonyms)),
            )
            for config in resource.configs
            if config.name not in TIER_CONFIGS
        ]
        return (("error", code_name(resource.error_code)), *sorted(rows))

    def describe_topic(self, name: str) -> ClientResult:
        topic_metadata = self.look_up(name)
        if topic_metadata is None:
            return (("error", "no response"),)
        partitions = sorted(
            (int(partition.partition_index), code_name(partition.error_code)) for partition in topic_metadata.partitions
        )
        return (
            ("error", code_name(topic_metadata.error_code)),
            ("internal", bool(topic_metadata.is_internal)),
            ("of", tuple(partitions)),
        )

    # Producers

    def init_producer(self, name: str, transactional_id: str, is_new: bool) -> ClientResult:
        """Make a producer, or another one that takes the transactional ID of an earlier one."""
        who = self.producers[name] = Producer(name, transactional_id, is_new)
        values = {"transactional_id": transactional_id or None, "transaction_timeout": TRANSACTION_MS}
        if transactional_id:
            code, response = self.transaction_request(who.transactional_id, ApiKey.INIT_PRODUCER_ID, values, own_error)
        else:
            code, response = self.until_settled(
                lambda: 0, lambda node: self.call(node, ApiKey.INIT_PRODUCER_ID, values), own_error
            )
        if response is not None and not code:
            who.producer_id, who.epoch = int(response.producer_id), int(response.producer_epoch)
            owner = transactional_id or name
            self._producers_named.setdefault(who.producer_id, owner)
        return (("error", code_name(code)), ("owner", self._owner(who.producer_id)), ("epoch", who.epoch))

    def _owner(self, producer_id: int) -> str:
        if producer_id < 0:
            return "none"
        return self._producers_named.get(producer_id, "unknown")

    def produce(self, name: str, topic: str, partition: int, count: int, seed: int, gap: int = 0) -> ClientResult:
        """Send one batch. A ``gap`` is added to its sequence. Without a name it has no producer."""
        who, random = self.producers.get(name), Random(seed)
        records = _records(random, count)
        compression = random.choice([*Compression])
        where = topic, partition
        if who is None:
            return self._produced(topic, partition, build(records, compression=compression), None)
        first = who.sequences.get(where, 0)
        data = build(
            records,
            compression=compression,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=first + gap,
            is_transactional=bool(who.transactional_id),
        )
        result = self._produced(topic, partition, data, who)
        if result[0][1] == ErrorCode.none.name:
            who.sequences[where] = first + gap + count
            who.sent.setdefault(where, []).append(data)
        return result

    def retry(self, name: str, topic: str, partition: int, back: int) -> ClientResult:
        """Send a batch of this epoch again: the last one, or one that is ``back`` before it."""
        who = self.producers[name]
        sent = who.sent.get((topic, partition), [])
        if len(sent) <= back:
            return (("error", "nothing to retry"),)
        return self._produced(topic, partition, sent[-1 - back], who)

    def _produced(self, topic: str, partition: int, data: bytes, who: Producer | None) -> ClientResult:
        transactional_id = who.transactional_id or None if who is not None else None
        version = BY_ID_SINCE if self.by_id else BY_ID_SINCE - 1
        if transactional_id is not None and who is not None and not who.is_new:
            version = 11  # The protocol before transaction.version 2, in which the client has added the partition.

        def own(response: Any) -> ProducePartitionResponse:
            of_partition: ProducePartitionResponse = response.responses[0].partitions[0]
            return of_partition

        def send(node: int) -> Any:
            named = self.topic_name(topic) if version >= BY_ID_SINCE else (topic, NO_TOPIC_ID)
            request = ProduceRequest(
                -1, 5000, [ProduceTopic(*named, [ProducePartition(partition, data)])], transactional_id
            )
            return self.call(node, ApiKey.PRODUCE, request, version)

        _, response = self.until_settled(
            lambda: self.leader_of(topic, partition), send, lambda response: int(own(response).error_code)
        )
        if response is None:
            return (("error", "no response"),)
        of_partition = own(response)
        return (
            ("error", code_name(of_partition.error_code)),
            ("base offset", of_partition.base_offset),
            ("log start", of_partition.log_start_offset),
            ("append time", of_partition.log_append_time_ms),
            ("wrong records", tuple(error.batch_index for error in of_partition.record_errors)),
        )

    def add_to_transaction(self, name: str, topic: str, partition: int) -> ClientResult:
        """Add a partition, unless the producer's protocol leaves that to the partition's leader."""
        who = self.producers[name]
        if who.is_new:
            return (("error", "not needed"),)
        values = {"transactions": [{**_identity(who), "topics": [{"name": topic, "partitions": [partition]}]}]}

        def error(response: Any) -> int:
            (result,) = response.results_by_transaction
            return int(result.topic_results[0].results_by_partition[0].partition_error_code)

        code, _ = self.transaction_request(who.transactional_id, ApiKey.ADD_PARTITIONS_TO_TXN, values, error, 3)
        return (("error", code_name(code)),)

    def commit_in_transaction(self, name: str, group: str, topic: str, partition: int, offset: int) -> ClientResult:
        who = self.producers[name]
        added = 0
        if not who.is_new:
            values = {**_identity(who), "group_id": group}
            added, _ = self.transaction_request(who.transactional_id, ApiKey.ADD_OFFSETS_TO_TXN, values, own_error, 3)
        rows = [{"partition_index": partition, "committed_offset": offset, "committed_metadata": f"by {name}"}]
        request = {**_identity(who), "group_id": group, "topics": [{"name": topic, "partitions": rows}]}
        version = 5 if who.is_new else 3
        code, _ = self.until_settled(
            lambda: self.coordinator_of(GROUP, group),
            lambda node: self.call(node, ApiKey.TXN_OFFSET_COMMIT, request, version),
            first_partition,
        )
        return (("error of AddOffsetsToTxn", code_name(added)), ("error", code_name(code)))

    def end_transaction(self, name: str, commits: bool) -> ClientResult:
        who = self.producers[name]
        version = 5 if who.is_new else 3
        values = {**_identity(who), "committed": commits}
        code, response = self.transaction_request(who.transactional_id, ApiKey.END_TXN, values, own_error, version)
        if who.is_new and response is not None and not code:
            who.producer_id, who.epoch = int(response.producer_id), int(response.producer_epoch)
            self._producers_named.setdefault(who.producer_id, who.transactional_id)
            who.sequences.clear()
            who.sent.clear()
        return (("error", code_name(code)), ("owner", self._owner(who.producer_id)), ("epoch", who.epoch))

    def describe_producers(self, topic: str, partition: int) -> ClientResult:
        values = {"topics": [{"name": topic, "partition_indexes": [partition]}]}
        of_partition = self.leader_request(topic, partition, ApiKey.DESCRIBE_PRODUCERS, values)
        if of_partition is None:
            return (("error", "no response"),)
        # What the cleaner leaves of a batch has the largest timestamp of the records that are left, and a restart reads
        # that one. So compacted topics show none.
        rows = sorted(
            (
                self._owner(int(producer.producer_id)),
                f"epoch {producer.producer_epoch}",
                f"last sequence {producer.last_sequence}",
                "" if topic in self.compacted else f"last timestamp {rounded(int(producer.last_timestamp))}",
                f"transaction from {producer.current_txn_start_offset}",
            )
            for producer in of_partition.active_producers
        )
        return (("error", code_name(of_partition.error_code)), ("producers", tuple(rows)))

    def describe_transaction(self, transactional_id: str) -> ClientResult:
        def error(response: Any) -> int:
            return int(response.transaction_states[0].error_code)

        code, response = self.until_settled(
            lambda: self.coordinator_of(TRANSACTION, transactional_id),
            lambda node: self.call(node, ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [transactional_id]}),
            error,
        )
        if response is None:
            return (("error", "no response"),)
        described = response.transaction_states[0]
        if code:
            return (("error", code_name(code)),)
        topics = sorted((str(topic.topic), tuple(sorted(map(int, topic.partitions)))) for topic in described.topics)
        return (
            ("error", code_name(code)),
            ("state", str(described.transaction_state)),
            ("owner", self._owner(int(described.producer_id))),
            ("epoch", int(described.producer_epoch)),
            ("timeout", str(described.transaction_timeout)),
            ("partitions", tuple(topics)),
        )

    def list_transactions(self) -> ClientResult:
        rows = []
        for node in range(len(self.world.machines)):
            response = self.call(node, ApiKey.LIST_TRANSACTIONS, {})
            rows += [
                (str(state.transactional_id), self._owner(int(state.producer_id)), str(state.transaction_state))
                for state in response.transaction_states
            ]
        return (("transactions", tuple(sorted(rows))),)


def _records(random: Random, count: int) -> list[Record]:
    """Draw records: few keys, tombstones, headers, and timestamps that are not in order."""
    records = []
    for _ in range(count):
        key = random.choice((b"a", b"b", b"c", b"d"))
        value = None if random.random() < 0.1 else bytes(random.choices(b"xyz", k=random.choice((0, 3, 40, 120))))
        headers = (("h", b"1"), ("n", None)) if random.random() < 0.2 else ()
        records.append(
            Record(timestamp_ms=START_WALL_MS + random.randrange(TIMESTAMPS_MS), key=key, value=value, headers=headers)
        )
    return records


def _identity(who: Producer) -> dict[str, object]:
    return {
        "transactional_id": who.transactional_id,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
    }
