"""Runs in S3: ``s3://BUCKET/RUN``.

A small history is copied to this machine by Arrow. A large one stays in S3, and Spark reads it with its own client
(``s3a://``), for which it needs Hadoop's S3 jars. They are fetched into ``.cache`` at the first such run
(``FETCH_JARS`` fetches them before), and must be there before this process starts its first Spark, because Java takes
its class path only once. The report is written into the run's folder in S3. If S3 refuses it, it is kept here.

Both read the credentials from the environment, as AWS's own tools do (``AWS_ACCESS_KEY_ID`` and so on).
``AWS_ENDPOINT_URL`` names another server.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlparse

from reports.errors import SetupError
from reports.manifest import MANIFEST_NAME
from reports.schema import REMOTE_FILES, TABLES

SCHEME: Final = "s3://"
MAX_COPIED_BYTES: Final = 256 * 1024 * 1024
"""A history above this is read in place."""
FETCH_JARS: Final = "python -m reports.s3"
JAR_CACHE: Final = Path(__file__).resolve().parents[1] / ".cache" / "s3-jars"
"""It outlives ``.venv``, which is rebuilt when a pinned version changes."""
FETCH_LIMIT_S: Final = 1_800
"""Limits the time of Maven for the jars; it is enough on a slow line."""
ENDPOINT: Final = "AWS_ENDPOINT_URL"

_ADVICE: Final = {
    "SIGNATURE_DOES_NOT_MATCH|ACCESS_DENIED|INVALID_ACCESS_KEY_ID|EXPIRED_TOKEN|UserNotFound|AccessDenied|NoAuth": (
        "refuses these credentials: look at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and at what they may do"
    ),
    "NETWORK_CONNECTION|ConnectException|UnknownHost|Timeout": (
        f"does not respond: look at {ENDPOINT}, and whether the server runs"
    ),
    "HeaderMalformed|configured region|PermanentRedirect": "does not serve this region: look at AWS_REGION",
    "NO_SUCH_BUCKET|NoSuchBucket|InvalidBucketName": f"has no such bucket: name the run as {SCHEME}BUCKET/RUN",
    "": "did not do what was requested: look at the AWS_* variables",
}
"""Advice for the user, by the text of a failure. The first that fits counts."""
_MAX_TEXT: Final = 300
"""Limits the characters of a failure's text that are shown."""


def is_remote(place: str | Path) -> bool:
    return str(place).startswith(SCHEME)


@dataclass(frozen=True, slots=True)
class RejectedReport:
    """A report that S3 refused."""

    place: str
    folder: Path | None
    """The copy of its run here that is kept, with the report in it; None if no folder takes it either."""
    why: str

    @property
    def sentence(self) -> str:
        fate = "lost, because no folder here takes it" if self.folder is None else f"kept in {self.folder / 'report'}"
        return f"{self.why.rstrip('.')}, so the report of {self.place} is {fate}."


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run in S3, and its copy here."""

    prefix: str
    """BUCKET/RUN"""
    stand_in: Path
    """The local folder that is read instead."""

    def bring(self, store: Any, most_copied_bytes: int) -> None:
        """Copy the run's manifest and history, or only note where the history is. Raise SetupError."""
        files = _files_below(store, self.prefix)
        if MANIFEST_NAME not in files:
            self._refuse(store)
        history = {path: size for path, size in files.items() if any(fnmatch(path, table.path) for table in TABLES)}
        self.stand_in.mkdir(parents=True)
        copied = [MANIFEST_NAME]
        if sum(history.values()) <= most_copied_bytes:
            copied += history
        else:
            jars()
            listing = {f"s3a://{self.prefix}/{path}": [path, size] for path, size in history.items()}
            (self.stand_in / REMOTE_FILES).write_text(json.dumps(listing), encoding="utf-8")
        for path in copied:
            _copy(store, f"{self.prefix}/{path}", self.stand_in / path)

    def _refuse(self, store: Any) -> NoReturn:
        bucket = self.prefix.partition("/")[0]
        if not bucket or not store.get_file_info(bucket).type:
            raise SetupError(f"{_server()} has no bucket {bucket!r}: name the run as {SCHEME}BUCKET/RUN.")
        raise SetupError(
            f"{SCHEME}{self.prefix} has no {MANIFEST_NAME}, so it is not a run: name the run as {SCHEME}BUCKET/RUN."
        )

    def take_report(self, store: Any) -> None:
        """Write the report into the run's folder in S3, if there is one. Its page comes last, after all else."""
        report = self.stand_in / "report"
        page = report / "index.html"
        for file in sorted(report.rglob("*"), key=lambda path: (path == page, path)) if report.is_dir() else ():
            if file.is_file():
                with store.open_output_stream(f"{self.prefix}/{file.relative_to(self.stand_in)}") as target:
                    target.write(file.read_bytes())


