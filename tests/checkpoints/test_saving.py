"""Saving is whole or not at all: failures, kills, the mode of files, and folders that hold something else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.checkpoints.load import load, save
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from tests.checkpoints.material import logits, make


def test_a_save_that_fails_leaves_the_old_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or not at all: a disk that fills up half-way changes nothing and leaves nothing behind."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(path: Path, *_: Any, **__: Any) -> None:
        if path.name == "tokenizer.json":
            raise OSError(28, "No space left on device")
        path.write_text("{}")

    monkeypatch.setattr("ropewalk.checkpoints.tokenizer.write_json", full)
    with pytest.raises(RopeError, match="No space left"):
        save(make(vocab_size=257), folder, tokenizer=TextTokenizer.bytes())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_kill_at_any_moment_leaves_a_whole_model(folder: Path) -> None:
    """A process that saves over a folder again and again, killed, leaves a checkpoint that loads."""
    program = (
        "import sys, torch\nfrom ropewalk.checkpoints.load import load, save\n"
        "model = load(sys.argv[1])\nprint('go', flush=True)\n"
        "while True:\n    model.norm.weight.data.add_(1)\n    save(model, sys.argv[1])\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random().uniform(0.05, 0.3))  # unseeded: another moment in every run
        process.kill()
    weights = load(folder).norm.weight
    assert (weights == weights[0]).all()


def test_others_may_read_what_is_saved(folder: Path) -> None:
    """Every file has the mode that the user's umask gives, also the weights, which safetensors writes as 0600."""
    mask = os.umask(0o022)
    try:
        save(load(folder), folder.with_name("copy"))
    finally:
        os.umask(mask)
    modes = {path.stat().st_mode & 0o777 for path in folder.with_name("copy").iterdir()}
    assert modes == {0o644}


def test_foreign_files_are_not_lost(folder: Path) -> None:
    """A folder that holds anything but a checkpoint is not replaced; without renameat2 the swap works as well."""
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(RopeError, match=r"(?s)would delete them.*thesis\.tex"):
        save(make(), folder)
    assert (folder / "thesis.tex").read_text() == "years of work"
    with pytest.raises(RopeError, match="the path of the folder is a file"):
        save(make(), folder / "thesis.tex")


def test_replacing_without_the_kernel_s_exchange(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system cannot swap two names in one step, two renames do it."""
    monkeypatch.setattr("ropewalk.atomic_io.ctypes.CDLL", lambda _: object())
    model = make(num_hidden_layers=1)
    save(model, folder)
    assert torch.equal(logits(load(folder)), logits(model))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
