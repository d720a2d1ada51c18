"""Schedules of a swarm: each seed draws which kinds of faults are on and how often each comes.

The result is an ordinary scenario with explicit faults. It can be written as a file, repeated, and shrunk like any
other. Each seed draws only some of the kinds, because a mixture of all kinds hides some bugs (swarm testing). For the
same reason it may draw settings that the file lacks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from chaos.seeds import random_for
from scenarios.consistency import needed_by
from scenarios.declared import simulated
from scenarios.fault_kinds import FAULT_KINDS
from scenarios.load import Fetchers, Load
from scenarios.model import Fault, Link, Match, Range, Scenario, Swarm
from scenarios.vocabulary import API_KEYS, BEHAVIOURS, CONNECTION_ROLES, DISK_OPERATIONS, NO_DESCRIPTOR, PARTITION_ROLES

ON_SHARE = 0.5
"""The share of the kinds that are on in a seed."""
AT_STATE_SHARE = 0.3
"""The share of faults that fire at a state, among those that can also do that."""
NAMES_ONLY_SHARE = 0.3
"""The share of slow disks that are slow only at syncs of folders."""
NOTES = (
    "metadata_appended",
    "metadata_committed",
    "metadata_published",
    "leader_elected",
    "controller_activated",
    "voted",
    "epoch_changed",
    "high_watermark",
    "truncated",
    "snapshot_started",
    "snapshot_written",
    "snapshot_renamed",
    "download_started",
    "download_chunk",
    "download_finished",
    "broker_fenced",
)
REPLICA_NOTES = ("leads", "isr_changed", "truncated", "high_watermark", "hw_checkpoint")
GROUP_NOTES = (
    "group_state",
    "group_member",
    "offset_committed",
    "coordinator_loaded",
    "coordinator_unloaded",
    "metadata_epoch",
    "update_metadata_sent",
    "update_metadata_applied",
    "log_cleaned",
)
SETTINGS: Final[Mapping[str, Sequence[str]]] = {
    "log.segment.bytes": ("1000", "4000", "16000"),
    "replica.high.watermark.checkpoint.interval.ms": ("200", "5000"),
    "max.incremental.fetch.session.cache.slots": ("1", "2", "4", "8"),
    "min.incremental.fetch.session.eviction.ms": ("300", "3000"),
    "replica.fetch.max.bytes": ("300", "2000"),
    "metadata.log.max.record.bytes.between.snapshots": ("400", "4000"),
    "broker.session.timeout.ms": ("9000",),
    "group.initial.rebalance.delay.ms": ("0", "1000"),
    "auto.leader.rebalance.enable": ("true", "false"),
    "leader.imbalance.check.interval.seconds": ("1", "5"),
    "replica.lag.time.max.ms": ("1500", "4000"),
    "offsets.topic.segment.bytes": ("2000", "100000"),
    "transaction.state.log.segment.bytes": ("2000", "100000"),
    "log.cleaner.backoff.ms": ("100", "2000"),
    "log.flush.interval.messages": ("1",),
}
"""Settings that a seed or a change may draw, and their values. None of them weakens what the broker guarantees."""
TOGETHER: Final[Sequence[Mapping[str, str]]] = (
    {
        "metadata.log.max.record.bytes.between.snapshots": "1500",
        "metadata.log.segment.bytes": "1024",
        "metadata.max.retention.bytes": "2000",
    },
    {
        "controller.quorum.fetch.timeout.ms": "1000",
        "controller.quorum.election.timeout.ms": "500",
        "controller.quorum.election.backoff.max.ms": "300",
    },
    {"broker.session.timeout.ms": "9000", "replica.lag.time.max.ms": "1500"},
    {"max.incremental.fetch.session.cache.slots": "2", "min.incremental.fetch.session.eviction.ms": "300"},
)
"""Settings that a seed draws together. Nodes fall behind the log's start and load snapshots; the quorum reacts as fast
as faults come; leaders remove slow followers before the controller fences them; fetch sessions compete for slots."""
SLICES: Final = (1, 1, 3)
"""Values of ``sim_slice_items`` that may be drawn: work that a small cluster does in one slice is done in many."""
FETCH_VERSIONS: Final = (12, 18)
"""The oldest and the newest version of Fetch that a drawn fetcher may speak. Earlier ones have no leader epochs, so the
simulator would report that a message lost some."""
TOGETHER_SHARE: Final = 0.3
"""share of the seeds with each of TOGETHER"""
VARIED_SHARE: Final = 0.5
"""share of the seeds with some of SETTINGS"""
MAX_SETTINGS: Final = 4

ALONE_LINKS = (("client", "any"),)
LINKS = (
    ("leader", "all"),
    ("all", "leader"),
    ("any", "leader"),
    ("leader", "any"),
    ("any", "all"),
    ("all", "any"),
    ("client", "any"),
    ("client", "leader"),
)
PARTITION_LINKS = (
    ("partition_leader", "all"),
    ("all", "partition_leader"),
    ("partition_follower", "partition_leader"),
    ("client", "partition_leader"),
)
CHECKSUMMED = {"request_damaged": API_KEYS["produce"], "response_damaged": API_KEYS["fetch"]}
"""The only frames whose records have a checksum."""
GROUP_COMMITS = ("offset_committed", "group_state")
TRANSACTION_COMMITS = ("offset_committed", "transaction_decided", "transaction_marker")
METADATA_FILES = "__cluster_metadata-0/*"
METADATA_LOGS = "__cluster_metadata-0/*.log"
GROUP_FILES = ("__consumer_offsets-*",)
REPLICA_FILES = ("hot-*", "replication-offset-checkpoint*")
CLOCK_STEPS_MS = (1_000, 60_000, 3_600_000)
ROW_EVERY_S = 10.0
"""About how often leaders fail in a row, in seconds."""
LOST_EVERY_S = 8.0
"""Interval in seconds at which a coordinator is lost when it has committed something."""
LATE_EVERY_S = 4.0
"""Interval in seconds at which a broker learns of changes late."""
REFUSED_EVERY_S = 15.0
"""Interval in seconds at which a write of the active controller is refused."""
DEFAULT_LAG_MS = 30_000
"""replica.lag.time.max.ms of a cluster that does not set it"""
CHAIN_EVERY_S = 6.0
"""About how often a chain of faults meets a change of files, in seconds."""
STORAGE_NOTES = ("segment_copied", "log_cleaned", "truncated", "started_in_the_tier", "leads")
STORAGE_FILES = (
    "*.snapshot",
    "*.timeindex",
    "*.txnindex",
    "*.cleaned",
    "*offset-checkpoint*",
    "leader-epoch-checkpoint*",
    "*log-start*",
    "hot-*",
    "table-*",
    "rare-*",
    "__remote_log_metadata-*",
)
STATE_WINDOW_S = 5.0
"""A fault at a state may fire only within this time, in seconds."""


def materialised(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with this seed's faults in place of its swarm, if it has one. Each drawn fault is optional,
    because possibly no node has its role or reaches its state."""
    swarm = scenario.swarm
    if swarm is None:
        return scenario
    faults = tuple(SwarmDrawing(scenario, swarm, random_for(seed, "swarm")).all())
    needs = dict.fromkeys((*scenario.needs, *(need for fault in faults for need in needed_by(fault))))
    with_faults = replace(scenario, faults=(*scenario.faults, *faults), needs=tuple(needs), swarm=None)
    varied = _varied(with_faults, random_for(seed, "swarm-cluster"))
    slices = random_for(seed, "swarm-slices")
    if slices.random() * 100 >= swarm.sliced_percent:
        return varied
    return replace(varied, cluster=replace(varied.cluster, sim_slice_items=slices.choice(SLICES)))


