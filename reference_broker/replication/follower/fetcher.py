"""Fetches from one leader: one connection, one fetch session for all partitions, one request in flight.

A fetch names only what changed since the previous one: an append here, a new partition, another epoch. So 10,000
followed partitions at rest cost one empty request and one empty answer every ``replica.fetch.wait.max.ms``.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import Handled, SessionHandler, Wanted, make_session_handler
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.partition_log import PartitionLog
from reference_broker.ports.node_ports import Channel, Ports, later
from reference_broker.replication.durable import must_be_durable, sync_then
from reference_broker.replication.follower.announced import announces, versions_request
from reference_broker.replication.follower.delays import Delays, backoff_ms
from reference_broker.replication.follower.fetch_lag import FetchLag
from reference_broker.replication.follower.followed import NEVER, Followed
from reference_broker.replication.follower.intake import Intake, Outcome
from reference_broker.replication.follower.lookups import Lookups, Question
from reference_broker.replication.follower.tier_starts import Tier, TierStarts
from reference_broker.wire.apis import (
    FETCH_FIRST_REVISION_REPLICAS,
    FETCH_TOMBSTONE_HORIZON,
    VERSIONS,
    ApiKey,
)
from reference_broker.wire.fetch import FetchResponse, PartitionData

NAMED_PER_FETCH = 300
"""A fetch names at most this many new or changed partitions; the others go with the next fetch, which follows at once.

This bounds one event here and one at the leader, where each partition costs some 10 us if all of them may join.
"""
PARTITIONS_PER_SLICE = 256
BYTES_PER_SLICE = 1 << 20
"""One event takes at most this many partitions, or about this many bytes, of an answer."""
GATHER_US = 1000
"""Partitions usually come many at a time. The first of them waits this long for the others."""
NEWCOMERS_WAIT_MS = 50
"""A fetch that names a partition for the first time waits at most this long for data, since others may soon follow."""

FINAL, FIRST = "final", "first"


@dataclass(frozen=True, slots=True)
class FetcherSetting:
    """What all fetchers of a node share. ``broker_epoch()`` is that of this node's registration, -1 before it."""

    node_id: int
    config: BrokerConfig
    ports: Ports
    broker_epoch: Callable[[], int]
    intake: Intake
    lag: FetchLag
    tier: Callable[[], Tier | None] = lambda: None


