"""Requirements of a scenario for an external target, and those that the target does not meet."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.targets.layout import OURS, name_of
from bench.targets.loader import find
from bench.targets.model import Chosen, TargetError
from chaos.frame_proxy.rules_file import why_not
from chaos.interceptor.rules import AT_THE_REQUESTER
from chaos.live.errors import SetupError
from chaos.live.external.roles import names_a_role
from chaos.live.external.target import REFERENCE, discover
from chaos.live.fault_selection import select_live_faults
from chaos.live.launchers import abilities_of
from scenarios.derived import for_external_target
from scenarios.fault_kinds import FAULT_KINDS
from scenarios.model import Fault, Scenario
from scenarios.revisions import revision_of
from scenarios.vocabulary import NODE_ROLES

DIRECTED = "directed links between nodes, which need a target that we start with proxies between its nodes"
ANY_PROCESS = 1
"""A process of which only the existence matters."""


def chosen(target: str) -> Chosen:
    """Raise SetupError."""
    try:
        return find(target)
    except TargetError as wrong:
        raise SetupError(f"--target: {wrong}") from wrong


def playable(scenario: Scenario, wanted: Chosen) -> Scenario:
    """Return the result of ``for_external_target`` without the optional faults that the target cannot have.

    Raise SetupError with one sentence that names what is missing. For a target that runs already, it may send Metadata
    to find the nodes.
    """
    for lack in _of_scenario(scenario, wanted):
        raise _refusal(scenario, wanted, lack)
    for fault in scenario.faults:  # Before nodes are fetched.
        few = max(wanted.nodes, scenario.cluster.total)
        lack = _of_fault(fault, wanted, few) if fault.timed else _needed(_beyond(fault, wanted, few))
        if lack and not fault.optional:
            raise _refusal(scenario, wanted, f"fault {fault.name}{lack}")
    nodes = _nodes(wanted, scenario)
    if scenario.cluster.total > len(nodes):
        raise _refusal(scenario, wanted, f"{scenario.cluster.total} nodes (it has {len(nodes)})")
    kept = []
    for fault in scenario.faults:
        lack = _of_fault(fault, wanted, len(nodes))
        if not lack:
            kept.append(fault)
        elif not fault.optional:
            raise _refusal(scenario, wanted, f"fault {fault.name}{lack}")
    adapted = replace(scenario, faults=tuple(kept))
    if names_a_role(adapted) and wanted.file.node is not None and wanted.file.node.one_process:
        raise _refusal(scenario, wanted, "nodes with roles, each a process of its own")
    return adapted


def needs_links(scenario: Scenario) -> bool:
    """Return whether a fault hits a directed link between nodes."""
    return any(_between_nodes(fault) for fault in scenario.faults)


def _refusal(scenario: Scenario, wanted: Chosen, lack: str) -> SetupError:
    return SetupError(
        f"--target {wanted.text} lacks what {scenario.name} needs: {lack}; use --target {REFERENCE} or another."
    )


def _nodes(wanted: Chosen, scenario: Scenario) -> Sequence[str]:
    """Return the nodes that exist or will be started. Metadata is sent only if the target is addresses alone; others
    may have to be started first."""
    if wanted.file.node is not None:
        return [name_of(number) for number in range(wanted.nodes + scenario.cluster.observers)]
    return discover(wanted.file.addresses[0])[0] if wanted.file.commands is None else wanted.file.addresses


def _of_scenario(scenario: Scenario, wanted: Chosen) -> Iterator[str]:
    cluster, load, file = scenario.cluster, scenario.load, wanted.file
    if revision_of(scenario) == "first":
        yield "the first revision of fetch sessions, which is a draft"
    if scenario.state:
        yield "[state], which is set inside the broker's process"
    if wanted.nodes and cluster.nodes > wanted.nodes:
        yield f"{cluster.nodes} nodes (it has {wanted.nodes})"
    if cluster.observers and not file.addresses and (file.node is None or not file.node.observer):
        yield "nodes without a vote"
    if "topics" in file.lacks:
        yield "topics of its own (it has no CreateTopics)"
    if "replicas" in file.lacks and any(topic.replicas > 1 for topic in load.topics):
        yield "replicas"
    if "groups" in file.lacks and (load.groups or load.workers or load.mirror is not None):
        yield "groups"
    if "transactions" in file.lacks and load.has_transactions:
        yield "transactions"


def _of_fault(fault: Fault, wanted: Chosen, nodes: int) -> str:
    """Return why the target cannot have the fault, as the end of a sentence that begins with its name; empty if it
    can."""
    if fault.timed and not FAULT_KINDS[fault.kind].is_external:
        return _needed("what only our own broker's process has")
    if lack := _beyond(fault, wanted, nodes):
        return _needed(lack)
    if not fault.timed:
        process = ANY_PROCESS if not _lacks_process(fault.kind, wanted) else 0
        refusal = why_not(
            fault, dict.fromkeys(range(nodes), process), _has_links(wanted), NODE_ROLES, behind_toxiproxy=True
        )
        return f": {refusal}" if refusal else ""
    return ""


def _needed(lack: str) -> str:
    return f" needs {lack}" if lack else ""


def _beyond(fault: Fault, wanted: Chosen, nodes: int) -> str:
    """Return what a fault needs besides links to the nodes and the target lacks: processes, or links between nodes."""
    lack = _lacks_process(fault.kind, wanted) or _lacks_files(fault, wanted) or _lacks_proof(fault, wanted)
    is_alone = nodes == 1 and FAULT_KINDS[fault.kind].cuts == "all"
    return lack or (DIRECTED if _between_nodes(fault) and not is_alone and not _has_links(wanted) else "")


def _lacks_files(fault: Fault, wanted: Chosen) -> str:
    """Return why a node's files cannot be changed; empty if they can, or if the fault does not change them."""
    abilities = abilities_of(wanted)
    if FAULT_KINDS[fault.kind].changes_files and "files" not in abilities:
        if wanted.file.node is not None:
            return "a data directory for each node (all nodes are one process)"
        return "the data directory of a node, which is known only if we start it"
    if "settings" not in abilities and any(not key.startswith(OURS) for key, _ in fault.config):
        return "other settings for a node, which it gets only if we start it"
    return ""