def _varied(scenario: Scenario, random: Random) -> Scenario:
    """Return the scenario with settings drawn by the seed. Many defects show only with small limits."""
    cluster = scenario.cluster
    drawn: dict[str, str] = {}
    if random.random() < VARIED_SHARE:
        names = random.sample(sorted(SETTINGS), random.randint(1, MAX_SETTINGS))
        drawn |= {name: random.choice(SETTINGS[name]) for name in names}
    for settings in TOGETHER:
        drawn |= settings if random.random() < TOGETHER_SHARE else {}
    if drawn:
        cluster = replace(cluster, config=tuple(sorted({**dict(cluster.config), **drawn}.items())))
    return replace(scenario, cluster=cluster)


def other_fetchers(load: Load, random: Random, name: str) -> Fetchers:
    """Draw fetchers of any behaviour and version, with any limits, that read what some of the load's fetchers read."""
    like = random.choice(load.fetchers)
    return replace(
        like,
        name=name,
        behaviour=random.choice(BEHAVIOURS),
        count=random.randint(1, 3),
        sim_count=None,
        newest_version=random.randint(*FETCH_VERSIONS),
        min_bytes=random.choice((0, 1, 200)),
        max_bytes=random.choice((300, like.max_bytes)),
        partition_max_bytes=random.choice((100, like.partition_max_bytes)),
    )


