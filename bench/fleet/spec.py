"""What a fleet shall do, as one value: read from SPEC.json by the fleet command, made by the simulator directly.

Unknown keys are refused. ``make_fleet`` turns it into behaviours; both worlds call it, so that they run the same ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from random import Random

import msgspec

from bench.fleet.behaviours.admin import OPERATIONS, Admin, AdminPlan
from bench.fleet.behaviours.final_reader import FinalReader
from bench.fleet.behaviours.group_member import GroupMember
from bench.fleet.behaviours.metadata_reader import FinalDescriber, MetadataReader, MetadataReaderPlan
from bench.fleet.behaviours.mirror import Mirror
from bench.fleet.behaviours.outside_offsets import OutsideStore
from bench.fleet.behaviours.preparer import TopicPreparer, seeder
from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.behaviours.protocol import Address, Behaviour, ClientSettings, TopicPartition, Versions
from bench.fleet.behaviours.session_fetcher import REVISIONS, VARIANTS, FetcherPlan, SessionFetcher
from bench.fleet.behaviours.target_reader import target_reader
from bench.fleet.group_spec import (
    MemberGroup,
    MirrorGroup,
    SpecError,
    check_groups,
    dealt,
    member_plans,
    mirror_plans,
)
from bench.fleet.runs import BatchReader
from bench.fleet.shapes import KINDS, LoadShape
from bench.fleet.values import smallest_size_bytes

__all__ = [
    "AdminGroup",
    "FetcherGroup",
    "Fleet",
    "FleetSpec",
    "MemberGroup",
    "MetadataReaderGroup",
    "MirrorGroup",
    "ProducerGroup",
    "SpecError",
    "address_of",
    "call_prelude",
    "check",
    "hot_partitions",
    "idle_partitions",
    "make_fleet",
    "parse_spec",
    "settings_of",
]

REPLICAS_OF_TARGET = 1
"""The second cluster has one node."""


class FetcherGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``partitions``: shared hot ones for each fetcher, beside its own idle one; taken in a ring, so that each is read
    by about the same number of fetchers. ``revision``: of the fetch session, final, first or none (each fetch a full
    one, whatever the behaviour). See FetcherPlan for the rest."""

    behaviour: str
    count: int
    partitions: int
    poll_interval_ms: int = 100
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 8 << 20
    partition_max_bytes: int = 1 << 20
    revision: str = "final"


class ProducerGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rate_per_s``: records a second of the whole group. ``acks``: 1 or -1."""

    count: int
    rate_per_s: int
    record_bytes: int = 100
    records_per_request: int = 10
    acks: int = -1
    idempotent: bool = True
    delivery_timeout_ms: int = 30_000


class AdminGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rate_per_s``: requests a second of the whole group. ``partitions``: of each topic created. ``mix``: weights of
    create, delete, configure and describe. See AdminPlan for the rest."""

    count: int
    rate_per_s: float
    mix: dict[str, int]
    partitions: int = 1
    topics_per_request: int = 1
    deadline_ms: int = 30_000
    answer_wait_ms: int = 3_000
    max_sets: int = 0


class MetadataReaderGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each asks one node after the other for all topics."""

    count: int
    poll_interval_ms: int = 1_000


class FleetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``bootstrap``: ["host:port", ...], all nodes. ``partitions``: of the hot topic, 0: there is none; the idle topic
    has one for each fetcher. ``replication_factor``: of all of them, -1: as the broker is configured; ``topic_config``
    (``min.insync.replicas``, ...) too. ``made_topic``: begins the names of the topics that admins create.

    ``start_mono_us``: the run's start on CLOCK_MONOTONIC, 0: when the fleet starts. ``process_prefix`` goes before each
    process name (and client ID). ``seconds``: load, 0: until told to stop. ``workers``: Locust worker processes.
    ``shape``: when which share of the clients lives (shapes.py), None: all from the start; needs ``seconds``.
    ``reach_ms``: how long to wait for a broker to answer. ``dial``: "host:port" that a node advertises to the one to
    connect to instead, for a proxy in front of a broker that does not know of it. ``prelude``: "module:function",
    called with ``prelude_words`` in each process before it makes clients, for who wants to change something about them.
    """

    bootstrap: list[str]
    seconds: int
    partitions: int = 0
    fetchers: list[FetcherGroup] = []
    producers: list[ProducerGroup] = []
    admins: list[AdminGroup] = []
    metadata_readers: list[MetadataReaderGroup] = []
    groups: list[MemberGroup] = []
    mirror: MirrorGroup | None = None
    out_dir: str = ""
    seed: int = 1
    topic: str = "hot"
    idle_topic: str = "idle"
    made_topic: str = "made"
    replication_factor: int = 1
    topic_config: dict[str, str] = {}
    process_prefix: str = ""
    start_mono_us: int = 0
    workers: int = 2
    request_timeout_ms: int = 3_000
    drain_ms: int = 15_000
    final_read_ms: int = 60_000
    reach_ms: int = 10_000
    versions: dict[str, int] = {}
    shape: LoadShape | None = None
    dial: dict[str, str] = {}
    prelude: str = ""
    prelude_words: list[str] = []


