from chaos.checks.check import Check
from chaos.checks.committed import COMMIT, NEVER_US, Asked, asked, deleted, requests
from chaos.checks.history import History

NEVER = ("UNSUPPORTED_VERSION", "UNKNOWN_SERVER_ERROR", "INVALID_REQUEST", "not_sent")
OLDER = "INVALID_METADATA_EPOCH"
NO_TOPIC = "UNKNOWN_TOPIC_OR_PARTITION"


class CommitsAccepted(Check):
    """commits-accepted: no commit is refused that should pass.

    INVALID_METADATA_EPOCH is right only if the last commit may have had a greater epoch (M-7). An unknown topic is
    right only once somebody has asked to delete the topic. An unknown version or an unknown server error has no excuse
    at all.
    """

    guarantee = "commits-accepted"

    def end(self, history: History) -> None:
        refused = [each for each in requests(history, COMMIT) if each.row.error in (*NEVER, OLDER, NO_TOPIC)]
        written = asked(history, COMMIT) if refused else {}
        gone = deleted(history)
        for each in refused:
            row = each.row
            is_older = row.error == OLDER and _may_follow_a_greater_epoch(
                each, written.get((row.group, row.topic, row.partition), [])
            )
            # Physical: a deleted topic has nothing that a commit could be kept for.
            is_gone = row.error == NO_TOPIC and gone.get(row.topic, NEVER_US) <= each.until_us
            if not is_older and not is_gone:
                self.violated(
                    each.until_us,
                    f"{each.named}: offset {row.offset} with metadata epoch {row.metadata_epoch} "
                    f"({'draft' if row.draft else 'usual'} version) was refused: {row.error}",
                )


def _may_follow_a_greater_epoch(refused: Asked, others: list[Asked]) -> bool:
    """M-7: the last commit had a greater epoch. It is one that began before the refusal, and that no acknowledged
    commit is known to follow. A commit without an epoch leaves -1 (M-11), after which any epoch passes."""
    earlier = [each for each in others if each.acked and each.until_us < refused.invoke_us]
    last_us = max((each.invoke_us for each in earlier), default=-1)
    return any(
        each.stored_epoch > refused.row.metadata_epoch
        and each.invoke_us < refused.until_us
        and each.until_us >= last_us
        for each in others
    )
