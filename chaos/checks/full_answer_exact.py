from chaos.checks.check import Check
from chaos.checks.fetch_model import Answer


class FullAnswerExact(Check):
    """unrequested-partition for full answers: they hold the partitions that the request names, and no others (F-5,
    G-4).
    """

    guarantee = "unrequested-partition"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        if answer.asked.incremental:
            return
        for named in answer.data:
            if named not in answer.asked.wishes:
                topic = named[0] if isinstance(named[0], str) else named[0].hex()
                self.violated(
                    at_us,
                    f"{answer.client_id} was answered about {topic}-{named[1]}, which its full request did not name",
                )
