"""A run whose history lies in S3 is judged as one that lies here, copied or read in place. Its report goes there."""

from pathlib import Path
from typing import Any

import pytest

from chaos.live.s3_server import BUCKET, CREDENTIALS, S3Server
from reports import s3
from reports.errors import SetupError
from reports.judge import judge_many
from reports.scale.writing import write_history
from reports.verdict import Outcome

pytestmark = [pytest.mark.live, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture
def store(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {**CREDENTIALS, s3.ENDPOINT: s3_server.endpoint, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    return s3._store()


def put(run: Path, store: Any, name: str) -> str:
    for each in (file for file in run.rglob("*") if file.is_file()):
        with store.open_output_stream(f"{BUCKET}/{name}/{each.relative_to(run)}") as target:
            target.write(each.read_bytes())
    return f"s3://{BUCKET}/{name}"


@pytest.mark.parametrize("most_copied_bytes", [1 << 30, 0], ids=["copied", "read in place"])
def test_a_run_in_s3_is_judged_and_its_report_is_put_beside_it(
    store: Any, tmp_path: Path, most_copied_bytes: int
) -> None:
    if not most_copied_bytes and not any(s3._jar_folder().glob("*.jar")):
        s3.fetch_jars()
    write_history(tmp_path / "run", 3_000)
    place = put(tmp_path / "run", store, f"run-{most_copied_bytes}")
    with s3.local_folders([place], most_copied_bytes) as folders:
        assert (folders[0] / "history").exists() == bool(most_copied_bytes)
        (verdict,) = judge_many(folders)
    assert verdict.outcome is Outcome.PASSED
    (lost,) = [each for each in verdict.guarantees if each.name == "lost-write"]
    assert (lost.status, lost.evidence > 1_000) == ("holds", True)
    found = s3._files_below(store, f"{BUCKET}/run-{most_copied_bytes}")
    assert {"report/index.html", "report/verdict.json"} <= set(found)


@pytest.mark.usefixtures("store")
def test_what_is_no_run_and_what_refuses_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match="not the folder of a run"), s3.local_folders([f"s3://{BUCKET}/nothing"]):
        pass
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(SetupError, match="AWS_") as told, s3.local_folders([f"s3://{BUCKET}/nothing"]):
        pass
    assert "\n" not in str(told.value)


def test_a_large_history_wants_the_jars(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_jar_folder", lambda: tmp_path / "none")
    write_history(tmp_path / "run", 2_000)
    place = put(tmp_path / "run", store, "large")
    with pytest.raises(SetupError, match=r"python -m reports\.s3"), s3.local_folders([place], 0):
        pass
