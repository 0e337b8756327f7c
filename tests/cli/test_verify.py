"""`ropewalk verify`: its output, its files and its exit status."""

from __future__ import annotations

import json
import shutil

import pytest

from ropewalk.checkpoints.load import save
from ropewalk.cli.app import main
from ropewalk.verification.engine import OurEngine
from tests.verification.conftest import small  # noqa: F401
from tests.verification.fake_server import serving


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*arguments):
    """Run the command; the exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["verify", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_a_server_is_verified(small, tmp_path, capsys, monkeypatch):  # noqa: F811
    """Table, record and figure; status 0, and 1 where something else was expected."""
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("COLUMNS", "120")
    save(small, tmp_path / "small")
    record, drawn = tmp_path / "verify.json", tmp_path / "misfits.svg"
    with serving(OurEngine(small)) as url:
        status = run(tmp_path / "small", "--engine", url, "--json", record, "--figure", drawn)
        printed = capsys.readouterr().out
        assert status == 0
        assert run(tmp_path / "small", "--engine", url, "--expect", "yarn:4") == 1
    assert "Applies no scaling instead of yarn (factor 4" in " ".join(capsys.readouterr().out.split())
    found = json.loads(record.read_text())
    assert found["verdict"]["exit_status"] == 0
    assert found["verdict"]["sentence"] in " ".join(printed.split())
    assert f"{found['requests']} requests" in printed
    rows = [line.split()[:2] for line in printed.splitlines() if line.strip().startswith("as expected")]
    assert rows
    assert "as expected" in drawn.read_text()
    assert "misfit (nats)" in drawn.read_text()


def test_predictions_are_kept_in_the_cache(small, tmp_path, cache, capsys):  # noqa: F811
    """By default in the user's; where there can be none, the check runs without."""
    save(small, tmp_path / "small")
    with serving(OurEngine(small)) as url:
        assert run(tmp_path / "small", "--engine", url) == 0
        kept = list(cache.glob("ropewalk/verify/*/results/*.jsonl"))
        assert len(kept) == 1
        assert run(tmp_path / "small", "--engine", url, "--state", tmp_path / "here") == 0
        assert len(list(tmp_path.glob("here/*/results/*.jsonl"))) == 1
        shutil.rmtree(cache)
        cache.write_text("no folder")
        assert run(tmp_path / "small", "--engine", url) == 0


def test_bad_input_is_a_message(tmp_path, capsys):
    """Status 2: an engine that is none, a figure of another kind, a server that is not there."""
    assert run("tiny", "--engine", "onnx") == 2
    assert "unknown engine" in capsys.readouterr().err
    assert run("tiny", "--engine", "http://127.0.0.1:9", "--figure", tmp_path / "x.pdf") == 2
    assert "an .svg or a .png" in capsys.readouterr().err
    assert run("tiny", "--engine", "http://127.0.0.1:9") == 2
    assert "cannot be reached" in capsys.readouterr().err
