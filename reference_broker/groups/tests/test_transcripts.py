"""Conversations of members with their coordinator, word for word: lines after ``>`` are done, the others follow.

Members have short names (the leader of a generation gets its members); ``transcripts/*.txt`` are read as a diff
when a rule changes.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from reference_broker.groups.classic_requests import JoinResponse, SyncResponse
from reference_broker.groups.group import MemberProtocol
from reference_broker.groups.tests.membership_world import Joining, Syncing, World
from reference_broker.wire.errors import ErrorCode, error_name

AnswerT = TypeVar("AnswerT")
FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


class Conversation:
    """``said``: everything since the last command, in order."""

    def __init__(self, delay_ms: int) -> None:
        self.world = World(group_initial_rebalance_delay_ms=delay_ms)
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.said: list[str] = []
        self.noted = 0

    def do(self, line: str) -> list[str]:
        """A command, and what it led to."""
        self.said = []
        verb, *words = line.split()
        options = dict(each.split("=", 1) for each in words if "=" in each)
        getattr(self, verb)(*[each for each in words if "=" not in each], **options)
        return [*self.said, *self.notes()]

    def notes(self) -> list[str]:
        new, self.noted = self.world.ports.notes[self.noted :], len(self.world.ports.notes)
        lines = []
        for what, fields in new:
            if what == "group_state":
                of = f"leader {self.name(str(fields['leader']))}" if fields["leader"] else "nobody leads"
                text = f"{fields['state']}, generation {fields['generation']}, {fields['members']} members, {of}"
            else:
                text = f"{self.name(str(fields['member_id']))} {fields['what']}"
            lines.append(f"* {text}")
        return lines

    def name(self, member_id: str) -> str:
        """Return the name of the member. If it has no ID yet, that is the beginning of the ID."""
        return next((name for name, known in self.ids.items() if known == member_id), member_id.split("-")[0])

    def join(self, name: str, instance: str | None = None, version: str = "9", protocols: str = "range") -> None:
        known = tuple(MemberProtocol(each, b"") for each in protocols.split(","))
        self.world.join(
            self.ids.get(name, ""),
            instance=instance,
            client=name,
            version=int(version),
            protocols=known,
            joining=Joining(Answers(partial(self.joined, name))),
        )

    def joined(self, name: str, answer: JoinResponse) -> None:
        if answer.member_id:
            self.ids[name] = answer.member_id
        self.generations[name] = answer.generation
        text = f"{name}: {error_name(answer.error)}"
        if answer.error is ErrorCode.none:
            text += f", generation {answer.generation}, {answer.protocol}, leader {self.name(answer.leader)}"
            text += ", assignment skipped" if answer.skip_assignment else ""
        if answer.members:
            text += ", members " + " ".join(self.name(each.member_id) for each in answer.members)
        self.said.append(text)

    def sync(self, name: str, instance: str | None = None, **assigned: str) -> None:
        self.world.sync(
            self.ids[name],
            self.generations[name],
            assignments={self.ids[each]: text.encode() for each, text in assigned.items()},
            instance=instance,
            protocol=None,
            syncing=Syncing(Answers(partial(self.synced, name))),
        )

    def synced(self, name: str, answer: SyncResponse) -> None:
        self.said.append(f"{name}: {error_name(answer.error)}, assigned {answer.assignment.decode() or 'nothing'}")

    def heartbeat(self, name: str, instance: str | None = None) -> None:
        error = self.world.heartbeat(self.ids[name], self.generations[name], instance=instance)
        self.said.append(f"{name}: {error_name(error)}")

    def leave(self, name: str) -> None:
        self.said.append(f"{name}: {error_name(self.world.leave(self.ids[name])[0])}")

    def seconds(self, count: str, *alive: str) -> None:
        """Time passes; those named are heard of."""
        for _ in range(int(count)):
            self.world.pass_ms(1000)
            for name in alive:
                self.world.heartbeat(self.ids[name], self.generations[name])

    def now(self) -> None:
        """Timers that are due."""
        self.world.pass_ms(0)

    def writes_wait(self) -> None:
        self.world.partition.holds = True

    def written(self, error: str = "NONE") -> None:
        self.world.partition.writes[-1].written(ErrorCode[error.lower()])

    def lost(self) -> None:
        self.world.lose()


class Answers(list[AnswerT]):
    """One answer, written down when it comes."""

    def __init__(self, write: Callable[[AnswerT], None]) -> None:
        super().__init__()
        self.write = write

    def append(self, answer: AnswerT) -> None:
        self.write(answer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    expected = path.read_text().splitlines()
    assert replayed(expected) == expected


def replayed(lines: list[str]) -> list[str]:
    """The same lines with what really follows each command; comments stay."""
    conversation = Conversation(int(lines[0].split()[-1]))
    found = [lines[0]]
    for line in lines[1:]:
        if line.startswith(">"):
            found += [line, *conversation.do(line[1:].strip())]
        elif not line or line.startswith("#"):
            found.append(line)
    return found
