from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.reads import pairs, reads


class IntPollSkip(Check):
    """int-poll-skip: one read omits no record between those that it returned, except across a reassignment."""

    guarantee = "int-poll-skip"

    def end(self, history: History) -> None:
        self.looked_at += len(reads(history))
        for pair in pairs(history):
            if pair.skipped > 0 and pair.inside:
                self.violated(pair.at_us, pair.story)
