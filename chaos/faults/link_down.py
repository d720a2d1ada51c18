"""The link's connections are closed and new ones are refused."""

from chaos.faults.timed import End, Ended, Place
from chaos.live.probe import BackgroundProbe
from scenarios.model import Fault

KIND = "link_down"


def begin(place: Place, fault: Fault) -> End:
    link = place.links.of_node(fault.node)
    place.links.down(link)
    probe = BackgroundProbe(link.listen)

    def end() -> Ended:
        seen = probe.result()
        place.links.up(link)
        return Ended(f"proxy disabled: {seen.told()}" if seen.outcome == "refused" else "")

    return end
