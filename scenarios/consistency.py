"""What must hold between the parts of one scenario file; each refusal is one sentence."""

from scenarios.fields import ScenarioError
from scenarios.model import Admins, Fault, Fetchers, MetadataReaders, NodeChoice, Producers, Scenario
from scenarios.vocabulary import NEEDED_BY_KIND


def needed_by(fault: Fault) -> str:
    """What the world must offer for this fault: one of NEEDS."""
    if fault.kind in NEEDED_BY_KIND:
        return NEEDED_BY_KIND[fault.kind]
    if not fault.timed:
        return "interceptor"
    return "proxy" if fault.kind.startswith("link_") else "signals"


def check(scenario: Scenario, file: str) -> None:
    """Raises ScenarioError."""
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


def _check_load(scenario: Scenario, file: str) -> None:
    load = scenario.load
    topics = {topic.name for topic in load.topics}
    if len(load.topics) != 1:
        raise ScenarioError(f"{file}: load.topics: give exactly one; the idle partitions have a topic of their own")
    if load.topics[0].replicas > scenario.cluster.total:
        raise ScenarioError(
            f"{file}: load.topics: {load.topics[0].replicas} replicas need so many nodes; "
            f"there are {scenario.cluster.total}"
        )
    read = [(f"group {each.name!r}", topic) for each in load.groups for topic in each.topics]
    read += [("the mirror", load.mirror.topic)] if load.mirror is not None else []
    for reader, topic in read:
        if topic not in topics:
            raise ScenarioError(f"{file}: load: topic {topic!r} of {reader} is not among: {', '.join(sorted(topics))}")
    of_topic: tuple[Fetchers | Producers, ...] = (*load.fetchers, *load.producers)
    for group in of_topic:
        if isinstance(group, Producers) and group.acks == 0:
            raise ScenarioError(
                f"{file}: load: {group.name!r} has acks 0: nothing would be answered, so nothing could be judged"
            )
        if group.topic not in topics:
            raise ScenarioError(
                f"{file}: load: topic {group.topic!r} of {group.name!r} is not among: {', '.join(sorted(topics))}"
            )
    groups: tuple[Fetchers | Producers | Admins | MetadataReaders, ...] = (
        *of_topic,
        *load.admins,
        *load.metadata_readers,
    )
    _check_names([group.name for group in groups], file, "load: two groups are")
    _check_groups(scenario, file)


def _check_groups(scenario: Scenario, file: str) -> None:
    load = scenario.load
    speaks_drafts = any(each.metadata_epoch for each in load.groups) or (load.mirror and load.mirror.metadata_epoch)
    if speaks_drafts and "drafts" not in scenario.needs:
        raise ScenarioError(f"{file}: needs: metadata epochs are spoken under draft versions and need 'drafts'")
    if load.mirror is not None and any(each.name == "mirror" for each in load.groups):
        raise ScenarioError(f"{file}: load.groups: the name 'mirror' is that of the mirror's group")
    for each in load.groups:
        if isinstance(each.metadata_from, int) and each.metadata_from >= scenario.cluster.total:
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
    if node == "partition_follower" and scenario.load.topics[0].replicas == 1:
        raise ScenarioError(f"{file}: fault {fault.name!r}: there is no such follower; give the topic more replicas")