class SwarmDrawing:
    """Draws one seed's faults. ``decays`` is the only node whose disk may decay, if that is decided already."""

    def __init__(self, scenario: Scenario, swarm: Swarm, random: Random, decays: int | None = None) -> None:
        cluster = scenario.cluster
        self._seconds = scenario.load.in_simulator.seconds
        self._every_s = simulated(swarm).every_s
        self._random = random
        self._roles = ["leader", "any"]
        self._roles += ["follower"] if cluster.nodes > 1 else []
        self._roles += ["observer"] if cluster.observers else []
        self._several = cluster.total > 1
        self._voters = cluster.nodes
        lag_ms = int(dict(cluster.config).get("replica.lag.time.max.ms", DEFAULT_LAG_MS))
        self._lag_s = lag_ms / 1000
        self._alone_every_s = swarm.alone_every_s
        self._fetch_timeout_s = int(dict(cluster.config).get("controller.quorum.fetch.timeout.ms", 2000)) / 1000
        self._replicated = scenario.load.hot.replicas > 1
        self._is_tiered = dict(cluster.config).get("remote.log.storage.system.enable") in (True, "true")
        self._produces = bool(scenario.load.producers)
        self._roles += PARTITION_ROLES if self._replicated else ()
        self._notes = (*NOTES, *REPLICA_NOTES) if self._replicated else NOTES
        self._files = (METADATA_FILES, *REPLICA_FILES) if self._replicated else (METADATA_FILES,)
        if scenario.load.groups:
            self._notes = (*self._notes, *GROUP_NOTES)
            self._files = (*self._files, *GROUP_FILES)
        self._commits = [*GROUP_COMMITS] if scenario.load.groups else []
        self._commits += TRANSACTION_COMMITS if scenario.load.transactional or scenario.load.workers else ()
        self._allowed = swarm.kinds
        self._decays = random.randrange(cluster.total) if decays is None else decays
        on = [kind for kind in swarm.kinds if random.random() < ON_SHARE]
        self._kinds = on or [random.choice(swarm.kinds)]
        self._weights = [random.randint(1, 8) for _ in self._kinds]

    def all(self) -> list[Fault]:
        random, faults, at_s = self._random, list[Fault](), 0.0
        while True:
            at_s += random.expovariate(1.0 / self._every_s)
            if at_s >= self._seconds:
                faults += self._leaders_in_a_row(len(faults))
                faults += self._refused_writes(len(faults))
                faults += self._storage_chains(len(faults))
                faults += self._coordinators_lost(len(faults))
                faults += self._late_metadata(len(faults))
                return [*faults, *self._leaders_alone(len(faults))]
            (kind,) = random.choices(self._kinds, self._weights)
            faults.append(self._fault(f"swarm_{len(faults) + 1}_{kind}", kind, round(at_s, 3)))

    def _leaders_in_a_row(self, drawn: int) -> list[Fault]:
        """Draw leaders that are cut off while clients still reach them, and soon after each a fault of its successor.

        The logs of the voters then end in uncommitted records of several epochs, and the longest log may belong to a
        voter of an older epoch. Independent faults rarely produce that. The successor fails as soon as it is elected,
        or when the first leader comes back.
        """
        random, faults = self._random, list[Fault]()
        if "node_isolated" not in self._kinds or self._voters < 3:
            return faults
        kinds = ["node_isolated", *(kind for kind in ("node_killed", "node_powered_off") if kind in self._kinds)]
        for _ in range(max(1, int(self._seconds / ROW_EVERY_S))):
            name = f"swarm_{drawn + len(faults) + 1}"
            kind, at_s = random.choice(kinds), round(random.uniform(0.1, 0.8) * self._seconds, 3)
            again_s = round(self._fetch_timeout_s * random.uniform(1.2, 2.2), 3)
            away_s = round(max(again_s + random.uniform(-0.4, 1.0), 0.1), 3)
            first = Fault(f"{name}_node_isolated", "node_isolated", node="leader", optional=True)
            first = replace(first, at_s=at_s, sim_at_s=at_s, duration_s=away_s, sim_duration_s=away_s)
            second = Fault(f"{name}_then_{kind}", kind, node="leader", after=first.name, optional=True)
            down_s = round(0.5 * 2 ** (random.random() * 4), 2)
            if kind == "node_isolated":
                second = replace(second, duration_s=down_s, sim_duration_s=down_s)
            else:
                second = replace(second, restart_after_s=down_s)
            if kind != "node_isolated" and random.random() < 0.5:
                second = replace(second, on="note", match=Match(note="leader_elected"), every=1, times=0, total=1)
            else:
                second = replace(second, at_s=again_s, sim_at_s=again_s)
            faults += [first, second]
        return faults

    def _coordinators_lost(self, drawn: int) -> list[Fault]:
        """Draw nodes that end when they have just committed something of a group or a transaction, while all fetches of
        replicas are slow. The other replicas do not know yet that the acknowledged records are committed, so the
        successor has to wait for them before it continues. Independent faults rarely produce that."""
        random, faults = self._random, list[Fault]()
        ends = [kind for kind in ("node_killed", "node_powered_off", "node_paused") if kind in self._allowed]
        if not self._commits or not self._replicated or not ends or "link_delayed" not in self._allowed:
            return faults
        for begin_s in range(2, int(self._seconds) - int(STATE_WINDOW_S), int(LOST_EVERY_S)):
            at_s, name = round(begin_s + random.uniform(0.0, 5.0), 3), f"swarm_{drawn + len(faults) + 1}"
            low = random.choice((20, 40, 80))
            slow = Fault(f"{name}_link_delayed", "link_delayed", at_s=at_s, sim_at_s=at_s, optional=True)
            slow = replace(slow, link=Link("all", "all"), direction="both", delay_ms=Range(low, 2 * low))
            slow = replace(slow, duration_s=STATE_WINDOW_S, sim_duration_s=STATE_WINDOW_S)
            kind = random.choice(ends)
            lost = Fault(
                f"swarm_{drawn + len(faults) + 2}_{kind}", kind, node="any", at_s=round(at_s + 0.5, 3), optional=True
            )
            lasts_s = round(0.5 * 2 ** (random.random() * 3), 2)
            if kind == "node_paused":
                lost = replace(lost, duration_s=lasts_s, sim_duration_s=lasts_s)
            else:
                lost = replace(lost, restart_after_s=lasts_s)
            match = Match(note=random.choice(self._commits))
            faults += [slow, replace(_in_window(lost), on="note", match=match, nth=_once(random.randint(1, 4)))]
        return faults

    def _late_metadata(self, drawn: int) -> list[Fault]:
        """Draw brokers that get changes of the metadata a moment later than others, but too soon to be fenced. They
        lead new partitions before they know it."""
        random, faults = self._random, list[Fault]()
        if not self._commits or not self._replicated or "node_cut_from_controller" not in self._allowed:
            return faults
        for begin_s in range(1, int(self._seconds), int(LATE_EVERY_S)):
            at_s = round(begin_s + random.uniform(0.0, LATE_EVERY_S), 3)
            name = f"swarm_{drawn + len(faults) + 1}_node_cut_from_controller"
            late = Fault(name, "node_cut_from_controller", node="any", at_s=at_s, sim_at_s=at_s, optional=True)
            lasts_s = round(random.uniform(0.3, 1.2), 2)
            faults.append(replace(late, duration_s=lasts_s, sim_duration_s=lasts_s))
        return faults

    def _leaders_alone(self, drawn: int) -> list[Fault]:
        """Draw nodes that no other node reaches for longer than replicas may lag, while they reach the controller. The
        ISR of the partitions that they lead shrinks below min.insync.replicas, and nothing is committed there. Half of
        them cannot send to one other node at first: operations that started there, such as the markers of a
        transaction, finish when they cannot commit any more."""
        random, faults = self._random, list[Fault]()
        lasts_s = self._lag_s + 1.0
        if not self._alone_every_s or not self._replicated or lasts_s > self._seconds / 3:
            return faults
        for _ in range(max(1, int(self._seconds / self._alone_every_s))):
            node, other = random.sample(range(self._voters), 2)
            at_s, name = round(random.uniform(0.1, 0.7) * self._seconds, 3), f"swarm_{drawn + len(faults) + 1}"
            alone_s = round(self._lag_s + random.uniform(0.5, 3.0), 3)
            alone = Fault(f"{name}_link_cut", "link_cut", link=Link("all", node), at_s=at_s, sim_at_s=at_s)
            alone = replace(alone, duration_s=alone_s, sim_duration_s=alone_s, optional=True)
            if random.random() < 0.5:
                unsent_s = round(self._lag_s + random.uniform(0.5, 2.0), 3)
                unsent = replace(alone, name=f"{name}_unsent_link_cut", link=Link(node, other))
                faults.append(replace(unsent, duration_s=unsent_s, sim_duration_s=unsent_s))
                alone = replace(alone, after=unsent.name, at_s=0.2, sim_at_s=0.2)
            faults.append(alone)
        return faults

    def _refused_writes(self, drawn: int) -> list[Fault]:
        """Draw writes of the active controller that its disk refuses: any of those that make up a transaction, the
        marker that opens or aborts it included, or the single one that fences or unfences a broker."""
        random, faults = self._random, list[Fault]()
        if "disk_error" not in self._kinds and "disk_full" not in self._kinds:
            return faults
        for at_s in range(2, int(self._seconds), int(REFUSED_EVERY_S)):
            fault = Fault(f"swarm_{drawn + len(faults) + 1}_disk_error", "disk_error", optional=True, node="leader")
            fault = replace(_in_window(replace(self._killed(fault), at_s=float(at_s))), on="disk_write", error="ENOSPC")
            nth, every = random.randint(1, 12), random.choice((1, 4))
            cut = Range(0, random.choice((0, 20, 100)))
            faults.append(
                replace(
                    fault,
                    match=Match(path=METADATA_LOGS),
                    nth=_once(nth),
                    every=every,
                    times=0,
                    total=random.choice((1, 1, 2, 3)),
                    cut_bytes=cut,
                )
            )
        return faults

    def _storage_chains(self, drawn: int) -> list[Fault]:
        """Draw, for a cluster with a remote tier, faults that meet the moments at which files change: a power loss at a
        roll, a truncation, a pass of the cleaner, a finished copy or a write of a checkpoint, a clean stop with a power
        loss soon after the start that follows, and a leader that loses its leadership while a copy is stored."""
        random, faults = self._random, list[Fault]()
        if not self._is_tiered:
            return faults
        for _ in range(max(1, int(self._seconds / CHAIN_EVERY_S))):
            chain = random.choice((self._power_loss_at_files, self._power_loss_after_clean_stop, self._slow_copy))
            faults += chain(f"swarm_{drawn + len(faults) + 1}", round(random.uniform(0.1, 0.8) * self._seconds, 3))
        return faults

    def _power_loss_at_files(self, name: str, at_s: float) -> list[Fault]:
        random = self._random
        fault = replace(self._killed(Fault(name, "node_powered_off", optional=True)), node=random.choice(self._roles))
        fault = _in_window(replace(fault, at_s=at_s))
        if random.random() < 0.4:
            match = Match(note=random.choice(STORAGE_NOTES))
            return [replace(fault, on="note", match=match, nth=_once(random.randint(1, 3)))]
        match = Match(path=random.choice(STORAGE_FILES))
        cut = Range(0, random.choice((0, 20, 100)))
        return [replace(fault, on="disk_write", match=match, nth=_once(random.randint(1, 3)), cut_bytes=cut)]

    def _power_loss_after_clean_stop(self, name: str, at_s: float) -> list[Fault]:
        random, node = self._random, self._random.randrange(self._voters)
        down_s = round(random.uniform(0.2, 1.5), 2)
        stop = Fault(f"{name}_node_terminated", "node_terminated", node=node, optional=True)
        stop = replace(stop, at_s=at_s, sim_at_s=at_s, restart_after_s=down_s)
        again_s = round(down_s + random.uniform(0.3, 3.0), 3)
        kind = random.choice(("node_killed", "node_powered_off"))
        loss = Fault(f"{name}_then_{kind}", kind, node=node, after=stop.name, optional=True)
        return [stop, replace(self._killed(loss), at_s=again_s, sim_at_s=again_s)]

    def _slow_copy(self, name: str, at_s: float) -> list[Fault]:
        random = self._random
        delay_ms = random.randint(2_000, 5_000)
        slow = Fault(f"{name}_store_slowed", "store_slowed", node="any", optional=True, at_s=max(at_s - 1.0, 0.1))
        slow = replace(_in_window(slow), on="store_result", delay_ms=Range(delay_ms, delay_ms), every=1, times=0)
        cut = Fault(f"{name}_node_isolated", "node_isolated", node="partition_leader", optional=True)
        away_s = round(random.uniform(2.2, 4.0), 3)
        cut = replace(cut, at_s=at_s, sim_at_s=at_s, duration_s=away_s, sim_duration_s=away_s)
        return [replace(slow, total=random.randint(2, 6)), cut]

    def one(self, name: str, kind: str, at_s: float) -> Fault:
        """Draw one fault of this kind."""
        return self._fault(name, kind, at_s)

    def _fault(self, name: str, kind: str, at_s: float) -> Fault:
        timed = Fault(name, kind, at_s=at_s, sim_at_s=at_s, optional=True)
        if FAULT_KINDS[kind].hits_link:
            return self._link(timed)
        fault = replace(timed, node=self._random.choice(self._roles))
        if kind in ("node_killed", "node_powered_off", "node_paused") and self._random.random() < AT_STATE_SHARE:
            return self._at_state(fault)
        return DRAW[kind](self, fault)

    def _at_state(self, fault: Fault) -> Fault:
        random = self._random
        drawn = self._duration(fault) if fault.kind == "node_paused" else self._killed(fault)
        drawn = _in_window(drawn)
        if random.random() < 0.5:
            match = Match(note=random.choice(self._notes))
            return replace(drawn, on="note", match=match, nth=_once(random.randint(1, 4)))
        match = Match(path=random.choice(self._files) if len(self._files) > 1 else METADATA_FILES)
        cut = Range(0, random.choice((0, 20, 100, 1000)))
        return replace(drawn, on="disk_write", match=match, nth=_once(random.randint(1, 6)), cut_bytes=cut)

    def _link(self, fault: Fault) -> Fault:
        random = self._random
        ends = [*(LINKS if self._several else ALONE_LINKS), *(PARTITION_LINKS if self._replicated else ())]
        low = random.choice((1, 20, 200))
        return replace(
            self._duration(fault),
            link=Link(*random.choice(ends)),
            direction=random.choice(("both", "both", "upstream", "downstream")),
            delay_ms=Range(low, low * random.choice((1, 3, 10))) if fault.kind == "link_delayed" else fault.delay_ms,
            bytes_per_s=random.choice((2_000, 20_000)) if fault.kind == "link_slowed" else 0,
        )

    def _duration(self, fault: Fault) -> Fault:
        """Draw how long the fault lasts, from far below to far above the quorum's timeouts."""
        lasts_s = round(0.1 * 2 ** (self._random.random() * 7), 2)
        return replace(fault, duration_s=lasts_s, sim_duration_s=lasts_s)

    def _killed(self, fault: Fault) -> Fault:
        return replace(fault, restart_after_s=round(0.05 * 2 ** (self._random.random() * 8), 2))

    def _clock(self, fault: Fault) -> Fault:
        """Step the wall clock at the first request in the window. The steps of one run stay far below the expiration
        of producers and committed offsets, which the wall clock may rightly decide."""
        step_ms = self._random.choice(CLOCK_STEPS_MS) * self._random.choice((-1, 1))
        return replace(_in_window(fault), on="request", step_ms=step_ms)

    def _as_it_is(self, fault: Fault) -> Fault:
        return fault

    def _isolated(self, fault: Fault) -> Fault:
        return replace(self._duration(fault), clients=self._random.random() < 0.3)

    def _slowed(self, fault: Fault) -> Fault:
        low = self._random.choice((5, 50, 500))
        names_only = self._random.random() < NAMES_ONLY_SHARE
        return replace(self._duration(fault), delay_ms=Range(low, low), names_only=names_only)

    def _bit_flipped(self, fault: Fault) -> Fault:
        """Draw bit flips for the disk of one node only: data that is damaged on all replicas is lost, which no
        guarantee excludes."""
        return replace(self._killed(fault), node=self._decays)

    def _damaged(self, fault: Fault) -> Fault:
        """Flip a bit where a checksum or a length reveals it. Frames have no checksum, so other flips cannot be
        detected."""
        random, is_request = self._random, fault.kind == "request_damaged"
        has_records = self._produces or not is_request
        drawn = replace(
            _in_window(fault),
            on="request" if is_request else "response",
            part=random.choice(("checksummed", "length")) if has_records else "length",
            nth=_once(random.randint(1, 10)),
            every=random.randint(1, 20),
            times=0,
            total=random.choice((1, 1, 4)),
        )
        api, role = None, random.choice(CONNECTION_ROLES)
        if drawn.part == "checksummed":
            api, role = CHECKSUMMED[fault.kind], "client" if is_request else role  # Nodes do not produce.
        return replace(drawn, match=Match(api=api, role=role))

    def _disk_error(self, fault: Fault) -> Fault:
        """Draw an operation that fails once or a few times, perhaps in the middle of a write."""
        random = self._random
        drawn = replace(
            self._killed(fault),
            at_s=0.0,
            sim_at_s=0.0,
            after_s=fault.at_s,
            until_s=round(fault.at_s + STATE_WINDOW_S, 3),
            nth=_once(random.randint(1, 6)),
            every=1,
            times=0,
            total=random.choice((1, 1, 4)),
        )
        path = random.choice((*self._files, None))
        operation = random.choice(DISK_OPERATIONS)
        if operation == "write":
            cut = Range(0, random.choice((0, 20, 100)))
            error = random.choice(("EIO", "ENOSPC"))
            return replace(drawn, on="disk_write", match=Match(path=path), cut_bytes=cut, error=error)
        error = random.choice(NO_DESCRIPTOR) if operation == "open" else "EIO"
        return replace(drawn, on="disk", match=Match(path=path, operation=operation), error=error)