def check(spec: FleetSpec) -> None:
    """:raises SpecError: numbers that make no sense, an unknown behaviour, values too small for their writer's name."""
    if not spec.bootstrap or any(":" not in each for each in spec.bootstrap):
        raise SpecError("bootstrap must list at least one host:port.")
    if spec.replication_factor < 1 and spec.replication_factor != -1:
        raise SpecError("replication_factor must be at least 1, or -1 for the broker's default.")
    if spec.partitions < 0 or spec.workers < 1 or spec.seconds < 0:
        raise SpecError("workers must be at least 1, partitions and seconds at least 0.")
    if spec.shape is not None:
        _check_shape(spec.shape, spec.seconds)
    if spec.producers and not spec.partitions:
        raise SpecError("Producers need a hot topic: partitions must be at least 1.")
    for group in spec.fetchers:
        if group.behaviour not in VARIANTS:
            raise SpecError(f"Fetcher behaviour {group.behaviour!r} is unknown; there are {', '.join(VARIANTS)}.")
        if group.revision not in REVISIONS:
            raise SpecError(f"There is no revision {group.revision!r}; there are {', '.join(REVISIONS)}.")
        if not 0 <= group.partitions <= spec.partitions:
            raise SpecError(f"A {group.behaviour} fetcher wants {group.partitions} of {spec.partitions} partitions.")
    for producers in spec.producers:
        if producers.rate_per_s < 1 or producers.count < 1 or producers.records_per_request < 1:
            raise SpecError("A producer group needs count, rate_per_s and records_per_request of at least 1.")
        if producers.acks not in (1, -1):
            raise SpecError("acks must be 1 or -1: with 0 nothing is answered, so nothing can be judged.")
        if producers.record_bytes < smallest_size_bytes(f"{spec.process_prefix}producer-9999"):
            raise SpecError(f"record_bytes {producers.record_bytes} has no room for a writer's name and number.")
    for admins in spec.admins:
        _check_admins(admins)
    if any(each.count < 1 or each.poll_interval_ms < 1 for each in spec.metadata_readers):
        raise SpecError("A group of metadata readers needs count and poll_interval_ms of at least 1.")
    check_groups(spec.groups, spec.mirror, spec.partitions)


def _check_shape(shape: LoadShape, seconds: int) -> None:
    if shape.kind not in KINDS:
        raise SpecError(f"There is no load shape {shape.kind!r}; there are {', '.join(KINDS)}.")
    if not seconds:
        raise SpecError("A load shape needs to know how long the load lasts: seconds must be at least 1.")
    if shape.steps < 1 or not 1 <= shape.base_percent <= 100:
        raise SpecError("A load shape needs steps of at least 1, and a base_percent from 1 to 100.")


def _check_admins(group: AdminGroup) -> None:
    unknown = [name for name in group.mix if name not in OPERATIONS]
    if unknown:
        raise SpecError(f"An admin does not know {unknown[0]!r}; there are {', '.join(OPERATIONS)}.")
    if min(group.mix.values(), default=-1) < 0 or not sum(group.mix.values()):
        raise SpecError("An admin group's mix needs weights of at least 0, and one above it.")
    if group.count < 1 or group.rate_per_s <= 0 or min(group.partitions, group.topics_per_request) < 1:
        raise SpecError("An admin group needs count, rate_per_s, partitions and topics_per_request above 0.")


def parse_spec(data: bytes) -> FleetSpec:
    """:raises SpecError: not JSON of this shape, or ``check`` refuses it."""
    try:
        spec = msgspec.json.decode(data, type=FleetSpec)
    except msgspec.DecodeError as error:
        raise SpecError(f"The fleet spec cannot be read: {error}.") from error
    check(spec)
    return spec


