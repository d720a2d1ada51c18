"""The search for a leader. A node asks one voter after the other: each answers a Fetch with the leader's ID and epoch
(KIP-595)."""

from reference_broker.quorum.messages import Answer
from reference_broker.quorum.role_state import RoleState

FIRST_DELAY_US = 20_000
LONGEST_DELAY_US = 500_000


class Discovery:
    """Belongs to a role and ends with it. The delay between two questions doubles while no voter knows a leader."""

    def __init__(self, state: RoleState) -> None:
        self._state = state
        self._asked = state.quorum.random.randrange(len(state.quorum.others)) if state.quorum.others else 0
        self._delay_us = FIRST_DELAY_US

    def start(self) -> None:
        """Sends the first question after a short delay, because a leader usually announces itself."""
        if self._state.quorum.others:
            self._state.after(self._delay_us, lambda: self._state.when_synced(self._ask))

    def _ask(self) -> None:
        """Sends a Fetch to the next voter. That voter may be the leader, which counts the log end that this fetch
        names towards the high watermark. So ``_ask`` is called only when the log is durable."""
        quorum = self._state.quorum
        self._asked = (self._asked + 1) % len(quorum.others)
        self._state.ask_for_log(quorum.others[self._asked], quorum.log.end, 0, self._replied, self._again)

    def _replied(self, _answer: Answer) -> None:
        """The voter knows no leader. If it did, its answer would have ended this role."""
        self._again()

    def _again(self) -> None:
        self._delay_us = min(2 * self._delay_us, LONGEST_DELAY_US)
        self._state.after(self._delay_us, lambda: self._state.when_synced(self._ask))
