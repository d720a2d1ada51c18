"""What a fleet shall do, as one value: read from SPEC.json by the fleet command, made by the simulator directly.

Unknown keys are refused. ``make_fleet`` turns it into behaviours; both worlds call it, so that they run the same ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from bench.fleet.behaviours.final_reader import FinalReader
from bench.fleet.behaviours.preparer import TopicPreparer, seeder
from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.behaviours.protocol import Address, Behaviour, ClientSettings, TopicPartition, Versions
from bench.fleet.behaviours.session_fetcher import VARIANTS, FetcherPlan, SessionFetcher
from bench.fleet.runs import BatchReader
from bench.fleet.values import smallest_size_bytes


class SpecError(Exception):
    """One sentence that says what is wrong with the spec."""


class FetcherGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``partitions``: shared hot ones for each fetcher, beside its own idle one; taken in a ring, so that each is read
    by about the same number of fetchers. See FetcherPlan for the rest."""

    behaviour: str
    count: int
    partitions: int
    poll_interval_ms: int = 100
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 8 << 20
    partition_max_bytes: int = 1 << 20


class ProducerGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rate_per_s``: records a second of the whole group. ``acks``: 1 or -1."""

    count: int
    rate_per_s: int
    record_bytes: int = 100
    records_per_request: int = 10
    acks: int = -1
    idempotent: bool = True
    delivery_timeout_ms: int = 30_000


class FleetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``bootstrap``: ["host:port", ...]. ``partitions``: of the hot topic; the idle topic has one for each fetcher.

    ``start_mono_us``: the run's start on CLOCK_MONOTONIC, 0: when the fleet starts. ``process_prefix`` goes before each
    process name (and client ID). ``seconds``: load, 0: until told to stop. ``workers``: Locust worker processes.
    ``reach_ms``: how long to wait for a broker to answer. ``dial``: "host:port" that a node advertises to the one to
    connect to instead, for a proxy in front of a broker that does not know of it.
    """

    bootstrap: list[str]
    seconds: int
    partitions: int
    fetchers: list[FetcherGroup] = []
    producers: list[ProducerGroup] = []
    out_dir: str = ""
    seed: int = 1
    topic: str = "hot"
    idle_topic: str = "idle"
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
    dial: dict[str, str] = {}


def check(spec: FleetSpec) -> None:
    """:raises SpecError: numbers that make no sense, an unknown behaviour, values too small for their writer's name."""
    if not spec.bootstrap or any(":" not in each for each in spec.bootstrap):
        raise SpecError("bootstrap must list at least one host:port.")
    if spec.partitions < 1 or spec.workers < 1 or spec.seconds < 0:
        raise SpecError("partitions and workers must be at least 1, seconds at least 0.")
    for group in spec.fetchers:
        if group.behaviour not in VARIANTS:
            raise SpecError(f"Fetcher behaviour {group.behaviour!r} is unknown; there are {', '.join(VARIANTS)}.")
        if not 0 <= group.partitions <= spec.partitions:
            raise SpecError(f"A {group.behaviour} fetcher wants {group.partitions} of {spec.partitions} partitions.")
    for producers in spec.producers:
        if producers.rate_per_s < 1 or producers.count < 1 or producers.records_per_request < 1:
            raise SpecError("A producer group needs count, rate_per_s and records_per_request of at least 1.")
        if producers.acks not in (1, -1):
            raise SpecError("acks must be 1 or -1: with 0 nothing is answered, so nothing can be judged.")
        if producers.record_bytes < smallest_size_bytes(f"{spec.process_prefix}producer-9999"):
            raise SpecError(f"record_bytes {producers.record_bytes} has no room for a writer's name and number.")


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
    """The behaviours in the order of a run: ``preparer``, then ``seeder``, then ``load`` (fetchers and producers,
    together, until Stopping), then ``final_reader``. Producers get Stopping first; fetchers when those have finished.
    """

    preparer: TopicPreparer
    seeder: KeyedProducer | None
    fetchers: tuple[SessionFetcher, ...]
    producers: tuple[KeyedProducer, ...]
    final_reader: FinalReader

    @property
    def load(self) -> tuple[Behaviour, ...]:
        return (*self.producers, *self.fetchers)


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
    prefix, idle = spec.process_prefix, idle_partitions(spec)
    topics = {spec.topic: spec.partitions, **({spec.idle_topic: len(idle)} if idle else {})}
    name = f"{prefix}preparer"
    preparer = TopicPreparer(name, settings, _random(spec, name), topics, spec.replication_factor, spec.topic_config)
    name = f"{prefix}seeder"
    seeding = seeder(name, settings, _random(spec, name), idle) if idle else None
    name = f"{prefix}final-reader"
    everything = [*hot_partitions(spec), *idle]
    limit_us = spec.final_read_ms * 1000
    final = FinalReader(name, settings, _random(spec, name), everything, reader, limit_us)
    return Fleet(preparer, seeding, tuple(fetchers), tuple(producers), final)


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


def _rotated(partitions: Sequence[TopicPartition], by: int) -> list[TopicPartition]:
    by %= len(partitions)
    return [*partitions[by:], *partitions[:by]]