def address_of(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        raise SpecError(f"{text!r} is not host:port.")
    return Address(host.strip("[]"), int(port))


def settings_of(spec: FleetSpec) -> ClientSettings:
    return ClientSettings(
        bootstrap=tuple(address_of(each) for each in spec.bootstrap),
        versions=msgspec.convert(spec.versions, Versions),
        request_timeout_us=spec.request_timeout_ms * 1000,
        drain_us=spec.drain_ms * 1000,
        dial={address_of(told): address_of(dialled) for told, dialled in spec.dial.items()},
    )


@dataclass(frozen=True, slots=True)
class Fleet:
    """The behaviours in the order of a run: ``preparer`` and ``target_preparer`` (of the cluster that a mirror copies
    to), then ``seeder``, then ``load`` (``writers`` and ``readers``, together, until Stopping), then ``final_reader``,
    ``target_reader`` and ``final_describer``. Writers get Stopping first; readers when those have finished.
    None where there is nothing to do.
    """

    preparer: TopicPreparer
    seeder: KeyedProducer | None
    fetchers: tuple[SessionFetcher, ...]
    producers: tuple[KeyedProducer, ...]
    final_reader: FinalReader
    admins: tuple[Admin, ...] = ()
    metadata_readers: tuple[MetadataReader, ...] = ()
    final_describer: FinalDescriber | None = None
    members: tuple[GroupMember, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    target_preparer: TopicPreparer | None = None
    target_reader: FinalReader | None = None

    @property
    def writers(self) -> tuple[Behaviour, ...]:
        return (*self.producers, *self.admins)

    @property
    def readers(self) -> tuple[Behaviour, ...]:
        return (*self.fetchers, *self.members, *self.mirrors, *self.metadata_readers)

    @property
    def load(self) -> tuple[Behaviour, ...]:
        return (*self.writers, *self.readers)


def call_prelude(spec: FleetSpec) -> None:
    """:raises SpecError: there is no such function."""
    if not spec.prelude:
        return
    module, _, name = spec.prelude.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"The prelude {spec.prelude!r} cannot be called: {error}.") from error
    function(*spec.prelude_words)


def make_fleet(spec: FleetSpec, share: tuple[int, int] = (0, 1)) -> Fleet:
    """``share`` (k, n): only each n-th fetcher and producer from the k-th on, with the same names as in the whole."""
    settings, reader, (first, step) = settings_of(spec), BatchReader(), share
    fetchers = [
        SessionFetcher(plan, settings, _random(spec, plan.process), reader)
        for plan in list(_fetcher_plans(spec))[first::step]
    ]
    producers = [
        KeyedProducer(plan, settings, _random(spec, plan.process)) for plan in list(_producer_plans(spec))[first::step]
    ]
    admins = [Admin(plan, settings, _random(spec, plan.process)) for plan in list(_admin_plans(spec))[first::step]]
    metadata_readers = [
        MetadataReader(plan, settings, _random(spec, plan.process))
        for plan in list(_metadata_reader_plans(spec))[first::step]
    ]
    prefix, idle = spec.process_prefix, idle_partitions(spec)
    topics = {spec.topic: spec.partitions, spec.idle_topic: len(idle)}
    topics = {name: count for name, count in topics.items() if count}
    name = f"{prefix}preparer"
    preparer = TopicPreparer(name, settings, _random(spec, name), topics, spec.replication_factor, spec.topic_config)
    name = f"{prefix}seeder"
    seeding = seeder(name, settings, _random(spec, name), idle) if idle else None
    name = f"{prefix}final-reader"
    everything = [*hot_partitions(spec), *idle]
    limit_us = spec.final_read_ms * 1000
    final = FinalReader(name, settings, _random(spec, name), everything, reader, limit_us)
    return Fleet(
        preparer,
        seeding,
        tuple(fetchers),
        tuple(producers),
        final,
        tuple(admins),
        tuple(metadata_readers),
        _final_describer(spec, settings),
        *_groups(spec, settings, share),
        _target_preparer(spec, settings),
        _target_reader(spec, settings),
    )


def _groups(
    spec: FleetSpec, settings: ClientSettings, share: tuple[int, int]
) -> tuple[tuple[GroupMember, ...], tuple[Mirror, ...]]:
    hot, prefix, (first, step) = hot_partitions(spec), spec.process_prefix, share
    stores: dict[str, OutsideStore] = {}
    members = tuple(
        GroupMember(plan, settings, _random(spec, plan.process), stores.setdefault(plan.store, OutsideStore()))
        for plan in dealt(list(member_plans(spec.groups, hot, prefix)), share)
    )
    plans = list(mirror_plans(spec.mirror, hot, prefix, _target_settings(spec, settings)))
    mirrors = tuple(Mirror(plan, settings, _random(spec, plan.member.process)) for plan in plans[first::step])
    return members, mirrors


def _target_settings(spec: FleetSpec, settings: ClientSettings) -> ClientSettings:
    """How the cluster is reached that a mirror copies to."""
    bootstrap = spec.mirror.target if spec.mirror is not None else []
    return replace(settings, bootstrap=tuple(address_of(each) for each in bootstrap), dial={})


def _target_preparer(spec: FleetSpec, settings: ClientSettings) -> TopicPreparer | None:
    if spec.mirror is None:
        return None
    name = f"{spec.process_prefix}target-preparer"
    return TopicPreparer(
        name, _target_settings(spec, settings), _random(spec, name), {spec.topic: spec.partitions}, REPLICAS_OF_TARGET
    )


def _target_reader(spec: FleetSpec, settings: ClientSettings) -> FinalReader | None:
    if spec.mirror is None:
        return None
    name, limit_us = f"{spec.process_prefix}target-reader", spec.final_read_ms * 1000
    target = _target_settings(spec, settings)
    return target_reader(name, target, _random(spec, name), hot_partitions(spec), limit_us)


def _final_describer(spec: FleetSpec, settings: ClientSettings) -> FinalDescriber | None:
    if not spec.admins and not spec.metadata_readers:
        return None
    name, limit_us = f"{spec.process_prefix}final-describer", spec.final_read_ms * 1000
    nodes = len(spec.bootstrap)
    return FinalDescriber(name, spec.made_topic, settings, _random(spec, name), nodes, limit_us)


def _random(spec: FleetSpec, process: str) -> Random:
    """One generator for each process, so that adding one changes no other's choices."""
    return Random(f"{spec.seed}:{process}")


def hot_partitions(spec: FleetSpec) -> list[TopicPartition]:
    return [TopicPartition(spec.topic, each) for each in range(spec.partitions)]


def idle_partitions(spec: FleetSpec) -> list[TopicPartition]:
    return [TopicPartition(spec.idle_topic, each) for each in range(sum(group.count for group in spec.fetchers))]


def _fetcher_plans(spec: FleetSpec) -> Iterator[FetcherPlan]:
    hot, idle, number, ring = hot_partitions(spec), idle_partitions(spec), 0, 0
    for group in spec.fetchers:
        for _ in range(group.count):
            shared = tuple(hot[(ring + each) % len(hot)] for each in range(group.partitions))
            yield FetcherPlan(
                process=f"{spec.process_prefix}fetcher-{group.behaviour}-{number}",
                variant=group.behaviour,
                partitions=(idle[number], *shared),
                poll_interval_us=group.poll_interval_ms * 1000,
                max_wait_ms=group.max_wait_ms,
                min_bytes=group.min_bytes,
                max_bytes=group.max_bytes,
                partition_max_bytes=group.partition_max_bytes,
                revision=group.revision,
            )
            number += 1
            ring += group.partitions


def _producer_plans(spec: FleetSpec) -> Iterator[ProducerPlan]:
    hot, number = hot_partitions(spec), 0
    for group in spec.producers:
        for member in range(group.count):
            yield ProducerPlan(
                process=f"{spec.process_prefix}producer-{number}",
                partitions=tuple(_rotated(hot, member)),
                interval_us=max(1, 1_000_000 * group.count * group.records_per_request // group.rate_per_s),
                records_per_request=group.records_per_request,
                record_bytes=group.record_bytes,
                acks=group.acks,
                idempotent=group.idempotent,
                delivery_timeout_us=group.delivery_timeout_ms * 1000,
            )
            number += 1


def _admin_plans(spec: FleetSpec) -> Iterator[AdminPlan]:
    number = 0
    for group in spec.admins:
        for _ in range(group.count):
            yield AdminPlan(
                process=f"{spec.process_prefix}admin-{number}",
                base=spec.made_topic,
                weights=dict(group.mix),
                interval_us=max(1, round(1_000_000 * group.count / group.rate_per_s)),
                partitions=group.partitions,
                topics=group.topics_per_request,
                replication_factor=spec.replication_factor,
                deadline_us=group.deadline_ms * 1000,
                max_sets=group.max_sets,
                answer_wait_ms=group.answer_wait_ms,
            )
            number += 1


def _metadata_reader_plans(spec: FleetSpec) -> Iterator[MetadataReaderPlan]:
    number = 0
    for group in spec.metadata_readers:
        for _ in range(group.count):
            name = f"{spec.process_prefix}metadata-reader-{number}"
            yield MetadataReaderPlan(name, spec.made_topic, number, group.poll_interval_ms * 1000)
            number += 1


def _rotated(partitions: Sequence[TopicPartition], by: int) -> list[TopicPartition]:
    by %= len(partitions)
    return [*partitions[by:], *partitions[:by]]
