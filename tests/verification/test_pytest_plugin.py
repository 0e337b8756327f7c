"""The pytest plug-in in a process of its own: a right engine passes, a wrong one fails with the verdict."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.verification.engine import OurEngine
from ropewalk.verification.golden import write_golden
from tests.verification.fake_server import serving

EXAMPLE = Path(__file__).parents[2] / "examples/verify"
PLUGIN = "ropewalk.verification.pytest_plugin"


@pytest.fixture(scope="module")
def golden(small, tmp_path_factory):
    """Predictions of the small model, which all tests share."""
    path = tmp_path_factory.mktemp("golden") / "golden.json"
    write_golden(small, path, up_to=128)
    return path


@pytest.mark.parametrize(
    ("theta", "outcome"), [(1e4, "1 passed"), (1e5, "Applies theta 100000 instead"), (None, "1 skipped")]
)
def test_the_fixture(small, golden, tmp_path, theta, outcome):
    """As examples/verify/test_engine.py uses it."""
    rope = dataclasses.replace(small.config.ropes[0], theta=theta or 1e4)
    with serving(OurEngine(small.with_positions(rope=rope))) as url:
        options = [] if theta is None else ["--golden", golden, "--engine", url]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, "-c", os.devnull]
        command += [*map(str, options), str(EXAMPLE / "test_engine.py")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120)
    assert outcome in done.stdout, done.stdout + done.stderr
    assert (done.returncode == 0) == (theta != 1e5)
