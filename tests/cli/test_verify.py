"""Test the output, the files and the exit status of `ropewalk verify`."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from functools import partial

import pytest

from ropewalk.checkpoints.load import save
from ropewalk.cli.verify import _cache
from tests.checkpoints.prefixes import OurEngine
from tests.cli.doctor_runs import run_command
from tests.verification.conftest import small  # noqa: F401
from tests.verification.fake_server import serving

LISTED = {"data": [{"id": "m"}]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


run = partial(run_command, "verify")


def test_a_server_is_verified(small, tmp_path, capsys, monkeypatch):  # noqa: F811
    """Print a table, write a record, save predictions; status 1 if the server is not as expected."""
    monkeypatch.setenv("COLUMNS", "120")
    save(small, tmp_path / "small")
    record, state = tmp_path / "verify.json", tmp_path / "here"
    with serving(OurEngine(small)) as url:
        assert run(tmp_path / "small", "--engine", url, "--expect", "yarn:4", "--state", state, "--json", record) == 1
    printed = capsys.readouterr().out
    assert len(list(state.glob("*/results/*.jsonl"))) == 1
    assert "Applies no scaling instead of yarn (factor 4" in " ".join(printed.split())
    found = json.loads(record.read_text())
    assert found["verdict"]["exit_status"] == 1
    assert found["verdict"]["sentence"] in " ".join(printed.split())
    assert f"{found['requests']} requests" in printed


def test_without_a_cache(cache):
    """Predictions are not saved if the user's cache is not writable."""
    assert _cache() == cache / "ropewalk/verify"
    shutil.rmtree(cache)
    cache.write_text("no folder")
    assert _cache() is None


def test_a_server_of_chat_is_refused(small, tmp_path, capsys):  # noqa: F811
    """A server of chat only."""
    save(small, tmp_path / "small")
    with serving(None, lambda path, body, headers: (404, "no such path") if "compl" in path else (200, LISTED)) as url:
        assert run(tmp_path / "small", "--engine", url) == 5
    assert "Use a server with /v1/completions" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "status"), [(None, 4), (401, 5), (503, 6)])
def test_a_run_without_a_verdict(answer, status, small, tmp_path, capsys):  # noqa: F811
    """A server that is not reached, refuses or is loading: a status each, and no earlier record is left."""
    save(small, tmp_path / "small")
    record = tmp_path / "verify.json"
    record.write_text('{"generator": "ropewalk", "verdict": {"sentence": "As expected"}}')
    with serving(None, lambda path, body, headers: (answer, "no")) as url:
        address = url if answer else "http://127.0.0.1:9"
        assert run(tmp_path / "small", "--engine", address, "--wait", "0", "--json", record) == status
    verdict = json.loads(record.read_text())["verdict"]
    assert (verdict["kind"], verdict["exit_status"]) == ("failed", status)
    assert verdict["sentence"].startswith("No verdict: verify: the server ")
    assert "\n" not in verdict["sentence"]
    assert "verify: the server " in capsys.readouterr().err


def test_a_golden_file_is_written_and_used(small, tmp_path, capsys, monkeypatch):  # noqa: F811
    """Write once; check a right and a wrong server without the model; a narrow terminal gets fewer columns."""
    save(small, tmp_path / "small")
    golden, record = tmp_path / "golden.json", tmp_path / "verify.json"
    assert run(tmp_path / "small", "--write", golden, "--up-to", "128") == 0
    assert "hypotheses" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "small")
    with serving(OurEngine(small)) as url:
        assert run("--golden", golden, "--engine", url, "--json", record) == 0
    found = json.loads(record.read_text())["verdict"]
    assert (found["kind"], found["decoding"]) == ("as expected", True)
    wrong = OurEngine(small.with_positions(rope=dataclasses.replace(small.config.ropes[0], theta=1e5)))
    tables = {}
    with serving(wrong) as url:
        for columns in (120, 50):
            monkeypatch.setenv("COLUMNS", str(columns))
            capsys.readouterr()
            assert run("--golden", golden, "--engine", url) == 1
            tables[columns] = capsys.readouterr().out
            assert "Applies theta 100000 instead of plain RoPE" in " ".join(tables[columns].split())
            assert max(map(len, tables[columns].splitlines())) <= columns
            assert tables[columns].count("hypothesis  ") == 1
    assert "prompts" in tables[120]
    assert tables[50].count("±") == tables[120].count("±") > 5  # every hypothesis is there, with its lean


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "pass an engine to check"),
        (["tiny"], "pass an engine to check"),
        (["--engine", "http://localhost:1"], "pass a model, or a file"),
        (["tiny", "--write", "g.json", "--engine", "http://localhost:1"], "--write needs a model"),
        (["--write", "g.json"], "--write needs a model"),
        *((["--golden", name, "--engine", "http://localhost:1"], "`ropewalk verify MODEL --write FILE` has written.")
          for name in ("missing.json", ".")),
        (["tiny", "--write", "."], "the path of the file is a folder"),
        (["tiny", "--engine", "http://127.0.0.1:9", "--json", "."], "the path of the file is a folder"),
        (["tiny", "--engine", "onyx"], "unknown engine"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(words, message, tmp_path, monkeypatch, capsys):
    """Status 2 and a cure."""
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.thorough
def test_the_next_command_decides(small, tmp_path, capsys):  # noqa: F811
    """Prompts of 300 tokens cannot show positions after 512; the printed command sends longer ones."""
    save(small, tmp_path / "small")
    with serving(OurEngine(small)) as url:
        words = (tmp_path / "small", "--engine", url, "--up-to", "530")
        assert run(*words, "--max-tokens", "300") == 3
        printed = capsys.readouterr().out.splitlines()
        (following,) = [line for line in printed if line.startswith("Next: ")]
        command = shlex.split(following)
        assert command[1:3] == ["ropewalk", "verify"]
        assert run(*command[3:]) == 0
    assert "Next: " not in capsys.readouterr().out
