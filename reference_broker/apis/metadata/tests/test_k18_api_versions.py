"""ApiVersions: which features and drafts are announced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from reference_broker.apis.metadata import k18_api_versions
from reference_broker.apis.registry import serves
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE
from reference_broker.metadata.image import EMPTY_IMAGE
from reference_broker.wire.apis import DRAFTS, METADATA_EPOCH_DRAFTS, VERSIONS, ApiKey
from reference_broker.wire.messages import body_class


@dataclass
class Call:
    api_version: int = 1001
    listener: str = ""
    responses: list[Any] = field(default_factory=list)

    def respond(self, body: object) -> None:
        self.responses.append(body)

    def run(self, work: Callable[[], object]) -> bool:
        work()
        return True


def announced(version: int, **config: str) -> tuple[list[str], list[int]]:
    settings = BrokerConfig.parse({key.replace("_", "."): value for key, value in config.items()})
    broker: Any = SimpleNamespace(loader=SimpleNamespace(image=EMPTY_IMAGE), config=settings)
    body = body_class(ApiKey.API_VERSIONS, "request")(client_software_name="a", client_software_version="1")
    response: Any = k18_api_versions.handle(broker, Call(version), body)  # type: ignore[arg-type]
    return [feature.name for feature in response.supported_features], [int(key.api_key) for key in response.api_keys]


@pytest.mark.clause("D-3")
def test_drafts_are_announced_as_features_of_nodes_that_serve_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def announced(*keys: ApiKey) -> tuple[dict[str, tuple[int, int]], dict[int, int]]:
        monkeypatch.setattr(k18_api_versions, "SERVED", {key: VERSIONS[key][:2] for key in keys})
        broker: Any = SimpleNamespace(loader=SimpleNamespace(image=EMPTY_IMAGE), config=BrokerConfig.parse({}))
        request = body_class(ApiKey.API_VERSIONS, "request")
        body = request(client_software_name="a", client_software_version="1")
        response: Any = k18_api_versions.handle(broker, Call(api_version=4), body)  # type: ignore[arg-type]
        features = {feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features}
        finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
        assert finalized == {name: 1 for name in features if name in DRAFTS.values()}, "nothing is left to upgrade"
        return features, {key.api_key: key.max_version for key in response.api_keys}

    levels = {
        "metadata.version": (7, 27),
        "eligible.leader.replicas.version": (0, 1),
        "transaction.version": (0, 2),
        "group.version": (0, 1),
        "kraft.version": (0, 1),
        "crucible.metadata.epoch": (0, 1),
    }
    features, ranges = announced(ApiKey.FETCH_SNAPSHOT, ApiKey.VOTE)
    assert features == {**levels, "crucible.FetchSnapshot.1000": (1, 1)}
    assert ranges == {ApiKey.FETCH_SNAPSHOT: 1, ApiKey.VOTE: 2}
    assert announced(ApiKey.VOTE)[0] == levels
    assert serves(ApiKey.FETCH_SNAPSHOT, 1000)
    assert not any(serves(ApiKey.VOTE, version) for _, version in DRAFTS)


@pytest.mark.clause("D-3")
@pytest.mark.clause("M-14")
def test_disabled_drafts_and_update_metadata_are_not_announced() -> None:
    names, keys = announced(4)
    assert METADATA_EPOCH_FEATURE in names
    assert {"crucible.UpdateMetadata.1000", "crucible.UpdateMetadata.1001"} <= set(names)
    assert ApiKey.UPDATE_METADATA not in keys
    off, _ = announced(4, crucible_metadata_epoch_enable="false")
    gone = {METADATA_EPOCH_FEATURE, *(DRAFTS[draft] for draft in METADATA_EPOCH_DRAFTS)}
    assert set(names) - set(off) == gone & set(names)


def test_api_versions_before_4_omit_feature_with_minimum_level_zero() -> None:
    assert METADATA_EPOCH_FEATURE not in announced(3)[0]
    assert "metadata.version" in announced(3)[0]
