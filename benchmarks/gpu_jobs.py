"""What `gpu.py` checks and times: the tests, rotation over a copy of the same bytes, decoding, and the doctor.

With Triton's interpreter the model is `tiny`, and lengths and shapes are small. The groups of rotation are those of
`rotation.py` on a GPU; bfloat16 and 8,192 tokens come first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import decode
import rotation
import torch
from peers import Skip
from records import CHECKOUT, Record
from rotation import Preset
from timing import CudaClock, cpu_clock

GRACE = 20.0  # seconds between asking a process to end and ending it
WORKERS = 6  # processes of pytest on a GPU: the kernels of each test are compiled on the processor
GROUP_SECONDS, DECODE_SECONDS = 3.0, 6.0  # of a group of rotations, of a case of decoding
ORDER = ("sweep", "norm and rotation", "one decoded token", "one token, no kernels")
PRESET = Preset("gpu", tokens=8192, sweep=(8192, 131_072, 1024, 64, 16_384, 65_536, 256, 4096))
TINY = Preset("interpreter", tokens=8, sweep=(8,), heads=2, kv_heads=1, head_dim=16, judged=False)
OUTCOME = r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)"
OUTCOMES = (re.compile(rf"^(?P<name>tests/.+?) (?P<outcome>{OUTCOME})\b"),  # of one process, and of several
            re.compile(rf"^\[gw\d+\].* (?P<outcome>{OUTCOME}) (?P<name>tests/.+?)\s*$"))  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A GPU; or, with `interpreter`, this processor with Triton's interpreter and tiny sizes.

    `model`: a GGUF file or a folder of SmolLM2 for the steps from `decode` on; None if there is none.
    `texts`: a folder of long texts, or None for those in the package. `work`: for files that a step needs meanwhile.
    """

    device: str
    interpreter: bool
    work: Path
    model: str | None = None
    texts: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the device, which tells records of different machines apart."""
        return "interpreter" if self.interpreter else torch.cuda.get_device_name(self.device)

    @property
    def tensors(self) -> str:
        """Return the device of tensors."""
        return "cpu" if self.interpreter else self.device

    def model_name(self) -> str:
        """Return the model; raise `Skip` if there is none."""
        if not self.interpreter and self.model is None:
            raise Skip("no model: pass --model with SmolLM2's GGUF file")
        return "tiny" if self.interpreter or self.model is None else self.model


@dataclass(frozen=True)
class Job:
    """One measurement. `run` takes the seconds that it may use, and returns what its record contains.

    `least`: seconds without which it is not worth starting.
    """

    key: str
    run: Callable[[float], Record]
    least: float = 5.0


class Stopped(Exception):
    """A job ran out of time; the same command resumes it if its files are still there."""


def ended(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Return the status of a process; ask it to end when the time is up, and raise `Stopped`."""
    try:
        return process.wait(timeout=max(seconds, 1.0))
    except BaseException as error:
        process.terminate()
        try:
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Stopped(f"stopped after {seconds:.0f} seconds") from None
        raise


def started(command: Sequence[str], place: Place, seconds: float, log: Path) -> str:
    """Run a process of this checkout without network, its output in `log`, and return the output.

    For the interpreter the compiled extension is hidden, so that Triton's kernels serve the processor's tensors.
    Raises `Stopped` when the time is up, RuntimeError with the end of its output if it fails.
    """
    paths = [entry for entry in sys.path if entry.startswith(str(CHECKOUT)) and "site-packages" not in entry]
    more = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    if place.interpreter:
        hidden = place.work / "without_kernels"
        hidden.mkdir(parents=True, exist_ok=True)
        (hidden / "sitecustomize.py").write_text('import sys\n\nsys.modules["ropewalk._kernels"] = None\n')
        paths = [str(hidden.resolve()), *paths]
        more |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    more["PYTHONPATH"] = os.pathsep.join(paths)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        status = ended(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=CHECKOUT,
                                        env={**os.environ, **more}), seconds)  # fmt: skip
    said = log.read_text(encoding="utf-8", errors="replace")
    if status:
        raise RuntimeError(f"exit status {status}: {said[-1500:]}")
    return said


# -- tests ------------------------------------------------------------------------------------------------------------


def tests(place: Place) -> list[Job]:
    """Return the tests of the GPU, then those of every backend on it; interpreted: a few of both."""
    backends = ["tests/rotation/backends", "-k", "cuda or triton", "-m", "not slow"]
    if place.interpreter:
        backends = ["tests/rotation/backends/test_flex.py::test_when_it_is_chosen"]
    return [Job(one[0], partial(run_tests, place, one)) for one in (["tests/gpu"], backends)]