@contextmanager
def local_folders(
    places: Sequence[str | Path],
    most_copied_bytes: int = MAX_COPIED_BYTES,
    kept_in: Path | None = None,
    on_rejected: Callable[[RejectedReport], object] = lambda _: None,
) -> Iterator[list[Path]]:
    """A folder here for each run, wherever it is. At the end of the block reports of runs in S3 are written there.
    With ``kept_in`` a run whose report S3 refuses is kept in this folder, or in a temporary one if that is full, and
    ``on_rejected`` is called with it.

    Raise SetupError, one sentence for the person at the terminal, also for what Spark does not get in the block."""
    with tempfile.TemporaryDirectory(prefix="crucible-s3-") as scratch:
        remote = {
            place: RemoteRun(str(place).removeprefix(SCHEME).strip("/"), Path(scratch) / str(number) / Path(place).name)
            for number, place in enumerate(places)
            if is_remote(place)
        }
        store = _store() if remote else None
        with _one_sentence():
            for run in remote.values():
                run.bring(store, most_copied_bytes)
        with _one_sentence_of_spark():
            yield [remote[place].stand_in if place in remote else Path(place) for place in places]
        for place, run in remote.items():
            try:
                with _one_sentence():
                    run.take_report(store)
            except SetupError as refused:
                if kept_in is None:
                    raise
                on_rejected(RejectedReport(str(place), _kept(run.stand_in, kept_in), str(refused)))


def _kept(run: Path, folder: Path) -> Path | None:
    """Move the run into the folder, or out of what is deleted if the folder does not take it. Return where it is."""
    with suppress(OSError):
        return _moved(run, folder)
    with suppress(OSError):  # It stays on its disk, so this needs no room there.
        return _moved(run, Path(tempfile.mkdtemp(prefix="crucible-kept-")))
    return None


def _moved(run: Path, folder: Path) -> Path:
    """Move the run into the folder, under a name that is free."""
    folder.mkdir(parents=True, exist_ok=True)
    names = (f"{run.name}{f'-{number}' if number else ''}" for number in count())
    target = next(folder / name for name in names if not (folder / name).exists())
    try:
        shutil.move(run, target)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)  # Part of it; the whole is where it was.
        raise
    return target


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise _advice(str(failure)) from failure


@contextmanager
def _one_sentence_of_spark() -> Iterator[None]:
    """Other failures of Spark are faults of a job, and stay what they are."""
    try:
        yield
    except Exception as failure:
        of_spark = type(failure).__module__.partition(".")[0] in ("pyspark", "py4j")
        if not of_spark or not re.search(r"s3a|S3A", str(failure)):
            raise
        if "ClassNotFoundException" in str(failure):
            raise SetupError(f"Java runs without Spark's S3 jars: run `{FETCH_JARS}` once, then this again.") from None
        raise _advice(str(failure)) from None


def _advice(error: str) -> SetupError:
    """One sentence with the advice, and the first line of S3's error."""
    advice = next(text for sign, text in _ADVICE.items() if re.search(sign, error))
    first = " ".join(error.strip().partition("\n\tat ")[0].split())[:_MAX_TEXT].rstrip(".")
    return SetupError(f"{_server()} {advice} ({first}).")


def _server() -> str:
    return os.environ.get(ENDPOINT) or "S3"


