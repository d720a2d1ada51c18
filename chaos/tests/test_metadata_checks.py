"""The simulator judges what clients saw of metadata, finds what is planted as the Spark jobs do, and nothing else."""

import json
from dataclasses import fields
from typing import Any

import pytest

from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.metadata_changes import LostMetadata, TornMetadata
from chaos.checks.quorum_view import Member
from chaos.tests.check_context import check_context
from reference_broker.core.events import Note
from reports.rows import ChangeRow, MetadataReadRow, OperationRow
from reports.tests import played as recorded
from reports.tests.planted_metadata import PLANTED_METADATA

MINE = ("torn-metadata", "lost-metadata")


def broken_by(tables: dict[str, list[dict[str, Any]]]) -> set[str]:
    rows = History()
    for table, row_class in (("operations", OperationRow), ("changes", ChangeRow), ("metadata_reads", MetadataReadRow)):
        names = [each.name for each in fields(row_class)]
        rows.add([row_class(*(row[name] for name in names)) for row in tables[table]])
    checks: tuple[Check, ...] = (TornMetadata(check_context()), LostMetadata(check_context()))
    for check in checks:
        for row in tables["trace"]:
            if row["what"] == "metadata_image":
                check.published(row["at_us"], row["node"], json.loads(row["detail"]))
            elif row["what"] in check.notes:
                note_fields = tuple(json.loads(row["detail"]).items())
                check.note(row["at_us"], Member(row["node"], True), Note(row["what"], note_fields))
        check.quiet(10**9)
        check.end(rows)
    return {check.guarantee for check in checks if check.violations}


@pytest.mark.thorough
@pytest.mark.clause("T-5", "T-10")
@pytest.mark.parametrize("name", ["clean", *PLANTED_METADATA])
def test_exactly_the_planted_guarantee_breaks(name: str) -> None:
    plant, expected = PLANTED_METADATA.get(name, (lambda _: None, set()))
    planted = recorded.generate(3)
    plant(planted)
    assert broken_by(planted.tables) == {each for each in expected if each in MINE}
