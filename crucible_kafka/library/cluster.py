"""A Kafka cluster in a ``with`` block. ``Cluster`` has what a test does to it and sees of it."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Unpack

from crucible_kafka.library.arguments import checked
from crucible_kafka.library.carrier import START_LIMIT_S
from crucible_kafka.library.cluster_verbs import ClusterVerbs
from crucible_kafka.library.errors import CrucibleError, CrucibleTimeout, NodeDead, NotPossible
from crucible_kafka.library.hit_counts import HitCounts
from crucible_kafka.library.judging import Guarantee, Sent, Violation, assert_delivered, values
from crucible_kafka.library.node_handle import LIMIT_S, NodeHandle
from crucible_kafka.library.observation import Frame, GroupView, SessionView, StoredRecord, TransactionView
from crucible_kafka.library.requests import wait_for
from crucible_kafka.library.response_changes import ResponseChange
from crucible_kafka.library.rule_spec import RuleSpec, Session
from crucible_kafka.library.rules import API_KEYS, Counts, Matcher, MatchFields, Rule, api_key_of
from crucible_kafka.library.stored_records import LogReader
from reference_broker.metadata.identifiers import INTERNAL_TOPICS
from reference_broker.wire.apis import api_name

FRAMES_SHOWN: Final = 6
"""The number of frames around a violation."""
REPLICATION_S: Final = 1.0
"""The longest wait of ``records`` for records that are not replicated, or whose transaction has no marker yet."""


@checked(besides=("on",))  # ``Matcher`` checks those of ``on``.
class Cluster(ClusterVerbs):
    """A Kafka cluster that lives as long as its ``with`` block.

    One node runs on a thread of this process, and is ready in a fraction of a second. Several nodes, or
    ``processes=True``, run in processes of their own, which end with this one however it ends. With
    ``processes=False`` several nodes are threads, too, which start in a fraction of a second::

        with Cluster() as kafka:
            kafka.create_topic("orders", partitions=3)
            run_my_application(kafka.bootstrap_servers)
            assert [record.value for record in kafka.records("orders")] == [b"one", b"two"]

    Without ``with``, call ``start()`` and ``close()``. Several clusters may live side by side. A forked process cannot
    use the cluster of its parent, and should be started with ``spawn``: the broker's threads are missing in it.
    """

    def __init__(
        self,
        nodes: int = 1,
        processes: bool | None = None,
        config: Mapping[str, object] | None = None,
        versions: str | Mapping[str, int] | None = None,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        """``config`` has broker settings under Kafka's names, and ``versions`` is what ``max_versions`` takes. Raise
        ValueError for an argument that cannot be.

        >>> Cluster(nodes=3, config={"num.partitions": 6}, versions="2.8")
        """
        super().__init__(nodes, processes, config, start_limit_s)
        if versions is not None:
            self.limit_versions(versions)
        self._rules: dict[int, Rule] = {}
        self._last_rule = 0
        self._rules_lock = threading.RLock()
        """Held while the rules change and nodes get them, so that no thread's older rules overtake newer ones."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.check_nodes()
                self.check_rules()
            elif value is not None and (text := self.crashes()):
                value.add_note(text)
        finally:
            self.close()

    # Rules

    def on(
        self,
        api: str | Sequence[str] = "*",
        *,
        client_id: str | None = None,
        versions: int | tuple[int, int] | None = None,
        group: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        transactional_id: str | None = None,
        transaction: str | None = None,
        node: int | None = None,
        connection: int | None = None,
        session: Session = None,
        sender: str = "client",
        **counts: Unpack[Counts],
    ) -> Matcher:
        """Match requests, and return what can be done to them (``Matcher``). Names may be patterns (``app-*``).

        ``api`` is Kafka's name, whatever its case, or several. ``session=True`` matches a Fetch in a fetch session,
        False one without, a number that session; ``"new"``, ``"incremental"`` and ``"closing"`` match by its epoch.
        ``transaction="Ongoing"`` matches by the state of the transactional ID at its coordinator. ``sender`` is
        ``"client"``, ``"node"`` for requests between nodes, or ``"any"``. ``counts`` are those of each act.

        Raise ValueError for a rule that can never match.

        >>> lost = kafka.on("OffsetCommit", client_id="app-*").drop_response(times=1)
        >>> run_my_application(kafka.bootstrap_servers)
        >>> lost.assert_fired()
        """
        self.check_usable()
        match = MatchFields(
            versions=(versions, versions) if isinstance(versions, int) else versions,
            client_id=client_id,
            group=group,
            topic=topic,
            partition=partition,
            transactional_id=transactional_id,
            transaction=transaction,
            node=node,
            connection=connection,
            session=session,
            sender=sender,
        )
        matcher = Matcher(self._add_rule, api, match, counts)
        if node is not None:
            self.node(node)
        return matcher

    def _add_rule(self, wanted: RuleSpec, text: str, optional: bool, change: ResponseChange | None) -> Rule:
        self.check_usable()
        if change is not None and self.has_processes:
            raise NotPossible(
                f"A node in a process of its own cannot call the function of {wanted.act}: give processes=False."
            )
        with self._rules_lock:
            self._last_rule += 1
            spec = replace(wanted, id=self._last_rule)
            counts = HitCounts(self._rule_folder(spec.id))
            counts.create()
            rule = Rule(spec, text, optional, counts, self._what_came, self._remove_rule, change)
            self._rules[spec.id] = rule
            self._hold_rules()
        return rule

    def _hold_rules(self) -> None:
        rules = [[rule.spec.plain(), str(self._rule_folder(rule.spec.id))] for rule in self.rules]
        self.hold("rules", "set_rules", rules=rules)

    def _rule_folder(self, rule_id: int) -> Path:
        assert self._folder is not None, "the cluster was not started"
        return self._folder.path / "rules" / str(rule_id)

    def _remove_rule(self, rule_id: int) -> None:
        with self._rules_lock:
            if self._rules.pop(rule_id, None) is not None and not self.is_closed:
                self._hold_rules()

    def settle_rules(self, node: int) -> None:
        for rule in self.rules:
            HitCounts(self._rule_folder(rule.spec.id)).settle(node)

    @property
    def rules(self) -> list[Rule]:
        """The rules that hold now, in order of creation: a copy, since other threads may add and remove some."""
        return list(self._rules.values())

    def clear_rules(self) -> None:
        """Remove all rules, whether they acted or not."""
        for rule in self.rules:
            rule.remove()

    def check_rules(self) -> None:
        """Raise RuleNeverFired if a rule that is not ``optional`` has never acted."""
        for rule in self.rules:
            if not rule.optional:
                rule.assert_fired()

    def _what_came(self, apis: tuple[int, ...] | None) -> str:
        """Return a sentence about the clients' requests of these APIs so far."""
        names = None if apis is None else {api_name(each) for each in apis}
        counts: Counter[tuple[str, str]] = Counter()
        with suppress(CrucibleError):  # A node that is paused, or has just died, is skipped.
            for member in self._members:
                for api, client_id, count in member.request_counts():
                    if names is None or api in names:
                        counts[api, client_id] += count
        if not counts:
            which = "of any client" if names is None else f"{' or '.join(sorted(names))} request of a client"
            return f"no {which} came at all"
        return "what came: " + ", ".join(f"{count} {api} of {who or '(no ID)'}" for (api, who), count in counts.items())

    # Observation

    def frames(
        self,
        api: str = "*",
        client_id: str = "*",
        node: int | None = None,
        direction: str | None = None,
        of_nodes: bool = False,
    ) -> list[Frame]:
        """Return the newest requests and responses, decoded, by time. Names may be patterns (``app-*``).

        With ``of_nodes`` these are the frames that nodes sent to each other. A node keeps 10,000 of each.

        >>> print(*kafka.frames(api="JoinGroup", client_id="app-*"), sep="\\n")
        """
        self.check_usable()
        if not any(fnmatchcase(name, api.lower()) for name in API_KEYS):
            api_key_of(api)
        if node is not None:
            self.node(node)
        if direction not in (None, "request", "response"):
            raise ValueError(f"direction is {direction!r}: give request or response, or None for both.")
        found = [Frame(**plain) for member in self._members for plain in member.frames(of_nodes, api, client_id)]
        wanted = [
            frame
            for frame in found
            if fnmatchcase(frame.api.lower(), api.lower())
            and fnmatchcase(frame.client_id, client_id)
            and node in (None, frame.node)
            and direction in (None, frame.direction)
        ]
        return sorted(wanted, key=lambda frame: frame.at_s)

    def records(self, topic: str, partition: int | None = None, limit_s: float = LIMIT_S) -> list[StoredRecord]:
        """Return the records in the log of a topic, as its leaders have them below the high watermark.

        They come by partition and offset. Records of open and aborted transactions are among them, not ``committed``.

        >>> [record.value for record in kafka.records("orders") if record.committed]
        """
        self._await_markers()
        views = [member.command("topic", name=topic) for member in self.serving()]
        leaders = max((view["leaders"] for view in views), key=len)
        if not leaders:
            raise CrucibleError(f"The topic {topic} does not exist: create it first.")
        if partition is not None and not 0 <= partition < len(leaders):
            raise ValueError(f"{topic} has no partition {partition}: it has 0 to {len(leaders) - 1}.")
        wanted = range(len(leaders)) if partition is None else (partition,)
        return [record for index in wanted for record in self._read(topic, index, limit_s)]

    def _read(self, topic: str, partition: int, limit_s: float) -> Iterator[StoredRecord]:
        member = self._replica_to_read(topic, partition)
        self._await_high_watermark(member, topic, partition)
        reader = LogReader(topic, partition)
        while True:
            piece = member.command(
                "read_log", limit_s, topic=topic, partition=partition, from_offset=reader.next_offset
            )
            yield from reader.read(piece)
            if not piece["batches"]:
                return

    def _await_markers(self) -> None:
        """Give transactions that are decided the time to get their markers. EndTxn does not wait for them."""

        def are_complete() -> bool | None:
            states = [plain["state"] for plain in self._from_all("transactions")]
            return None if any(state.startswith("Prepare") for state in states) else True

        with suppress(CrucibleTimeout):
            wait_for(are_complete, lambda: "a transaction has no markers.", REPLICATION_S)

    def _await_high_watermark(self, member: NodeHandle, topic: str, partition: int) -> None:
        """Give a leader the time to learn that what it has is replicated. Where followers are away, it is not."""

        def is_replicated() -> bool | None:
            piece = member.command("read_log", topic=topic, partition=partition, max_bytes=0)
            return True if piece["high_watermark"] == piece["log_end_offset"] else None

        with suppress(CrucibleTimeout):
            wait_for(is_replicated, lambda: "records are not replicated.", REPLICATION_S)

    def _replica_to_read(self, topic: str, partition: int) -> NodeHandle:
        """Return the leader, or without one the node whose replica is the longest."""
        best: tuple[int, NodeHandle] | None = None
        for member in self._reachable_first():
            if partition in member.command("topic", name=topic)["led"]:
                return member
            with suppress(NotPossible):
                end = member.command("read_log", topic=topic, partition=partition, max_bytes=0)["log_end_offset"]
                if best is None or end > best[0]:
                    best = (end, member)
        if best is None:
            raise NodeDead(f"No running node has a replica of {topic}-{partition}: restart one of its nodes.")
        return best[1]

    # Judging

    def values(self, count: int, writer: str | None = None, first: int = 0, size_bytes: int = 0) -> list[bytes]:
        """Return values that prove themselves (``judging.values``)."""
        return values(count, writer, first, size_bytes)

    def sent(self, writer: str | None = None, size_bytes: int = 0) -> Sent:
        """Return a writer's values, which know whether they were acknowledged (``judging.Sent``)."""
        return Sent(writer, size_bytes)

    def assert_delivered(
        self,
        sent: Sent | Iterable[bytes | str],
        read: Iterable[object],
        guarantee: Guarantee = "exactly-once",
    ) -> None:
        """Raise DeliveryViolated with the first violation of a guarantee (``judging.assert_delivered``).

        The message also has where the value is in the logs, and the frames around it.

        >>> kafka.assert_delivered(sent, [message.value() for message in read], "at-least-once")
        """
        assert_delivered(sent, read, guarantee, self._explain)

    def _explain(self, violation: Violation) -> str:
        """Return where a value is in the logs, and the clients' frames around the time of its record."""
        try:
            found = self._find(violation.value)
            frames = [frame for frame in self.frames() if frame.api in ("Produce", "Fetch", "OffsetCommit")]
        except CrucibleError as failure:
            return f" (The logs could not be read: {failure})"
        if found:
            places = ", ".join(f"{record.topic}-{record.partition} offset {record.offset}" for record in found[:5])
            text = f" In the logs it is at {places}."
            near_s = found[0].timestamp_ms / 1000
        else:
            text = " It is in no log."
            near_s = frames[-1].at_s if frames else 0
        near = sorted(
            sorted(frames, key=lambda frame: abs(frame.at_s - near_s))[:FRAMES_SHOWN], key=lambda one: one.at_s
        )
        return "\n  ".join([text, *map(str, near)])

    def _find(self, value: bytes) -> list[StoredRecord]:
        topics = {name for member in self.serving() for name in member.command("state")["topics"]}
        wanted = sorted(name for name in topics if name not in INTERNAL_TOPICS)
        return [record for name in wanted for record in self.records(name) if record.value == value]

    # Groups, transactions and nodes

    def groups(self) -> list[GroupView]:
        """Return the consumer groups, as their coordinators have them."""
        return [
            GroupView(
                **{
                    **plain,
                    "members": tuple(plain["members"]),
                    "client_ids": tuple(plain["client_ids"]),
                    "committed": {(topic, index): offset for topic, index, offset in plain["committed"]},
                }
            )
            for plain in self._from_all("groups")
        ]

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group by topic and partition. A group that is unknown has none."""
        return next((view.committed for view in self.groups() if view.group_id == group), {})

    def transactions(self) -> list[TransactionView]:
        """Return the transactional IDs, as their coordinators have them."""
        return [
            TransactionView(**{**plain, "partitions": tuple((topic, index) for topic, index in plain["partitions"])})
            for plain in self._from_all("transactions")
        ]

    def sessions(self) -> list[SessionView]:
        """Return the incremental fetch sessions of consumers on all nodes."""
        return [SessionView(**plain) for plain in self._from_all("sessions")]

    def log_lines(self) -> list[str]:
        """Return the logs of all nodes, one JSON object a line."""
        self.check_usable()
        return [line for member in self._members for line in member.log_lines()]

    def metrics(self) -> dict[int, dict[str, int]]:
        """Return the metrics of each running node, by node ID and Kafka's MBean name."""
        return {member.id: member.metrics() for member in self.serving()}

    def _from_all(self, command: str) -> Iterator[Any]:
        for member in self._reachable_first():
            yield from member.command(command)

    def _reachable_first(self) -> list[NodeHandle]:
        """Return the serving nodes. One that is isolated comes last: it may believe to lead what others lead now."""
        reachable = self.reachable()
        return [*reachable, *(member for member in self.serving() if member not in reachable)]