def _store() -> Any:
    """Raise SetupError if the server's address is none."""
    from pyarrow.fs import S3FileSystem

    url = os.environ.get(ENDPOINT, "")
    endpoint = urlparse(url)
    if url and (endpoint.scheme not in ("http", "https") or not endpoint.netloc):
        raise SetupError(f"{ENDPOINT} is {url!r}, which is no address: write it as http://HOST:PORT.")
    if endpoint.netloc:  # Servers of other makers do not all take checksums that follow the body.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    elsewhere = {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme} if endpoint.netloc else {}
    # A small file is then put at once. Some servers refuse the parts that it would be sent in otherwise.
    return S3FileSystem(allow_delayed_open=True, **elsewhere)


def _files_below(store: Any, prefix: str) -> dict[str, int]:
    """The files of a folder, by their path in it, with their sizes."""
    from pyarrow.fs import FileSelector

    entries = store.get_file_info(FileSelector(prefix, recursive=True, allow_not_found=True))
    return {entry.path.removeprefix(f"{prefix}/"): entry.size for entry in entries if entry.is_file}


def _copy(store: Any, source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with store.open_input_stream(source) as there, target.open("wb") as here:
        shutil.copyfileobj(there, here)


_PATIENCE: Final = {
    "spark.hadoop.fs.s3a.attempts.maximum": "3",
    "spark.hadoop.fs.s3a.retry.limit": "3",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
    "spark.hadoop.fs.s3a.connection.timeout": "30s",
}
"""Hadoop would try for many minutes to reach a server that is away."""


def spark_settings() -> dict[str, str]:
    """Return the settings with which Spark reads s3a, if its jars are there and S3 is meant."""
    endpoint = os.environ.get(ENDPOINT, "")
    own = {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": str(endpoint.startswith("https")).lower(),
    }
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    class_path = ":".join(map(str, _jar_folder().glob("*.jar")))
    return {
        **({"spark.driver.extraClassPath": class_path} if class_path else {}),
        "spark.hadoop.fs.s3a.endpoint.region": region,
        **_PATIENCE,
        **(own if endpoint else {}),
    }


def jars() -> list[Path]:
    """Hadoop's S3 jars. They are fetched if they are missing. Raise SetupError."""
    return sorted(_jar_folder().glob("*.jar")) or fetch_jars()


def _jar_folder() -> Path:
    return JAR_CACHE / hadoop_version()


def hadoop_version() -> str:
    """The version of the Hadoop that Spark brings. Its S3 jars must have the same."""
    import pyspark

    # Where spark-submit starts Python, PySpark is imported from an archive that has no jars.
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    (jar,) = (home / "jars").glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def fetch_jars() -> list[Path]:
    """Fetch the jars with Maven and say so, because that takes minutes. Raise SetupError."""
    if shutil.which("mvn") is None:
        raise SetupError("Spark's S3 jars come from Maven, and there is no mvn on the PATH: install e.g. maven.")
    folder = _jar_folder()
    sys.stderr.write("crucible: fetching Spark's S3 jars with Maven, once (some 700 MB, most of it Amazon's SDK)\n")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Others find all of the jars or none: a folder beside theirs becomes theirs in one step.
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as scratch:
        (Path(scratch) / "pom.xml").write_text(_POM.format(version=hadoop_version()), encoding="utf-8")
        _call_maven(Path(scratch))
        with suppress(OSError):  # Another process may have brought them meanwhile.
            (Path(scratch) / "jars").rename(folder)
    return sorted(folder.glob("*.jar"))


def _call_maven(folder: Path) -> None:
    words = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise SetupError(f"Maven did not bring Spark's S3 jars within {FETCH_LIMIT_S} s: try again later.") from None
    if done.returncode:
        output = " ".join((done.stdout.strip() or "no word")[:_MAX_TEXT].split())
        raise SetupError(f"Maven did not bring Spark's S3 jars: look at its settings and the network ({output}).")


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>crucible</groupId><artifactId>s3-jars</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.hadoop</groupId><artifactId>hadoop-aws</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""


def main() -> int:
    try:
        downloaded = jars()
    except SetupError as missing:
        sys.stderr.write(f"{missing}\n")
        return 2
    sys.stdout.write("".join(f"{file.name}\n" for file in downloaded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