class Fetcher:
    """``followed`` holds its partitions by name.

    A fetcher is in one of three states. It is ``_busy`` while a request is in flight or its answer is being taken. It
    waits for ``_timer`` to send the next request. Or it has nothing to ask for.
    """

    def __init__(self, leader_id: int, setting: FetcherSetting) -> None:
        self.leader_id = leader_id
        self.followed: dict[TopicPartition, Followed] = {}
        self._setting = setting
        self._asks_drafts = self._wanted_draft != 0
        self._draft = 0
        """The draft of Fetch that the leader serves and this node wants, or 0."""
        self._handler: SessionHandler = make_session_handler(FINAL)
        self._fetched_as = -1
        """The broker epoch in the last fetch."""
        self._unsaid: dict[TopicPartition, None] = {}
        """Partitions that the leader must be told of: their fetch changed, or they are not wanted any more."""
        self._lookups = Lookups(
            setting.node_id, setting.config.replica_socket_timeout_ms, setting.intake, self._settled, self._delay
        )
        self._tier_starts = TierStarts(
            setting.node_id,
            setting.config.replica_socket_timeout_ms,
            setting.intake,
            setting.tier,
            self._begun_in_tier,
            self._delay,
        )
        self._undurable: list[PartitionLog] = []
        """Logs that must be synced before the next fetch: ``flush.messages`` requires it, or they were cut."""
        self._diverged: dict[TopicPartition, PartitionData] = {}
        """What the leader last told of partitions that diverged and were cut."""
        backoff_max_ms = setting.config.replica_fetch_backoff_ms
        self._delays = Delays(setting.ports, backoff_max_ms, self._resume, lambda: self._wake(0))
        self._busy = False
        self._timer: int | None = None
        self._due_us = 0
        self._failures = 0
        self._ended = False

    # What is followed

    def follow(self, one: Followed) -> None:
        """Follows ``one`` from now on, or from now on under another epoch. Any pause of it ends. What a start has found
        in its log may have to be durable first."""
        if must_be_durable(one.log):
            self._undurable.append(one.log)
        self.followed[one.name] = one
        one.resumes_us = one.errors = 0
        self._begin(one)
        self._failures = 0
        self._wake(GATHER_US)

    def drop(self, one: Followed) -> None:
        if self.followed.get(one.name) is one:
            del self.followed[one.name]
            self._lookups.drop(one)
            self._tier_starts.drop(one)
            self._unsaid[one.name] = None
            self._wake(GATHER_US)

    def end(self) -> None:
        """The node ends: no request is sent and no answer is taken any more."""
        self._ended = True

    # What is asked

    def _wake(self, after_us: int) -> None:
        """Plans the next request. An earlier planned time stays, and so does the pause after a failure."""
        if self._busy or self._ended:
            return
        ports = self._setting.ports
        due_us = ports.now().mono_us + after_us
        if self._timer is not None:
            if self._failures > 0 or self._due_us <= due_us:
                return
            ports.cancel_timer(self._timer)
        self._plan(due_us)

    def _plan(self, due_us: int) -> None:
        self._due_us = due_us
        self._timer = self._setting.ports.set_timer(due_us, self._ask)

    def _ask(self) -> None:
        self._timer = None
        if self._busy or self._ended:
            return
        if self._undurable:
            self._busy = True
            self._taken()
            return
        if self.followed and self._asks_drafts:
            self._send(ApiKey.API_VERSIONS, VERSIONS[ApiKey.API_VERSIONS][1], versions_request(), self._versions_told)
            return
        question = self._lookups.next() or self._tier_starts.next()
        if question is None:
            self._fetch()
        else:
            told = partial(self._told, question)
            self._send(question.api_key, VERSIONS[question.api_key][1], question.body, told)

    def _told(self, question: Question, answer: object) -> None:
        self._busy = False
        if not self._ended:
            question.told(answer)
            self._ask()

    def _send(self, api_key: ApiKey, api_version: int, body: object, replied: Callable[[object], None]) -> None:
        self._busy = True
        timeout_ms = self._setting.config.replica_socket_timeout_ms
        self._setting.ports.send(
            self.leader_id, Channel.REPLICA, api_key, api_version, body, timeout_ms, replied, self._failed
        )

    def _failed(self) -> None:
        """The request got no answer. The leader may or may not have acted on it."""
        self._busy = False
        self._diverged.clear()
        if self._handler.in_flight is not None:
            self._handler.handle_lost()
        self._asks_drafts = self._wanted_draft != 0
        self._pause()

    def _pause(self) -> None:
        """Asks nothing for a while. A leader from which nothing is followed any more is not asked again."""
        if not self.followed:
            self._handler = make_session_handler(self._handler.revision)
            self._unsaid.clear()
            return
        pause_ms = backoff_ms(self._failures, self._setting.config.replica_fetch_backoff_ms)
        self._failures += 1
        self._plan(self._setting.ports.now().mono_us + pause_ms * 1000)

    # Which draft

    @property
    def _wanted_draft(self) -> int:
        """The draft of Fetch with which this node's followers are to ask. 0: a released version."""
        config = self._setting.config
        if config.fetch_session_revision == FIRST:
            return FETCH_FIRST_REVISION_REPLICAS
        return FETCH_TOMBSTONE_HORIZON if config.crucible_tombstone_horizon_enable else 0

    def _versions_told(self, answer: object) -> None:
        self._busy = self._asks_drafts = False
        wanted = self._wanted_draft
        self._draft = wanted if announces(wanted, answer) else 0
        if not self._draft:
            self._setting.ports.note("fetch_draft_not_served", ("leader", self.leader_id), ("version", wanted))
        revision = FIRST if self._draft == FETCH_FIRST_REVISION_REPLICAS else FINAL
        if revision != self._handler.revision:
            self._handler = make_session_handler(revision)
            self._unsaid.clear()
            for one in self.followed.values():
                self._begin(one)
        self._ask()

    # Fetching

    def _fetch(self) -> None:
        self._follow_registration()
        changed, forgotten, newcomers = self._news()
        handler, setting = self._handler, self._setting
        if not changed and not handler.partitions:
            return  # Nothing is fetched from this leader now.
        plan = handler.update(changed, forgotten)
        config = setting.config
        wait_ms = config.replica_fetch_wait_max_ms
        if newcomers or self._unsaid:
            wait_ms = 0 if self._unsaid else min(wait_ms, NEWCOMERS_WAIT_MS)
        wait_ms = self._delays.shortened(wait_ms)
        version = self._draft or plan.version(VERSIONS[ApiKey.FETCH][1], of_replica=True)
        request = plan.request(
            version,
            wait_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            setting.node_id,
            self._fetched_as,
        )
        self._send(ApiKey.FETCH, version, request, self._answered)

    def _follow_registration(self) -> None:
        """Begins a new session after this broker was registered anew, and names every partition.

        The leader takes a new registration for a restart and forgets how far this replica is. A session would never
        name the partitions at rest again, and they would stay out of sync.
        """
        epoch, before = self._setting.broker_epoch(), self._fetched_as
        self._fetched_as = epoch
        if epoch != before and self._handler.partitions:
            self._handler = make_session_handler(self._handler.revision)
            self._unsaid = dict.fromkeys(self.followed)

    def _news(self) -> tuple[dict[TopicPartition, Wanted], list[TopicPartition], bool]:
        """What the next fetch says.

        Returns the partitions whose fetch changed, those that are not wanted any more, and whether a partition is named
        for the first time.
        """
        changed: dict[TopicPartition, Wanted] = {}
        forgotten: list[TopicPartition] = []
        newcomers = False
        max_bytes, held = self._setting.config.replica_fetch_max_bytes, self._handler.partitions
        # The first revision names all partitions again when one comes or goes, so it sends all changes at once.
        limit = NAMED_PER_FETCH if self._handler.revision == FINAL else len(self._unsaid)
        for name in list(islice(self._unsaid, limit)):
            del self._unsaid[name]
            one = self.followed.get(name)
            if one is not None and one.resumes_us == 0:
                newcomers = newcomers or one.asked is None
                one.asked = changed[name] = one.wanted(max_bytes)
            elif name in held:
                forgotten.append(name)
        return changed, forgotten, newcomers

    def _answered(self, answer: object) -> None:
        assert isinstance(answer, FetchResponse), f"a fetch was answered by {type(answer).__name__}"
        handled: Handled = self._handler.handle_response(answer)
        if self._ended:
            return
        if handled.problem is not None:
            self._busy = False
            self._diverged.clear()
            leader = ("leader", self.leader_id)
            self._setting.ports.note("replica_session_lost", leader, ("reason", handled.problem))
            self._pause()
            return
        self._failures = 0
        if self._diverged:
            self._agreed({name for name, _ in handled.partitions})
        self._take(iter(handled.partitions))

    def _agreed(self, answered: Collection[TopicPartition]) -> None:
        """Takes the high watermark that came with a divergence, once the leader finds no divergence any more.

        A leader tells a high watermark once. If nothing else is new, the next answer leaves the partition out (F-14).
        """
        told, self._diverged = self._diverged, {}
        for name, data in told.items():
            one = self.followed.get(name)
            if one is None or name in answered:
                continue
            if one.asked == one.wanted(self._setting.config.replica_fetch_max_bytes):
                intake = self._setting.intake
                if intake.settle(one, partial(intake.follow_high_watermark, one, data)) is not Outcome.TAKEN:
                    self._delay(one)
            elif one.resumes_us == 0:
                self._diverged[name] = data  # The last fetch had no room to name it.

    def _take(self, partitions: Iterator[tuple[TopicPartition, PartitionData]]) -> None:
        """Takes an answer in slices, one slice per event."""
        if self._ended:
            return
        taken_bytes = 0
        for number, (name, data) in enumerate(partitions, 1):
            taken_bytes += len(data.records or b"")
            self._take_one(name, data)
            if number == PARTITIONS_PER_SLICE or taken_bytes >= BYTES_PER_SLICE:
                later(self._setting.ports, 0, partial(self._take, partitions))
                return
        self._taken()

    def _take_one(self, name: TopicPartition, data: PartitionData) -> None:
        one = self.followed.get(name)
        if one is None or not one.answers_present():
            return  # The partition is followed differently by now: the next request says so.
        outcome = self._setting.intake.take(one, data)
        if outcome is Outcome.TAKEN:
            one.errors = 0
            if data.diverging_epoch is None:
                self._setting.lag.answered(one, data.high_watermark)
            else:
                self._diverged[name] = data
            if must_be_durable(one.log) or one.log.durability.unsettled_cut:
                self._undurable.append(one.log)
            if one.asked != one.wanted(self._setting.config.replica_fetch_max_bytes):
                self._unsaid[name] = None
        elif outcome is Outcome.OUT_OF_RANGE:
            one.asked = None
            self._lookups.want_offsets(one)
        elif outcome is Outcome.MOVED:
            one.asked = None
            self._tier_starts.want(one, data.log_start_offset)
        elif outcome is Outcome.FENCED:
            one.resumes_us = NEVER
            self._unsaid[name] = None
        else:
            self._delay(one)

    def _taken(self) -> None:
        if self._undurable:
            logs, self._undurable = self._undurable, []
            sync_then(self._setting.ports, logs, self._taken)
            return
        self._busy = False
        self._ask()

    def _delay(self, one: Followed) -> None:
        """Leaves ``one`` out of the session for a while, so that the fetches of the others wait for data again."""
        self._delays.put(one)
        self._unsaid[one.name] = None

    def _resume(self, one: Followed) -> None:
        if self.followed.get(one.name) is one:
            self._begin(one)

    def _begin(self, one: Followed) -> None:
        self._lookups.drop(one)
        self._tier_starts.drop(one)
        one.asked = None
        self._unsaid[one.name] = None

    def _begun_in_tier(self, one: Followed) -> None:
        self._settled(one)
        self._wake(0)

    def _settled(self, one: Followed) -> None:
        self._unsaid[one.name] = None
