"""A client of ours sends an UpdateFeatures request to node after node until one grants it. No proxy stands between."""

import threading

from bench.fleet.behaviours.protocol import Now
from bench.fleet.driver import BlockingDriver
from bench.fleet.spec import address_of
from chaos.faults.timed import End, Ended, Place
from chaos.live.targets import Target
from chaos.sim.stepwise_faults import FeatureSwitch

LAST_WAIT_S = 5.0
"""How long we still wait for the client once the load is over."""


def begin(place: Place, target: Target) -> End:
    fault = target.fault
    granted: list[int] = []

    def told(now: Now, node: int) -> None:  # noqa: ARG001
        granted.append(node)

    nodes = [address_of(each) for each in place.addresses()]
    driver = BlockingDriver(FeatureSwitch("feature-switch", nodes, fault.feature, fault.level, told), lambda _: None)
    asking = threading.Thread(target=driver.run, name="feature_finalized", daemon=True)
    asking.start()

    def end() -> Ended | None:
        if asking.is_alive() and not place.is_over:
            return None
        asking.join(LAST_WAIT_S)
        driver.stop()
        return Ended(f"node-{granted[0]} granted {fault.feature} {fault.level}" if granted else "")

    return end
