"""Change operators and constants of the package one at a time, and count the changes that its own tests notice.

    python scripts/mutate.py --count 120 [--seed 1] [--packages rope,rotation] [--out build/mutate]

Needs pytest-cov. The first step runs the tests once with coverage, to know which tests execute which line; each change
then runs 40 of those, in a copy of the checkout, and if they notice nothing, all files with such a test, and its file's
own examples. Results are appended to OUT/SEED.jsonl; the same command resumes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from coverage.numbits import numbits_to_nums

ROOT = Path(__file__).resolve().parents[1]
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or,
    ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
ANNOTATIONS = ("annotation", "returns")
TESTS = "attachment audit checkpoints diagnosis families methods models parity rope rotation serving verification"
MOST_TESTS = 40
SECONDS = 240


def changes(tree: ast.AST) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Yield the line of each change, what it is in words, and what makes it; none in annotations and error messages."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts = [node] if isinstance(node, ast.Raise) else [getattr(node, name, None) for name in ANNOTATIONS]
        skipped |= {id(inner) for part in parts if part is not None for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            new = node.value + 1
            yield node.lineno, f"{node.value!r} -> {new!r}", partial(setattr, node, "value", new)
        elif isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare):
            own = node.ops[0] if isinstance(node, ast.Compare) else node.op
            if other := SWAPS.get(type(own)):
                change = (
                    partial(node.ops.__setitem__, 0) if isinstance(node, ast.Compare) else partial(setattr, node, "op")
                )
                yield node.lineno, f"{type(own).__name__} -> {other.__name__}", partial(change, other())


# Run pytest without the finder of the editable installation, which would import the checkout instead of the copy.
START = """
import sys
sys.meta_path = [one for one in sys.meta_path if "ScikitBuild" not in type(one).__name__]
import pytest, ropewalk
assert "/copy/src/" in ropewalk.__file__, ropewalk.__file__
sys.exit(pytest.main())
"""


def run(words: list[str], folder: Path, seconds: float = SECONDS) -> int:
    """Run pytest in a checkout; return its exit status, 1 if it takes too long."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not thorough"]
    command = [sys.executable, "-c", START, *options, *words]
    try:
        return subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return 1


def lines_of_tests(data: Path) -> dict[tuple[str, int], list[str]]:
    """Return the tests that execute each line, by file and line."""
    found: dict[tuple[str, int], list[str]] = {}
    rows = sqlite3.connect(data).execute(
        "select file.path, context.context, numbits from line_bits join file on file.id = file_id "
        "join context on context.id = context_id where context.context != ''"
    )
    for path, context, numbits in rows:
        for line in numbits_to_nums(numbits):
            found.setdefault((path, line), []).append(context.partition("|")[0])
    return found


def main() -> None:
    """Choose the changes, try each, and print the share that was noticed and what was not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", default="rope,rotation,attention,models,methods,attachment,diagnosis")
    parser.add_argument("--out", type=lambda folder: Path(folder).resolve(), default=ROOT / "build" / "mutate")
    given = parser.parse_args()
    copy, packages = given.out / "copy", given.packages.split(",")
    if not (given.out / "coverage").exists():
        shutil.rmtree(copy, ignore_errors=True)
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "node_modules", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        kernels = find_spec("ropewalk._kernels")
        if kernels is not None and kernels.origin:
            shutil.copy(kernels.origin, copy / "src" / "ropewalk")
        if run(
            [*(f"tests/{name}" for name in TESTS.split()), "--cov=ropewalk", "--cov-context=test", "--cov-report="],
            copy,
            seconds=7200,
        ):
            sys.exit("tests fail without a change")
        shutil.copy(copy / ".coverage", given.out / "coverage")
    tests = lines_of_tests(given.out / "coverage")
    files = [file for name in packages for file in sorted((copy / "src/ropewalk" / name).rglob("*.py"))]
    every = [(file, number) for file in files for number, _ in enumerate(changes(ast.parse(file.read_text())))]
    out = given.out / f"{given.seed}.jsonl"
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["file"], row["number"]) for row in rows}
    for file, number in random.Random(given.seed).sample(every, given.count):
        name, source = str(file.relative_to(copy)), file.read_text()
        if (name, number) in done:
            continue
        tree = ast.parse(source)
        line, words, change = list(changes(tree))[number]
        change()
        of_file = {one for key in tests if key[0] == str(file) for one in tests[key]}
        # no test executes a line that runs when the module is imported: then those that execute any line of the file
        every_test = sorted(set(tests.get((str(file), line), of_file)))
        chosen = random.Random(0).sample(every_test, min(MOST_TESTS, len(every_test)))
        file.write_text(ast.unparse(tree))
        try:
            status = run(["-x", "--timeout", "120", *chosen], copy) if chosen else 0
            if status == 4:  # pytest could not start: because of the change, or because it knows a test by no such name
                status = 0
            if not status:  # also the tests that execute the line only while pytest collects them
                whole = [*dict.fromkeys(one.partition("::")[0] for one in every_test), name]
                status = run(["-x", "--timeout", "120", *whole], copy, seconds=900)
        finally:
            file.write_text(source)
        row = {
            "file": name, "number": number, "line": line, "change": words, "tests": len(chosen), "noticed": status != 0,
        }  # fmt: skip
        rows.append(row)
        with out.open("a") as file_of_rows:
            file_of_rows.write(json.dumps(row) + "\n")
        print(f"{len(rows)}/{given.count}", "noticed" if status else "NOT NOTICED", name, line, words, flush=True)
    print(f"{sum(row['noticed'] for row in rows)} of {len(rows)} changes were noticed")


if __name__ == "__main__":
    main()
