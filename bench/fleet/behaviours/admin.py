"""Admins: create topics in sets, delete and configure some of them, describe others, on an open-loop schedule.

One request creates one set of topics. Its k-th topic is ``<base>.<process>.<number>.<k>of<topics>.p<partitions>``, so a
name says how many topics and partitions must exist beside it. No name is used twice.

Slot n is due at ``start + n * interval``, whatever happened before. An admin sends its request to the active controller
that Metadata names. After NOT_CONTROLLER, a timeout or a lost connection the earlier attempt may have been carried out:
it looks up the controller again and resends the same request with the same names, until the result is known or the
deadline has passed. A topic that exists already after such an attempt was created by it, once (T-10).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.cluster import ClusterScript, EpochHabits
from bench.fleet.behaviours.protocol import Chance, ClientSettings, HistoryRow, Now, ResponseReceived, TopicPartition
from bench.fleet.behaviours.script import OpenLoop, Operation, Steps
from bench.fleet.behaviours.wild_fetches import WildFetches
from bench.fleet.behaviours.wild_members import WildMembers, WildRequest, error_in
from bench.fleet.behaviours.wild_records import WildRecords
from bench.fleet.behaviours.wild_transactions import WildTransactions
from reference_broker.client import group_requests
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.transaction_requests import TRANSACTION_KEY_TYPE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name
from reference_broker.wire.fetch import FetchResponse
from reports.rows import ChangeRow

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.response import ApiVersionsResponse
    from kio.schema.create_topics.v7.response import CreateTopicsResponse
    from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
    from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
    from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
    from kio.schema.update_features.v2.response import UpdateFeaturesResponse


_TAIL: Final = re.compile(r"\.(\d+)\.(\d+)of(\d+)\.p(\d+)$")


@dataclass(frozen=True, slots=True)
class TopicSet:
    """The topics of one request."""

    name: str  # ``<base>.<process>.<number>``
    topics: int
    partitions: int  # of each topic

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{number}of{self.topics}.p{self.partitions}" for number in range(self.topics))


@dataclass(frozen=True, slots=True)
class LoadedTopic(TopicSet):
    """One topic of the load, which clients write and read."""

    min_insync: int  # its min.insync.replicas in the load
    replicas: int  # its replication factor

    @property
    def topic_names(self) -> tuple[str, ...]:
        return (self.name,)


@lru_cache(maxsize=65_536)
def set_of(base: str, topic: str) -> TopicSet | None:
    """Return the set of a topic, or None if no admin of this fleet has named the topic."""
    match = _TAIL.search(topic)
    if match is None or not topic.startswith(f"{base}."):
        return None
    number, _, topics, partitions = match.groups()
    return TopicSet(f"{topic[: match.start()]}.{number}", int(topics), int(partitions))


METADATA_VERSION: Final = "metadata.version"
API_VERSIONS_VERSION: Final = 3
UNKNOWN_TOPIC: Final = 3
REQUEST_TIMED_OUT: Final = 7
TOPIC_ALREADY_EXISTS: Final = 36
NOT_CONTROLLER: Final = 41
UNKNOWN_OUTCOME: Final = frozenset({REQUEST_TIMED_OUT, NOT_CONTROLLER})
"""A controller that lost its office responds with NOT_CONTROLLER, and its successor may still commit what it
appended."""

CONFIG_KEY: Final = "retention.ms"
FIRST_VALUE: Final = 1_000_000_000_000
"""Requested values rise from here by one, so that each identifies its request."""

MIN_ISR_KEY: Final = "min.insync.replicas"
ALL_BROKERS: Final = ""

LONGEST_WAIT_US: Final = 200_000
OPERATIONS: Final[Mapping[str, str]] = {
    "create": "create_topics",
    "delete": "delete_topics",
    "configure": "alter_configs",
    "describe": "describe",
    "upgrade": "update_features",
    "min_isr": "alter_min_isr",
    "broker_min_isr": "alter_broker_min_isr",
    "loaded_min_isr": "alter_loaded_min_isr",
    "loaded_setting": "alter_loaded_setting",
    "group_request": "group_request",
    "transaction_request": "transaction_request",
    "fetch_request": "fetch_request",
    "record_request": "record_request",
}
"""The operations of an admin, with their names in the history. ``min_isr`` changes min.insync.replicas of a topic. A
cluster that keeps eligible leader replicas refuses ``broker_min_isr``, which removes that of the cluster or sets that
of a broker (KIP-966). ``loaded_min_isr`` changes min.insync.replicas of a topic of the load, and ``loaded_setting`` any
of LOADED_SETTINGS, while clients write and read it. ``group_request`` is one of WildMembers, ``transaction_request``
one of WildTransactions, ``fetch_request`` one of WildFetches, and ``record_request`` one of WildRecords in the last
topic of the load, which no other client may write or read."""
GROUP_REQUEST, TRANSACTION_REQUEST, FETCH_REQUEST = "group_request", "transaction_request", "fetch_request"
RECORD_REQUEST: Final = "record_request"
WILD: Final = frozenset({GROUP_REQUEST, TRANSACTION_REQUEST, FETCH_REQUEST, RECORD_REQUEST})
OF_NO_TOPIC: Final = frozenset({"upgrade", "broker_min_isr"})
OF_THE_LOAD: Final = frozenset({"loaded_min_isr", "loaded_setting"})
ALTERATIONS: Final = frozenset({"configure", "min_isr", "broker_min_isr", *OF_THE_LOAD})
LISTING_PERCENT: Final = 45
"""Share of a wild fetcher's requests that are for offsets."""
WITHOUT_ROWS: Final = frozenset({"describe", "upgrade", "min_isr", "broker_min_isr", *OF_THE_LOAD})
"""Operations whose end is not judged by what the history says of topics."""

