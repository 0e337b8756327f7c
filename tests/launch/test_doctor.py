"""The doctor on several processes: every number is the single process's, whoever dies and whoever sees which folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.builtin.texts import read_text
from ropewalk.diagnosis import Protocol
from tests.launch.ranks import free_port, run_all, start

SETTINGS = {
    "trained_length": 128,
    "target": 192,
    "methods": ["yarn", "rerope"],
    "measure": ["loss", "copies"],
}

CODE = """
import json, os, signal, sys
import ropewalk as rw
from ropewalk.measure import losses as run
from ropewalk import processes
from ropewalk.diagnosis import Protocol
settings, state = json.loads(sys.argv[1]), sys.argv[2].replace("RANK", os.environ["RANK"])
processes.LEAVE_SECONDS = float(os.environ.get("LEAVES", 200))
if os.environ.get("DIES") == os.environ["RANK"]:
    run.check_finite = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with rw.processes.joined():
    protocol = Protocol(windows=2)
    text = [("whale", open(sys.argv[3]).read())]
    found = rw.doctor("tiny", text=text, state=state, progress=False, protocol=protocol, **settings)
json.dump(found.to_json(), sys.stdout)
"""


def numbers(document: Any) -> Any:
    """A document without what differs from run to run: times, memory, the machine, and what names times or folders."""
    if isinstance(document, dict):
        left_out = {"environment", "sentence", "reason"}
        return {
            name: numbers(value)
            for name, value in document.items()
            if name not in left_out and "seconds" not in name and "rss" not in name
        }
    if isinstance(document, str):
        return re.sub(r", which takes about [^,.]* here| --state \S+", "", document)
    return [numbers(value) for value in document] if isinstance(document, list) else document


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a text for two windows."""
    path = tmp_path_factory.mktemp("text") / "whale.txt"
    path.write_text(read_text(None)[1][40_000:46_000])
    return path


@pytest.fixture(scope="module")
def alone(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process finds."""
    state = tmp_path_factory.mktemp("state") / "alone"
    words = [("whale", text.read_text())]
    found = rw.doctor("tiny", text=words, state=state, progress=False, protocol=Protocol(windows=2), **SETTINGS)
    return numbers(json.loads(json.dumps(found.to_json())))


def test_a_rank_that_is_killed_loses_one_job(text, alone, tmp_path):
    """Rank 1 gets SIGKILL in its first job, whose lease it holds: rank 0 does that job and all the others."""
    port, arguments = free_port(), (json.dumps(SETTINGS), str(tmp_path / "state"), str(text))
    ranks = [start(CODE, rank, 2, port, tmp_path, *arguments, DIES="1", LEAVES="0.2") for rank in range(2)]
    ranks[1].communicate(timeout=240)  # reaped: a process that nobody has waited for still counts as running
    out, _ = ranks[0].communicate(timeout=240)
    assert [process.returncode for process in ranks] == [0, -signal.SIGKILL]
    assert numbers(json.loads(out)) == alone


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ranks", "folder"),
    [
        (2, "apart-RANK"), pytest.param(4, "shared", marks=pytest.mark.slow),
        pytest.param(2, "shared", marks=pytest.mark.slow), pytest.param(4, "apart-RANK", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_numbers_of_one_process(text, alone, tmp_path, ranks, folder):
    """Each rank of 2 and 4 has them all, by a common folder and by the store; and each did a part of the work."""
    state = tmp_path / folder
    for out in run_all(CODE, ranks, tmp_path, json.dumps(SETTINGS), str(state), str(text)):
        assert numbers(json.loads(out)) == alone
    first = Path(str(state).replace("RANK", "0"))
    kept = [len(path.read_text().splitlines()) for path in (first / "losses" / "results").glob("*.jsonl")]
    due = 2 * (len(SETTINGS["methods"]) + 2)  # plain and crop beside them
    assert sum(kept) == due
    if folder == "shared":
        assert len(kept) > 1


@pytest.mark.slow
def test_torchrun_restarts_and_goes_on(text, alone, tmp_path):
    """A rank gets SIGKILL under torchrun, which restarts all of them: what was kept is not measured again."""
    code = CODE.replace('os.environ.get("DIES")', '("1" if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else "")')
    code = code.replace("json.dump(", 'os.environ["RANK"] == "0" and json.dump(').replace(
        "sys.stdout)", "open(sys.argv[4], 'w'))"
    )
    (tmp_path / "code.py").write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    command += [str(tmp_path / "code.py"), json.dumps(SETTINGS), str(tmp_path / "state"), str(text)]
    done = subprocess.run(
        [*command, str(tmp_path / "out.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert numbers(json.loads((tmp_path / "out.json").read_text())) == alone


@pytest.mark.slow
def test_a_machine_that_joins_late(text, tmp_path):
    """A second agent of torchrun comes when results are there: they are kept, and both do the rest."""
    long = tmp_path / "long.txt"
    long.write_text(read_text(None)[1][40_000:240_000])
    state, written = tmp_path / "state", tmp_path / "out.json"
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"]
    agent += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=night"]
    agent += ["--rdzv-conf=last_call_timeout=2", "--monitor-interval=0.5", "-m", "ropewalk", "doctor", "tiny"]
    agent += ["--trained-length=256", "--target=1024", "--windows=8", "--methods=yarn,rerope", "--measure=loss"]
    agent += [f"--text={long}", f"--state={state}", f"--json={written}"]
    given = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def results() -> list[int]:
        return [len(path.read_text().splitlines()) for path in (state / "losses" / "results").glob("*.jsonl")]

    running = [subprocess.Popen(agent, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
    try:
        for _ in range(600):
            if sum(results()) >= 2:
                break
            time.sleep(0.1)
        running.append(subprocess.Popen(agent, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        assert [process.wait(timeout=400) for process in running] == [0, 0]
    finally:
        for process in running:
            process.terminate()
    assert sum(results()) == 32
    assert len(results()) == 3  # the first process alone, then two
    assert written.exists()
