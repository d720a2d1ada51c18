"""An UpdateFeatures request, sent to node after node until one grants it; by a client of ours, no proxy between."""

import threading

from bench.fleet.behaviours.protocol import Address, Now
from bench.fleet.driver import BlockingDriver
from chaos.faults.timed import End, Ended, Place
from chaos.live.targets import Target
from chaos.sim.feature_switch import FeatureSwitch

KIND = "feature_finalized"
LAST_WAIT_S = 5.0
"""How long it is still waited for once the load is over."""


def begin(place: Place, target: Target) -> End:
    fault = target.fault
    granted: list[int] = []

    def told(now: Now, node: int) -> None:  # noqa: ARG001
        granted.append(node)

    nodes = [_address(each) for each in place.addresses()]
    driver = BlockingDriver(FeatureSwitch("feature-switch", nodes, fault.feature, fault.level, told), lambda _: None)
    asking = threading.Thread(target=driver.run, name=KIND, daemon=True)
    asking.start()

    def end() -> Ended | None:
        if asking.is_alive() and not place.is_over:
            return None
        asking.join(LAST_WAIT_S)
        driver.stop()
        return Ended(f"node-{granted[0]} granted {fault.feature} {fault.level}" if granted else "")

    return end


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, int(port))
