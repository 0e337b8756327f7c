"""What is written where: whole files, devices written into, and nobody's file overwritten."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ropewalk.atomic_io import (
    check_output,
    check_writable,
    read_json,
    read_text,
    remove_folder,
    whole_folder,
    write_whole,
)
from ropewalk.errors import RopeError


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _deep(path: Path) -> None:
    path.write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (None, "no such file"),
        (_pipe, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (_loop, "symbolic links"),
        (_deep, "nested too deeply"),
        (lambda path: path.write_text('{"a":' + "[" * 110 + "]" * 110 + "}"), "nested too deeply"),
        (lambda path: path.write_bytes(b'{"a": "\xff"}'), "utf-8"),
        (lambda path: path.write_text('{"a": ' + "1" * 5000 + "}"), "4300 digits"),
        (lambda path: path.write_text(" " * 1001), "larger than 1,000 bytes"),
        (lambda path: path.write_text("[1]"), "contains list, not an object"),
    ],
)
def test_what_is_no_json_file_is_refused(tmp_path, monkeypatch, make, words):
    """A pipe never blocks, a device is not read, and nesting and size have limits."""
    monkeypatch.setattr("ropewalk.atomic_io.LARGEST", 10**6 if make is _deep else 1000 if "1,000" in words else 10**4)
    if make is not None:
        make(tmp_path / "config.json")
    with pytest.raises(RopeError, match=f"(?s)probe: .*config.json.*{words}|probe: there is {words}") as error:
        read_json(tmp_path / "config.json", "probe", "Mend it.")
    assert error.value.cure == "Mend it."


def test_names_that_no_file_has(tmp_path):
    """A NUL and a name that is too long are refused; a byte order mark is not part of the text."""
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(RopeError, match="cannot be read"):
            read_text(tmp_path / name)
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfa")
    assert read_text(tmp_path / "text") == "a"


def test_a_pipe_is_written_into_and_a_link_stays_a_link(tmp_path):
    """A named pipe (as /dev/stdout may be) receives the bytes and stays what it is; a link's target is replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "numbers")
        assert os.read(reader, 100) == b"numbers"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_missing_folder_is_made_and_a_file_in_its_place_is_refused(tmp_path):
    """As is a folder in the place of a file, or no name at all. The check before the work makes nothing."""
    for path in (tmp_path, tmp_path / "..", type(tmp_path)("")):
        with pytest.raises(RopeError, match="the path of the file is a folder"):
            check_writable(path)
    check_writable(tmp_path / "new" / "newer" / "file.json")
    (tmp_path / "text").touch()
    with pytest.raises(RopeError, match="the path of the folder is a file"):
        check_writable(tmp_path / "text" / "file.json")
    assert {path.name for path in tmp_path.iterdir()} == {"text"}
    write_whole(tmp_path / "new" / "newer" / "file.json", "numbers")
    assert (tmp_path / "new" / "newer" / "file.json").read_text() == "numbers"


def in_child(act: Callable[[], object], *, nobody: bool = False) -> int:
    """The status of a forked process: 0 where `act` succeeds, 3 where it raises `RopeError`, -9 where it is killed."""
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            try:
                if nobody:
                    os.setuid(65534)
                act()
                status = 0
            except RopeError:
                status = 3
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


only_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user")


@only_root
@pytest.mark.parametrize(("mode", "status"), [(0o777, 0), (0o755, 3), (0o700, 3)])
def test_another_users_folder_is_refused(mode, status):
    """The real system call, as a user who may write there, who may not, and who may not even enter."""
    with tempfile.TemporaryDirectory() as folder:  # tmp_path's own parents are closed to other users
        os.chmod(folder, mode)
        assert in_child(lambda: check_writable(Path(folder) / "file.json"), nobody=True) == status


FOREIGN = ["", "{}", '{"name": "ropewalk"}', "<h1>ropewalk</h1>", '{"generator": "rope"}']
OURS = ['{"generator": "ropewalk", "a": 1}', '<meta charset="utf-8">\n<meta name="generator" content="ropewalk">']


@pytest.mark.parametrize(("content", "ours"), [*((one, not one) for one in FOREIGN), *((one, True) for one in OURS)])
def test_only_our_own_files_are_replaced(content: str, ours: bool, tmp_path: Path) -> None:
    """A file that ropewalk has not written stays, unless it is empty; a link to one counts as the file."""
    (tmp_path / "file").write_text(content)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path in (tmp_path / "file", tmp_path / "link"):
        if ours:
            check_output(path)
        else:
            with pytest.raises(RopeError, match="ropewalk has not written it"):
                check_output(path)
    check_output(tmp_path / "new")
    for empty in ("", None, 3):
        with pytest.raises(RopeError, match="must be a non-empty string"):
            check_output(empty)


@only_root
def test_a_file_that_may_not_be_read_is_not_replaced() -> None:
    """Its folder may be written by everybody, so the system would allow it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        (Path(folder) / "file").write_text(OURS[0])
        assert in_child(lambda: check_output(Path(folder) / "file"), nobody=True) == 0
        os.chmod(Path(folder) / "file", 0o600)
        assert in_child(lambda: check_output(Path(folder) / "file"), nobody=True) == 3


def test_folders_within_a_staged_folder_can_be_entered(tmp_path):
    """Their permissions are a folder's, so that other users than root can read a checkpoint within a checkpoint."""
    with whole_folder(tmp_path / "step", frozenset()) as staging:
        (staging / "model").mkdir()
        (staging / "model" / "weights").write_text("numbers")
    mask = os.umask(0)
    os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "step").rglob("*")}
    assert modes == {"model": 0o777 & ~mask, "weights": 0o666 & ~mask}


def test_a_folder_is_removed_whole_or_the_reason_is_given(tmp_path):
    """Nothing stays beside it."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    remove_folder(tmp_path / "old")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RopeError, match="the folder cannot be written"):
        remove_folder(tmp_path / "old")


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    """What Python and safetensors raise when nothing more fits; other errors of the block stay as they are."""
    safetensors = pytest.importorskip("safetensors")
    full = "Error while serializing: I/O error: No space left on device (os error 28)"
    for error in (OSError(errno.ENOSPC, "No space left on device"), safetensors.SafetensorError(full)):
        with pytest.raises(RopeError, match="No space left"), whole_folder(tmp_path / "model", frozenset()):
            raise error
    with pytest.raises(safetensors.SafetensorError), whole_folder(tmp_path / "model", frozenset()):
        raise safetensors.SafetensorError("Error while deserializing header")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RopeError, match="cannot be written"), whole_folder(tmp_path / "file" / "model", frozenset()):
        pass
