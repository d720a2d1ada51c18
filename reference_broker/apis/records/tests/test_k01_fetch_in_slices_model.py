"""Fetches that take a slice for each partition match the model, which knows nothing of slices."""

import pytest
from hypothesis import settings

from reference_broker.apis.records.tests.sliced_fetches import InSlices
from reference_broker.apis.records.tests.test_k01_fetch_first_model import FetchingFirst
from reference_broker.apis.records.tests.test_k01_fetch_model import FetchingFinal


class FinalInSlices(InSlices, FetchingFinal):
    pass


class FirstInSlices(InSlices, FetchingFirst):
    pass


TestFinal = pytest.mark.thorough(FinalInSlices.TestCase)
TestFirst = pytest.mark.thorough(FirstInSlices.TestCase)
for case in (TestFinal, TestFirst):
    case.settings = settings(max_examples=30, stateful_step_count=40)
