"""int-poll-skip: the records that one read returned leave out no record. Reads across a reassignment do not count."""

from chaos.checks.check import Check, History
from chaos.checks.reads import pairs, reads


class IntPollSkip(Check):
    guarantee = "int-poll-skip"

    def end(self, history: History) -> None:
        self.looked_at += len(reads(history))
        for pair in pairs(history):
            if pair.skipped > 0 and pair.inside:
                self.violated(pair.at_us, pair.story)
