"""commits-accepted: no commit is refused that should pass.

INVALID_METADATA_EPOCH is right only after a commit with a greater epoch. An unknown version, an unknown server error or
an unknown topic has no excuse at all.
"""

from chaos.checks.check import Check, History
from chaos.checks.committed import COMMIT, asked, requests

NEVER = ("UNSUPPORTED_VERSION", "UNKNOWN_SERVER_ERROR", "UNKNOWN_TOPIC_OR_PARTITION", "INVALID_REQUEST", "not_sent")
OLDER = "INVALID_METADATA_EPOCH"


class CommitsAccepted(Check):
    guarantee = "commits-accepted"

    def end(self, history: History) -> None:
        refused = [each for each in requests(history, COMMIT) if each.row.error in (*NEVER, OLDER)]
        written = asked(history, COMMIT) if refused else {}
        gone = [row.topic for row in history.changes if row.change == "delete"]
        for each in refused:
            row = each.row
            others = written.get((row.group, row.topic, row.partition), [])
            excused = row.error == OLDER and any(
                other.stored_epoch > row.metadata_epoch and other.invoke_us < each.until_us for other in others
            )
            # M-7 excuses the older epoch. A commit for a deleted topic has nothing to hold it.
            if not excused and row.topic not in gone:
                self.violated(
                    each.until_us,
                    f"{each.named}: offset {row.offset} with metadata epoch {row.metadata_epoch} "
                    f"({'draft' if row.draft else 'usual'} version) was refused: {row.error}",
                )
