"""Judge servers of SmolLM2-135M with `ropewalk verify` at its defaults: the real `vllm serve` on a CPU, or llama.cpp's.

python benchmarks/engines/servers.py FOLDER            # vLLM: the folder of the checkpoint, with weights and tokenizer
python benchmarks/engines/servers.py FILE.gguf ...     # llama.cpp

Each server is started right and wrong; what the record has is not repeated. The records are verify-servers-vllm.json
and verify-servers.json in benchmarks/results. vLLM runs ropewalk's plug-in, too; its line is in the record.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from engines.plugin import PYTHON, RESULTS, with_plugin
from records import environment

from ropewalk.atomic_io import write_json
from ropewalk.serving import apply, serve_config
from ropewalk.tokenizer import TextTokenizer
from ropewalk.verification.adapters import llama_cpp_server

TRAINED = 8192  # tokens
RIGHT, WRONG = "as expected", "other"
YARN = {"rope_type": "yarn", "rope_theta": 100_000.0, "factor": 2.0, "original_max_position_embeddings": TRAINED}
COMMAND, FOLDER = "yarn 2, by serve-config's command", "yarn 2, the folder of extend apply"
HALF = "yarn 2 from half the original length"
Checks = Mapping[str, tuple[Any, list[tuple[str, str]]]]
VLLM: Checks = {
    "yarn 4": ({**YARN, "factor": 4.0}, [("yarn:2", WRONG)]),
    HALF: ({**YARN, "original_max_position_embeddings": TRAINED // 2}, [("yarn:2", WRONG)]),
    "theta times 0.5": ({"rope_type": "default", "rope_theta": 50_000.0}, [("plain", WRONG)]),
    "plain": (None, [("yarn:2", WRONG), ("plain", RIGHT)]),
    COMMAND: (None, [("yarn:2", RIGHT)]),
    FOLDER: (None, [("yarn:2", RIGHT)]),
}
"""For each server its block of `--hf-overrides`, what is expected, and the right kind of verdict."""
LLAMA_CPP: Checks = {
    "plain": ({}, [("plain", RIGHT)]),
    "yarn 2": ({"rope_scaling_type": 2, "rope_freq_scale": 0.5}, [("yarn:2", RIGHT)]),
    "yarn 4": ({"rope_scaling_type": 2, "rope_freq_scale": 0.25}, [("yarn:4", RIGHT)]),
    "linear 2": ({"rope_scaling_type": 1, "rope_freq_scale": 0.5}, [("pi:2", RIGHT)]),
    HALF: ({"rope_scaling_type": 2, "rope_freq_scale": 0.5, "yarn_orig_ctx": TRAINED // 2}, [("yarn:2", WRONG)]),
    "theta times 0.5": ({"rope_freq_base": 50_000.0}, [("plain", WRONG)]),
}
"""The same with llama.cpp's options."""
Server = tuple[str, dict[str, Any], Callable[[], float]]
"""The address of a server, what is recorded of it, and a function that returns the processor seconds so far."""


def words_of(title: str, block: Any, folder: Path, place: Path) -> list[str]:
    """Return what follows `vllm serve`."""
    if title == COMMAND:
        (step,) = serve_config(folder, "vllm", method="yarn", factor=2).steps
        return shlex.split(step)[2:]
    if title == FOLDER:
        apply(folder, place / "extended", method="yarn", target=2 * TRAINED)
        return [str(place / "extended"), "--max-model-len", str(2 * TRAINED)]
    overrides = ["--hf-overrides", json.dumps({"rope_parameters": block})] if block else []
    return [str(folder), "--max-model-len", str(TRAINED), *overrides]


