"""Committed offsets as members wrote and read them, with the start and, where known, the end of each request."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from chaos.checks.history import History, grouped
from reports.rows import CommitRow

Key: TypeAlias = tuple[str, str, int]
"""(group, topic, partition). Each of them has one committed offset."""

NEVER_US = 2**62
"""The end of a request that is not known to have ended. Its effect may come at any time."""
COMMIT, FETCHED = "commit", "fetched"
REFUSED = (
    "INVALID_METADATA_EPOCH",
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS",
    "FENCED_INSTANCE_ID",
    "OFFSET_METADATA_TOO_LARGE",
    "INVALID_COMMIT_OFFSET_SIZE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "INVALID_GROUP_ID",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "UNSUPPORTED_VERSION",
    "not_sent",
    "refused",
)
"""Errors of a commit that wrote nothing, by Kafka's protocol: the coordinator refused it before it wrote. After any
other error (a timeout, say) the commit may have been written, or be replicated later."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One partition of a request.

    ``until_us`` is NEVER_US if the request's end is unknown. ``stored_epoch`` is the metadata epoch that a commit
    leaves (-1 in versions without it, M-11).
    """

    row: CommitRow
    invoke_us: int
    until_us: int
    acked: bool
    stored_epoch: int

    @property
    def named(self) -> str:
        row = self.row
        return f"{row.process} (operation {row.index}): {row.topic}-{row.partition} of group {row.group}"


def asked(history: History, kind: str) -> dict[Key, list[Asked]]:
    """Returns requests by their key.

    For ``kind`` COMMIT these are the requests that wrote or may have written. For FETCHED they are those that were
    answered.
    """
    effective = (each for each in requests(history, kind) if each.row.error not in REFUSED)
    known = (each for each in effective if kind == COMMIT or each.acked)
    return grouped(known, lambda each: (each.row.group, each.row.topic, each.row.partition))


def requests(history: History, kind: str) -> Iterator[Asked]:
    """Yields all requests of this kind, also refused ones."""
    for row in history.commits:
        if row.kind != kind:
            continue
        operation = history.operation_of.get((row.process, row.index))
        invoke_us = row.at_us if operation is None else min(operation.invoke_us, row.at_us)
        known = row.error is None or row.error in REFUSED
        epoch = row.metadata_epoch if row.draft else -1
        yield Asked(row, invoke_us, row.at_us if known else NEVER_US, row.error is None, epoch)


def deleted(history: History) -> dict[str, int]:
    """Returns when somebody first asked to delete a topic, by topic. A refused deletion does not count.

    Kafka's coordinator forgets the offsets of a deleted topic.
    """
    found: dict[str, int] = {}
    for row in history.changes:
        if row.change == "delete" and row.type != "fail":
            operation = history.operation_of.get((row.process, row.index))
            asked_us = 0 if operation is None else operation.invoke_us
            found[row.topic] = min(asked_us, found.get(row.topic, asked_us))
    return found
