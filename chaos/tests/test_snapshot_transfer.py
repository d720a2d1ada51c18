"""What the check of snapshot downloads accepts and what it calls out, from rows of a trace."""

import json

import pytest

from chaos.checks.metadata_snapshots import SnapshotTransfer
from chaos.tests.check_context import check_context
from reports.rows import TraceRow

Step = tuple[str, dict[str, int] | dict[str, str]]
SIZE = 1000


def start(position: int = 0, leader: int = 1, end_offset: int = 70) -> Step:
    where = {"leader": leader, "end_offset": end_offset, "epoch": 3, "position": position, "size": SIZE}
    return "download_started", where


def chunks(*positions: int, size: int = SIZE) -> list[Step]:
    return [("download_chunk", {"position": position, "bytes": 100, "size": size}) for position in positions]


def all_from(position: int) -> list[Step]:
    return chunks(*range(position, SIZE, 100))


def growing(last: int) -> list[Step]:
    """Three snapshots of 400, 1,000, and 1,200 bytes, each lost before its last chunk, and ``last`` chunks of a fourth.

    The three together have 2,600 bytes, and four beginnings may cost a chunk each.
    """
    sizes = (400, 1000, 1200)
    lost = [(start(0, 1, end), *chunks(*range(0, size - 100, 100), size=size)) for end, size in enumerate(sizes)]
    return [*(step for each in lost for step in each), start(0, 1, 90), *chunks(*range(0, 100 * last, 100), size=1400)]


DONE: Step = ("download_finished", {"bytes": SIZE})
DISCARDED: Step = ("download_discarded", {"why": "the leader's is shorter"})
DAMAGED: Step = ("download_discarded", {"why": "00000000000000000070-0000000003.checkpoint.part at byte 83: wrong CRC"})


@pytest.mark.clause("S-8", "S-11", "S-15")
@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([start(), *all_from(0), DONE], []),
        ([start(), *chunks(0, 100), start(200), *all_from(200), DONE], []),
        ([start(), *chunks(0, 100), start(100), *all_from(100), DONE], []),
        ([start(), *chunks(0, 100), start(0, leader=2), *all_from(0), DONE, start(), *all_from(0)], []),
        ([start(), *chunks(0, 100, 200), DISCARDED, start(end_offset=90), *all_from(0), DONE], []),
        ([start(), *chunks(0, 100, 200), start(0), *all_from(0), DONE], ["in 2 starts"]),
        ([start(), *chunks(0, 100), start(200, leader=2)], ["holds 200 bytes of", "from byte 200"]),
        ([start(), *chunks(0, 100), start(200, end_offset=90)], ["holds 200 bytes of", "from byte 200"]),
        ([start(), *chunks(0, 100), DISCARDED, start(200)], ["holds 0 bytes"]),
        ([start(), *chunks(0, 100, 200), DISCARDED, start(), *all_from(0), DONE], ["in 2 starts"]),
        ([start(), *all_from(0), DAMAGED], ["put together a damaged snapshot"]),
        ([start(200)], ["holds nothing"]),
        ([start(), *chunks(0, 100), start(300)], ["from byte 300", "holds 200"]),
        ([start(), *chunks(0, 100, 100)], ["holds 200", "took those at 100"]),
        (chunks(0), ["did not request"]),
        ([start(), *chunks(*range(0, 3000, 100), size=-1)], []),
        (growing(7), []),
        (growing(8), ["fetched 3100 bytes until it has", "at most 3000"]),
        ([each for end in range(5) for each in (start(0, 1, end), *chunks(*range(0, 900, 100)))], ["until it has"]),
    ],
)
def test_a_download_may_fetch_a_snapshot_once_and_a_chunk_for_each_restart(steps: list[Step], words: list[str]) -> None:
    check = SnapshotTransfer(check_context())
    for at, (what, fields) in enumerate(steps):
        check.trace(TraceRow(4, 0, at, at, what, detail=json.dumps(fields)))
    story = " ".join(violation.story for violation in check.violations)
    assert bool(check.violations) is bool(words), story
    for word in words:
        assert word in story


def test_nodes_are_judged_each_by_itself() -> None:
    check = SnapshotTransfer(check_context())
    for node in (3, 4):
        for at, (what, fields) in enumerate([start(), *all_from(0), DONE]):
            check.trace(TraceRow(node, 0, at, at, what, detail=json.dumps(fields)))
    assert check.violations == []
