"""What a fault struck, in words: who, what, and at which state, as the evidence of its first hit tells.

The evidence of a fault at a state begins with the node's roles and the name of a note, followed by the note's fields.
That of a fault at a time begins with the role that it was for, in words, and a colon. Other evidence says nothing here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from reports.collect import Row
from reports.page import words

_ROLES = ("leader", "follower", "observer", "partition_leader", "partition_follower")
_IN_WORDS = re.compile(r"(the controller|the leader of \S+|a follower of \S+(?: \S+)?|an observer): ")
_NOTE = re.compile(r"([a-z]+(?:_[a-z]+)+)(?= \w+=)")
_FIELD = re.compile(r"(\w+)=(.*?)(?= \w+=| pid \d|$)")

FETCH = 1
_APIS = {
    0: "produce",
    1: "fetch",
    3: "metadata",
    8: "commit offsets",
    10: "find a coordinator",
    11: "join a group",
    12: "heartbeats",
    14: "sync a group",
    19: "create topics",
    22: "get a producer ID",
    24: "add partitions to a transaction",
    25: "add offsets to a transaction",
    26: "end a transaction",
    27: "write markers of a transaction",
    28: "commit offsets in a transaction",
    56: "change in-sync replicas",
    59: "fetch a snapshot",
    63: "heartbeats of a broker",
}
"""What a request with this API key asks for."""

_ENDED = {
    "node_killed": "was killed",
    "node_powered_off": "lost power",
    "node_paused": "was stopped for {lasted}",
    "node_terminated": "was told to end",
    "node_isolated": "was cut off from the other nodes for {lasted}",
    "node_cut_from_controller": "was cut off from the controller for {lasted}",
    "directory_missing": "came back with an empty directory",
    "rolling_bounce": "was ended and started anew, and then each other node in turn",
    "disk_slowed": "had a slow disk for {lasted}",
    "disk_full": "had no space left on its disk for {lasted}",
    "disk_bit_flipped": "found one bit of its disk turned over",
    "disk_error": "got an error of its disk",
    "disk_write_failed": "could not write to its disk",
    "files_missing": "found files of its disk deleted",
    "clock_stepped": "had its clock stepped",
    "feature_finalized": "was asked to raise a feature",
    "requests_replayed": "was sent old requests of other nodes again",
    "requests_forged": "was sent forged requests in the name of other nodes",
    "store_refused": "was refused by the object store",
    "store_slowed": "had to wait for the object store",
    "store_answer_lost": "did not hear the object store's answer",
    "store_listed_late": "did not see in a list what it had just stored",
}
_FRAMES = {
    "dropped": "lost",
    "delayed": "late",
    "duplicated": "doubled",
    "damaged": "damaged by one bit",
    "truncated": "cut short",
    "error": "replaced by an error",
}
_LINKS = {
    "link_cut": "was cut for {lasted}",
    "link_delayed": "was slow to deliver for {lasted}",
    "link_reset": "was reset for {lasted}",
    "link_truncated": "broke off inside frames for {lasted}",
    "link_sliced": "delivered in small pieces for {lasted}",
    "link_slowed": "was narrow for {lasted}",
    "link_down": "was down for {lasted}",
}


@dataclass(frozen=True, slots=True)
class Struck:
    """``role`` is a noun phrase, or empty. ``state`` is the name of the note at which the fault struck, or empty."""

    role: str
    state: str
    fields: Mapping[str, str]

    @property
    def is_controller(self) -> bool:
        return self.role == "the controller"


def struck(row: Row) -> Struck:
    """Reads the evidence of a fault (a row of ``fault_log``)."""
    detail = row["detail"]
    told = _IN_WORDS.match(detail)
    note = None if told else _NOTE.search(detail)
    state = note[1] if note else ""
    fields = dict(_FIELD.findall(detail[note.end() :])) if note else {}
    return Struck(told[1] if told else _role(detail.split(), state), state, fields)


def _role(tokens: list[str], state: str) -> str:
    """What the node was for what it did at that state. A node has several roles at a time."""
    roles = [one for one in tokens if one in _ROLES]
    if state.startswith(("transaction_", "group_", "offset_")):
        return "a coordinator"
    if "leader" in roles and (state.startswith("metadata_") or not state):
        return "the controller"
    return "an observer" if "observer" in roles else ""


def sentence(row: Row) -> str:
    """Says what the fault did, as a whole sentence without its full stop."""
    return _of_frames(row) or _of_links(row) or _of_node(row)


def _of_frames(row: Row) -> str:
    side, _, effect = row["kind"].partition("_")
    if side not in ("request", "response") or effect not in _FRAMES:
        return ""
    one, many = _requests(row["api_key"])
    if row["hits"] == 1:
        told = f"{one} was" if side == "request" else f"an answer to {one} was"
    else:
        told = f"{words.count(row['hits'])} {'' if side == 'request' else 'answers to '}{many} were"
    return f"{told[0].upper()}{told[1:]} {_FRAMES[effect]}"


def _requests(api_key: int) -> tuple[str, str]:
    """What one request of this kind is called, and what several are."""
    if api_key == FETCH:
        return "a fetch", "fetches"
    wants = f" to {_APIS[api_key]}" if api_key in _APIS else ""
    return f"a request{wants}", f"requests{wants}"


def _of_links(row: Row) -> str:
    if row["kind"] not in _LINKS:
        return ""
    names = re.findall(r"(client|node-\d+|\d+|all|\w+)[->]+(node-\d+|\d+|all|\w+)", row["target"])
    ends = [" and ".join(_end(one) for one in pair) for pair in dict.fromkeys(names)]
    role = struck(row).role
    link = f"The link between {ends[0]}" if len(ends) == 1 else "A link" if not ends else f"Each of {len(ends)} links"
    link += f" ({role})" if role and len(ends) == 1 else ""
    return f"{link} {_lasting(_LINKS[row['kind']], row)}"


def _end(name: str) -> str:
    if name == "client":
        return "clients"
    return "all nodes" if name == "all" else f"node {name.removeprefix('node-')}"


def _of_node(row: Row) -> str:
    found = struck(row)
    node = row["target"].replace("node-", "node ") if row["hits"] == 1 else ""
    who = (f"{found.role} ({node})" if node else found.role) if found.role else node or "a node"
    did = _lasting(_ENDED.get(row["kind"], f"was struck ({row['kind'].replace('_', ' ')})"), row)
    told = f"{who} {did}{_at(found, row)}"
    return told[0].upper() + told[1:]


def _lasting(text: str, row: Row) -> str:
    """How long is told of one strike only, since several need not lie side by side."""
    if row["hits"] == 1:
        return text.format(lasted=words.brief(row["until_us"] - row["from_us"]))
    return f"{text.removesuffix(' for {lasted}')} {words.count(row['hits'])} times"


def _at(found: Struck, row: Row) -> str:
    if not found.state:
        return f" at a request to {_APIS[row['api_key']]}" if row["api_key"] in _APIS else ""
    if found.state in _STATES:
        return " " + _STATES[found.state].format_map(_Known(found.fields))
    return f" at “{found.state.replace('_', ' ')}”"


class _Known(dict[str, str]):
    """Fields of a note. A field that it lacks is a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


_STATES = {
    "metadata_appended": "inside a metadata transaction ({change}, batch {number} of {of})",
    "metadata_committed": "when batch {number} of {of} of a metadata transaction was committed",
    "download_chunk": "in the middle of a snapshot download",
    "download_finished": "at the end of a snapshot download",
    "snapshot_started": "when it began a snapshot",
    "snapshot_written": "when it had written a snapshot",
    "snapshot_renamed": "when it had made a snapshot whole",
    "transaction_decided": "with a transaction decided ({outcome}) and no partition told",
    "transaction_marker": "when a marker of a transaction was written",
    "offset_committed": "when it had written a committed offset",
    "group_state": "when it had written a generation of a group",
    "log_cleaned": "when it had cleaned a log",
}
"""At which state the fault struck, by the name of the note; the fields are the note's."""
