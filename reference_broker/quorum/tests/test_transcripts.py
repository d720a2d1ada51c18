"""Conversations of a quorum as text: lines after ``>`` are commands, the lines below their effects.

Read them in this order: election, replication, pre_vote, divergence, resignation, check_quorum, snapshot_download.
``python -m reference_broker.quorum.tests.test_transcripts`` rewrites them after a rule has changed; read the diff.
"""

from pathlib import Path

import pytest

from reference_broker.quorum.tests.transcript_world import TranscriptWorld

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
SEED = 9


class Conversation:
    def __init__(self) -> None:
        self.world = TranscriptWorld(SEED, 1, 0)

    def do(self, line: str) -> list[str]:
        """Run a command and return its effects."""
        self.world.lines = []
        verb, *words = line.split()
        getattr(self, verb)(*words)
        return self.world.lines

    def quorum(self, voters: str, observers: str = "0") -> None:
        """Make a quorum of ``voters`` and ``observers`` after them. No node runs yet."""
        self.world = TranscriptWorld(SEED, int(voters), int(observers))

    def start(self, *nodes: str) -> None:
        self.world.start(*map(int, nodes))
        self.world.look()

    def settled(self, voters: str) -> None:
        """Make a quorum whose first election is over and whose log is committed: see ``election.txt``."""
        self.quorum(voters)
        self.start()
        self.until_led()
        self.until_committed()
        leader = self.world.leader
        assert leader is not None, "the election is over"
        self.world.lines = [f"* node {leader.node_id}: leader in epoch {leader.quorum.epoch}, the others follow"]

    def run(self, milliseconds: str) -> None:
        self.world.run(int(milliseconds) * 1000)

    def until_led(self) -> None:
        """Run until all live nodes follow one leader."""
        self.world.run_until(self.world.converged)

    def until_committed(self) -> None:
        """Run until all nodes know that the whole log of the leader is committed."""

        def holds() -> bool:
            leader = self.world.leader
            return leader is not None and self.world.high_watermark(*self.world.processes) == leader.log.end.offset

        self.world.run_until(holds)

    def append(self, count: str, node: str = "") -> None:
        if node:
            self.world.append_to(self.world.processes[int(node)], int(count))
        else:
            self.world.append(int(count))

    def isolate(self, node: str) -> None:
        self.world.network.isolate(int(node))

    def heal(self) -> None:
        self.world.network.heal()

    def kill(self, node: str) -> None:
        self.world.kill(int(node))
        self.world.forget(int(node))

    def shut_down(self, node: str) -> None:
        self.world.shut_down(int(node))

    def snapshot(self, node: str) -> None:
        self.world.snapshot(int(node))


def played(text: str) -> str:
    """Return the same file with the actual effects."""
    conversation, lines = Conversation(), list[str]()
    for line in text.splitlines():
        if line.startswith(">"):
            lines += [line, *conversation.do(line[1:].strip())]
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_transcript(file: Path) -> None:
    assert played(file.read_text()) == file.read_text()


def test_wrong_line_in_transcript_is_detected() -> None:
    text = FILES[0].read_text()
    assert played(text + "* node 0: something else\n") == text


if __name__ == "__main__":
    for each in FILES:
        each.write_text(played(each.read_text()))
