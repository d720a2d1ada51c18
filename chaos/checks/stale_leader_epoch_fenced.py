from chaos.checks.check import Check
from chaos.checks.fetch_model import Answer


class StaleLeaderEpochFenced(Check):
    """stale-leader-epoch-fenced: a fetch with another leader epoch than the leader's gets an error and no data
    (KIP-320).

    A follower that serves a consumer compares the leader epoch that it follows (KIP-392).

    This holds also if the fetch does not name the partition, but its session holds it from an earlier fetch (F-13).
    """

    guarantee = "stale-leader-epoch-fenced"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        for named, data in answer.data.items():
            wish = answer.asked.wishes.get(named)
            if wish is None or data.error_code or wish.leader_epoch < 0:
                continue
            partition = answer.served(named)
            if partition is not None and wish.leader_epoch != partition.leader_epoch:
                self.violated(
                    at_us,
                    f"{answer.client_id} asked for {partition.topic}-{partition.index} in leader epoch "
                    f"{wish.leader_epoch} and was answered in {partition.leader_epoch}",
                )
