"""``crucible bench`` with workloads: a page for a good call, one sentence for a bad one."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from crucible_kafka.commands.bench import bench, worker


@pytest.mark.live
def test_command_writes_a_page(tmp_path: Path) -> None:
    workload = tmp_path / "w.yaml"
    workload.write_text("{messageSize: 200, producerRate: 500}")
    words = [str(workload), "--seconds", "2", "--warmup", "1", "--out", str(tmp_path / "out")]
    ended = CliRunner().invoke(bench, words)
    assert ended.exit_code in (0, 3), ended.output  # INVALID on a machine that is busy with other work.
    assert (tmp_path / "out" / "0001-page.html").exists()
    assert len(list((tmp_path / "out").glob("0001-0-reference.json"))) == 1


def test_worker_needs_an_address() -> None:
    for words in ([], ["--join", "somewhere"]):
        ended = CliRunner().invoke(worker, words)
        assert ended.exit_code == 2
        assert "--join" in ended.output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["none.yaml"], "cannot be read"),
        (["--max"], "goes with a WORKLOAD"),
        (["none.yaml", "--peer", "kafka"], "leave them out"),
        (["none.yaml", "--max", "--rates", "10k"], "leave --rates out"),
        (["none.yaml", "--seconds", "nan"], "nan is no number in the range x>=1"),
        (["none.yaml", "--warmup", "inf"], "inf is no number in the range x>=0"),
        (["none.yaml", "--out", __file__], "cannot be made: File exists"),
        (["none.yaml", "--rates", "fast"], "give rates such as"),
        (["none.yaml", "--listen", "127.0.0.1:5557"], "say with --expect-workers how many"),
        (["none.yaml", "--expect-workers", "1", "--listen", "5557"], "give HOST:PORT"),
        (["--calibrate", "--row", "fetch"], "goes with --peer, --quick and --out only"),
    ],
)
def test_bad_call_ends_with_one_sentence(words: list[str], complaint: str) -> None:
    ended = CliRunner().invoke(bench, words)
    assert ended.exit_code == 2
    assert complaint in ended.output
