"""Each guarantee that the history can judge has a job, and each of its violations a sentence."""

from reports.guarantees import GUARANTEES, SeenFrom, names_on_the_wire, names_seen_from
from reports.jobs.guarantee_job import guarantee_jobs
from reports.schema import TABLES


def test_every_guarantee_that_a_history_shows_has_a_job() -> None:
    shown = (*names_seen_from(SeenFrom.CLIENTS, SeenFrom.TRACE), *names_on_the_wire())
    names = [name for name, guarantee in GUARANTEES.items() if name in shown or guarantee.in_part]
    assert [job.name for job in guarantee_jobs()] == names


def test_every_job_needs_tables_that_there_are() -> None:
    tables = {table.name for table in TABLES}
    assert {name for job in guarantee_jobs() for name in (*job.needs, *job.instead)} <= tables


def test_every_violation_is_one_sentence() -> None:
    for guarantee in GUARANTEES.values():
        assert guarantee.violation.endswith("."), guarantee.name
        assert guarantee.violation.count(".") - guarantee.violation.count("metadata.version") == 1, guarantee.name
