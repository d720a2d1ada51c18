"""Java uses the archive of classes that was made for it, and none that was made for another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reports import spark


def test_archive_belongs_to_one_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "CLASS_ARCHIVES", tmp_path)
    java, other = tmp_path / "java", tmp_path / "other"
    for each in (java, other):
        each.touch()
    assert spark.archive_options(java) == ""
    spark.archive_for(java).touch()
    assert str(spark.archive_for(java)) in spark.archive_options(java)
    assert spark.archive_options(other) == ""
    renewed = java.stat().st_mtime_ns + 1
    os.utime(java, ns=(renewed, renewed))
    assert spark.archive_options(java) == "", "another Java was installed in the place of the old one"


MAKE = (
    "import sys, pathlib, reports.spark as at; at.CLASS_ARCHIVES = pathlib.Path(sys.argv[1]);"
    "import reports.standby.class_archive as it; sys.exit(it.main())"
)
USE = (
    "import sys, pathlib, reports.spark as at; at.CLASS_ARCHIVES = pathlib.Path(sys.argv[1]);"
    "options = at.archive_options(at.require_java()); assert options;"
    "started = at.spark_session(java_options='-Xshare:on ' + options);"
    "print(started.__enter__().range(3).count()); started.__exit__(None, None, None)"
)
"""With -Xshare:on Java refuses to start if it cannot use the archive."""


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_java_starts_with_the_archive(tmp_path: Path) -> None:
    folder = tmp_path / "with a blank"
    folder.mkdir()
    (folder / "0123.jsa").touch()
    path = _python(MAKE, folder).strip()
    assert [Path(path)] == list(folder.iterdir())
    assert _python(USE, folder).strip() == "3"


def _python(code: str, folder: Path) -> str:
    return subprocess.run([sys.executable, "-c", code, str(folder)], text=True, capture_output=True, check=True).stdout
