"""no-starvation: a partition with data is served within as many answers of its session as the session has partitions.

The final revision moves a partition that was served to the end of its list. The first revision begins request N at
place N modulo the number of partitions (F-15, G-7).
"""

from chaos.checks.check import Check
from chaos.checks.fetch_model import Answer

MANY_PARTITIONS = 64
"""Larger sessions are not looked at: it would cost too much for each answer."""


class NoStarvation(Check):
    guarantee = "no-starvation"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        wishes = answer.asked.wishes
        if answer.session_id == 0 or answer.repeated or len(wishes) > MANY_PARTITIONS:
            return
        for named, wish in wishes.items():
            data = answer.data.get(named)
            if data is not None and (data.records or data.error_code or data.diverging_epoch is not None):
                wish.missed = 0
                continue
            partition = answer.led(named)
            if partition is None or not partition.log.log_start_offset <= wish.offset < partition.log.high_watermark:
                wish.missed = 0
                continue
            wish.missed += 1
            if wish.missed > len(wishes):
                self.violated(
                    at_us,
                    f"{answer.client_id}, session {answer.session_id}: {partition.topic}-{partition.index} has data "
                    f"from {wish.offset} to {partition.log.high_watermark}, but {wish.missed} answers in a row "
                    f"left it out, in a session of {len(wishes)} partitions",
                )
                wish.missed = 0
