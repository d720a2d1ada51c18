"""Under random faults each epoch has one content everywhere, and epochs grow; all nodes end with the newest one.

More seeds: call ``Storm(seed).play()`` in a loop; one takes about a second.
"""

import pytest

from reference_broker.core.tests.metadata_epoch_storm import Storm


@pytest.mark.thorough
@pytest.mark.clause("M-2")
@pytest.mark.clause("M-3")
@pytest.mark.clause("M-14")
@pytest.mark.parametrize("seed", [5006, 5064, 5073])
def test_epoch_has_one_content_and_all_nodes_end_with_newest(seed: int) -> None:
    storm = Storm(seed)
    storm.play()
    assert len(storm.world.contents) >= 3
