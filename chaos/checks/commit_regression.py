from collections.abc import Callable, Iterator

from chaos.checks.check import Check
from chaos.checks.committed import COMMIT, FETCHED, NEVER_US, Asked, asked, deleted
from chaos.checks.history import History


class CommitRegression(Check):
    """commit-regression: a committed offset, its metadata epoch and its generation never go back.

    Two requests have an order only if they did not overlap. An acknowledged commit may not have a smaller epoch (M-7)
    or generation than one that was acknowledged before it began. A fetched offset may not be older than such a commit
    either. A commit in a version without the metadata epoch removes the stored epoch (M-11). So epochs are not compared
    across the time in which such a commit may take effect.
    """

    guarantee = "commit-regression"

    def end(self, history: History) -> None:
        if not history.commits:
            return
        commits = asked(history, COMMIT)
        gone = deleted(history)
        for written in commits.values():
            self.looked_at += sum(each.acked for each in written)
            self._smaller_epochs(written)
            self._older_generations(written)
        for key, fetches in asked(history, FETCHED).items():
            # Kafka: with a topic go its offsets. A fetch that ended before anybody asked for that is judged.
            judged = [each for each in fetches if each.until_us < gone.get(key[1], NEVER_US)]
            self._older_values(commits.get(key, []), judged)

    def _smaller_epochs(self, written: list[Asked]) -> None:
        old = [each for each in written if not each.row.draft]
        acked = [each for each in written if each.acked and each.row.draft]
        for later, earlier in _ordered_pairs(acked, lambda each: each.stored_epoch):
            # M-11: a commit without an epoch removes the stored one. Physical: it may take effect until its end.
            touched = any(each.until_us > earlier.invoke_us and each.invoke_us < later.until_us for each in old)
            if not touched:
                self.violated(
                    later.until_us,
                    f"{later.named}: offset {later.row.offset} was committed with metadata epoch {later.stored_epoch} "
                    f"after {earlier.row.process} had committed {earlier.row.offset} with {earlier.stored_epoch}",
                )

    def _older_generations(self, written: list[Asked]) -> None:
        acked = [each for each in written if each.acked and each.row.generation >= 0]
        for later, earlier in _ordered_pairs(acked, lambda each: each.row.generation):
            self.violated(
                later.until_us,
                f"{later.named}: offset {later.row.offset} was committed in generation {later.row.generation} after "
                f"{earlier.row.process} had committed {earlier.row.offset} in {earlier.row.generation}",
            )

    def _older_values(self, written: list[Asked], fetches: list[Asked]) -> None:
        for fetch in fetches:
            before = [each for each in written if each.acked and each.until_us < fetch.invoke_us]
            if not before:
                continue
            last = max(before, key=lambda each: each.invoke_us)
            row = fetch.row
            explained = any(
                each.row.offset == row.offset
                and each.until_us >= last.invoke_us
                and each.invoke_us < fetch.until_us
                and (not row.draft or each.stored_epoch == row.metadata_epoch)
                for each in written
            )
            if not explained:
                self.violated(
                    fetch.until_us,
                    f"{fetch.named}: offset {row.offset} with metadata epoch {row.metadata_epoch} was fetched, though "
                    f"offset {last.row.offset} with {last.stored_epoch} had been committed",
                )


def _ordered_pairs(acked: list[Asked], value: Callable[[Asked], int]) -> Iterator[tuple[Asked, Asked]]:
    """Yields (later, earlier) where the earlier request had ended when the later one began, and has a greater value.

    Of all earlier requests it takes the one with the greatest value, and of those the newest.
    """
    ends = sorted(acked, key=lambda each: each.until_us)
    greatest: list[Asked] = []
    at = 0
    for later in sorted(acked, key=lambda each: each.invoke_us):
        while at < len(ends) and ends[at].until_us < later.invoke_us:
            if not greatest or value(ends[at]) >= value(greatest[-1]):
                greatest.append(ends[at])
            at += 1
        yield from ((later, earlier) for earlier in greatest[-1:] if value(earlier) > value(later))
