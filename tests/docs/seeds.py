"""The code of the four tutorials in ../shared/seeds, taken out at run time."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import symtable
import warnings
from pathlib import Path
from typing import Any

import torch

SEEDS = next((top / "shared" / "seeds" for top in Path(__file__).parents if (top / "shared" / "seeds").is_dir()), None)


def seed(name: str) -> str:
    assert SEEDS is not None
    return next(SEEDS.glob(f"{name}_*")).read_text(encoding="utf-8")


def slides() -> dict[int, str]:
    """Return the code of each slide."""
    found = re.findall(r"^Slide (\d+):.*?```python\n(.*?)```", seed("000"), re.MULTILINE | re.DOTALL)
    return {int(number): code for number, code in found}


def exercise() -> list[str]:
    """Return its blocks: signature, functions, attention, trial."""
    return re.findall(r"```python\n(.*?)```", seed("002"), re.DOTALL)


def cells() -> list[str]:
    """Return the notebook's cells: after each "In [n]:" the longest text that is Python."""
    parts = re.split(r"^In \[\d+\]:\n", seed("003"), flags=re.MULTILINE)[1:]
    texts = (
        ["".join(lines[:end]) for end in range(len(lines), 0, -1)] for lines in (p.splitlines(True) for p in parts)
    )
    return [next(filter(parses, longest_first)) for longest_first in texts]


def parses(code: str) -> bool:
    """Return whether it is Python."""
    with contextlib.suppress(SyntaxError):
        return bool(ast.parse(code))
    return False


def ran(code: str, names: dict[str, Any]) -> Exception | None:
    """Run code as written, without its prints; return the exception that ended it."""
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(code, "tutorial", "exec", dont_inherit=True), names)
        except Exception as error:
            return error
    return None


def definitions(code: str) -> dict[str, str]:
    """Return its functions and classes by name."""
    body = ast.parse(code).body
    return {one.name: ast.unparse(one) for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef))}


def bound(code: str) -> set[str]:
    """Return the names that it imports, assigns or defines outside functions."""
    symbols = symtable.symtable(code, "tutorial", "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference."""
    return float((one - other).abs().max().detach())
