"""A scenario's groups and mirror as the fleet's spec has them, at the size of either world."""

from collections.abc import Sequence

from bench.fleet.behaviours.metadata_sources import ALTERNATING, ANY_NODE
from bench.fleet.group_spec import MemberGroup, MirrorGroup
from scenarios.model import Groups, Load, Mirror


def groups_of(load: Load, *, simulated: bool) -> list[MemberGroup]:
    return [_members(each, simulated) for each in load.groups]


def _members(each: Groups, simulated: bool) -> MemberGroup:
    return MemberGroup(
        group=each.name,
        count=each.sim_count if simulated else each.count,
        protocol=each.protocol,
        metadata_epoch=each.metadata_epoch,
        leader_epochs=each.leader_epochs,
        reset=each.reset,
        commit_interval_ms=each.commit_interval_ms,
        static=each.static,
        offsets=each.offsets,
        metadata_from=_source(each.metadata_from),
        metadata_interval_ms=each.metadata_interval_ms,
        session_timeout_ms=each.session_timeout_ms,
        rebalance_timeout_ms=each.rebalance_timeout_ms,
        heartbeat_interval_ms=each.heartbeat_interval_ms,
        poll_interval_ms=each.poll_interval_ms,
        max_wait_ms=each.max_wait_ms,
        max_bytes=each.max_bytes,
        stay_ms=int((each.sim_stay_s if simulated else each.stay_s) * 1000),
    )


def mirror_of(load: Load, target: Sequence[str], *, simulated: bool) -> MirrorGroup | None:
    """``target``: HOST:PORT of the cluster that it copies to."""
    return None if load.mirror is None else _mirror(load.mirror, target, simulated)


def _mirror(each: Mirror, target: Sequence[str], simulated: bool) -> MirrorGroup:
    return MirrorGroup(
        target=list(target),
        count=each.sim_count if simulated else each.count,
        metadata_epoch=each.metadata_epoch,
        leader_epochs=each.leader_epochs,
        reset=each.reset,
        commit_interval_ms=each.commit_interval_ms,
        metadata_from=_source(each.metadata_from),
        metadata_interval_ms=each.metadata_interval_ms,
        session_timeout_ms=each.session_timeout_ms,
        heartbeat_interval_ms=each.heartbeat_interval_ms,
        poll_interval_ms=each.poll_interval_ms,
    )


def _source(metadata_from: int | str) -> int:
    """As the fleet counts them: a node's number, or below 0 any and alternating ones."""
    if isinstance(metadata_from, int):
        return metadata_from
    return ALTERNATING if metadata_from == "alternating" else ANY_NODE
