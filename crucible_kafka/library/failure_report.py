"""The cluster's part in the report of a failed test: rules, the conversation of the clients, errors of the nodes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from crucible_kafka.library.observation import Frame, error_lines
from crucible_kafka.library.shared_cluster import SharedCluster

MAX_FRAMES: Final = 200
"""The number of newest frames that are looked at."""
MAX_FRAME_LINES: Final = 40
SHOWN_OF_RUN: Final = 2
"""Of many frames of one client and API in a row, that many are shown at each end."""
MAX_LOG_LINES: Final = 10
MAX_CHARACTERS: Final = 240
"""The limit of one line."""


def failure_report(cluster: SharedCluster, since_s: float) -> str:
    """Return the text about a test that began at ``since_s`` (Unix time)."""
    nodes = "" if cluster.nodes == 1 else f", {_states(cluster)}"
    parts = [f"{cluster.bootstrap_servers}{nodes}"]
    rules = [f"  {rule}: fired {rule.fired} times" for rule in cluster.rules_of_test]
    parts += ["Rules:", *rules] if rules else ["Rules: none"]
    frames = [frame for frame in cluster.newest_frames(MAX_FRAMES) if frame.at_s >= since_s]
    lines = [*conversation(frames)]
    shown = lines[-MAX_FRAME_LINES:]
    parts += ["The clients' last requests and responses:", *shown] if shown else ["No client sent a request."]
    errors = [*error_lines(cluster.log_lines(), since_s)]
    if errors:
        parts += ["Errors and warnings in the nodes' logs:", *map(_cut, errors[-MAX_LOG_LINES:])]
    return "\n".join(parts)


def _states(cluster: SharedCluster) -> str:
    """Return which nodes serve."""
    states = [(number, cluster.node(number)) for number in range(cluster.nodes)]
    words = [
        f"node {number} {'serves' if node.is_serving else 'is paused' if node.is_running else 'does not run'}"
        for number, node in states
    ]
    return ", ".join(words)


def conversation(frames: Sequence[Frame]) -> Iterator[str]:
    """Yield a line for each frame. Of many in a row, for one client and API, the middle is counted."""
    for (client_id, api), run in groupby(frames, key=lambda frame: (frame.client_id, frame.api)):
        found = [*run]
        middle = found[2 * SHOWN_OF_RUN : -2 * SHOWN_OF_RUN]
        if len(middle) < SHOWN_OF_RUN or any(frame.fault for frame in middle):
            yield from map(_line, found)
            continue
        yield from map(_line, found[: 2 * SHOWN_OF_RUN])
        yield f"  ... {len(middle)} more frames of {api} with {client_id or '(no client ID)'}"
        yield from map(_line, found[-2 * SHOWN_OF_RUN :])


def _line(frame: Frame) -> str:
    """Return a frame in one line, whose fault is never cut off. The versions in ApiVersions would drown the rest."""
    is_list_of_versions = frame.api == "ApiVersions" and not frame.is_request
    body = {"error_code": frame.error} if is_list_of_versions else frame.body
    text = _cut(f"  {replace(frame, body=body, fault='')}")
    return f"{text}  [{frame.fault}]" if frame.fault else text


def _cut(line: str) -> str:
    return line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 3]}..."
