"""Properties of all cases: IDs, words, sources, sections."""

import pytest

from bench.probe import kafka_responses
from bench.probe.case import CaseVerdict, Level
from bench.probe.cases import UnknownCase, all_cases, chosen
from reference_broker.wire.apis import VERSIONS

CASES = all_cases()


def test_there_are_at_least_150_cases() -> None:
    assert len(CASES) >= 150


def test_each_case_has_requirement_and_source() -> None:
    for case in CASES:
        assert case.words.endswith("."), case.id
        assert case.source, case.id
        assert case.since[0].isdigit(), case.id
        assert all(key in VERSIONS for key in case.needs), case.id


def test_behaviour_only_in_kafkas_code_is_not_required() -> None:
    assert not [case.id for case in CASES if case.level is Level.MUST and case.source.startswith("Apache Kafka's")]


def test_ids_have_a_section_and_a_name() -> None:
    for case in CASES:
        assert case.section, case.id
        assert case.id == case.id.strip("/ "), case.id


def test_section_holds_those_below_it() -> None:
    sections = {each.section for each in chosen(["fetch"], [])}
    assert {"fetch/session", "fetch/limits"} <= sections
    assert all(section.startswith("fetch") for section in sections)


def test_single_case_is_chosen_by_its_id() -> None:
    (only,) = chosen([], ["fetch/session/wrong-epoch"])
    assert only.level is Level.MUST


def test_unknown_names_are_reported() -> None:
    with pytest.raises(UnknownCase, match="no case 'fetch/nothing'"):
        chosen([], ["fetch/nothing"])
    with pytest.raises(
        UnknownCase, match="no case 'fetch/session/wrong-epoh', did you mean fetch/session/wrong-epoch;"
    ):
        chosen([], ["fetch/session/wrong-epoh"])
    with pytest.raises(
        UnknownCase, match=r"no section 'fet', did you mean fetch; sections: handshake, metadata, .*hostile,"
    ):
        chosen(["fet"], [])
    with pytest.raises(
        UnknownCase, match="no section 'fetch/sesion', did you mean fetch/session; fetch has: fetch/epochs, "
    ):
        chosen(["fetch/sesion"], [])


@pytest.mark.parametrize("release", kafka_responses.releases())
def test_every_must_holds_of_apache_kafka(release: str) -> None:
    """A MUST that Kafka's current release breaks would be our own invention."""
    levels = {case.id: case.level for case in CASES}
    broken = [
        name
        for name, (verdict, _) in kafka_responses.recorded(release).items()
        if levels.get(name) is Level.MUST and verdict in (CaseVerdict.FAIL.value, CaseVerdict.INCONSISTENT.value)
    ]
    assert not broken
