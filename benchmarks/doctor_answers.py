"""The doctor's answers about SmolLM2-135M on texts that are not in the repository, with their times.

    python benchmarks/doctor_answers.py MODEL.gguf --texts FOLDER [--only bleak_house] [--again] [--evaluate]

FOLDER holds bleak_house.txt, middlemarch.txt, moby_dick.txt, tinyshakespeare.txt and banking77_train.csv. From each
novel the doctor gets 90,000 characters, for llama.cpp, with the other settings at their defaults; bar: "extend with
yarn" in 300 s of two idle cores. Then come Python code, the standard library; chat, customers' questions; and German,
FOLDER/german.txt if it is there, which is Debian's manpages-de without markup. SmolLM2 was trained with 8,192 tokens,
so with `--trained-length 4096 --target 8192` it is known to be good: eight texts and German must give "keep". Each
answer is saved in results/doctor-answers.json with what the rule needs of its readings; the same command continues,
--again starts over, and --evaluate applies the rule once more. About 70 minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from records import concluded, environment, essentials, excerpt, parsed, source_of

from ropewalk.atomic_io import write_json
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.diagnosis.rules import headline, reasons

NOVELS = ("bleak_house", "middlemarch", "moby_dick")
FIRST, CHARACTERS, MANY = 20_000, 90_000, 180_000  # the last for four windows of a model that is known to be good
EXTEND = ("--target", "16384", "--engine", "llama.cpp", "--minutes", "60")
GOOD = ("--trained-length", "4096", "--target", "8192", "--minutes", "60", "--windows", "4", "--dtype", "auto")
SECOND = 700_000  # the first character of the second part of a novel


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


def measure(model: str, text: str, source: dict[str, Any], name: str, options: tuple[str, ...]) -> dict[str, Any]:
    """Return the answer of one command of its own, with its seconds; nothing measured before is taken over."""
    with tempfile.TemporaryDirectory() as folder:
        place, out = Path(folder, f"{name}.txt"), Path(folder, "out.json")
        place.write_text(text, encoding="utf-8")
        words = [sys.executable, "-m", "ropewalk", "doctor", model, "--text", str(place), "--json", str(out)]
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*words, *options], env={**os.environ, "XDG_CACHE_HOME": folder}, check=True)
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        diagnosis = Diagnosis.read(out)
    verdict, readings = diagnosis.verdict, diagnosis.readings
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "text": source, "options": list(options), "action": verdict.action, "method": verdict.method,
        "length": verdict.length, "answer": verdict.sentence, "windows": diagnosis.evidence.windows,
        "seconds": round(seconds), "processor_seconds": round(spent),
        "essentials": essentials(diagnosis.windows, readings, diagnosis),
    }  # fmt: skip


def main() -> None:
    """Measure what the record lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--evaluate", action="store_true", help="measure nothing; apply the rule once more")
    given, record = parsed(parser, "doctor-answers.json")
    texts = {f"{name}{' 2' if place == SECOND else ''}": excerpt(given.texts, name, place, MANY)
             for name in NOVELS for place in (FIRST, SECOND)}  # fmt: skip
    python, questions = code()[:MANY], chat(given.texts / "banking77_train.csv")[:CHARACTERS]
    texts["code"] = python, source_of(python, "Python's standard library")
    texts["chat"] = questions, source_of(questions, "banking77_train.csv")
    texts["shakespeare"] = excerpt(given.texts, "tinyshakespeare", FIRST, MANY)
    if (given.texts / "german.txt").exists():
        texts["German"] = excerpt(given.texts, "german", 0, MANY)
    cases = {name: (name, 2 * CHARACTERS if name == "code" else CHARACTERS,
                    EXTEND if name in NOVELS else (*EXTEND, "--dtype", "auto"))
             for name in (*NOVELS, "code", "chat", "German") if name in texts}  # fmt: skip
    cases |= {f"known good, {name}": (name, MANY, GOOD) for name in texts if name != "chat"}
    if given.evaluate:
        for case, one in record.items():
            decision, evidence = concluded(one["essentials"], one["windows"])
            why = reasons(decision, evidence, log_vocabulary=math.inf, place="llama.cpp")
            one |= {name: getattr(decision, name) for name in ("action", "method", "length")}
            one["answer"] = " ".join((headline(decision, evidence.trained), *why))
            print(case, one["answer"])
        write_json(given.record, record, indent=None)
        return
    for case, (name, characters, options) in cases.items():
        if case in record or (given.only and case not in given.only):
            continue
        text, source = texts[name][0][:characters], texts[name][1]
        source = source_of(text, source["file"], source.get("first", 0))
        found = measure(given.model, text, source, name.replace(" ", "_"), options)
        record[case] = {**found, "model": Path(given.model).name, "environment": environment("cpu")}
        write_json(given.record, record, indent=None)
        print(case, found["answer"], f"{found['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