@contextlib.contextmanager
def vllm(title: str, block: Any, folder: Path) -> Iterator[Server]:
    """Start vLLM on a free port, and yield it when it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, begun = f"http://127.0.0.1:{port}", time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        place, log = Path(name), Path(name, "log")
        command = [PYTHON, "-m", "vllm.entrypoints.cli.main", "serve", *words_of(title, block, folder, place),
                   "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
        with log.open("w") as out:  # the folder is empty: from a checkout, vLLM would import what lies there
            process = subprocess.Popen(command, cwd=place, env=with_plugin(place / "plug-in"), stdout=out,
                                       stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            while True:
                if process.poll() is not None:
                    raise SystemExit(f"vLLM ended: {log.read_text()[-2000:]}")
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
                time.sleep(1)
            started = round(time.monotonic() - begun, 1)
            lines = re.findall(r"ropewalk: (.*)", log.read_text())
            yield url, {"start_seconds": started, "plugin": lines}, partial(cpu_seconds, process.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


@contextlib.contextmanager
def llama_cpp(title: str, options: Any, file: Path) -> Iterator[Server]:
    """Start llama.cpp's server in this process."""
    with llama_cpp_server(file, TextTokenizer.bytes(), threads=1, options=options) as engine:
        yield engine.root, {}, cpu_seconds  # type: ignore[attr-defined]


def cpu_seconds(session: int | None = None) -> float:
    """Return the processor time of this process, its ended children, and the processes of a session."""
    own, ticks = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)], 0
    for file in Path("/proc").glob("[0-9]*/stat") if session else ():
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13])) if fields[3] == str(session) else 0
    return sum(one.ru_utime + one.ru_stime for one in own) + ticks / os.sysconf("SC_CLK_TCK")


def verified(model: Path, url: str, expect: str, state: Path, spent: Callable[[], float]) -> dict[str, Any]:
    """Run `ropewalk verify` against a server, as a user does; return its verdict, and what it and the server cost.

    `state`: the folder of saved predictions. `spent`: returns processor seconds so far.
    """
    result = state / "verify.json"
    state.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "ropewalk", "verify", model, "--engine", url, "--state", state, "--json", result]
    begun, before = time.monotonic(), spent()
    done = subprocess.run([*command, "--expect", expect], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    seconds, cost = time.monotonic() - begun, spent() - before
    content = json.loads(result.read_text())
    verdict = content["verdict"]
    if verdict["kind"] == "failed":
        raise SystemExit(verdict["sentence"])
    return {
        "exit_status": done.returncode, **{key: verdict[key] for key in ("kind", "sentence", "up_to", "decoding")},
        "named": verdict["applied"], "not_excluded": verdict["not_excluded"],
        **{key: content[key] for key in ("noise", "residual", "requests")},
        "seconds": round(seconds, 1), "cpu_seconds": round(cost, 1),
    }  # fmt: skip


def main() -> None:
    """Start each server that the record lacks, and check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    models = [path.resolve() for path in parser.parse_args().models]
    of_vllm = models[0].is_dir()
    if of_vllm and not PYTHON.is_file():
        print("SKIPPED vllm: no environment; run make engines ENGINES=vllm")
        return
    name, start, servers = ("verify-servers-vllm", vllm, VLLM) if of_vllm else ("verify-servers", llama_cpp, LLAMA_CPP)
    path = RESULTS / f"{name}.json"
    state = ROOT / "benchmarks" / "state" / name  # predictions, saved for the next server
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"servers": []}
    for model, (title, (options, every)) in itertools.product(models, servers.items()):
        weights = "float32" if of_vllm else model.stem.rpartition(".")[2]
        done = {(row["weights"], row["applied"], row["expect"]) for row in record["servers"]}
        due = [check for check in every if (weights, title, check[0]) not in done]
        if not due:
            continue
        with start(title, options, model) as (url, about, spent):
            about = {"weights": weights, "applied": title, **about}
            version = {}
            if of_vllm:
                with urllib.request.urlopen(f"{url}/version") as answer:
                    version = {"vllm": json.load(answer)["version"]}
            for expect, right in due:
                row = {**about, "expect": expect, "right": right, **verified(model, url, expect, state, spent)}
                rows = [*record["servers"], row]
                record = {**environment(), **version, "model": "SmolLM2-135M-Instruct", "servers": rows}
                write_json(path, record)


if __name__ == "__main__":
    main()