def _in_window(fault: Fault) -> Fault:
    """Return the fault as one at a state, which may fire once from its time on."""
    until_s = round(fault.at_s + STATE_WINDOW_S, 3)
    return replace(fault, after_s=fault.at_s, until_s=until_s, at_s=0.0, sim_at_s=0.0, total=1)


def _once(nth: int) -> Range:
    return Range(nth, nth)


DRAW: dict[str, Callable[[SwarmDrawing, Fault], Fault]] = {
    "node_killed": SwarmDrawing._killed,
    "node_powered_off": SwarmDrawing._killed,
    "node_terminated": SwarmDrawing._killed,
    "node_paused": SwarmDrawing._duration,
    "node_isolated": SwarmDrawing._isolated,
    "clock_stepped": SwarmDrawing._clock,
    "requests_replayed": SwarmDrawing._as_it_is,
    "requests_forged": SwarmDrawing._as_it_is,
    "node_cut_from_controller": SwarmDrawing._duration,
    "disk_slowed": SwarmDrawing._slowed,
    "disk_full": SwarmDrawing._duration,
    "disk_error": SwarmDrawing._disk_error,
    "disk_bit_flipped": SwarmDrawing._bit_flipped,
    "request_damaged": SwarmDrawing._damaged,
    "response_damaged": SwarmDrawing._damaged,
}