DAY_MS: Final = "86400000"
LOADED_SETTINGS: Final[Mapping[str, tuple[str | None, ...]]] = {
    "cleanup.policy": ("delete", None),
    "compression.gzip.level": ("1", "9", None),
    "compression.lz4.level": ("1", "9", "17", None),
    "compression.type": ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer", None),
    "compression.zstd.level": ("-7", "19", None),
    "delete.retention.ms": ("0", DAY_MS, None),
    "flush.messages": ("1", "10", None),
    "flush.ms": ("0", "100", "1000", None),
    "index.interval.bytes": ("0", "64", "4096", None),
    "max.compaction.lag.ms": (DAY_MS, None),
    "max.message.bytes": ("500000", None),
    "message.timestamp.after.max.ms": ("9223372036854775807", None),
    "message.timestamp.before.max.ms": ("9223372036854775807", None),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", None),
    "min.cleanable.dirty.ratio": ("0", "0.1", "1", None),
    "min.compaction.lag.ms": ("0", "1000", None),
    "retention.bytes": ("-1", "1000000000", None),
    "retention.ms": ("-1", DAY_MS, None),
    "segment.bytes": ("1048576", None),
    "segment.index.bytes": ("64", "10485760", None),
    "segment.jitter.ms": ("0", "150", None),
    "segment.ms": ("200", "1000", "5000", None),
    "unclean.leader.election.enable": ("false", None),
}
"""The values that ``loaded_setting`` draws from, besides those of min.insync.replicas. None removes a setting. No value
lets a broker delete, compact or refuse what a load of seconds writes, since a check could not distinguish that from a
loss. Settings of the remote tier are missing: most clusters have none, and reject them."""

Errors: TypeAlias = dict[str, int]


@dataclass(frozen=True, slots=True)
class AdminPlan:
    """The plan of one admin."""

    process: str
    base: str  # begins the names of the topics
    weights: Mapping[str, int]  # how often each of OPERATIONS is drawn
    interval_us: int = 1_000_000
    partitions: int = 1  # of each topic
    topics: int = 1  # number of topics in a set
    replication_factor: int = 1
    loaded: tuple[LoadedTopic, ...] = ()
    """The topics of the load that it may alter."""
    groups: tuple[str, ...] = ()
    """The groups of the load."""
    deadline_us: int = 30_000_000  # how long a request is retried
    response_wait_ms: int = 3_000
    """The ``timeout_ms`` of a request, which is how long the controller may take."""
    metadata_epoch: bool = False
    metadata_interval_us: int = 0
    """These two are ``cluster.EpochHabits``."""