def run_tests(place: Place, selection: list[str], seconds: float) -> Record:
    """Run pytest and count outcomes; what has run counts, also if the time is up."""
    log = place.work / f"pytest-{selection[0].rpartition('/')[2].partition('::')[0]}.log"
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", *selection]
    if not place.interpreter and find_spec("xdist"):
        command += ["-n", str(WORKERS)]
    record: Record = {"status": "done"}
    try:
        started(command, place, seconds, log)
    except (Stopped, RuntimeError) as error:
        record = {"status": "stopped" if isinstance(error, Stopped) else "failed", "reason": str(error)}
    said = log.read_text(encoding="utf-8", errors="replace")
    found = outcomes(said)
    bad = sorted(name for name, outcome in found.items() if outcome in ("failed", "error", "xpass"))
    if bad:
        begin = max(said.find("= FAILURES ="), 0)
        record = {"status": "wrong", "reason": f"{len(bad)} tests fail", "log": said[begin:][:20_000]}
    ended = said.strip().rpartition("\n")[2].strip("= ")
    return {"kind": "tests", "selection": selection, "outcomes": Counter(found.values()), "bad": bad, "ended": ended,
            **record}  # fmt: skip


def outcomes(said: str) -> dict[str, str]:
    """Return the outcome of each test in pytest's verbose output, of one process or of several.

    >>> outcomes("tests/a.py::b PASSED [ 50%]\\n[gw0] [100%] FAILED tests/a.py::c[x y]")
    {'tests/a.py::b': 'passed', 'tests/a.py::c[x y]': 'failed'}
    """
    matches = (form.match(line) for line in said.splitlines() for form in OUTCOMES)
    return {match["name"]: match["outcome"].lower() for match in matches if match}


# -- rotation ---------------------------------------------------------------------------------------------------------


def rotations(place: Place) -> list[Job]:
    """Return one job for each group, in order of value."""
    preset = TINY if place.interpreter else PRESET
    every = rotation.groups_of(preset, device="cuda")

    def rank(group: rotation.Group) -> tuple[bool, bool, int]:
        first = group.case.seq in (preset.tokens, 1)
        return (group.case.dtype != torch.bfloat16, not first, ORDER.index(group.kind))

    return [Job(f"{group.kind}, {group.case.name}", partial(rotate, place, group)) for group in sorted(every, key=rank)]


def rotate(place: Place, group: rotation.Group, seconds: float) -> Record:
    """Check and time a group, at most for `GROUP_SECONDS`."""
    builds = dict(group.builds)
    if "floors" not in builds and group.kind != "one decoded token":
        builds = {"floors": rotation.floors, **builds}
    if place.interpreter and "torch.compile" in builds:
        builds["torch.compile"] = _not_compiled
    limit = 0.0 if place.interpreter else min(GROUP_SECONDS, seconds)
    return rotation.measure(replace(group, builds=builds), device=place.tensors, seconds=limit)


def _not_compiled(work: object) -> rotation.Contender:
    """Skip the compiler, which takes half a minute for each group."""
    raise Skip("not compiled in a small run")


# -- models -----------------------------------------------------------------------------------------------------------


def decoding(place: Place) -> list[Job]:
    """Return a job for each length and dtype."""
    cases = ((16, "float32"),) if place.interpreter else ((4096, "bfloat16"), (4096, "float32"), (32_768, "bfloat16"))
    return [Job(f"decode, {tokens} tokens, {kind}", partial(decode_one, place, tokens, kind)) for tokens, kind in cases]


def decode_one(place: Place, tokens: int, kind: str, seconds: float) -> Record:
    """Time one token behind a cache, ours and transformers'."""
    model = place.model_name()
    folder = place.work / "decode" / Path(model).stem
    if not (folder / "ids.pt").is_file():
        torch.save(decode.prepare(model, 1 << 16, folder), folder / "ids.pt")
    ids, limit = torch.load(folder / "ids.pt"), 0.0 if place.interpreter else min(DECODE_SECONDS, seconds)
    clock = cpu_clock if place.interpreter else CudaClock(place.device)
    with torch.inference_mode():
        (found,) = decode.measure(Path(model).name, folder, ids[:, : tokens + 1], [kind], seconds=limit,
                                  clock=clock, device=place.tensors)  # fmt: skip
    return found


def doctor(place: Place) -> list[Job]:
    """Return the doctor on SmolLM2 with every method, at 32,768 and at 131,072 tokens."""
    if place.interpreter:
        return [Job("doctor at 512", partial(diagnose, place, 512, "yarn", 1), least=0.0)]
    return [Job(f"doctor at {target}", partial(diagnose, place, target, "all", windows), least=45.0)
            for target, windows in ((32_768, 64), (131_072, 8))]  # fmt: skip


def diagnose(place: Place, target: int, methods: str, windows: int, seconds: float) -> Record:
    """Run the doctor and keep its whole result."""
    out = place.work / f"doctor-{target}.json"
    out.unlink(missing_ok=True)
    options = {"target": target, "methods": methods, "windows": windows, "device": place.tensors, "json": out,
               "minutes": f"{max(seconds - 25.0, 20.0) / 60:.2f}", "state": place.work / f"doctor-{target}",
               **({} if place.interpreter else {"dtype": "bfloat16"}),
               **({} if place.texts is None else {"text": place.texts})}  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "ropewalk", "doctor", place.model_name(), *words, "--resume"]
    started(command, place, seconds, place.work / f"doctor-{target}.log")
    result = json.loads(out.read_text(encoding="utf-8"))
    return {"kind": "doctor", "target": target, "model": Path(place.model_name()).name, "result": result}
