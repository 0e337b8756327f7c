"""Jobs of the steps `tests`, `decode` and `doctor`: pytest, and SmolLM2 in our decoder.

With `interpreter` the model is `tiny` and the lengths are short.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import decode
import torch
from gpu_jobs import Job, Place, Stopped, started
from peers import Skip
from records import Record
from torch import Tensor

SECONDS = 6.0  # of a case of decoding
PLAIN_OUTCOME = re.compile(r"^(tests/.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
WORKERS = 6  # processes of pytest on a GPU: the kernels of each test are compiled on the processor


# -- tests ------------------------------------------------------------------------------------------------------------


def tests(place: Place) -> list[Job]:
    """Return the tests of the GPU, then those of every backend on it; interpreted: a few of both."""
    if place.interpreter:
        few = ["tests/rotation/backends/test_flex.py::test_when_it_is_chosen"]
        return [Job("tests/gpu", pytest_runner(place, ["tests/gpu"])), Job("a few", pytest_runner(place, few))]
    backends = ["tests/rotation/backends", "-k", "cuda or triton", "-m", "not slow"]
    return [
        Job("tests/gpu", pytest_runner(place, ["tests/gpu"])),
        Job("tests/rotation/backends", pytest_runner(place, backends)),
    ]


def pytest_runner(place: Place, selection: list[str]) -> Callable[[float], Record]:
    """Return a function that runs pytest and counts outcomes; what has run counts, also if the time is up."""

    def run(seconds: float) -> Record:
        log = place.work / f"pytest-{selection[0].rpartition('/')[2].partition('::')[0]}.log"
        command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", *selection]
        if not place.interpreter and _importable("xdist"):
            command += ["-n", str(WORKERS)]
        reason = ""
        try:
            said = started(command, place, seconds, log)
        except Stopped as error:
            said, reason = log.read_text(encoding="utf-8", errors="replace"), str(error)
        except RuntimeError as error:
            said, reason = log.read_text(encoding="utf-8", errors="replace"), str(error)
        found = outcomes(said)
        bad = sorted(name for name, outcome in found.items() if outcome in ("FAILED", "ERROR", "XPASS"))
        ended = said.strip().rpartition("\n")[2].strip("= ")
        record: Record = {"kind": "tests", "selection": selection, "outcomes": dict(Counter(found.values())),
                          "bad": bad, "ended": ended}  # fmt: skip
        if bad:
            return {**record, "status": "wrong", "reason": f"{len(bad)} tests fail", "log": failures(said)}
        if reason:
            return {**record, "status": "stopped" if "stopped after" in reason else "failed", "reason": reason}
        return record

    return run


def outcomes(said: str) -> dict[str, str]:
    """Return the outcome of each test in pytest's verbose output, of one process or of several.

    >>> outcomes("tests/a.py::b PASSED [ 50%]\\n[gw0] [100%] FAILED tests/a.py::c[x y]")
    {'tests/a.py::b': 'PASSED', 'tests/a.py::c[x y]': 'FAILED'}
    """
    found: dict[str, str] = {}
    for line in said.splitlines():
        plain = PLAIN_OUTCOME.match(line)
        if plain:
            found[plain[1]] = plain[2]
        elif line.startswith("[gw"):
            outcome = re.search(r"\b(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (tests/.+?)\s*$", line)
            if outcome:
                found[outcome[2]] = outcome[1]
    return found


def failures(said: str) -> str:
    """Return pytest's reports of failures, at most 20,000 characters."""
    begin = said.find("= FAILURES =")
    return said[max(begin, 0) :][:20_000] if begin >= 0 else said[-5000:]


def _importable(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


# -- decoding ---------------------------------------------------------------------------------------------------------


def decoding(place: Place) -> list[Job]:
    """Return a job for each length and dtype."""
    if place.interpreter:
        return [Job("decode, 16 tokens, float32", decode_runner(place, 16, "float32"))]
    return [Job(f"decode, {tokens} tokens, {kind}", decode_runner(place, tokens, kind))
             for tokens, kind in ((4096, "bfloat16"), (4096, "float32"), (32_768, "bfloat16"))]  # fmt: skip


def prepared(place: Place, tokens: int) -> tuple[Path, Tensor, str]:
    """Return the model's folder in transformers' form, `[1, tokens + 1]` ids and the model's name."""
    model = model_of(place)
    folder = place.work / "decode" / Path(model).stem
    if not (folder / "ids.pt").is_file():
        ids = decode.prepare(model, 1 << 16, folder)
        torch.save(ids, folder / "ids.pt")
    return folder, torch.load(folder / "ids.pt")[:, : tokens + 1], Path(model).name


def model_of(place: Place) -> str:
    """Return the model; raise `Skip` if there is none."""
    if place.interpreter:
        return "tiny"
    if place.model is None:
        raise Skip("no model: pass --model with SmolLM2's GGUF file, or a folder of its parts")
    return place.model


def decode_runner(place: Place, tokens: int, kind: str) -> Callable[[float], Record]:
    """Return a function that times one token behind a cache, ours and transformers'."""

    def run(seconds: float) -> Record:
        folder, ids, name = prepared(place, tokens)
        limit = 0.0 if place.interpreter else min(SECONDS, seconds)
        with torch.inference_mode():
            (found,) = decode.measure(name, folder, ids, [kind], seconds=limit, clock=place.clock(),
                                      device="cpu" if place.interpreter else place.device)  # fmt: skip
        return found

    return run


def doctor(place: Place) -> list[Job]:
    """Return the doctor on SmolLM2 with every method, at 32,768 and at 131,072 tokens."""
    if place.interpreter:
        options = ["--methods", "yarn", "--windows", "1"]
        return [Job("doctor at 512", doctor_runner(place, 512, options), least=0.0)]
    many = {32_768: "64", 131_072: "8"}
    return [Job(f"doctor at {target}", doctor_runner(place, target, ["--methods", "all", "--windows", windows]), 45.0)
            for target, windows in many.items()]  # fmt: skip


def doctor_runner(place: Place, target: int, options: list[str]) -> Callable[[float], Record]:
    """Return a function that runs the doctor and keeps its whole result."""

    def run(seconds: float) -> Record:
        out = place.work / f"doctor-{target}.json"
        out.unlink(missing_ok=True)
        machine = ["--device", "cpu"] if place.interpreter else ["--device", place.device, "--dtype", "bfloat16"]
        texts = [] if place.texts is None else ["--text", str(place.texts)]
        minutes = max(seconds - 25.0, 20.0) / 60
        command = [sys.executable, "-m", "ropewalk", "doctor", model_of(place), "--target", str(target), *options,
                   *machine, *texts, "--minutes", f"{minutes:.2f}", "--state",
                   str(place.work / f"doctor-{target}"), "--resume", "--json", str(out)]  # fmt: skip
        started(command, place, seconds, place.work / f"doctor-{target}.log")
        result = json.loads(out.read_text(encoding="utf-8"))
        return {"kind": "doctor", "target": target, "model": Path(model_of(place)).name, "result": result}

    return run
