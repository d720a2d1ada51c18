"""One Spark session for all tests of this room: starting it takes five seconds and more."""

from collections.abc import Iterator

import pytest

from reports.spark import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    with spark_session("crucible-tests") as session:
        yield session
