"""Judge the real `vllm serve` on the CPU with `ropewalk verify`, for right servers and wrong ones of SmolLM2-135M.

python benchmarks/engines/servers.py FOLDER    # of the checkpoint, with weights and tokenizer; resumes

The record is benchmarks/results/verify-servers-vllm.json; that of llama.cpp's servers, verify-servers.json, is made by
scripts/confusion_of_verify.py. The servers run ropewalk's plug-in, too; its line is in the record.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from engines.plugin import PYTHON, RESULTS, with_plugin  # noqa: E402
from records import environment, verified  # noqa: E402

from ropewalk.atomic_io import write_json  # noqa: E402
from ropewalk.serving import apply, serve_config  # noqa: E402

RECORD = RESULTS / "verify-servers-vllm.json"
STATE = ROOT / "benchmarks" / "state" / "verify-servers-vllm"  # our predictions, saved from one server to the next
TRAINED = 8192  # tokens
YARN = {"rope_type": "yarn", "rope_theta": 100_000.0, "factor": 2.0, "original_max_position_embeddings": TRAINED}
WRONG = {
    "yarn 4": {**YARN, "factor": 4.0},
    "yarn 2 from half the original length": {**YARN, "original_max_position_embeddings": TRAINED // 2},
    "theta times 0.5": {"rope_type": "default", "rope_theta": 50_000.0},
}
COMMAND, FOLDER = "yarn 2, by serve-config's command", "yarn 2, the folder of extend apply"
CHECKS = {
    "yarn 4": [("yarn:2", "other")], "yarn 2 from half the original length": [("yarn:2", "other")],
    "theta times 0.5": [("plain", "other")], "plain": [("yarn:2", "other"), ("plain", "as expected")],
    COMMAND: [("yarn:2", "as expected")], FOLDER: [("yarn:2", "as expected")],
}  # fmt: skip
"""For each server what is expected, and the right kind of verdict."""


def words_of(title: str, folder: Path, place: Path) -> list[str]:
    """Return what follows `vllm serve`."""
    if title == COMMAND:
        (step,) = serve_config(folder, "vllm", method="yarn", factor=2).steps
        return shlex.split(step)[2:]
    if title == FOLDER:
        apply(folder, place / "extended", method="yarn", target=2 * TRAINED)
        return [str(place / "extended"), "--max-model-len", str(2 * TRAINED)]
    block = ["--hf-overrides", json.dumps({"rope_parameters": WRONG[title]})] if title in WRONG else []
    return [str(folder), "--max-model-len", str(TRAINED), *block]


@contextlib.contextmanager
def server(words: list[str], place: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start vLLM on a free port, and yield its address and process when it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "vllm.entrypoints.cli.main", "serve", *words, "--dtype", "float32", "--enforce-eager"]
    with (place / "log").open("w") as log:  # the folder is empty: from a checkout, vLLM would import what lies there
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], cwd=place, env=with_plugin(place / "plug-in"),
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"vLLM ended: {(place / 'log').read_text()[-2000:]}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
            time.sleep(1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def cpu_seconds(session: int) -> float:
    """Return the processor time of this process's ended children and of the processes of a session."""
    ended, ticks = resource.getrusage(resource.RUSAGE_CHILDREN), 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13])) if fields[3] == str(session) else 0
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Start each server that the record lacks, and check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    if not PYTHON.is_file():
        print("SKIPPED vllm: no environment; run make engines ENGINES=vllm")
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {"servers": []}
    for title, every in CHECKS.items():
        checks = [
            one for one in every if (title, one[0]) not in {(r["applied"], r["expect"]) for r in record["servers"]}
        ]
        if not checks:
            continue
        with tempfile.TemporaryDirectory() as name:
            place, begun = Path(name), time.monotonic()
            with server(words_of(title, folder, place), place) as (url, process):
                started = round(time.monotonic() - begun, 1)
                with urllib.request.urlopen(f"{url}/version") as answer:
                    number = json.load(answer)["version"]
                about = {"weights": "float32", "applied": title, "start_seconds": started,
                         "plugin": re.findall(r"ropewalk: (.*)", (place / "log").read_text())}  # fmt: skip
                spent = partial(cpu_seconds, process.pid)
                for expect, right in checks:
                    row = {**about, "expect": expect, "right": right, **verified(folder, url, expect, STATE, spent)}
                    rows = [*record["servers"], row]
                    record = {**environment(), "vllm": number, "model": "SmolLM2-135M-Instruct", "servers": rows}
                    write_json(RECORD, record)


if __name__ == "__main__":
    main()
