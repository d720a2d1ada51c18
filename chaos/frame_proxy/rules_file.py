"""Reads the rules of a proxy: the ``[[fault]]`` tables of a scenario file, or one of them as JSON."""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from chaos.interceptor.rules import AT_THE_REQUESTER, between_nodes
from reference_broker.wire.apis import ApiKey
from scenarios.fault_kinds import FAULT_KINDS, KINDS_AT, KINDS_OF_PROCESSES, STATES
from scenarios.fault_tables import read_fault
from scenarios.fields import Reader, ScenarioError
from scenarios.model import Fault
from scenarios.vocabulary import CONNECTION_ROLES, PARTITION_ROLES

LOST_BY_TOXIPROXY = "response_lost_by_proxy"
PLACES = ("request", "response")
PROXY_KINDS_AT = {
    on: tuple(kind for kind in KINDS_AT[on] if not FAULT_KINDS[kind].inside_only and kind != LOST_BY_TOXIPROXY)
    for on in PLACES
}
"""The kinds that ``crucible proxy`` can inject, which has no Toxiproxy in front of it."""
BETWEEN_NODES = (*PLACES, AT_THE_REQUESTER)
"""Places on links between nodes at which a proxy can play faults."""
ONLY_NODES_SEND = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.ALTER_PARTITION,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
    }
)
"""Clients do not send these requests."""


def read_rules(path: Path) -> tuple[Fault, ...]:
    """Read a file. All tables but ``[[fault]]`` are left alone. Raise ScenarioError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path.name}: is not valid TOML: {error}") from error
    faults = tuple(_read(reader) for reader in Reader(table, path.name, "").tables("fault"))
    if not faults:
        raise ScenarioError(f"{path.name}: has no [[fault]]")
    return faults


def read_rule(table: Mapping[str, object]) -> Fault:
    """Read one rule, with the keys of a ``[[fault]]``. Raise ScenarioError."""
    return _read(Reader(table, "the rule", ""))


def _read(reader: Reader) -> Fault:
    """Read one fault. The lists in its refusals have only what ``crucible proxy`` can inject, not all that a scenario
    may have. ``why_not`` gives the reasons against valid faults."""
    if reader.has("at_s"):
        raise reader.refusal("at_s", "needs what a proxy does not see; give on = 'request' or on = 'response'")
    on = reader.text("on", "")
    if on not in STATES:
        raise reader.refusal("on", f"{f'is {on!r}' if on else 'is missing'}; allowed: {', '.join(PLACES)}")
    if on in PLACES and reader.text("kind") not in KINDS_AT[on]:
        reader.text("kind", allowed=PROXY_KINDS_AT[on])
    return read_fault(reader)


def why_not(
    fault: Fault,
    nodes: Mapping[int, int | str],
    has_links: bool = False,
    roles: Collection[str] = (),
    behind_toxiproxy: bool = False,
) -> str:
    """Return why a proxy cannot play the fault, or nothing. ``nodes`` are the node IDs with their processes
    (``fault_actions.ProxyFaultActions``), 0 for none. ``has_links`` is true if it is on links between nodes, too,
    and gets the roles of their ends. ``roles`` are those of nodes that it knows."""
    if fault.on not in (BETWEEN_NODES if has_links else PLACES):
        place = f"on = {fault.on!r}" if fault.on else "a time (at_s)"
        return f"{place} needs what a proxy does not see; it knows on = 'request' and on = 'response'"
    kind = FAULT_KINDS[fault.kind]
    if kind.inside_only:
        return f"{fault.kind} cannot be done by a proxy: {kind.inside_only}"
    if fault.kind == LOST_BY_TOXIPROXY and not behind_toxiproxy:
        return (
            "response_lost_by_proxy needs Toxiproxy in front of the proxy, as only a run has it; give response_dropped"
        )
    if fault.on == AT_THE_REQUESTER and fault.kind == "response_duplicated":
        return "response_duplicated cannot be done at a peer_response: a link carries the response to a request once"
    if between_nodes(fault):
        return "" if has_links else "other nodes do not come through the proxy, only clients do"
    known_roles = (*CONNECTION_ROLES, *roles)
    if fault.match.role is not None and fault.match.role not in known_roles:
        return (
            f"match.role is {fault.match.role!r}; a proxy does not know what role a node has{_hint(fault.match.role)}"
        )
    if fault.match.role == "peer" or fault.match.from_node is not None or fault.match.api in ONLY_NODES_SEND:
        return "other nodes do not come through the proxy, only clients do; faults between nodes need a link"
    if isinstance(fault.node, str) and fault.node not in ("any", *known_roles):
        refusal = f"node is {fault.node!r}; a proxy does not know what role a node has: give a node's number or 'any'"
        return refusal + _hint(fault.node)
    known = ", ".join(map(str, sorted(nodes)))
    if isinstance(fault.node, int) and fault.node not in nodes:
        return f"node {fault.node} is not among the target's: {known}; give one of them or 'any'"
    processes = nodes.values() if isinstance(fault.node, str) else (nodes[fault.node],)
    if fault.kind in KINDS_OF_PROCESSES and not all(processes):
        return f"{fault.kind} needs the node's process: give --process NODE=PID"
    if fault.kind == "node_paused" and any(isinstance(process, str) for process in processes):
        return "node_paused at a state needs a process that we started, and no shell command"
    return ""


def _hint(role: str) -> str:
    """Metadata names the leader of a partition, but not the active controller: with KRaft, Kafka names any node
    there."""
    return ", or --topic, whose first partition is meant" if role in PARTITION_ROLES else ""
