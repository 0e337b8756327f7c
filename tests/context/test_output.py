"""What is written where: whole files, devices written into, and nobody's file overwritten."""

from __future__ import annotations

import os

import pytest

from ropewalk.context.output import check_writable, write_whole
from ropewalk.context.state import State
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
        with pytest.raises(RopeError, match="a folder where the file should be"):
            check_writable(path)


def test_a_state_never_overwrites_another_file(tmp_path):
    """Only an empty file or a state is begun anew."""
    text = tmp_path / "novel.txt"
    text.write_text("Call me Ishmael.")
    with pytest.raises(RopeError, match="holds something else"):
        State(text, "f").begin()
    (tmp_path / "empty").touch()
    assert State(tmp_path / "empty", "f").begin() == 0
    (tmp_path / "state.json").write_text('{"fingerprint": "old", "results": []}')
    assert State(tmp_path / "state.json", "new").begin() == 0
