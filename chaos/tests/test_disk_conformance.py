"""One suite for each implementation of the disk port: real files, the simulated disk, and the memory disk of tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.sim.disk import SimDisk
from reference_broker.ports.disk import Disk, DiskError, MemoryDisk
from reference_broker.serve.disk import FileDisk

MAKERS: dict[str, Callable[[Path], Disk]] = {
    "files": lambda root: FileDisk(root, 64),
    "few-open-files": lambda root: FileDisk(root, 1),
    "simulated": lambda _: SimDisk(Random(1)),
    "memory": lambda _: MemoryDisk(),
}


@pytest.fixture(params=list(MAKERS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made = MAKERS[request.param](tmp_path)
    yield made
    if isinstance(made, FileDisk):
        made.close()


def content(disk: Disk, path: str) -> bytes:
    return disk.read(path, 0, disk.size(path))


def test_append_creates_the_file_and_its_folders_and_returns_the_size_before(disk: Disk) -> None:
    assert disk.append("topic-0/a.log", [b"one"]) == 0
    assert disk.append("topic-0/a.log", [b"two", memoryview(b"three"), bytearray(b"!")]) == 3
    assert disk.size("topic-0/a.log") == 12
    assert content(disk, "topic-0/a.log") == b"onetwothree!"


def test_append_of_more_buffers_than_one_system_call_accepts(disk: Disk) -> None:
    pieces = [bytes([number % 251]) * (number % 7) for number in range(3000)]
    disk.append("a", pieces)
    assert content(disk, "a") == b"".join(pieces)


def test_append_of_nothing_creates_an_empty_file(disk: Disk) -> None:
    assert disk.append("a", []) == 0
    assert disk.exists("a")
    assert disk.size("a") == 0


def test_read_is_short_only_at_the_end(disk: Disk) -> None:
    disk.append("a", [b"0123456789"])
    assert disk.read("a", 0, 4) == b"0123"
    assert disk.read("a", 8, 4) == b"89"
    assert disk.read("a", 10, 4) == b""
    assert disk.read("a", 99, 4) == b""
    assert disk.read("a", 3, 0) == b""


def test_bytes_read_do_not_change_with_the_file(disk: Disk) -> None:
    disk.append("a", [b"before"])
    seen = disk.read("a", 0, 6)
    disk.write("a", b"later!")
    disk.truncate("a", 0)
    assert seen == b"before"


@pytest.mark.parametrize(
    "operation",
    [
        lambda disk: disk.read("missing", 0, 1),
        lambda disk: disk.size("missing"),
        lambda disk: disk.truncate("missing", 0),
        lambda disk: disk.rename("missing", "other"),
    ],
    ids=["read", "size", "truncate", "rename"],
)
def test_missing_file_is_an_error_that_names_it(disk: Disk, operation: Callable[[Disk], object]) -> None:
    with pytest.raises(DiskError, match="missing"):
        operation(disk)


def test_deleting_what_is_not_there_is_no_error(disk: Disk) -> None:
    disk.delete("missing")
    disk.delete("missing/deeper")


def test_truncated_file_goes_on_from_its_new_end(disk: Disk) -> None:
    disk.append("a", [b"0123456789"])
    disk.truncate("a", 4)
    assert disk.size("a") == 4
    assert disk.append("a", [b"xy"]) == 4
    assert content(disk, "a") == b"0123xy"


def test_write_replaces_the_whole_content(disk: Disk) -> None:
    disk.write("folder/a", b"long content")
    disk.write("folder/a", b"short")
    assert content(disk, "folder/a") == b"short"
    assert disk.append("folder/a", [b"er"]) == 5


def test_rename_replaces_the_target_file(disk: Disk) -> None:
    disk.append("a", [b"old"])
    disk.append("b", [b"new content"])
    disk.rename("b", "a")
    assert content(disk, "a") == b"new content"
    assert not disk.exists("b")
    assert disk.append("a", [b"!"]) == 11


def test_rename_makes_the_target_folder(disk: Disk) -> None:
    disk.append("a", [b"x"])
    disk.rename("a", "deep/er/b")
    assert content(disk, "deep/er/b") == b"x"


def test_renamed_folder_keeps_its_files(disk: Disk) -> None:
    disk.append("topic-0/a.log", [b"1"])
    disk.append("topic-0/a.index", [b"2"])
    disk.rename("topic-0", "topic-0.deleted")
    assert not disk.exists("topic-0")
    assert not disk.exists("topic-0/a.log")
    assert content(disk, "topic-0.deleted/a.log") == b"1"
    assert disk.append("topic-0/a.log", [b"fresh"]) == 0


def test_list_is_sorted_and_only_one_level_deep(disk: Disk) -> None:
    for path in ("b/2", "b/10", "a/x", "c", "b/deep/er"):
        disk.append(path, [b"."])
    assert list(disk.list("")) == ["a", "b", "c"]
    assert list(disk.list("b")) == ["10", "2", "deep"]
    assert list(disk.list("nowhere")) == []


def test_exists_is_true_for_files_and_folders(disk: Disk) -> None:
    disk.append("topic-0/a.log", [b"1"])
    assert disk.exists("topic-0/a.log")
    assert disk.exists("topic-0")
    assert not disk.exists("topic-1")
    assert not disk.exists("topic-0/a")


def test_deleted_folder_is_gone_with_all_in_it(disk: Disk) -> None:
    disk.append("topic-0/a.log", [b"1"])
    disk.append("topic-0/deep/b", [b"2"])
    disk.append("topic-00/a.log", [b"3"])
    disk.delete("topic-0")
    assert list(disk.list("")) == ["topic-00"]
    with pytest.raises(DiskError):
        disk.read("topic-0/a.log", 0, 1)


def test_folder_goes_with_its_last_file(disk: Disk) -> None:
    disk.append("topic-0/deep/a.log", [b"1"])
    disk.delete("topic-0/deep/a.log")
    assert not disk.exists("topic-0")
    assert list(disk.list("")) == []
    disk.append("topic-0/deep/a.log", [b"2"])
    assert content(disk, "topic-0/deep/a.log") == b"2"


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "write", "truncate", "rename", "delete", "size"]),
        st.sampled_from(["a", "d/a", "d/b", "d/e/f"]),
        st.sampled_from(["a", "d/a", "d/b", "d/e/f"]),
        st.integers(0, 9),
    ),
    max_size=25,
)


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
def test_all_disks_end_in_the_same_state_after_any_steps(
    steps: list[tuple[str, str, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("disk")
    disks = [make(root / name) for name, make in MAKERS.items() if make is not MAKERS["few-open-files"]]
    outcomes = [[_outcome(disk, step) for step in steps] for disk in disks]
    states = [_state(disk, "") for disk in disks]
    for disk in disks:
        if isinstance(disk, FileDisk):
            disk.close()
    assert outcomes[1:] == outcomes[:-1]
    assert states[1:] == states[:-1]


def _outcome(disk: Disk, step: tuple[str, str, str, int]) -> object:
    verb, path, other, number = step
    try:
        if verb == "append":
            return disk.append(path, [bytes([number]) * number])
        if verb == "write":
            disk.write(path, bytes([number]) * number)
        elif verb == "truncate":
            disk.truncate(path, min(number, disk.size(path)))
        elif verb == "rename" and path != other:
            disk.rename(path, other)
        elif verb == "delete":
            disk.delete(path)
        elif verb == "size":
            return disk.size(path)
    except DiskError:
        return DiskError
    return None


def _state(disk: Disk, folder: str) -> dict[str, object]:
    state: dict[str, object] = {}
    for name in disk.list(folder):
        path = f"{folder}/{name}" if folder else name
        state[name] = _state(disk, path) or content(disk, path)
    return state
