"""The text about a cluster in the report of a failed test."""

import json

from crucible_kafka.library.failure_report import MAX_CHARACTERS, conversation
from crucible_kafka.library.observation import Frame, error_lines


def frame(api: str, at_s: float = 0.0, body: object = None, fault: str = "", direction: str = "request") -> Frame:
    return Frame(
        at_s=at_s,
        direction=direction,
        node=0,
        connection=1,
        peer="127.0.0.1:1",
        client_id="app",
        api=api,
        version=1,
        correlation_id=1,
        body=body,
        fault=fault,
    )


def test_middle_of_many_equal_frames_is_counted() -> None:
    lines = [*conversation([frame("JoinGroup"), *[frame("Heartbeat")] * 30, frame("LeaveGroup")])]
    assert [line.split()[6] if line.startswith("  0") or line.count("#") else line for line in lines] == [
        "JoinGroup",
        *["Heartbeat"] * 4,
        "  ... 22 more frames of Heartbeat with app",
        *["Heartbeat"] * 4,
        "LeaveGroup",
    ]


def test_frames_with_faults_are_never_counted_only() -> None:
    frames = [frame("Fetch", fault="response dropped" if number == 15 else "") for number in range(30)]
    lines = [*conversation(frames)]
    assert len(lines) == 30
    assert lines[15].endswith("[response dropped]")


def test_long_body_is_cut_and_its_fault_is_not() -> None:
    (line,) = conversation([frame("Produce", body={"topics": ["x" * 1000]}, fault="response dropped")])
    assert line.endswith("...  [response dropped]")
    assert len(line) == MAX_CHARACTERS + len("  [response dropped]")


def test_list_of_versions_is_left_out() -> None:
    (line,) = conversation([frame("ApiVersions", body={"api_keys": [{"max_version": 7}]}, direction="response")])
    assert "max_version" not in line


def test_errors_and_warnings_since_the_start_of_the_test_are_shown() -> None:
    def log_line(level: str, event: str, second: int) -> str:
        at = f"1970-01-01T00:00:{second:02}.000+00:00"
        return json.dumps({"at": at, "level": level, "node": 2, "event": event, "reason": "no space"})

    lines = [
        log_line("error", "too_early", 1),
        log_line("info", "ready", 20),
        log_line("warn", "slow", 20),
        log_line("error", "crashed", 21),
        "Traceback (most recent call last):",
    ]
    assert [*error_lines(lines, since_s=10)] == [
        "  00:00:20.000 node 2 warn slow reason: no space",
        "  00:00:21.000 node 2 error crashed reason: no space",
        "  Traceback (most recent call last):",
    ]
