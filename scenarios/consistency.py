"""Check that the parts of one scenario file fit together. Each error is one sentence."""

from collections.abc import Iterator, Sequence

from scenarios.fault_kinds import FAULT_KINDS
from scenarios.fields import ScenarioError
from scenarios.load import (
    MIRROR_GROUP,
    Admins,
    Fetchers,
    Groups,
    Janitors,
    Load,
    MetadataReaders,
    Producers,
    Strays,
    Topic,
    TransactionalWriters,
)
from scenarios.model import Fault, NodeChoice, Scenario
from scenarios.vocabulary import SIM_AT_PERCENT

MIN_SECONDS = 0.1
TOMBSTONE_HORIZON = "crucible.tombstone.horizon.enable"


def needed_by(fault: Fault) -> tuple[str, ...]:
    """Return what the world must offer for this fault, of NEEDS."""
    kind = FAULT_KINDS[fault.kind]
    if kind.needs:
        return (kind.needs,)
    needed = "signals" if fault.timed else "interceptor" if fault.link is None else "proxy"
    return (needed, "proxy") if kind.with_proxy else (needed,)


def check(scenario: Scenario, file: str) -> None:
    """Raise ScenarioError if the parts do not fit together."""
    _refuse_first(_wrong(scenario), file)


def check_load(load: Load, file: str) -> None:
    """Check what must hold in any load, in each world. Raise ScenarioError."""
    _refuse_first(_wrong_in_load(load), file)


def _refuse_first(wrong: Iterator[str], file: str) -> None:
    for message in wrong:
        raise ScenarioError(f"{file}: {message}")


# Each of these yields what is wrong, the key first.


def _wrong(scenario: Scenario) -> Iterator[str]:
    yield from _wrong_in_load(scenario.load)
    yield from _wrong_with_load(scenario)
    if not scenario.revisions or len(dict.fromkeys(scenario.revisions)) < len(scenario.revisions):
        yield "revisions: give at least one, each once"
    if "first" in scenario.revisions and "drafts" not in scenario.needs:
        yield "needs: the first revision is spoken under a draft version and needs 'drafts'"
    yield from _twice([fault.name for fault in scenario.faults], "fault: two faults are")
    yield from _twice([fault.name for fault in scenario.external_faults], "external_fault: two faults are")
    for place, fault in enumerate(scenario.faults):
        if fault.after and fault.after not in [earlier.name for earlier in scenario.faults[:place]]:
            yield f"fault {fault.name!r}: after: {fault.after!r} is no earlier fault of this file"
        for need in needed_by(fault):
            if need not in scenario.needs:
                yield f"needs: fault {fault.name!r} ({fault.kind}) needs {need!r}, which is not listed"
    for fault in (*scenario.faults, *scenario.external_faults):
        for node in (fault.node, *(fault.link or ())):
            for message in _wrong_with_node(scenario, node):
                yield f"fault {fault.name!r}: {message}"
        if fault.link is not None and not fault.timed and scenario.cluster.total == 1:
            yield f"fault {fault.name!r}: link: there is no link between nodes; give cluster.nodes more than 1"
        yield from _begins_too_late(fault, scenario.load)
    if scenario.state and "interceptor" not in scenario.needs:
        yield "needs: [state] is set inside our broker's process and needs 'interceptor'"


def _begins_too_late(fault: Fault, load: Load) -> Iterator[str]:
    """Yield what keeps a timed fault, or its last repetition, from beginning while there is a load."""
    if not fault.timed or fault.optional:
        return
    live_s = fault.at_s + (fault.repeat - 1) * fault.repeat_every_s
    if live_s >= load.seconds:
        yield f"fault {fault.name!r} begins at {live_s:g} s; the load is over at {load.seconds:g} s"
    load_sim_s = load.seconds if load.sim_seconds is None else load.sim_seconds
    sim_s = fault.sim_at_s * SIM_AT_PERCENT[1] / 100 + (fault.repeat - 1) * fault.sim_repeat_every_s
    if sim_s >= load_sim_s:
        yield (
            f"fault {fault.name!r} may begin at {sim_s:g} s in the simulator ({SIM_AT_PERCENT[1]} % of sim_at_s); the "
            f"load is over at {load_sim_s:g} s"
        )


