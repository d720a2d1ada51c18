"""Checks that the parts of one scenario file fit together. Each refusal is one sentence."""

from collections.abc import Sequence

from scenarios.fields import ScenarioError
from scenarios.load import MIRROR_GROUP, Admins, Fetchers, Load, MetadataReaders, Producers, Topic
from scenarios.model import Fault, NodeChoice, Scenario
from scenarios.vocabulary import NEEDED_BY_KIND

LEAST_SECONDS = 0.1


def needed_by(fault: Fault) -> str:
    """What the world must offer for this fault: one of NEEDS."""
    if fault.kind in NEEDED_BY_KIND:
        return NEEDED_BY_KIND[fault.kind]
    if not fault.timed:
        return "interceptor"
    return "proxy" if fault.kind.startswith("link_") else "signals"


def check(scenario: Scenario, file: str) -> None:
    """Raises ScenarioError if the parts do not fit together."""
    _check_load(scenario, file)
    _check_revisions(scenario, file)
    _check_names([fault.name for fault in scenario.faults], file, "fault: two faults are")
    for fault in scenario.faults:
        if needed_by(fault) not in scenario.needs:
            raise ScenarioError(
                f"{file}: needs: fault {fault.name!r} ({fault.kind}) needs {needed_by(fault)!r}, which is not listed"
            )
        for node in (fault.node, *(fault.link or ())):
            _check_node(scenario, file, fault, node)
    if scenario.state and "interceptor" not in scenario.needs:
        raise ScenarioError(f"{file}: needs: [state] is set inside our broker's process and needs 'interceptor'")


def check_load(load: Load, file: str) -> None:
    """Checks what must hold in any load, whoever plays it. Raises ScenarioError."""
    topics = {topic.name: topic for topic in load.topics}
    _check_topics(load.topics, file)
    asked = [(f"{each.name!r}", each.topic) for each in load.fetchers]
    asked += [(f"{each.name!r}", each.topic) for each in load.producers]
    asked += [(f"group {each.name!r}", topic) for each in load.groups for topic in each.topics]
    asked += [("the mirror", load.mirror.topic)] if load.mirror is not None else []
    for client, topic in asked:
        if topic not in topics:
            raise ScenarioError(f"{file}: load: topic {topic!r} of {client} is not among: {', '.join(sorted(topics))}")
    for fetchers in load.fetchers:
        if fetchers.partitions > topics[fetchers.topic].partitions:
            raise ScenarioError(
                f"{file}: load: {fetchers.name!r} wants {fetchers.partitions} partitions of {fetchers.topic!r}, which "
                f"has {topics[fetchers.topic].partitions}"
            )
    for producers in load.producers:
        if producers.acks == 0:
            raise ScenarioError(
                f"{file}: load: {producers.name!r} has acks 0: nothing would be answered, so nothing could be judged"
            )
    named: tuple[Fetchers | Producers | Admins | MetadataReaders, ...]
    named = (*load.fetchers, *load.producers, *load.admins, *load.metadata_readers)
    _check_names([each.name for each in named], file, "load: two groups are")
    _check_groups(load, file)


def _check_topics(topics: Sequence[Topic], file: str) -> None:
    _check_names([topic.name for topic in topics], file, "load.topics: two are")
    for topic in topics[1:]:
        if (topic.replicas, topic.min_insync) != (topics[0].replicas, topics[0].min_insync):
            raise ScenarioError(
                f"{file}: load.topics: give {topic.name!r} the replicas and the min.insync.replicas of "
                f"{topics[0].name!r}; acknowledged records are judged by one rule for all topics"
            )


def _check_groups(load: Load, file: str) -> None:
    if load.mirror is not None and any(each.name == MIRROR_GROUP for each in load.groups):
        raise ScenarioError(f"{file}: load.groups: the name {MIRROR_GROUP!r} is that of the mirror's group")
    for each in load.groups:
        where = f"{file}: load.groups: {each.name!r}"
        if each.heartbeat_interval_ms >= each.session_timeout_ms:
            raise ScenarioError(f"{where} has a heartbeat_interval_ms that must be less than session_timeout_ms")
        if each.protocol == "assigned" and each.static:
            raise ScenarioError(f"{where} has the protocol 'assigned': without membership there is no static one")


def _check_load(scenario: Scenario, file: str) -> None:
    """Checks what the cluster and the simulator need from the load."""
    load, total = scenario.load, scenario.cluster.total
    check_load(load, file)
    if not load.topics:
        raise ScenarioError(f"{file}: load.topics: give at least one; the idle partitions have a topic of their own")
    if load.seconds < LEAST_SECONDS:
        raise ScenarioError(f"{file}: load.seconds is {load.seconds:g}; it must be at least {LEAST_SECONDS:g}")
    if load.hot.replicas > total:
        raise ScenarioError(f"{file}: load.topics: {load.hot.replicas} replicas need so many nodes; there are {total}")
    speaks_drafts = any(each.metadata_epoch for each in load.groups) or (load.mirror and load.mirror.metadata_epoch)
    if speaks_drafts and "drafts" not in scenario.needs:
        raise ScenarioError(f"{file}: needs: metadata epochs are spoken under draft versions and need 'drafts'")
    for each in load.groups:
        if isinstance(each.metadata_from, int) and each.metadata_from >= total:
            raise ScenarioError(f"{file}: load.groups: node {each.metadata_from} is not in the cluster")


def _check_revisions(scenario: Scenario, file: str) -> None:
    if not scenario.revisions or len(dict.fromkeys(scenario.revisions)) < len(scenario.revisions):
        raise ScenarioError(f"{file}: revisions: give at least one, each once")
    if "first" in scenario.revisions and "drafts" not in scenario.needs:
        raise ScenarioError(f"{file}: needs: the first revision is spoken under a draft version and needs 'drafts'")


def _check_names(names: list[str], file: str, two: str) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ScenarioError(f"{file}: {two} named {name!r}; give each a name of its own")


def _check_node(scenario: Scenario, file: str, fault: Fault, node: NodeChoice) -> None:
    cluster = scenario.cluster
    if isinstance(node, int) and node >= cluster.total:
        raise ScenarioError(f"{file}: fault {fault.name!r}: node {node} is not among 0..{cluster.total - 1}")
    if node == "observer" and not cluster.observers:
        raise ScenarioError(f"{file}: fault {fault.name!r}: there is no observer; give cluster.observers")
    if node == "follower" and cluster.nodes == 1:
        raise ScenarioError(f"{file}: fault {fault.name!r}: there is no follower; give cluster.nodes more than 1")
    if node == "partition_follower" and scenario.load.hot.replicas == 1:
        raise ScenarioError(f"{file}: fault {fault.name!r}: there is no such follower; give the topic more replicas")
