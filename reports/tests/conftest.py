"""Histories of several test files, judged in one go: Spark plans for longer than it computes over a few histories."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.manifest import Manifest, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reports.collect import Findings
    from reports.verdict import Verdict


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run's folder, and what Spark found in it."""

    folder: Path
    manifest: Manifest
    findings: "Findings"

    def verdict(self) -> "Verdict":
        from reports.decide import decide

        return decide(self.manifest, self.findings, self.folder)


@pytest.fixture(scope="session")
def found_in_all_files(
    request: pytest.FixtureRequest, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Mapping[str, JudgedRun]]:
    """The findings in the histories of all selected test files that have a function ``write_histories``."""
    from reports.judge import _findings, silent

    modules = dict.fromkeys(item.module for item in request.session.items if isinstance(item, pytest.Function))
    written: dict[str, dict[str, Path]] = {
        module.__name__: module.write_histories(tmp_path_factory.mktemp("histories"))
        for module in modules
        if hasattr(module, "write_histories")
    }
    folders = [folder for some in written.values() for folder in some.values()]
    manifests = [read_manifest(folder) for folder in folders]
    rows = map(JudgedRun, folders, manifests, _findings(folders, manifests, spark, silent))
    return {module: {name: next(rows) for name in some} for module, some in written.items()}


@pytest.fixture(scope="module")
def found_by_name(
    request: pytest.FixtureRequest, found_in_all_files: Mapping[str, Mapping[str, JudgedRun]]
) -> Mapping[str, JudgedRun]:
    """The findings in the histories that this test file's ``write_histories`` has written, by their names."""
    return found_in_all_files[request.module.__name__]
