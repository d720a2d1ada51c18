"""Nodes that end by themselves, and clusters that nobody closes."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from crucible_kafka import Cluster, NodeDead, NodeHandle

LIMIT_S = 30.0
WHERE = Path(__file__).name


def crash(node: NodeHandle) -> None:
    """Let a bug happen in an event of a node of this process, and wait until it has ended the node."""

    def bug() -> None:
        raise RuntimeError("planted by a test")

    inside = node._carrier._inside  # type: ignore[attr-defined]
    inside._loop.call_soon_threadsafe(inside._in_event, bug)
    deadline = time.monotonic() + LIMIT_S
    while node.is_running and time.monotonic() < deadline:
        time.sleep(0.01)


def test_bug_in_the_thread_of_a_node_fails_the_with_block() -> None:
    text = "Node 0 ended, though no test had ended it: it crashed"
    with pytest.raises(NodeDead, match=text) as failure, Cluster() as kafka:
        crash(kafka.node(0))
    assert "planted by a test" in str(failure.value)


def test_crash_is_a_note_of_what_failed_before_and_outlives_a_restart() -> None:
    def crash_and_fail() -> None:
        with Cluster() as kafka:
            crash(kafka.node(0))
            kafka.node(0).restart()
            kafka.create_topic("t")
            raise KeyError("x")

    with pytest.raises(KeyError) as failure:
        crash_and_fail()
    assert "though no test had ended it" in "".join(failure.value.__notes__)


def test_nodes_that_a_test_ends_are_no_crashes() -> None:
    with Cluster(nodes=3, processes=False) as kafka:
        kafka.node(0).kill()
        kafka.node(1).stop()


def test_node_that_ends_because_of_its_full_disk_is_no_crash() -> None:
    with Cluster() as kafka:
        kafka.node(0).full_disk()
        crash(kafka.node(0))
        assert kafka.crashes() == ""


@pytest.mark.live
@pytest.mark.parametrize(("number", "is_crash"), [(signal.SIGABRT, True), (signal.SIGKILL, False)])
def test_process_that_a_signal_ends_is_a_crash_unless_somebody_sent_it(number: signal.Signals, is_crash: bool) -> None:
    with Cluster(processes=True) as kafka:
        os.kill(kafka.node(0).pid, number)
        deadline = time.monotonic() + LIMIT_S
        while kafka.node(0).is_running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ("it ended with status -6" in kafka.crashes()) == is_crash
        kafka.node(0).forget_crashes()


@pytest.mark.thorough
def test_cluster_that_nobody_closes_ends_and_names_its_place() -> None:
    before = {*threading.enumerate()}
    line = sys._getframe().f_lineno + 1
    kafka = Cluster().start()
    folder = kafka._folder.path  # type: ignore[union-attr]
    threads = {each for each in threading.enumerate() if each.name.startswith("crucible-node")} - before
    assert threads
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del kafka
        gc.collect()
        ((text, category),) = [(str(each.message), each.category) for each in caught]
    assert category is ResourceWarning
    assert f"{WHERE}:{line}" in text
    assert "was never closed: use it in a with block, or call close()" in text
    assert not any(thread.is_alive() for thread in threads)
    assert not folder.exists()


@pytest.mark.thorough
def test_closed_cluster_leaves_no_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Cluster():
            pass
        Cluster()
        gc.collect()
    assert [each for each in caught if each.category is ResourceWarning] == []


@pytest.mark.live
def test_process_that_never_closes_its_cluster_leaves_nothing() -> None:
    program = (
        "from crucible_kafka import Cluster\n"
        "kafka = Cluster(processes=True).start()\n"
        "print(kafka.node(0).pid, kafka._folder.path, flush=True)\n"
    )
    words = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S * 2, check=True)
    pid, folder = ended.stdout.split()
    assert "ResourceWarning" in ended.stderr
    assert "<string>:2" in ended.stderr
    assert not Path(folder).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
