"""The comparison of metadata epochs and leader epochs counts what clients without either lose."""

import pytest

from campaigns.experiments.epochs import seen
from scenarios import loader

pytestmark = pytest.mark.simulated


@pytest.mark.clause("M-15")
def test_clients_without_epochs_rewind_and_those_with_metadata_epochs_do_not() -> None:
    scenario = loader.find("19")
    without = seen(scenario, [1], metadata_epoch=False, leader_epochs=False)
    assert without.rewinds > 0
    assert without.read_again > 0
    assert without.copied_twice == -1
    assert seen(scenario, [1], metadata_epoch=True, leader_epochs=False).rewinds == 0
