"""Makes a plan for each client of a load. Names and numbers do not depend on how many workers there are.

A field of a plan takes the value of the load's field of the same name; ``poll_interval_us`` takes that of
``poll_interval_ms``. So a field of the load reaches the behaviour that reads it and need not be named here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from bench.fleet.behaviours.admin import AdminPlan
from bench.fleet.behaviours.group_member import ALTERNATING, ANY_NODE, ASSIGNED, IN_TRANSACTIONS, OUTSIDE, MemberPlan
from bench.fleet.behaviours.hanging_transactions import JanitorPlan, StrayPlan
from bench.fleet.behaviours.metadata_reader import MetadataReaderPlan
from bench.fleet.behaviours.mirror import MirrorPlan
from bench.fleet.behaviours.piped import WRITER_SUFFIX
from bench.fleet.behaviours.producers import ProducerPlan
from bench.fleet.behaviours.protocol import ClientSettings, TopicPartition
from bench.fleet.behaviours.session_fetcher import FetcherPlan
from bench.fleet.behaviours.transactional_client import ProducerHabits, WriterPlan
from bench.fleet.behaviours.transactional_worker import WorkerPlan
from bench.fleet.spec import FleetSpec
from scenarios.load import MIRROR_GROUP, Groups

P = TypeVar("P")
IDLE_WRITER = "idle-writer"
IDLE_RECORDS = 3
IDLE_VALUE_BYTES = 64


def fetcher_plans(spec: FleetSpec) -> Iterator[FetcherPlan]:
    """Yield the plans of all fetchers. Those of one topic share its partitions in a ring."""
    idle, number, rings = spec.idle_partitions, 0, dict[str, int]()
    for group in spec.load.fetchers:
        hot = spec.partitions_of(group.topic)
        for _ in range(group.count):
            ring = rings.get(group.topic, 0)
            shared = tuple(hot[(ring + index) % len(hot)] for index in range(group.partitions))
            process = f"{spec.process_prefix}fetcher-{group.behaviour}-{number}"
            partitions = (idle[number], *shared)
            yield _plan(FetcherPlan, group, process=process, variant=group.behaviour, partitions=partitions)
            number += 1
            rings[group.topic] = ring + group.partitions


def producer_plans(spec: FleetSpec) -> Iterator[ProducerPlan]:
    number = 0
    for group in spec.load.producers:
        for member in range(group.count):
            yield _plan(
                ProducerPlan,
                group,
                process=f"{spec.process_prefix}producer-{number}",
                partitions=tuple(_rotated(spec.partitions_of(group.topic), member)),
                interval_us=max(1, int(1_000_000 * group.batch_records / group.rate_per_s)),
                records_per_request=group.batch_records,
                delete_retention_us=spec.delete_retention_us(group.topic),
            )
            number += 1


def idle_writer_plan(spec: FleetSpec) -> ProducerPlan | None:
    """Return the plan of the producer that appends once to each idle partition during the load. None if that is done
    before the load."""
    partitions, over_us = tuple(spec.idle_partitions), int(spec.load.idle_appends_s * 1_000_000)
    if not over_us or not partitions:
        return None
    return ProducerPlan(
        IDLE_WRITER,
        partitions,
        interval_us=over_us // len(partitions),
        records_per_request=IDLE_RECORDS,
        record_bytes=IDLE_VALUE_BYTES,
        keys=1,
        max_slots=len(partitions),
    )


def admin_plans(spec: FleetSpec) -> Iterator[AdminPlan]:
    number = 0
    for group in spec.load.admins:
        for _ in range(group.count):
            yield _plan(
                AdminPlan,
                group,
                process=f"{spec.process_prefix}admin-{number}",
                base=spec.made_topic,
                weights=dict(group.mix),
                interval_us=max(1, round(1_000_000 / group.rate_per_s)),
                topics=group.topics_per_request,
                replication_factor=spec.replicas,
                loaded=spec.loaded_topics,
                groups=tuple(dict.fromkeys(f"{spec.process_prefix}{each.name}" for each in spec.load.groups)),
            )
            number += 1


def metadata_reader_plans(spec: FleetSpec) -> Iterator[MetadataReaderPlan]:
    number = 0
    for group in spec.load.metadata_readers:
        for _ in range(group.count):
            process = f"{spec.process_prefix}metadata-reader-{number}"
            yield _plan(MetadataReaderPlan, group, process=process, base=spec.made_topic, number=number)
            number += 1


def member_plans(spec: FleetSpec) -> Iterator[MemberPlan]:
    """Yield the plans of all group members. Each run has process names and group IDs of its own."""
    number = 0
    for group in spec.load.groups:
        for _ in range(group.count):
            process = f"{spec.process_prefix}member-{number}"
            yield _plan(
                MemberPlan,
                group,
                process=process,
                group=f"{spec.process_prefix}{group.name}",
                partitions=tuple(spec.partitions_of(*group.topics)),
                instance_id=process if group.static and group.protocol != ASSIGNED else "",
                metadata_from=_source(group.metadata_from),
                stay_us=int(group.stay_s * 1000) * 1000,
            )
            number += 1


def mirror_plans(spec: FleetSpec, target: ClientSettings) -> Iterator[MirrorPlan]:
    """Yield the plans of all mirrors. ``target`` says how to reach the other cluster."""
    mirror = spec.load.mirror
    if mirror is None:
        return
    for number in range(mirror.count):
        member = _plan(
            MemberPlan,
            mirror,
            process=f"{spec.process_prefix}mirror-{number}",
            group=f"{spec.process_prefix}{MIRROR_GROUP}",
            partitions=tuple(spec.partitions_of(mirror.topic)),
            metadata_from=_source(mirror.metadata_from),
        )
        yield MirrorPlan(member, target)


def writer_plans(spec: FleetSpec) -> Iterator[WriterPlan]:
    """Yield the plans of all writers of transactions."""
    number = 0
    for group in spec.load.transactional:
        rate_per_s = group.transactions_per_s
        for member in range(group.count):
            process = f"{spec.process_prefix}transactional-{number}"
            yield WriterPlan(
                _plan(ProducerHabits, group, process=process, topics=(f"{spec.topic_prefix}{group.topic}",)),
                tuple(_rotated(spec.partitions_of(group.topic), member)),
                max(1, round(1_000_000 / rate_per_s)),
                group.partitions,
                group.batch_records,
                group.record_bytes,
                group.keys,
                group.delete_percent,
                spec.delete_retention_us(group.topic),
            )
            number += 1


def worker_plans(spec: FleetSpec) -> Iterator[WorkerPlan]:
    """Yield the plans of all workers that consume, transform and produce."""
    number = 0
    for group in spec.load.workers:
        target = spec.partitions_of(group.target)
        for _ in range(group.count):
            process = f"{spec.process_prefix}worker-{number}"
            member = _plan(
                MemberPlan,
                group,
                process=process,
                group=f"{spec.process_prefix}{group.name}",
                partitions=tuple(spec.partitions_of(group.source)),
                metadata_epoch=False,
                offsets=IN_TRANSACTIONS,
                isolation="read_committed",
                stay_us=int(group.stay_s * 1000) * 1000,
            )
            habits = _plan(ProducerHabits, group, process=f"{process}{WRITER_SUFFIX}", topics=(target[0].topic,))
            interval_us = group.commit_interval_ms * 1000
            yield WorkerPlan(member, habits, target[0].topic, len(target), interval_us, group.record_bytes)
            number += 1


def stray_plans(spec: FleetSpec) -> Iterator[StrayPlan]:
    """Yield the plans of all producers that leave hanging transactions."""
    number = 0
    for group in spec.load.strays:
        for member in range(group.count):
            yield _plan(
                StrayPlan,
                group,
                process=f"{spec.process_prefix}stray-{number}",
                partitions=tuple(_rotated(spec.partitions_of(group.topic), member)),
                interval_us=max(1, round(1_000_000 / group.transactions_per_s)),
            )
            number += 1


def janitor_plans(spec: FleetSpec) -> Iterator[JanitorPlan]:
    """Yield the plans of all admins that look for hanging transactions."""
    number = 0
    for group in spec.load.janitors:
        for _ in range(group.count):
            process = f"{spec.process_prefix}janitor-{number}"
            yield _plan(JanitorPlan, group, process=process, partitions=tuple(spec.partitions_of(group.topic)))
            number += 1


def split_by_offsets(groups: Sequence[Groups]) -> tuple[list[Groups], list[Groups]]:
    """Return the groups that keep their offsets in Kafka, and those that keep them outside."""
    outside = [group for group in groups if group.offsets == OUTSIDE]
    return [group for group in groups if group.offsets != OUTSIDE], outside


def committing_groups(spec: FleetSpec) -> dict[str, list[TopicPartition]]:
    """Return the partitions that each group commits to the cluster, by group ID."""
    load = spec.load
    topics = [(group.name, group.topics) for group in load.groups if group.offsets != OUTSIDE and not group.view]
    topics += [(worker.name, (worker.source,)) for worker in load.workers]
    if load.mirror is not None:
        topics.append((MIRROR_GROUP, (load.mirror.topic,)))
    found: dict[str, dict[TopicPartition, None]] = {}
    for name, of_group in topics:
        found.setdefault(f"{spec.process_prefix}{name}", {}).update(dict.fromkeys(spec.partitions_of(*of_group)))
    return {group: list(partitions) for group, partitions in found.items()}


def dealt(plans: Sequence[MemberPlan], share: tuple[int, int]) -> list[MemberPlan]:
    """Return the plans of one worker: each n-th. The first worker gets all members whose offsets are outside, because
    they share a store."""
    first, step = share
    inside = [plan for plan in plans if plan.offsets != OUTSIDE]
    outside = [plan for plan in plans if plan.offsets == OUTSIDE]
    return [*inside[first::step], *(outside if first == 0 else [])]


def _plan(kind: type[P], table: object, **given: object) -> P:
    """Make a plan of what is ``given`` and, for all other fields, of the table. What the table lacks keeps its
    default."""
    values: dict[str, Any] = dict(given)
    for field in fields(kind):  # type: ignore[arg-type]
        name_ms = f"{field.name.removesuffix('_us')}_ms" if field.name.endswith("_us") else ""
        if field.name in given:
            continue
        if hasattr(table, field.name):
            values[field.name] = getattr(table, field.name)
        elif name_ms and hasattr(table, name_ms):
            values[field.name] = getattr(table, name_ms) * 1000
    return kind(**values)


def _source(metadata_from: int | str) -> int:
    """Return the node's number, ANY_NODE or ALTERNATING."""
    if isinstance(metadata_from, int):
        return metadata_from
    return ALTERNATING if metadata_from == "alternating" else ANY_NODE


def _rotated(partitions: Sequence[TopicPartition], by: int) -> list[TopicPartition]:
    by %= len(partitions)
    return [*partitions[by:], *partitions[:by]]


def users_needed(spec: FleetSpec) -> int:
    """Return how many users Locust must start, so that each worker has enough. Surplus users stop at once.

    Locust gives each worker the same number of users if the sum can be divided by the number of workers. One worker has
    all members whose offsets are outside, so each worker gets as many users as that one needs.
    """
    inside, outside = split_by_offsets(spec.load.groups)
    mirrors = [] if spec.load.mirror is None else [spec.load.mirror]
    load = spec.load
    writers = (load.producers, load.transactional, load.admins, load.strays, load.janitors)
    groups = (*writers, load.fetchers, load.metadata_readers, load.workers, inside, mirrors)
    counts = (sum(each.count for each in group) for group in groups)
    return spec.workers * sum((*(-(-count // spec.workers) for count in counts), *(each.count for each in outside)))
