from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.reads import pairs, reads


class NonmonotonicPoll(Check):
    """nonmonotonic-poll: the next read of a fetcher returns no record again, except across a reassignment."""

    guarantee = "nonmonotonic-poll"

    def end(self, history: History) -> None:
        self.looked_at += len(reads(history))
        for pair in pairs(history):
            if pair.back and not pair.inside:
                self.violated(pair.at_us, pair.story)
