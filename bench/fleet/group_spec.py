"""The part of a fleet's spec that is about consumer groups and mirrors, and the plans made from it."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from bench.fleet.behaviours.group_plans import (
    ASSIGNED,
    OFFSETS,
    OUTSIDE,
    PROTOCOLS,
    RESETS,
    MemberPlan,
    MirrorPlan,
)
from bench.fleet.behaviours.metadata_sources import ALTERNATING
from bench.fleet.behaviours.protocol import ClientSettings, TopicPartition

MIRROR_GROUP: Final = "mirror"


class SpecError(Exception):
    """One sentence that says what is wrong with the spec."""


class MemberGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``count`` members of the consumer group ``group``, which read the hot topic; several of these with one name are
    one group of mixed members. ``static``: each has a ``group.instance.id``. ``metadata_from``: a node's number,
    -1: any, -2: one after the other. Offsets kept outside belong to the whole group, so one worker has all of its
    members. See MemberPlan for the rest."""

    group: str
    count: int
    protocol: str = "eager"
    metadata_epoch: bool = True
    leader_epochs: bool = False
    reset: str = "earliest"
    commit_interval_ms: int = 500
    static: bool = False
    offsets: str = "kafka"
    metadata_from: int = -1
    metadata_interval_ms: int = 1_000
    session_timeout_ms: int = 6_000
    rebalance_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 500
    poll_interval_ms: int = 100
    max_wait_ms: int = 100
    max_bytes: int = 1 << 20
    stay_ms: int = 0


class MirrorGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``count`` members of the group ``mirror`` copy the hot topic to the topic of the same name in the cluster that
    ``target`` (["host:port", ...]) leads to. The rest as MemberGroup's."""

    target: list[str]
    count: int = 1
    metadata_epoch: bool = True
    leader_epochs: bool = False
    reset: str = "earliest"
    commit_interval_ms: int = 500
    metadata_from: int = ALTERNATING
    metadata_interval_ms: int = 1_000
    session_timeout_ms: int = 6_000
    rebalance_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 500
    poll_interval_ms: int = 50
    max_wait_ms: int = 100
    max_bytes: int = 1 << 20


def check_groups(groups: Sequence[MemberGroup], mirror: MirrorGroup | None, partitions: int) -> None:
    """``partitions``: of the hot topic. :raises SpecError: what makes no sense."""
    everyone: list[MemberGroup | MirrorGroup] = [*groups, *([mirror] if mirror is not None else [])]
    if everyone and not partitions:
        raise SpecError("Groups and mirrors read the hot topic: partitions must be at least 1.")
    for each in everyone:
        if each.count < 1 or min(each.commit_interval_ms, each.metadata_interval_ms, each.heartbeat_interval_ms) < 1:
            raise SpecError("A group needs count and intervals of at least 1.")
        if each.reset not in RESETS:
            raise SpecError(f"There is no reset policy {each.reset!r}; there are {', '.join(RESETS)}.")
        if each.metadata_from < ALTERNATING:
            raise SpecError("metadata_from is a node's number, -1 (any) or -2 (one after the other).")
    for group in groups:
        if group.protocol not in PROTOCOLS:
            raise SpecError(f"There is no group protocol {group.protocol!r}; there are {', '.join(PROTOCOLS)}.")
        if group.offsets not in OFFSETS:
            raise SpecError(f"Offsets cannot be kept in {group.offsets!r}; there are {', '.join(OFFSETS)}.")
        if group.group == MIRROR_GROUP and mirror is not None:
            raise SpecError("The mirror's members are the group 'mirror': give the other group another name.")
    if mirror is not None and (not mirror.target or any(":" not in each for each in mirror.target)):
        raise SpecError("A mirror's target must list at least one host:port.")


def member_plans(
    groups: Sequence[MemberGroup], partitions: Sequence[TopicPartition], prefix: str
) -> Iterator[MemberPlan]:
    """``prefix``: before process names and group IDs, which are a run's own."""
    number = 0
    for group in groups:
        for _ in range(group.count):
            process = f"{prefix}member-{number}"
            yield MemberPlan(
                process=process,
                group=f"{prefix}{group.group}",
                partitions=tuple(partitions),
                protocol=group.protocol,
                metadata_epoch=group.metadata_epoch,
                leader_epochs=group.leader_epochs,
                reset=group.reset,
                commit_interval_us=group.commit_interval_ms * 1000,
                instance_id=process if group.static and group.protocol != ASSIGNED else "",
                offsets=group.offsets,
                metadata_from=group.metadata_from,
                metadata_interval_us=group.metadata_interval_ms * 1000,
                session_timeout_ms=group.session_timeout_ms,
                rebalance_timeout_ms=group.rebalance_timeout_ms,
                heartbeat_interval_ms=group.heartbeat_interval_ms,
                poll_interval_us=group.poll_interval_ms * 1000,
                max_wait_ms=group.max_wait_ms,
                max_bytes=group.max_bytes,
                stay_us=group.stay_ms * 1000,
            )
            number += 1


def mirror_plans(
    mirror: MirrorGroup | None, partitions: Sequence[TopicPartition], prefix: str, target: ClientSettings
) -> Iterator[MirrorPlan]:
    """``target``: how the other cluster is reached."""
    for number in range(0 if mirror is None else mirror.count):
        assert mirror is not None, "without a mirror there is nothing to number"
        member = MemberPlan(
            process=f"{prefix}mirror-{number}",
            group=f"{prefix}{MIRROR_GROUP}",
            partitions=tuple(partitions),
            metadata_epoch=mirror.metadata_epoch,
            leader_epochs=mirror.leader_epochs,
            reset=mirror.reset,
            commit_interval_us=mirror.commit_interval_ms * 1000,
            metadata_from=mirror.metadata_from,
            metadata_interval_us=mirror.metadata_interval_ms * 1000,
            session_timeout_ms=mirror.session_timeout_ms,
            rebalance_timeout_ms=mirror.rebalance_timeout_ms,
            heartbeat_interval_ms=mirror.heartbeat_interval_ms,
            poll_interval_us=mirror.poll_interval_ms * 1000,
            max_wait_ms=mirror.max_wait_ms,
            max_bytes=mirror.max_bytes,
        )
        yield MirrorPlan(member, target)


def split_by_offsets(groups: Sequence[MemberGroup]) -> tuple[list[MemberGroup], list[MemberGroup]]:
    """(kept in Kafka, kept outside)"""
    outside = [each for each in groups if each.offsets == OUTSIDE]
    return [each for each in groups if each.offsets != OUTSIDE], outside


def dealt(plans: Sequence[MemberPlan], share: tuple[int, int]) -> list[MemberPlan]:
    """A worker's: each n-th, but of members whose offsets are outside the first worker has all, so that they share
    them."""
    first, step = share
    inside = [each for each in plans if each.offsets != OUTSIDE]
    outside = [each for each in plans if each.offsets == OUTSIDE]
    return [*inside[first::step], *(outside if first == 0 else [])]
