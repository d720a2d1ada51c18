from chaos.checks.quorum_view import Member, QuorumCheck
from chaos.checks.surroundings import Surroundings
from chaos.metadata_digest import digest_of


class QuorumConverges(QuorumCheck):
    """quorum-converges: after the heal every node reaches the same high watermark and the same metadata."""

    guarantee = "quorum-converges"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.expected = True
        """Whether the nodes must agree. It is false if the run ended before it had played all its phases."""

    def ended(self, at_us: int, node_id: int, story: str) -> None:
        """Reports a node that ended itself, because it cannot come to agree with the others."""
        self.violated(at_us, f"node {node_id} ended itself: {story}")

    def quiet(self, at_us: int) -> None:
        if not self.expected:
            return
        if not self.reached():
            told = "; ".join(_told(member) for member in self.view.nodes)
            self.violated(at_us, f"the nodes do not agree: {told}")
            return
        digests = {member.node_id: digest_of(member.replica.loader.image) for member in self.view.nodes}
        if len(dict.fromkeys(digests.values())) > 1:
            self.violated(at_us, f"the nodes end with different metadata: {digests}")

    def reached(self) -> bool:
        """Returns whether all nodes agree. The look is cheap, so the run's end may ask after every event."""
        first = self.view.nodes[0].seen
        for member in self.view.nodes:
            seen = member.seen
            if member.replica is None or seen.leader_id < 0 or seen.high_watermark != seen.end_offset:
                return False
            if (seen.epoch, seen.high_watermark) != (first.epoch, first.high_watermark):
                return False
            if member.replica.loader.last_offset + 1 != seen.high_watermark:
                return False
        return True


def _told(member: Member) -> str:
    if member.replica is None:
        return f"node {member.node_id} is not there"
    seen, image = member.seen, member.replica.loader.image
    return (
        f"node {member.node_id}: epoch {seen.epoch}, leader {seen.leader_id}, high watermark {seen.high_watermark} of "
        f"{seen.end_offset}, metadata up to {image.provenance.offset}"
    )
