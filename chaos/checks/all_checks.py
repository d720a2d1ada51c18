"""All checks of a simulated run. Every run gets all of them, whatever its scenario lists."""

from chaos.checks.check import Check
from chaos.checks.duplicate import Duplicate
from chaos.checks.eviction_rules import EvictionRules
from chaos.checks.fetch_gap import FetchGap
from chaos.checks.inconsistent_offsets import InconsistentOffsets
from chaos.checks.int_nonmonotonic_poll import IntNonmonotonicPoll
from chaos.checks.int_poll_skip import IntPollSkip
from chaos.checks.log_consistent import LogConsistent
from chaos.checks.lost_write import LostWrite
from chaos.checks.metrics_exact import MetricsExact
from chaos.checks.nonmonotonic_poll import NonmonotonicPoll
from chaos.checks.nonmonotonic_send import NonmonotonicSend
from chaos.checks.poll_skip import PollSkip
from chaos.checks.session_lost import SessionLost
from chaos.checks.session_order import SessionOrder
from chaos.checks.unrequested_partition import UnrequestedPartition
from chaos.checks.unseen import Unseen


def all_checks(session_slots: int, first_session_epoch: int = 1) -> tuple[Check, ...]:
    """Fresh checks for one run of a broker with so many session slots."""
    return (
        SessionOrder(first_session_epoch), SessionLost(), EvictionRules(session_slots), MetricsExact(), LogConsistent(),
        InconsistentOffsets(), Duplicate(), LostWrite(), Unseen(), PollSkip(), NonmonotonicPoll(), IntPollSkip(),
        IntNonmonotonicPoll(), NonmonotonicSend(), UnrequestedPartition(), FetchGap(),
    )  # fmt: skip
