from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.reads import pairs, reads


class IntNonmonotonicPoll(Check):
    """int-nonmonotonic-poll: one read returns its records in the order of their offsets, and none twice.

    Reads across a reassignment do not count.
    """

    guarantee = "int-nonmonotonic-poll"

    def end(self, history: History) -> None:
        self.looked_at += len(reads(history))
        for pair in pairs(history):
            if pair.back and pair.inside:
                self.violated(pair.at_us, pair.story)
