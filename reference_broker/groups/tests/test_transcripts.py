"""Conversations of members with their coordinator as text: lines after ``>`` are commands, the others their effects.

Members have short names (the leader of a generation gets its members). A changed rule shows as a diff of
``transcripts/*.txt``.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from reference_broker.groups.classic_requests import JoinResponse, MemberProtocol, SyncResponse
from reference_broker.groups.tests.membership_world import Joining, MembershipWorld, Syncing
from reference_broker.wire.errors import ErrorCode, error_name

ResponseT = TypeVar("ResponseT")
FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


class Conversation:
    """``output``: the lines since the last command, in order."""

    def __init__(self, delay_ms: int) -> None:
        self.world = MembershipWorld(group_initial_rebalance_delay_ms=delay_ms)
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.output: list[str] = []
        self.noted = 0

    def do(self, line: str) -> list[str]:
        """Run a command and return its effects."""
        self.output = []
        verb, *words = line.split()
        options = dict(each.split("=", 1) for each in words if "=" in each)
        getattr(self, verb)(*[each for each in words if "=" not in each], **options)
        return [*self.output, *self.notes()]

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
            joining=Joining(Responses(partial(self.joined, name))),
        )

    def joined(self, name: str, response: JoinResponse) -> None:
        if response.member_id:
            self.ids[name] = response.member_id
        self.generations[name] = response.generation
        text = f"{name}: {error_name(response.error)}"
        if response.error is ErrorCode.none:
            text += f", generation {response.generation}, {response.protocol}, leader {self.name(response.leader)}"
            text += ", assignment skipped" if response.skip_assignment else ""
        if response.members:
            text += ", members " + " ".join(self.name(each.member_id) for each in response.members)
        self.output.append(text)

    def sync(self, name: str, instance: str | None = None, **assigned: str) -> None:
        self.world.sync(
            self.ids[name],
            self.generations[name],
            assignments={self.ids[each]: text.encode() for each, text in assigned.items()},
            instance=instance,
            protocol=None,
            syncing=Syncing(Responses(partial(self.synced, name))),
        )

    def synced(self, name: str, response: SyncResponse) -> None:
        self.output.append(
            f"{name}: {error_name(response.error)}, assigned {response.assignment.decode() or 'nothing'}"
        )

    def heartbeat(self, name: str, instance: str | None = None) -> None:
        error = self.world.heartbeat(self.ids[name], self.generations[name], instance=instance)
        self.output.append(f"{name}: {error_name(error)}")

    def leave(self, name: str) -> None:
        self.output.append(f"{name}: {error_name(self.world.leave(self.ids[name])[0])}")

    def seconds(self, count: str, *alive: str) -> None:
        """Let time pass while the named members send heartbeats."""
        for _ in range(int(count)):
            self.world.pass_ms(1000)
            for name in alive:
                self.world.heartbeat(self.ids[name], self.generations[name])

    def now(self) -> None:
        """Fire the timers that are due."""
        self.world.pass_ms(0)

    def writes_wait(self) -> None:
        self.world.partition.holds = True

    def written(self, error: str = "NONE") -> None:
        self.world.partition.writes[-1].written(ErrorCode[error.lower()])

    def lost(self) -> None:
        self.world.lose()


class Responses(list[ResponseT]):
    """One response, written down when it arrives."""

    def __init__(self, write: Callable[[ResponseT], None]) -> None:
        super().__init__()
        self.write = write

    def append(self, response: ResponseT) -> None:
        self.write(response)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    expected = path.read_text().splitlines()
    assert replayed(expected) == expected


def replayed(lines: list[str]) -> list[str]:
    """Return the same lines with the actual effects of each command. Comments stay."""
    conversation = Conversation(int(lines[0].split()[-1]))
    found = [lines[0]]
    for line in lines[1:]:
        if line.startswith(">"):
            found += [line, *conversation.do(line[1:].strip())]
        elif not line or line.startswith("#"):
            found.append(line)
    return found
