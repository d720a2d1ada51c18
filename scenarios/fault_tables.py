"""Reads ``[[fault]]`` and its ``match``, and checks which keys may stand together in one fault."""

from scenarios.fields import Reader
from scenarios.model import Fault, Link, Match, NodeChoice
from scenarios.vocabulary import (
    API_KEYS,
    CONNECTION_ROLES,
    DIRECTIONS,
    LINK_ENDS,
    NODE_ROLES,
    PLACES,
    TIMED_KINDS,
)

FRAME_KEYS = ("api", "client_id", "session", "session_epoch", "error", "from_node", "position", "role")
MATCH_KEYS = {
    "request": FRAME_KEYS,
    "reply": FRAME_KEYS,
    "peer_reply": ("api", "from_node", "position", "role"),
    "disk_write": ("path", "position", "role"),
}
"""The keys that ``match`` may have at each place. At a note they are ``note``, ``role`` and the note's own fields."""


def read_fault(reader: Reader) -> Fault:
    """Reads one fault. Raises ScenarioError."""
    on = reader.text("on", "", allowed=("", *PLACES))
    at_s = reader.number("at_s", -1.0, low=0.0)
    if (on == "") == (at_s < 0):
        raise reader.refusal("on", f"or at_s: give exactly one; on is one of {', '.join(PLACES)}")
    kind = reader.text("kind", allowed=PLACES[on] if on else TIMED_KINDS)
    every = reader.integer("every", 0, low=0)
    duration_s = reader.number("duration_s", 0.0, low=0.0)
    repeat_every_s = reader.number("repeat_every_s", 0.0, low=0.0)
    node = reader.node("node", 0, NODE_ROLES)
    fault = Fault(
        name=reader.text("name"),
        kind=kind,
        on=on,
        match=_match(reader.table("match", required=False), on),
        nth=reader.range("nth", (1, 1), low=1),
        every=every,
        times=reader.integer("times", 0 if every else 1, low=0),
        total=reader.integer("total", 0, low=0),
        after_s=reader.number("after_s", 0.0, low=0.0),
        until_s=reader.number("until_s", -1.0, low=0.0),
        at_s=max(at_s, 0.0),
        sim_at_s=reader.number("sim_at_s", max(at_s, 0.0), low=0.0),
        duration_s=duration_s,
        sim_duration_s=reader.number("sim_duration_s", duration_s, low=0.0),
        repeat=reader.integer("repeat", 1, low=1),
        repeat_every_s=repeat_every_s,
        sim_repeat_every_s=reader.number("sim_repeat_every_s", repeat_every_s, low=0.0),
        restart_after_s=reader.number("restart_after_s", 1.0, low=-1.0),
        node=node,
        link=_link(reader, kind, node),
        clients=reader.boolean("clients", False),
        direction=reader.text("direction", "both", allowed=DIRECTIONS),
        delay_ms=reader.range("delay_ms", (0, 0), low=0),
        jitter_ms=reader.integer("jitter_ms", 0, low=0),
        step_ms=reader.integer("step_ms", 0),
        cut_bytes=reader.range("cut_bytes", (0, 0), low=0),
        bytes_per_s=reader.integer("bytes_per_s", 0, low=0),
        config=reader.table("config", required=False).pairs(),
        between_s=reader.number("between_s", 1.0, low=0.0),
        feature=reader.text("feature", ""),
        level=reader.integer("level", 0, low=0),
        optional=reader.boolean("optional", False),
        either=reader.text("either", ""),
        swept=reader.boolean("swept", False),
        boot=reader.boolean("boot", False),
    )
    reader.end()
    _fits(reader, fault)
    return fault


def _match(reader: Reader, on: str) -> Match:
    if on == "note":
        return _note(reader)
    api = reader.text("api", "", allowed=("", *API_KEYS))
    match = Match(
        api=API_KEYS[api] if api else None,
        client_id=reader.text("client_id", "") or None,
        session=reader.boolean("session", False) if reader.has("session") else None,
        session_epoch=reader.range("session_epoch") if reader.has("session_epoch") else None,
        error=reader.integer("error", 0) if reader.has("error") else None,
        role=reader.text("role", "", allowed=("", *CONNECTION_ROLES, *NODE_ROLES[:-1])) or None,
        path=reader.text("path", "") or None,
        position=reader.range("position") if reader.has("position") else None,
        from_node=reader.integer("from_node", 0, low=0) if reader.has("from_node") else None,
    )
    reader.end()
    for key in (*FRAME_KEYS, "path"):
        if reader.has(key) and key not in MATCH_KEYS.get(on, ()):
            where = f"on {on!r} only: {', '.join(MATCH_KEYS[on])}" if on else "a fault at a time has no match"
            raise reader.refusal(key, f"is never known there; {where}")
    return match


def _note(reader: Reader) -> Match:
    match = Match(
        note=reader.text("note"),
        role=reader.text("role", "", allowed=("", *NODE_ROLES[:-1])) or None,
        fields=reader.conditions(("note", "role")),
    )
    reader.end()
    return match


def _link(reader: Reader, kind: str, node: NodeChoice) -> Link | None:
    if not kind.startswith("link_"):
        if reader.has("link"):
            raise reader.refusal("link", f"means nothing for {kind}; only kinds that begin with link_ strike a link")
        reader.text("link", "")
        return None
    if not reader.has("link"):
        reader.text("link", "")
        return Link("client", node)
    text = reader.text("link")
    ends = [int(end) if end.isdigit() else end for end in text.split(">")]
    if len(ends) != 2 or any(isinstance(end, str) and end not in LINK_ENDS for end in ends) or ends[1] == "client":
        raise reader.refusal(
            "link", f"is {text!r}; it must be A>B (A dials B), each a node's number or one of: {', '.join(LINK_ENDS)}"
        )
    if ends[0] == ends[1] and ends[0] != "all":
        raise reader.refusal("link", f"is {text!r}; the two ends must differ")
    return Link(ends[0], ends[1])


def _fits(reader: Reader, fault: Fault) -> None:
    if fault.swept and (fault.timed or fault.nth.low == fault.nth.high):
        raise reader.refusal("swept", "needs on, and a range for nth to go through")
    if fault.timed and isinstance(fault.node, str) and fault.link is not None and fault.link.source != "client":
        raise reader.refusal("node", "means nothing beside link; give one of them")
    if fault.boot and fault.timed:
        raise reader.refusal("boot", "means nothing beside at_s, which counts from the load's start; give on")
    if (fault.kind == "feature_finalized") != bool(fault.feature and fault.level):
        raise reader.refusal("feature", "and level are of feature_finalized, which needs both")
    if fault.config and fault.kind != "rolling_bounce":
        raise reader.refusal("config", f"means nothing for {fault.kind}; only for rolling_bounce")
    if fault.clients and fault.kind != "node_isolated":
        raise reader.refusal("clients", f"means nothing for {fault.kind}; only for node_isolated")