def _wrong_in_load(load: Load) -> Iterator[str]:
    topics = {topic.name: topic for topic in load.topics}
    yield from _wrong_in_topics(load.topics)
    topics_used = [(f"{fetchers.name!r}", fetchers.topic) for fetchers in load.fetchers]
    topics_used += [(f"{producers.name!r}", producers.topic) for producers in load.producers]
    topics_used += [(f"group {group.name!r}", topic) for group in load.groups for topic in group.topics]
    topics_used += [("the mirror", load.mirror.topic)] if load.mirror is not None else []
    topics_used += [(f"{writers.name!r}", writers.topic) for writers in load.transactional]
    topics_used += [(f"{strays.name!r}", strays.topic) for strays in load.strays]
    topics_used += [(f"{janitors.name!r}", janitors.topic) for janitors in load.janitors]
    topics_used += [
        (f"worker {workers.name!r}", topic) for workers in load.workers for topic in (workers.source, workers.target)
    ]
    for client, topic in topics_used:
        if topic not in topics:
            yield f"load: topic {topic!r} of {client} is not among: {', '.join(sorted(topics))}"
    deleting = [admins.name for admins in load.admins if dict(admins.mix).get("record_request")]
    for client, topic in topics_used if deleting else ():
        if load.topics and topic == load.topics[-1].name:
            yield f"load: {client} uses the last topic {topic!r}, where {deleting[0]!r} deletes records; add another"
    for fetchers in load.fetchers:
        if fetchers.partitions > topics[fetchers.topic].partitions:
            yield (
                f"load: {fetchers.name!r} wants {fetchers.partitions} partitions of {fetchers.topic!r}, which has "
                f"{topics[fetchers.topic].partitions}"
            )
    for writers in load.transactional:
        if writers.topic in topics and writers.partitions > topics[writers.topic].partitions:
            yield f"load: {writers.name!r} wants {writers.partitions} partitions of {writers.topic!r}, which has fewer"
    for workers in load.workers:
        if workers.source == workers.target:
            yield f"load.workers: {workers.name!r} would consume what it produces; give it another target"
        if workers.target in topics and topics[workers.target].is_compacted:
            yield f"load.workers: {workers.name!r} would write to a compacted topic, where inputs are not kept"
    yield from _wrong_with_compaction(load)
    for producers in load.producers:
        if producers.acks == 0:
            yield f"load: {producers.name!r} has acks 0: nothing would get a response, so nothing could be judged"
    for admins in load.admins:
        of_topics = [
            operation
            for operation, _ in admins.mix
            if operation.startswith("loaded_") or operation.endswith("_request")
        ]
        if not load.topics and of_topics:
            yield f"load.admins: {admins.name!r} would need a topic of the load for {of_topics[0]!r}, which has none"
    named: tuple[Fetchers | Producers | Admins | MetadataReaders | Strays | Janitors, ...]
    named = (*load.fetchers, *load.producers, *load.admins, *load.metadata_readers, *load.strays, *load.janitors)
    yield from _twice([group.name for group in named], "load: two groups are")
    if load.mirror is not None and any(group.name == MIRROR_GROUP for group in load.groups):
        yield f"load.groups: the name {MIRROR_GROUP!r} is that of the mirror's group"
    for group in load.groups:
        yield from _wrong_in_group(group)


