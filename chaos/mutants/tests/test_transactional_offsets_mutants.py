"""The mutants of transactional offsets are seen by the models and cases that stand beside the broker (X-8)."""

from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from chaos.mutants import client_transactions
from chaos.mutants.mutant import Mutant, applied
from reference_broker.core.tests import test_transactional_offsets as cases
from reference_broker.groups.tests.test_transactional_model import BesideALedger, BesideTheLog

FIRST_FOUND = settings(
    max_examples=400,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
)
COMMITTED_OR_NOT = cases.test_offsets_are_hidden_until_transaction_is_committed
GENERATIONS = cases.test_commit_of_older_generation_writes_nothing


def played(machine: type[RuleBasedStateMachine]) -> Callable[[], None]:
    return lambda: run_state_machine_as_test(machine, settings=FIRST_FOUND)


SEEN_BY = [
    (client_transactions.offsets_visible_before_commit, played(BesideTheLog)),
    (client_transactions.offsets_kept_after_abort, played(BesideALedger)),
    (
        client_transactions.offsets_kept_after_abort,
        lambda: COMMITTED_OR_NOT(3, False),
    ),
    (
        client_transactions.transactional_generation_not_checked,
        lambda: GENERATIONS(3),
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("mutant", "play"), SEEN_BY, ids=lambda it: it.name if isinstance(it, Mutant) else "")
def test_each_mutant_fails_the_test_of_its_mechanism(mutant: Mutant, play: Callable[[], None]) -> None:
    with applied(mutant) as at_work:
        with pytest.raises((AssertionError, ExceptionGroup)):
            play()
        assert at_work is not None
        assert at_work.calls
