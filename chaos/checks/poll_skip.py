from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.reads import pairs, reads


class PollSkip(Check):
    """poll-skip: no record is left out between two reads of one fetcher. Reads across a reassignment do not count."""

    guarantee = "poll-skip"

    def end(self, history: History) -> None:
        self.looked_at += len(reads(history))
        for pair in pairs(history):
            if pair.skipped > 0 and not pair.inside:
                self.violated(pair.at_us, pair.story)
