"""Read ``[[fault]]`` and its ``match``: keys must be valid together."""

from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from scenarios.declared import read
from scenarios.fault_kinds import FAULT_KINDS, KEYS_OF_FEW, KINDS_AT, KINDS_ON_LINKS, STATES, TIMED_KINDS, with_key
from scenarios.fields import Reader
from scenarios.model import Fault, Link, Match, NodeChoice
from scenarios.vocabulary import (
    API_KEYS,
    CONNECTION_ROLES,
    DISK_OPERATIONS,
    LINK_ENDS,
    NO_DESCRIPTOR,
    NODE_ROLES,
    SAME_NODE,
    STORE_OPERATIONS,
)

FRAME_KEYS = ("api", "client_id", "session", "session_epoch", "error", "from_node", "position", "role")
MATCH_KEYS = {
    "request": FRAME_KEYS,
    "response": FRAME_KEYS,
    "peer_response": ("api", "from_node", "position", "role"),
    "disk": ("operation", "path", "role"),
    "disk_write": ("path", "position", "role"),
    "store": ("operation", "path", "role"),
    "store_result": ("operation", "path", "role"),
    "decision": ("decision", "role"),
}
"""The keys that ``match`` may have at each place. At a note they are ``note``, ``role`` and the note's own fields."""

_MATCH_VALUES: dict[str, Callable[[Reader, str], Any]] = {
    "api": lambda reader, key: _api(reader, key),
    "client_id": Reader.text,
    "session": Reader.boolean,
    "session_epoch": Reader.range,
    "error": Reader.integer,
    "from_node": lambda reader, key: reader.integer(key, low=0),
    "position": Reader.range,
    "role": lambda reader, key: reader.text(key, allowed=(*CONNECTION_ROLES, *NODE_ROLES[:-1])),
    "path": Reader.text,
    "decision": Reader.text,
    "operation": lambda reader, key: reader.text(key, allowed=(*DISK_OPERATIONS, *STORE_OPERATIONS)),
}


def read_fault(reader: Reader) -> Fault:
    """Read one fault. Raise ScenarioError."""
    on = reader.text("on", "", allowed=("", *STATES))
    if bool(on) == reader.has("at_s"):
        raise reader.refusal("on", f"or at_s: give exactly one; on is one of {', '.join(STATES)}")
    kind = reader.text("kind", allowed=KINDS_AT[on] if on else TIMED_KINDS)
    node = reader.node("node", 0, (*NODE_ROLES, *([SAME_NODE] if reader.has("after") else [])))
    link = _link(reader, kind, node) if not on else _link_at_a_state(reader, kind)
    if on and link is not None:
        node = "any" if link.target == "all" else link.target
    every = reader.integer("every", 0, low=0)
    times_s: dict[str, float] = {}
    for name in ("at_s", "duration_s", "repeat_every_s"):
        times_s[name] = reader.number(name, 0.0, low=0.0)
        times_s[f"sim_{name}"] = reader.number(f"sim_{name}", times_s[name], low=0.0)
    fault = read(
        Fault,
        reader,
        on=on,
        kind=kind,
        node=node,
        every=every,
        times=reader.integer("times", 0 if every else 1, low=0),
        match=_match(reader.table("match", required=False), on, kind),
        link=link,
        **times_s,
    )
    _fits(reader, fault)
    return fault


def _match(reader: Reader, on: str, kind: str) -> Match:
    if on == "note":
        return _note(reader)
    keys = MATCH_KEYS[on] if on else FAULT_KINDS[kind].match
    values = {key: _MATCH_VALUES[key](reader, key) for key in keys if reader.has(key)}
    for key in keys:
        reader.knows(key)
    reader.end()
    return Match(**values)


def _note(reader: Reader) -> Match:
    match = Match(
        note=reader.text("note"),
        role=reader.text("role", "", allowed=("", *NODE_ROLES[:-1])) or None,
        fields=reader.conditions(("note", "role")),
    )
    reader.end()
    return match


def _api(reader: Reader, key: str) -> int:
    """Read an API's name, as ``offset_commit`` or as Kafka spells it, ``OffsetCommit``."""
    name = reader.text(key)
    api_key = _APIS.get(name.replace("_", "").lower())
    if api_key is None:
        near = get_close_matches(name.lower(), API_KEYS, n=3) or ["produce", "fetch", "offset_commit"]
        raise reader.refusal(key, f"is {name!r}, which is no API; a name is one such as {', '.join(near)}")
    return api_key


_APIS = {name.replace("_", ""): number for name, number in API_KEYS.items()}


