"""The simulator's fleet: the same behaviours as the live one, made from a scenario."""

from collections.abc import Sequence

from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.behaviours.protocol import Address
from bench.fleet.spec import (
    AdminGroup,
    FetcherGroup,
    Fleet,
    FleetSpec,
    MetadataReaderGroup,
    ProducerGroup,
    idle_partitions,
    make_fleet,
    settings_of,
)
from chaos.group_load import groups_of, mirror_of
from chaos.seeds import number_for, random_for
from scenarios.model import Load, Scenario

DRAIN_MS = 8_000
FINAL_READ_MS = 8_000
FINAL_READ_OF_CLUSTER_MS = 25_000
IDLE_RECORDS = 3
VALUE_BYTES = 64


def spec_of(scenario: Scenario, seed: int, bootstrap: list[Address], target: Sequence[Address] = ()) -> FleetSpec:
    """The scenario's load at its simulated size. ``target``: the cluster that its mirror copies to."""
    load = scenario.load
    topic = load.topics[0]
    return FleetSpec(
        bootstrap=[f"{host}:{port}" for host, port in bootstrap],
        seconds=int(load.sim_seconds),
        partitions=topic.partitions,
        fetchers=_fetchers(load),
        producers=_producers(load),
        admins=_admins(load),
        metadata_readers=[MetadataReaderGroup(each.sim_count, each.poll_interval_ms) for each in load.metadata_readers],
        groups=groups_of(load, simulated=True),
        mirror=mirror_of(load, [f"{host}:{port}" for host, port in target], simulated=True),
        seed=number_for(seed, "fleet"),
        topic=topic.name,
        topic_config=dict(topic.config),
        replication_factor=topic.replicas,
        request_timeout_ms=load.request_timeout_ms,
        drain_ms=DRAIN_MS,
        final_read_ms=FINAL_READ_MS if scenario.cluster.total == 1 else FINAL_READ_OF_CLUSTER_MS,
    )


def _fetchers(load: Load) -> list[FetcherGroup]:
    return [
        FetcherGroup(
            each.behaviour,
            each.sim_count,
            each.partitions,
            each.poll_interval_ms,
            each.max_wait_ms,
            each.min_bytes,
            each.max_bytes,
            each.partition_max_bytes,
            each.revision,
        )
        for each in load.fetchers
    ]


def _producers(load: Load) -> list[ProducerGroup]:
    return [
        ProducerGroup(
            each.sim_count,
            max(1, round(each.sim_rate_per_s * each.sim_count)),
            each.record_bytes,
            each.batch_records,
            each.acks,
            each.idempotent,
        )
        for each in load.producers
    ]


def _admins(load: Load) -> list[AdminGroup]:
    return [
        AdminGroup(
            each.sim_count,
            each.sim_rate_per_s * each.sim_count,
            dict(each.mix),
            each.sim_partitions,
            each.sim_topics_per_request,
        )
        for each in load.admins
    ]


def fleet_of(scenario: Scenario, seed: int, bootstrap: list[Address], target: Sequence[Address] = ()) -> Fleet:
    """``target``: as in ``spec_of``."""
    return make_fleet(spec_of(scenario, seed, bootstrap, target))


def idle_writer(
    scenario: Scenario, seed: int, bootstrap: list[Address], target: Sequence[Address] = ()
) -> KeyedProducer | None:
    """Appends once to each idle partition while the load runs; None if that is done before the load."""
    over_us = int(scenario.load.sim_idle_appends_s * 1_000_000)
    spec = spec_of(scenario, seed, bootstrap, target)
    partitions = tuple(idle_partitions(spec))
    if not over_us or not partitions:
        return None
    plan = ProducerPlan(
        "idle-writer",
        partitions,
        interval_us=over_us // len(partitions),
        records_per_request=IDLE_RECORDS,
        record_bytes=VALUE_BYTES,
        keys=1,
        max_slots=len(partitions),
    )
    return KeyedProducer(plan, settings_of(spec), random_for(seed, "idle-writer"))
