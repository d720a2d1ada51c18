"""A node's state as text: logs, ISR, sessions, groups and transactions after one event of a simulated run.

Events are counted over all nodes of the run, from 1, as the crash of a run names them.
"""

from collections.abc import Iterator

from chaos.sim.machine import Machine
from chaos.sim.world import SimWorld
from reference_broker.core.node import Node
from reference_broker.log.unified_log import UnifiedLog


def node_lines(world: SimWorld, number: int) -> Iterator[str]:
    """Yield the lines about one node."""
    machine = world.cluster.machines[number]
    at = f"at {world.agenda.now_us / 1_000_000:.6f} s, after event {world.events}"
    if machine.node is None:
        yield f"node {number} {at}: it does not run"
        return
    yield f"node {number} {at}: incarnation {machine.incarnation}, {_standing(machine)}"
    yield from _state(machine.node)


def _standing(machine: Machine) -> str:
    assert machine.node is not None
    if machine.paused:
        return "stopped"
    return "ready" if machine.node.ready else "not ready yet"


def _state(node: Node) -> Iterator[str]:
    broker = node.broker
    role = "active controller" if broker.quorum.is_leader else f"controller is node {broker.controller.leader_id}"
    provenance = broker.loader.image.provenance
    yield f"metadata: published up to offset {provenance.offset} of epoch {provenance.epoch}, {role}"
    for (topic, index), led in broker.partitions.by_name.items():
        yield f"{topic}-{index}: leads in epoch {led.leader_epoch}, {_log(led.log)}"
        if led.followers is not None:
            ends = ", ".join(f"{each} at {state.log_end_offset}" for each, state in led.followers.states.items())
            yield f"  ISR {list(led.followers.isr)}, followers: {ends}"
    for followed in broker.partitions.followed.values():
        where, leader = f"{followed.topic}-{followed.index}", followed.followed_leader
        yield f"{where}: follows {leader} in epoch {followed.leader_epoch}, {_log(followed.log)}"
    for session in broker.fetch_sessions.sessions.values():
        who = f"replica {session.replica_id}" if session.replica_id >= 0 else f"client {session.client_id}"
        parked = ", a fetch is parked" if session.fetch is not None else ""
        yield (
            f"session {session.session_id}: {who}, epoch {session.epoch}, {len(session.partitions)} partitions, "
            f"{len(session.marked)} marked{parked}"
        )
    for offsets in broker.groups.active():
        for group in offsets.groups.values():
            yield (
                f"group {group.group_id}: {group.state.value}, generation {group.generation}, leader {group.leader}, "
                f"members {', '.join(group.members) or 'none'}"
            )
    for states in broker.transactions.active():
        for name, metadata in states.entries.items():
            now = metadata.current
            partitions = ", ".join(f"{topic}-{index}" for topic, index in now.partitions) or "none"
            without_marker = len(metadata.partitions_without_marker)
            missing = f", markers missing in {without_marker}" if without_marker else ""
            yield (
                f"transactional ID {name}: {now.state.name}, producer {now.producer_id}, epoch {now.producer_epoch}, "
                f"partitions {partitions}{missing}"
            )


def _log(log: UnifiedLog) -> str:
    return (
        f"log {log.log_start_offset} to {log.log_end_offset}, high watermark {log.high_watermark}, "
        f"last stable offset {log.last_stable_offset}"
    )