@dataclass(slots=True)
class Task:
    """The request of one slot."""

    operation: Operation
    change: str
    target: TopicSet
    deadline_us: int
    value: int = -1  # the config value or the feature level that it requests
    settings: Mapping[str, str | None] = field(default_factory=dict)  # new settings of topics
    broker: str = ALL_BROKERS  # the broker whose setting ``broker_min_isr`` changes
    attempts: int = 0
    uncertain: bool = False  # an attempt may have been carried out
    errors: Errors = field(default_factory=dict)  # those of the last response

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its topics, or of its one feature or broker."""
        if self.change == "broker_min_isr":
            return (self.broker,)
        return self.target.topic_names or (METADATA_VERSION,)


NO_TOPICS: Final = TopicSet("", 0, 0)


class Admin(ClusterScript):
    """Ends after Stopping, once the request in flight is settled."""

    def __init__(self, plan: AdminPlan, settings: ClientSettings, random: Chance) -> None:
        # A successor is there within a second or two: looking for it seldom would measure the admin.
        habits = EpochHabits(plan.metadata_epoch, plan.metadata_interval_us)
        named = [loaded_topic.name for loaded_topic in plan.loaded[:1]] if FETCH_REQUEST in plan.weights else []
        named += [loaded_topic.name for loaded_topic in plan.loaded[-1:]] if RECORD_REQUEST in plan.weights else []
        super().__init__(plan.process, replace(settings, max_backoff_us=LONGEST_WAIT_US), random, named, habits)
        self.plan = plan
        self.standing: list[TopicSet] = []
        self.created = 0
        self.next_value = FIRST_VALUE
        self._deletable: dict[TopicSet, None] = {}
        self._task: Task | None = None
        self._lost_sight = True
        topic = plan.loaded[0].name if plan.loaded else ""
        self._wild = WildMembers(f"{plan.base}-wild", topic, random, plan.groups)
        partitions = [
            TopicPartition(loaded_topic.name, index)
            for loaded_topic in plan.loaded
            for index in range(loaded_topic.partitions)
        ]
        self._wild_transactions = WildTransactions(f"{plan.base}-wild", partitions, random)
        self._fetches = WildFetches(topic, plan.loaded[0].partitions if plan.loaded else 0, random)
        last = plan.loaded[-1] if plan.loaded else NO_TOPICS
        self._records = WildRecords(plan.process, last.name, last.partitions, random)

    def run(self) -> Steps[None]:
        likely = max(self.plan.weights, key=lambda weight: self.plan.weights[weight])
        yield from OpenLoop(self, self.plan.interval_us, OPERATIONS[likely]).run(self._slot)

    @property
    def gives_up(self) -> bool:
        return self.out_of_time or (self._task is not None and self.now.mono_us >= self._task.deadline_us)

    def close(self, now: Now) -> list[HistoryRow]:
        """End at once. What is in flight may be carried out."""
        rows = super().close(now)
        if self._task is not None:
            rows.extend(self._change_rows(self._task, "info"))
        return rows

    # -- one slot -----------------------------------------------------------------------------------------------

    def _slot(self, due_us: int) -> Steps[None]:
        yield from self.stay_informed()
        change, target = self._choose()
        if change == FETCH_REQUEST:
            yield from self._send_of_session(due_us)
            return
        if change == RECORD_REQUEST:
            yield from self._send_of_records(due_us)
            return
        if change in WILD:
            yield from self._send_wild(due_us, change)
            return
        operation = self.journal.begin(OPERATIONS[change], due_us, sent=False)
        task = self._task = Task(operation, change, target, self.now.mono_us + self.plan.deadline_us)
        if change == "configure":
            task.value = self.next_value
            self.next_value += 1
            task.settings = {CONFIG_KEY: str(task.value)}
        elif change == "min_isr":
            task.settings = {MIN_ISR_KEY: str(self.random.randint(1, self.plan.replication_factor))}
        elif change == "broker_min_isr":
            task.broker = self.random.choice([ALL_BROKERS, *map(str, sorted(self.metadata.nodes))])
        elif isinstance(target, LoadedTopic):
            task.settings = self._loaded_setting(change, target)
        response = yield from self._carry_out(task)
        self._task = None
        self._record_end(task, response)

    def _send_wild(self, due_us: int, change: str) -> Steps[None]:
        """Send one request to its coordinator, once, and those that follow on it. Responses are not judged here."""
        wild = self._wild if change == GROUP_REQUEST else self._wild_transactions
        self._wild_transactions.made = [
            TopicPartition(name, 0) for topic_set in self.standing for name in topic_set.topic_names
        ]
        request: WildRequest | None = wild.next_request()
        while request is not None:
            operation = self.journal.begin(OPERATIONS[change], due_us, sent=False)
            coordinator = yield from self._find_coordinator(request)
            self._lost_sight = True
            if coordinator is None or not (yield from self.connect_to_node(coordinator)):
                self.journal.end(operation, "fail", "not_sent")
                return
            operation.invoke_us, operation.node = self.now.mono_us, coordinator.node_id
            waits_us = (
                request.patience_us - self.settings.request_timeout_us if request.patience_us else request.waits_us
            )
            response = yield from self.call(request.api_key, request.api_version, request.body, waits_us)
            if isinstance(response, str):
                self.journal.end(operation, "info", response)
            else:
                wild.responded(request, response.body)
                code = error_in(request, response.body)
                self.journal.end(operation, "fail" if code else "ok", error_name(code) if code else None, response)
            request = request.then

    def _send_of_session(self, due_us: int) -> Steps[None]:
        """Send one request of a fetch session, or one of offsets, to any node, once. What the node responds is not
        judged here."""
        operation = self.journal.begin(OPERATIONS[FETCH_REQUEST], due_us, sent=False)
        name = self.plan.loaded[0].name
        if (name not in self.metadata.topics or self.random.randrange(20) == 0) and not (yield from self.refresh()):
            self.journal.end(operation, "fail", "not_sent")
            self.disconnect()
            return
        topic = self.metadata.topics.get(name)
        node = self.metadata.nodes[self.random.choice(sorted(self.metadata.nodes))]
        if topic is None or not (yield from self.connect_to_node(node)):
            self.journal.end(operation, "fail", "not_sent")
            return
        epochs = [partition.leader_epoch for _, partition in sorted(topic.partitions.items())]
        if self.random.randrange(100) < LISTING_PERCENT:
            operation.invoke_us, operation.node = self.now.mono_us, node.node_id
            listing = self._fetches.next_listing(epochs)
            listed = yield from self.call(ApiKey.LIST_OFFSETS, self.settings.versions.list_offsets, listing)
            if isinstance(listed, str):
                self.journal.end(operation, "info", listed)
            else:
                self.journal.end(operation, "ok", None, listed)
            return
        request = self._fetches.next_request(node.node_id, topic.topic_id, epochs)
        operation.invoke_us, operation.node = self.now.mono_us, node.node_id
        response = yield from self.call(
            ApiKey.FETCH, request.version, request.body, self.random.choice((0, request.body.max_wait_ms * 1000))
        )
        if isinstance(response, str):
            self._fetches.responded(request, None)
            self.journal.end(operation, "info", response)
            return
        body = cast(FetchResponse, response.body)
        self._fetches.responded(request, body)
        code = body.error_code
        self.journal.end(operation, "fail" if code else "ok", error_name(code) if code else None, response)

    def _send_of_records(self, due_us: int) -> Steps[None]:
        """Append records or delete some, once, at the leader of their partition. Its response is not judged here."""
        request = self._records.next_request(self.now.wall_ms)
        operation = self.journal.begin(OPERATIONS[RECORD_REQUEST], due_us, sent=False)
        where = request.partition
        if self._lost_sight or (where is not None and self.metadata.leader_of(where) is None):
            self._lost_sight = not (yield from self.refresh())
        nodes = [self.metadata.nodes[each] for each in sorted(self.metadata.nodes)]
        node = self.metadata.leader_of(where) if where is not None else self.random.choice(nodes) if nodes else None
        if node is None or not (yield from self.connect_to_node(node)):
            self._lost_sight = True
            self.disconnect()
            self._records.responded(request, None)
            self.journal.end(operation, "fail", "not_sent")
            return
        operation.invoke_us, operation.node = self.now.mono_us, node.node_id
        response = yield from self.call(request.api_key, request.version, request.body, request.wait_ms * 1000)
        if isinstance(response, str):
            self._lost_sight = True
            self._records.responded(request, None)
            self.journal.end(operation, "info", response)
            return
        code = self._records.responded(request, response.body)
        self._lost_sight = code != 0
        self.journal.end(operation, "fail" if code else "ok", error_name(code) if code else None, response)

    def _find_coordinator(self, request: WildRequest) -> Steps[NodeAddress | None]:
        if self.connected_to is None and not (yield from self.refresh()):
            return None
        key = request.of or request.identity.group_id
        key_type = TRANSACTION_KEY_TYPE if request.of else group_requests.GROUP_KEY_TYPE
        body = group_requests.find_coordinator(key, key_type)
        response = yield from self.call(ApiKey.FIND_COORDINATOR, self.settings.versions.find_coordinator, body)
        found = None if isinstance(response, str) else group_requests.coordinator_of(response.body, key)
        return found if isinstance(found, NodeAddress) else None

    def _loaded_setting(self, change: str, topic: LoadedTopic) -> Mapping[str, str | None]:
        """Draw a setting and its value. min.insync.replicas does not go below what the load gives the topic: what a
        cluster keeps depends on it."""
        key = MIN_ISR_KEY if change == "loaded_min_isr" else self.random.choice((MIN_ISR_KEY, *LOADED_SETTINGS))
        if key == MIN_ISR_KEY:
            return {key: str(self.random.randint(topic.min_insync, topic.replicas))}
        return {key: self.random.choice(LOADED_SETTINGS[key])}

    def _choose(self) -> tuple[str, TopicSet]:
        """Only sets whose creation needed one attempt are deleted: a late copy of the request could recreate others,
        which would not be a violation."""
        names = list(self.plan.weights)
        (change,) = self.random.choices(names, [self.plan.weights[weight] for weight in names])
        if change in OF_NO_TOPIC or change in WILD:
            return change, NO_TOPICS
        if change in OF_THE_LOAD:
            return change, self.random.choice(self.plan.loaded)
        candidates = list(self._deletable) if change == "delete" else self.standing
        if change != "create" and candidates:
            return change, self.random.choice(candidates)
        self.created += 1
        name = f"{self.plan.base}.{self.process}.{self.created}"
        return "create", TopicSet(name, self.plan.topics, self.plan.partitions)

    def _carry_out(self, task: Task) -> Steps[ResponseReceived | None]:
        """Retry until the response has the result of each topic. Return None when time is over."""
        while not self.gives_up:
            if (yield from self._to_controller(task)):
                response = yield from self._attempt(task)
                if response is not None and not UNKNOWN_OUTCOME & set(task.errors.values()):
                    self.succeeded()
                    return response
                task.uncertain = True
                self._lost_sight = True
                self.disconnect()  # The next address may know of another controller.
            yield from self.back_off()
        return None

    def _to_controller(self, task: Task) -> Steps[bool]:
        """Connect to the node that Metadata names as the active controller."""
        if self._lost_sight or self.connected_to is None:
            if not (yield from self.refresh()):
                return False
            self._lost_sight = False
        controller = self.metadata.nodes.get(self.metadata.controller_id)
        if controller is None or not (yield from self.connect_to_node(controller)):
            self._lost_sight = True
            self.disconnect()
            return False
        task.operation.node = controller.node_id
        return True

    def _attempt(self, task: Task) -> Steps[ResponseReceived | None]:
        if task.operation.invoke_us < 0:
            task.operation.invoke_us = self.now.mono_us
        if task.change == "upgrade" and task.value < 0:
            task.value = yield from self._next_level()
            if task.value < 0:
                return None
        task.attempts += 1
        task.operation.partitions_sent = task.target.topics * task.target.partitions
        response = yield from self.call(*self._request(task), self.plan.response_wait_ms * 1000)
        if isinstance(response, str):
            task.errors = dict.fromkeys(task.names, REQUEST_TIMED_OUT)
            return None
        task.errors = _errors_of(task.change, response.body)
        return response

    def _record_end(self, task: Task, response: ResponseReceived | None) -> None:
        done = [self._is_done(task, task.errors.get(name, -1)) for name in task.names]
        if response is None:
            kind = "info" if task.uncertain else "fail"
            error = "not_sent" if task.attempts == 0 else "deadline"
        else:
            kind = "ok" if all(done) else "fail"
            wrong = next((each for each in task.errors.values() if not self._is_done(task, each)), 0)
            error = "" if all(done) else error_name(wrong) if wrong else "INVALID_ANSWER"
        self._remember(task, kind)
        task.operation.response_partitions = task.operation.partitions_sent if kind == "ok" else -1
        rows = tuple(self._change_rows(task, "" if response is not None else kind))
        self.journal.end(task.operation, kind, error or None, response, rows)

    @staticmethod
    def _is_done(task: Task, code: int) -> bool:
        """Return whether the change is done. An earlier attempt of unknown end may have done it."""
        before = {"create": TOPIC_ALREADY_EXISTS, "delete": UNKNOWN_TOPIC}.get(task.change, 0)
        return code == 0 or (task.uncertain and code == before)

    def _remember(self, task: Task, kind: str) -> None:
        if task.change == "create" and kind == "ok":
            self.standing.append(task.target)
            if task.attempts == 1:
                self._deletable[task.target] = None
        elif task.change == "delete":
            self.standing.remove(task.target)
            del self._deletable[task.target]

    def _change_rows(self, task: Task, kind: str) -> list[ChangeRow]:
        """Return a row for each topic. If ``kind`` is empty, the last response has each topic's result."""
        if task.change in WITHOUT_ROWS:
            return []
        rows = []
        for topic in task.target.topic_names:
            code = task.errors.get(topic, 0)
            end = kind or ("ok" if self._is_done(task, task.errors.get(topic, -1)) else "fail")
            error = error_name(code) if code else None
            rows.append(
                ChangeRow(
                    self.process,
                    task.operation.index,
                    task.change,
                    topic,
                    task.target.name,
                    task.target.topics,
                    task.target.partitions,
                    task.value,
                    end,
                    task.attempts,
                    error,
                )
            )
        return rows

    def _next_level(self) -> Steps[int]:
        """Return the level after the finalized metadata.version, at most the highest supported, or -1 without a
        response."""
        response = yield from self.call(ApiKey.API_VERSIONS, API_VERSIONS_VERSION, bodies.API_VERSIONS_REQUEST)
        if isinstance(response, str):
            return -1
        body = cast("ApiVersionsResponse", response.body)
        levels = [
            int(feature.max_version_level) for feature in body.finalized_features if feature.name == METADATA_VERSION
        ]
        highest = [int(feature.max_version) for feature in body.supported_features if feature.name == METADATA_VERSION]
        return min(levels[0] + 1, highest[0]) if levels and highest else -1

    # -- requests and responses ---------------------------------------------------------------------------------

    def _request(self, task: Task) -> tuple[int, int, object]:
        versions, topics, wait_ms = self.settings.versions, task.target.topic_names, self.plan.response_wait_ms
        if task.change == "create":
            replicas = self.plan.replication_factor
            wanted = [bodies.new_topic(topic, task.target.partitions, replicas, {}) for topic in topics]
            body: object = bodies.create_topics_request(wanted, wait_ms)
            return ApiKey.CREATE_TOPICS, versions.create_topics, body
        if task.change == "delete":
            return ApiKey.DELETE_TOPICS, versions.delete_topics, bodies.delete_topics_request(topics, wait_ms)
        if task.settings:
            body = bodies.set_topic_configs_request(topics, task.settings)
            return ApiKey.INCREMENTAL_ALTER_CONFIGS, versions.incremental_alter_configs, body
        if task.change == "broker_min_isr":
            body = bodies.alter_broker_config_request(task.broker, MIN_ISR_KEY, "1" if task.broker else None)
            return ApiKey.INCREMENTAL_ALTER_CONFIGS, versions.incremental_alter_configs, body
        if task.change == "upgrade":
            body = bodies.upgrade_feature_request(METADATA_VERSION, task.value, wait_ms)
            return ApiKey.UPDATE_FEATURES, versions.update_features, body
        body = bodies.describe_topic_config_request(topics, CONFIG_KEY)
        return ApiKey.DESCRIBE_CONFIGS, versions.describe_configs, body


def _errors_of(change: str, body: object) -> Errors:
    """Return the error code of each topic."""
    if change == "create":
        return {str(topic.name): int(topic.error_code.value) for topic in cast("CreateTopicsResponse", body).topics}
    if change == "upgrade":
        return {METADATA_VERSION: int(cast("UpdateFeaturesResponse", body).error_code.value)}
    if change == "delete":
        return {
            str(response.name): int(response.error_code.value)
            for response in cast("DeleteTopicsResponse", body).responses
        }
    if change in ALTERATIONS:
        altered = cast("IncrementalAlterConfigsResponse", body).responses
        return {response.resource_name: int(response.error_code.value) for response in altered}
    described = cast("DescribeConfigsResponse", body).results
    return {result.resource_name: int(result.error_code.value) for result in described}