def _lacks_proof(fault: Fault, wanted: Chosen) -> str:
    """A proxy kills by a command at once, and only ``alive`` shows whether that worked."""
    commands = wanted.file.commands
    is_blind = commands is not None and not commands.alive
    return "process control by commands.alive" if is_blind and fault.kind == "node_killed" and not fault.timed else ""


def _has_links(wanted: Chosen) -> bool:
    return wanted.file.node is not None and wanted.file.node.links != "none"


def _between_nodes(fault: Fault) -> bool:
    is_cut = fault.timed and bool(FAULT_KINDS[fault.kind].cuts)
    return is_cut or fault.on == AT_THE_REQUESTER or (fault.link is not None and fault.link.source != "client")


def _lacks_process(kind: str, wanted: Chosen) -> str:
    """Return why the fault cannot affect the target's processes; empty if it can, or if the kind affects no process."""
    abilities = abilities_of(wanted)
    missing = [word for word in FAULT_KINDS[kind].commands if word not in abilities]
    if not missing:
        return ""
    if wanted.file.node is not None:
        return "one process for each node (all nodes are one process)"
    if wanted.file.commands is None:
        return f"process control for {kind} (an address alone gives none; give a target's file)"
    return f"process control by commands.{missing[0]}"


def check_target(scenario: Scenario, target: str) -> None:
    """Raise SetupError for what cannot be played in front of this target."""
    playable(select_live_faults(for_external_target(scenario), 0), chosen(target))
