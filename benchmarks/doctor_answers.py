"""The doctor's answers about SmolLM2-135M on texts that are not in the repository, with their times.

    python benchmarks/doctor_answers.py MODEL.gguf --texts FOLDER [--only bleak_house]

FOLDER holds bleak_house.txt, middlemarch.txt and moby_dick.txt. From each the doctor gets 90,000 characters, for
llama.cpp, with the other settings at their defaults; bar: "extend with yarn" in 300 s of two idle cores. SmolLM2 was
trained with 8,192 tokens, so with `--trained-length 4096 --target 8192` the answer must be "keep". Then come Python
code, the standard library; chat, the questions of banking77_train.csv in FOLDER; and German, FOLDER/german.txt, which
is Debian's manpages-de without markup. Each answer is saved in results/doctor-answers.json when it is there; the same
command continues. About 25 minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from records import RESULTS, environment

from ropewalk.atomic_io import write_json

RECORD = RESULTS / "doctor-answers.json"
NOVELS = ("bleak_house", "middlemarch", "moby_dick")
FIRST, CHARACTERS = 20_000, 90_000
EXTEND = ("--target", "16384", "--engine", "llama.cpp", "--minutes", "20")


def code() -> str:
    """Return source text of Python's standard library."""
    modules = (argparse, inspect, json, subprocess, tempfile)
    return "".join(inspect.getsource(module) for module in modules)


def chat(rows: Path) -> str:
    """Return customers' questions in random order, as the lines of a user."""
    with rows.open(encoding="utf-8", newline="") as file:
        questions = [row[0].strip() for row in list(csv.reader(file))[1:]]
    random.Random(0).shuffle(questions)
    return "\n".join(f"User: {question}" for question in questions)


def measure(model: str, text: str, name: str, options: tuple[str, ...]) -> dict[str, Any]:
    """Return the answer of one command of its own, with its seconds; nothing measured before is taken over."""
    with tempfile.TemporaryDirectory() as folder:
        place, out = Path(folder, f"{name}.txt"), Path(folder, "out.json")
        place.write_text(text, encoding="utf-8")
        words = [sys.executable, "-m", "ropewalk", "doctor", model, "--text", str(place), "--json", str(out)]
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*words, *options], env={**os.environ, "XDG_CACHE_HOME": folder}, check=True)
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads(out.read_text(encoding="utf-8"))
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "characters": len(text), "options": list(options), "action": found["verdict"]["action"],
        "method": found["verdict"]["method"], "length": found["verdict"]["length"],
        "answer": found["verdict"]["sentence"], "windows": found["evidence"]["windows"],
        "seconds": round(seconds), "processor_seconds": round(spent),
    }  # fmt: skip


def main() -> None:
    """Measure what the record lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    novels = {name: (given.texts / f"{name}.txt").read_text(encoding="utf-8") for name in NOVELS}
    cut = {name: text[FIRST:][:CHARACTERS] for name, text in novels.items()}
    cases: dict[str, tuple[str, tuple[str, ...]]] = {name: (text, EXTEND) for name, text in cut.items()}
    cases["known good"] = (cut["middlemarch"], ("--trained-length", "4096", "--target", "8192", "--minutes", "20"))
    cases["code"] = (code()[: 2 * CHARACTERS], EXTEND)
    cases["chat"] = (chat(given.texts / "banking77_train.csv")[:CHARACTERS], (*EXTEND, "--dtype", "auto"))
    german = given.texts / "german.txt"
    if german.exists():
        cases["German"] = (german.read_text(encoding="utf-8")[:CHARACTERS], (*EXTEND, "--dtype", "auto"))
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for case, (text, options) in cases.items():
        if case in record or (given.only and case not in given.only):
            continue
        found = measure(given.model, text, case.replace(" ", "_"), options)
        record[case] = {**found, "model": Path(given.model).name, "environment": environment("cpu")}
        write_json(RECORD, record)
        print(case, found["answer"], f"{found['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
