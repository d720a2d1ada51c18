"""A small course: twenty hostile peers of each kind. The full one is ``nox -s hostile``."""

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from bench.hostile import course
from bench.hostile.course import MIB, CoursePlan, CourseResult, Longest, play
from bench.hostile.honest import Honest, Since, Used, Wait, used_by, used_by_this_thread
from bench.hostile.lives import KINDS, Frames, forged, huge_names, one_of, records, repetition, valid_frames
from bench.peers.cluster import PeerCluster
from bench.peers.node import BrokerNode
from reference_broker.wire.frames import FrameReader

PEERS = 20
SECONDS = 3.0


def quiet(_: str) -> None: ...


@pytest.mark.live
def test_node_outlives_hostile_peers_of_every_kind_and_a_kill_in_their_midst(tmp_path: Path) -> None:
    outcome = play(CoursePlan(1, PEERS, SECONDS), tmp_path / "c", quiet)
    assert outcome.broken == [], str(outcome)
    assert outcome.written > 10
    assert outcome.kills == 1
    assert all(outcome.swarm[kind]["lives"] >= PEERS // 2 for kind in KINDS), str(outcome)


@pytest.mark.nightly
@pytest.mark.live
def test_without_the_bound_of_memory_the_course_is_red(tmp_path: Path) -> None:
    config = {"queued.max.request.bytes": "-1", "fetch.max.bytes": str(50 * MIB)}
    plan = CoursePlan(1, 2 * PEERS, SECONDS, kills=False, kinds=("unread-responses",), config=config)
    outcome = play(plan, tmp_path / "c", quiet)
    assert [each for each in outcome.broken if "MiB" in each], str(outcome)


def test_lost_acknowledged_record_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(ports: Sequence[int]) -> list[int]:
        return [0, 2, 2, -1] if ports == [9] else []

    monkeypatch.setattr("bench.hostile.honest.read_back", held)
    assert Honest([9], acknowledged=[0, 2]).missing() == []
    honest = Honest([9], acknowledged=[0, 1, 2])
    assert honest.missing() == [1]


def test_node_that_ended_and_a_client_that_was_not_served_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.hostile.honest.read_back", lambda _: [])
    honest = Honest([9], acknowledged=[4], failure="no node responded")
    outcome = CourseResult()
    gone = BrokerNode("n", 0, 9, [], tmp_path / "log")
    course._judge(CoursePlan(1, 1, 1.0, kinds=("flood",)), outcome, PeerCluster("c", (gone,)), honest)
    assert [each.split(":")[0] for each in outcome.broken] == [
        "the honest client was not served",
        "peers of these kinds did nothing",
        "node 0 ended by itself (status None)",
        "1 acknowledged values are gone, the first is number 4",
    ]


def test_waits_are_counted_where_they_lie_whole() -> None:
    honest = Honest([], waits=[Wait(0.0, 1.0), Wait(2.0, 0.5), Wait(3.0, 5.0)])
    assert honest.longest_s() == 5.0
    assert honest.longest_s(0.5, 4.0) == 0.5
    assert honest.longest_s(10.0) == 0.0


def test_wait_is_distinguished_from_busy_machine() -> None:
    waits = [Wait(0.0, 0.3, starved_s=0.25, worked_s=0.01), Wait(1.0, 0.1, starved_s=0.02, worked_s=0.06)]
    longest = Longest.of(waits)
    assert longest.took_s == 0.3
    assert longest.on_nodes_s == pytest.approx(0.08)
    assert longest.worked_s == 0.06
    assert Longest.of([]) == Longest()


def test_thread_cpu_time_from_linux() -> None:
    before = used_by_this_thread()
    began_s = time.thread_time()
    while time.thread_time() < began_s + 0.05:
        pass
    assert (used_by_this_thread() - before).worked_s > 0.02
    assert used_by(0, 0) == Used()


def test_two_nodes_that_starved_longest_count() -> None:
    found = [
        {pid: Used() for pid in (1, 2, 3)},
        {1: Used(1.0, 0.1), 2: Used(2.0, 0.4), 3: Used(3.0, 0.2), 4: Used(9, 9)},
    ]
    since = Since(lambda: found.pop(0))
    used = since.used()
    assert used.worked_s == 6.0
    assert used.starved_s == pytest.approx(0.6, abs=0.1), "and what this thread waited for a processor"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("frames", [valid_frames, *map(one_of, (huge_names, repetition, records, forged))])
def test_frames_of_hostile_requests_are_whole(frames: Frames, seed: int) -> None:
    reader = FrameReader(100 * MIB)
    reader.feed(frames(Random(seed)))
    assert reader.next_frame() is not None
    assert reader.buffered_bytes == 0
