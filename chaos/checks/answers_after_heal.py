from chaos.checks.check import Check


class AnswersAfterHeal(Check):
    """answers-after-heal: once all faults are healed, every node answers, and each partition can be read to its end.

    A cluster that nobody can look at any more is no cluster of which nothing is known: who restarts a node expects it
    back.

    ``World`` reports each reader that came to its end, and what one of them could not get.
    """

    guarantee = "answers-after-heal"

    def looked(self, at_us: int, missed: str) -> None:
        """``missed`` says what was not answered, or is empty."""
        self.looked_at += 1
        if missed:
            self.violated(at_us, missed)
