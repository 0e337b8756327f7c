"""What is written where: whole files, devices written into, and nobody's file overwritten."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from ropewalk.atomic_io import check_writable, remove_folder, whole_folder, write_whole
from ropewalk.errors import RopeError


def test_a_pipe_is_written_into(tmp_path):
    """A named pipe (as /dev/stdout may be) receives the bytes and stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "numbers")
        assert os.read(reader, 100) == b"numbers"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_stays_a_link(tmp_path):
    """What a symbolic link points to is replaced, not the link."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_folder_is_refused(tmp_path):
    """A folder, or no name at all, is an error before any work is done."""
    for path in (tmp_path, tmp_path / "..", type(tmp_path)("")):
        with pytest.raises(RopeError, match="the path of the file is a folder"):
            check_writable(path)


def test_a_missing_folder_is_refused_before_any_work(tmp_path, monkeypatch):
    """It may be made where that is asked for; a file in its place, or a folder of somebody else's, is refused."""
    check_writable(tmp_path / "file.json")
    with pytest.raises(RopeError, match="folder does not exist"):
        check_writable(tmp_path / "new" / "file.json")
    check_writable(tmp_path / "new" / "newer" / "file.json", new_folder=True)
    (tmp_path / "text").touch()
    for new_folder in (False, True):
        with pytest.raises(RopeError, match="the path of the folder is a file"):
            check_writable(tmp_path / "text" / "file.json", new_folder=new_folder)
    assert {path.name for path in tmp_path.iterdir()} == {"text"}
    monkeypatch.setattr("ropewalk.atomic_io.os.access", lambda path, mode: False)
    with pytest.raises(RopeError, match=r"(?s)cannot be written.*Permission denied"):
        check_writable(tmp_path / "file.json")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("mode", "status"), [(0o777, 0), (0o755, 3), (0o700, 3)])
def test_another_users_folder_is_refused(mode, status):
    """The real system call, as a user who may write there, who may not, and who may not even enter."""
    with tempfile.TemporaryDirectory() as folder:  # tmp_path's own parents are closed to other users
        os.chmod(folder, mode)
        child = os.fork()
        if child == 0:
            end = 1
            try:
                os.setuid(65534)
                check_writable(Path(folder) / "file.json")
                end = 0
            except RopeError as error:
                end = 3 if "Permission denied" in str(error) else 2
            finally:
                os._exit(end)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status


def test_folders_within_a_staged_folder_can_be_entered(tmp_path):
    """Their permissions are a folder's, so that other users than root can read a checkpoint within a checkpoint."""
    with whole_folder(tmp_path / "step", frozenset()) as staging:
        (staging / "model").mkdir()
        (staging / "model" / "weights").write_text("numbers")
    mask = os.umask(0)
    os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "step").rglob("*")}
    assert modes == {"model": 0o777 & ~mask, "weights": 0o666 & ~mask}


def test_a_folder_is_removed_whole_or_the_reason_is_given(tmp_path, monkeypatch):
    """One that is not there is no error; what may not be removed is."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    (tmp_path / ".old.old").mkdir()  # left by a kill
    remove_folder(tmp_path / "old")
    remove_folder(tmp_path / "old")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr("ropewalk.atomic_io.shutil.rmtree", refuse)
    with pytest.raises(RopeError, match="a folder cannot be removed"):
        remove_folder(tmp_path / "kept")


def refuse(folder, ignore_errors=False):
    """What `shutil.rmtree` does where nothing may be removed."""
    if not ignore_errors:
        raise PermissionError(13, "Permission denied", str(folder))


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
