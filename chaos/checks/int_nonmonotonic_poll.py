"""int-nonmonotonic-poll: inside one read no record comes again (reassignment excepted)."""

from chaos.checks.check import Check, History
from chaos.checks.reads import pairs


class IntNonmonotonicPoll(Check):
    guarantee = "int-nonmonotonic-poll"

    def end(self, history: History) -> None:
        for pair in pairs(history):
            if pair.back and pair.inside:
                self.violated(0, pair.story)