def _link(reader: Reader, kind: str, node: NodeChoice) -> Link | None:
    reader.knows("link")
    if not FAULT_KINDS[kind].hits_link:
        if reader.has("link"):
            raise reader.refusal("link", f"means nothing for {kind}; only kinds that begin with link_ act on a link")
        return None
    if not reader.has("link"):
        return Link("client", node)
    return _ends(reader)


def _link_at_a_state(reader: Reader, kind: str) -> Link | None:
    """The link between two nodes on which a frame is hit. The nodes that take it are also the rule's ``node``."""
    reader.knows("link")
    if not reader.has("link"):
        return None
    if kind not in KINDS_ON_LINKS:
        raise reader.refusal("link", f"means nothing for {kind} at a state; there it is of {', '.join(KINDS_ON_LINKS)}")
    match = reader.table("match", required=False)
    for table, key in ((reader, "node"), (match, "role"), (match, "from_node")):
        if table.has(key):
            raise table.refusal(key, "means nothing beside link, which names the sender and the receiver")
    link = _ends(reader)
    if link.source == "client" or link.source in NODE_ROLES:
        raise reader.refusal(
            "link", f"is {str(link)!r}; at a state its source is a node's number or all: the receiver knows no more"
        )
    return link


def _ends(reader: Reader) -> Link:
    text = reader.text("link")
    ends = [int(end) if end.isdigit() else end for end in text.split(">")]
    if len(ends) != 2 or any(isinstance(end, str) and end not in LINK_ENDS for end in ends) or ends[1] == "client":
        raise reader.refusal(
            "link", f"is {text!r}; it must be A>B (A dials B), each a node's number or one of: {', '.join(LINK_ENDS)}"
        )
    if ends[0] == ends[1] and ends[0] != "all":
        raise reader.refusal("link", f"is {text!r}; the two ends must differ")
    return Link(ends[0], ends[1])


_DEFAULTS = {field.name: field.default for field in fields(Fault)}


def _fits(reader: Reader, fault: Fault) -> None:
    if fault.swept and (fault.timed or fault.nth.low == fault.nth.high):
        raise reader.refusal("swept", "needs on, and a range for nth to go through")
    if fault.timed and isinstance(fault.node, str) and fault.link is not None and fault.link.source != "client":
        raise reader.refusal("node", "means nothing beside link; give one of them")
    if fault.boot and fault.timed:
        raise reader.refusal("boot", "means nothing beside at_s, which counts from the load's start; give on")
    if (fault.kind == "feature_finalized") != (fault.feature != "" and fault.level >= 0):
        raise reader.refusal("feature", "and level are of feature_finalized, which needs both")
    for key in KEYS_OF_FEW:
        if getattr(fault, key) != _DEFAULTS[key] and key not in FAULT_KINDS[fault.kind].keys:
            raise reader.refusal(key, f"means nothing for {fault.kind}; only for {' and '.join(with_key(key))}")
    if (fault.kind == "response_error") != (fault.code != 0):
        raise reader.refusal("code", "is of response_error, which needs it: Kafka's number of an error")
    if fault.kind == "response_truncated" and fault.cut_bytes.low < 1:
        raise reader.refusal("cut_bytes", "is needed for response_truncated: the bytes that are still sent, at least 1")
    if fault.kind == "response_lost_by_proxy" and (fault.match.role == "peer" or fault.match.from_node is not None):
        raise reader.refusal("match", "names other nodes, but response_lost_by_proxy is only of responses to clients")
    if fault.kind == "host_lost" and fault.restart_after_s <= 0:
        raise reader.refusal("restart_after_s", "must be above 0 for host_lost: its links are silent until it is back")
    if fault.alone and not fault.timed:
        raise reader.refusal("alone", "means nothing at a state; give at_s")
    if fault.error in NO_DESCRIPTOR and fault.match.operation != "open":
        raise reader.refusal("error", f"{fault.error!r} is of operations that open a file: match operation = 'open'")
    if fault.undo_fails and (fault.on, fault.kind) != ("disk_write", "disk_error"):
        raise reader.refusal("undo_fails", "means nothing here; only for a disk_error on disk_write")
    if fault.kind == "files_missing" and fault.match.path is None:
        raise reader.refusal("match", "needs a path: which files are deleted")
    operations = STORE_OPERATIONS if fault.on.startswith("store") else DISK_OPERATIONS
    if fault.match.operation not in (None, *operations):
        raise reader.refusal("match", f"has operation {fault.match.operation!r}; give one of: {', '.join(operations)}")