def _wrong_with_compaction(load: Load) -> Iterator[str]:
    compacted = {topic.name for topic in load.topics if topic.is_compacted}
    all_writers: tuple[Producers | TransactionalWriters, ...] = (*load.producers, *load.transactional)
    for writers in all_writers:
        if writers.delete_percent and writers.topic not in compacted:
            yield f"load: {writers.name!r} writes tombstones; give {writers.topic!r} the cleanup.policy compact"
    if load.fetchers and load.topics and load.topics[0].is_compacted:
        yield "load.fetchers: idle partitions take the settings of the first topic, so that one must not be compacted"
    for group in load.groups:
        if group.view and (group.protocol, group.reset) != ("assigned", "earliest"):
            yield f"load.groups: {group.name!r} has a view: it needs the protocol 'assigned' and the reset 'earliest'"
        if group.tombstone_horizon and not group.view:
            yield f"load.groups: {group.name!r} has a tombstone_horizon: it needs a view"


def _wrong_in_topics(topics: Sequence[Topic]) -> Iterator[str]:
    yield from _twice([topic.name for topic in topics], "load.topics: two are")
    for topic in topics[1:]:
        if (topic.replicas, topic.min_insync) != (topics[0].replicas, topics[0].min_insync):
            yield (
                f"load.topics: give {topic.name!r} the replicas and the min.insync.replicas of {topics[0].name!r}; "
                f"acknowledged records are judged by one rule for all topics"
            )


def _wrong_in_group(group: Groups) -> Iterator[str]:
    if group.heartbeat_interval_ms >= group.session_timeout_ms:
        yield f"load.groups: {group.name!r} has a heartbeat_interval_ms that must be less than session_timeout_ms"
    if group.protocol == "assigned" and group.static:
        yield f"load.groups: {group.name!r} has the protocol 'assigned': without membership there is no static one"


def _wrong_with_load(scenario: Scenario) -> Iterator[str]:
    """Yield what the cluster and the simulator lack in the load."""
    load, total = scenario.load, scenario.cluster.total
    if not load.topics:
        yield "load.topics: give at least one; the idle partitions have a topic of their own"
    if load.seconds < MIN_SECONDS:
        yield f"load.seconds is {load.seconds:g}; it must be at least {MIN_SECONDS:g}"
    if load.hot.replicas > total:
        yield f"load.topics: {load.hot.replicas} replicas need so many nodes; there are {total}"
    speaks_drafts = load.mirror is not None and load.mirror.metadata_epoch
    speaks_drafts |= any(group.metadata_epoch for group in load.groups)
    speaks_drafts |= any(producers.metadata_epoch for producers in load.producers)
    speaks_drafts |= any(admins.metadata_epoch for admins in load.admins)
    if speaks_drafts and "drafts" not in scenario.needs:
        yield "needs: metadata epochs are spoken under draft versions and need 'drafts'"
    if any(group.tombstone_horizon for group in load.groups):
        if "drafts" not in scenario.needs:
            yield "needs: the tombstone horizon is sent under a draft version and needs 'drafts'"
        if dict(scenario.cluster.config).get(TOMBSTONE_HORIZON) != "true":
            yield f"cluster.config: readers with a tombstone_horizon need {TOMBSTONE_HORIZON} = true"
    for group in load.groups:
        if isinstance(group.metadata_from, int) and group.metadata_from >= total:
            yield f"load.groups: node {group.metadata_from} is not in the cluster"


def _twice(names: Sequence[str], two: str) -> Iterator[str]:
    for position, name in enumerate(names):
        if name in names[:position]:
            yield f"{two} named {name!r}; give each a name of its own"


def _wrong_with_node(scenario: Scenario, node: NodeChoice) -> Iterator[str]:
    cluster = scenario.cluster
    if isinstance(node, int) and node >= cluster.total:
        yield f"node {node} is not among 0..{cluster.total - 1}"
    if node == "observer" and not cluster.observers:
        yield "there is no observer; give cluster.observers"
    if node == "follower" and cluster.nodes == 1:
        yield "there is no follower; give cluster.nodes more than 1"
    if node == "partition_follower" and scenario.load.hot.replicas == 1:
        yield "there is no such follower; give the topic more replicas"
