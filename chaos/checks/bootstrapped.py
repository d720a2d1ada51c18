"""bootstrapped: at the end all nodes know a metadata.version, even if some died while the empty log was bootstrapped
(T-7)."""

from chaos.checks.markers_gated import METADATA_VERSION
from chaos.checks.quorum_check import QuorumCheck


class Bootstrapped(QuorumCheck):
    guarantee = "bootstrapped"

    def quiet(self, at_us: int) -> None:
        for member in self.view.nodes:
            if member.replica is not None and not member.replica.loader.image.features.get(METADATA_VERSION):
                self.violated(at_us, f"node {member.node_id} knows no metadata.version")
