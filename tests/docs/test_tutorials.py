"""The calls of docs/from-tutorials.md equal formulas, and the tutorials in ../shared/seeds do what it says."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import symtable
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracle import rotate

ROOT = Path(__file__).parents[2]
PAGE, LESSON = ROOT / "docs" / "from-tutorials.md", ROOT / "docs" / "lesson"
if not PAGE.exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)
TEXT = PAGE.read_text(encoding="utf-8")
SEEDS = next((top / "shared" / "seeds" for top in Path(__file__).parents if (top / "shared" / "seeds").is_dir()), None)
needs_seeds = pytest.mark.skipif(SEEDS is None, reason="../shared/seeds is missing")
Names = dict[str, Any]


def rows() -> dict[str, tuple[str, str, str]]:
    """Return what runs, what rotates, and the call, by "1 rope_embed", "exercise ..." or "from transformers"."""
    found = {}
    for heading, section in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE):
        source = {"The exercise": "exercise", "The notebook": "notebook"}.get(heading)
        for name, step, runs, rotates, call in re.findall(
            r"^\| `(\w+)[^|]*` \| \[(\d+)\][^|]+ \| ([^|]+) \| (yes|no) \| .+ \| `(.+)` \|$", section, re.MULTILINE
        ):
            found[f"{source or step} {name}"] = (runs, rotates, call)
        for name, call in re.findall(r"^\| ([\w' -]+): `.+?` \| .+ \| `(.+)` \|$", section, re.MULTILINE):
            found[f"from {name}"] = ("", "", call)
    return found


ROWS = rows()


# --- our calls


@pytest.fixture(scope="module")
def names() -> Names:
    """What the page's first two blocks define."""
    found: Names = {}
    torch.manual_seed(0)
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[:2]:
        exec(block, found)
    return found


def run(row: str, names: Names) -> Any:
    """Evaluate the call of a row, its random weights drawn from one seed."""
    torch.manual_seed(1)
    return eval(ROWS[row][2], dict(names))


def equal(got: Any, wanted: Any) -> None:
    """Compare numbers or tuples of them, shapes included."""
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for pair in pairs:
        arrays = [np.asarray(one.detach() if isinstance(one, Tensor) else one) for one in pair]
        np.testing.assert_allclose(*arrays, rtol=0, atol=1e-5)
        assert arrays[0].shape == arrays[1].shape


def angles_of(seq: int, d: int) -> np.ndarray:
    """Position times 10,000^(-2i/d), `[seq, d/2]`."""
    return np.outer(np.arange(seq), 10_000.0 ** (-np.arange(0, d, 2) / d))


def sinusoidal(seq: int, d: int) -> np.ndarray:
    """The Transformer's table: sines in even columns, cosines in odd ones."""
    angles = angles_of(seq, d)
    return np.stack((np.sin(angles), np.cos(angles)), -1).reshape(seq, d)


def rotated(x: Tensor, *, interleaved: bool = True, pairs: int | None = None) -> Tensor:
    """Rotate the first pairs, by default all, of `[..., seq, d]` by positions from 0."""
    angles = angles_of(*x.shape[-2:])[:, :pairs]
    return torch.from_numpy(rotate(x.detach().numpy(), angles, interleaved=interleaved)).float()


def by_token(x: Tensor, **options: Any) -> Tensor:
    """Rotate `[batch, seq, heads, d]`."""
    return rotated(x.transpose(1, 2), **options).transpose(1, 2)


PHASES = torch.from_numpy(np.exp(1j * angles_of(10, 16))).to(torch.complex64)
attend = F.scaled_dot_product_attention
FORMULAS: dict[str, Callable[[Names], Any]] = {
    "1 rope_embed": lambda n: rotated(n["vectors"]),
    "2 apply_rope": lambda n: rotated(n["vectors"]),
    "3 visualize_rope_extrapolation": lambda n: tuple(f(angles_of(1000, 16)) for f in (np.cos, np.sin)),
    "4 apply_rope_to_qk": lambda n: (rotated(n["q"]), rotated(n["few_k"])),
    "5 absolute_positional_encoding": lambda n: sinusoidal(10, 64),
    "5 rope_encoding": lambda n: sinusoidal(10, 64),
    "6 rope_attention": lambda n: attend(rotated(n["q"]), rotated(n["k"]), n["v"]),
    "14 rope_encoding": lambda n: sinusoidal(10, 64),
    "14 sinusoidal_encoding": lambda n: sinusoidal(10, 64),
    "exercise apply_rotary_pos_emb": lambda n: by_token(n["x"]),
    "exercise precompute_freqs_cis": lambda n: PHASES,
    "exercise apply_rotary_pos_emb_complex": lambda n: by_token(n["x"]),
    "notebook compute_rotary_positional_frequencies": lambda n: PHASES,
    "notebook rotary_positional_embeddings": lambda n: by_token(n["x"]),
    "notebook repeat_kv": lambda n: attend(n["q"], *(n[x].repeat_interleave(2, 1) for x in ("few_k", "few_v"))),
    "from rotary-embedding-torch": lambda n: torch.cat((rotated(n["q"][..., :8]), n["q"][..., 8:]), -1),
    "from flash-attention": lambda n: by_token(n["x"], interleaved=False, pairs=4),
    "from transformers": lambda n: tuple(rotated(n[name], interleaved=False) for name in ("q", "k")),
    "from Meta's Llama": lambda n: (by_token(n["x"]),) * 2,
}
LAYERS = {  # the shape of the output, and whether it depends on the order; tests/models has the formulas
    "4 RoPEMultiHeadAttention": ((1, 10, 64), True), "7 RelativePositionAttention": ((1, 10, 64), True),
    "9 RoPETransformerLayer": ((1, 10, 64), True), "9 RoPETransformer": ((2, 10, 64), True),
    "11 RoPELanguageModel": ((2, 10, 100), True), "13 RoPETextClassifier": ((2, 2), True),
    "14 learned_pe": ((1, 10, 64), True), "exercise AttentionWithRoPE": ((1, 10, 64), True),
    "notebook MultiHeadAttentionBlock": ((1, 10, 64), False), "notebook SelfAttention": ((1, 10, 64), True),
}  # fmt: skip
FIGURES = {row for row, (*_, call) in ROWS.items() if "rw.figures." in call}


@pytest.mark.parametrize("row", FORMULAS)
def test_a_call_equals_its_formula(row: str, names: Names) -> None:
    """The call of a row, as it stands in the table."""
    equal(run(row, names), FORMULAS[row](names))


@pytest.mark.parametrize("row", LAYERS)
def test_a_layer_runs_and_notices_the_order(row: str, names: Names) -> None:
    """Shuffled tokens give the shuffled result without positions only."""
    order, (shape, ordered) = [3, 1, 9, 0, 4, 2, 8, 5, 7, 6], LAYERS[row]
    out = run(row, names)
    other = run(row, names | {"vectors": names["vectors"][:, order], "ids": names["ids"][:, order]})
    assert out.shape == shape
    wanted = out[:, order] if out.ndim == 3 else out
    assert bool((other - wanted).abs().max() > 1e-4) == ordered


def test_every_row_is_tested(names: Names) -> None:
    """By its formula or shape; figures draw (tests/figures checks what); only one slide rotates."""
    assert set(ROWS) == FIGURES | set(FORMULAS) | set(LAYERS) | {"notebook ModelArgs"}
    assert run("notebook ModelArgs", names).ropes == (names["config"],) * 2
    assert {int(row.split()[0]) for row in FIGURES if run(row, names).axes} == {8, 10, 12}
    assert len(re.findall(r"^\| .*`", TEXT, re.MULTILINE)) == len(ROWS)
    assert {row for row, (_, rotates, _) in ROWS.items() if rotates == "yes" and row[0].isdigit()} == {"2 apply_rope"}


# --- the tutorials' own code, taken out at run time


def seed(name: str) -> str:
    assert SEEDS is not None
    return next(SEEDS.glob(f"{name}_*")).read_text(encoding="utf-8")


def parses(code: str) -> bool:
    with contextlib.suppress(SyntaxError):
        return bool(ast.parse(code))
    return False


def blocks() -> dict[str, dict[int, str]]:
    """Return the code of each slide by its number, of the exercise's blocks, and of the notebook's cells.

    A cell is the longest text after "In [n]:" that is Python.
    """
    slides = re.findall(r"^Slide (\d+):.*?```python\n(.*?)```", seed("000"), re.MULTILINE | re.DOTALL)
    parts = [part.splitlines(True) for part in re.split(r"^In \[\d+\]:\n", seed("003"), flags=re.MULTILINE)[1:]]
    cells = [next(filter(parses, ("".join(part[:end]) for end in range(len(part), 0, -1)))) for part in parts]
    exercise = re.findall(r"```python\n(.*?)```", seed("002"), re.DOTALL)
    return {"slides": {int(number): code for number, code in slides}, "exercise": dict(enumerate(exercise)),
            "notebook": dict(enumerate(cells))}  # fmt: skip


def ran(code: str, names: Names) -> Any:
    """Run code as written, without its prints; return None, the name of a NameError, or a different exception."""
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(code, "tutorial", "exec", dont_inherit=True), names)
        except Exception as error:
            return getattr(error, "name", error)
    return None


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    """Run everything once, in order; return namespaces and exceptions."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plt, "show", lambda: None)
        found = SimpleNamespace(names={}, errors={}, blocks=blocks())
        for source, codes in found.blocks.items():
            names: Names = {}
            for number, code in codes.items():
                if (source, number) == ("slides", 13):  # without its last two statements, a forward of 6 s and a print
                    code = ast.unparse(ast.Module(ast.parse(code).body[:-2], []))
                found.errors[source, number] = ran(code, names)
                found.names[str(number) if source == "slides" else source] = dict(names)
                plt.close("all")
        yield found


COS, SIN = (part(torch.from_numpy(angles_of(10, 64)).float())[None] for part in (torch.cos, torch.sin))
ARGUMENTS: dict[str, Callable[[Names], tuple[Any, ...]]] = {  # of functions that equal our calls
    "2 apply_rope": lambda n: (n["vectors"], COS, SIN, None),  # `position` is unused
    "5 absolute_positional_encoding": lambda n: (10, 64),
    "14 sinusoidal_encoding": lambda n: (10, 64),
    "exercise apply_rotary_pos_emb": lambda n: (n["x"], n["positions"]),
    "exercise precompute_freqs_cis": lambda n: (16, 10),
    "exercise apply_rotary_pos_emb_complex": lambda n: (n["x"], PHASES),
    "notebook compute_rotary_positional_frequencies": lambda n: (16, 10, "cpu"),
    "notebook rotary_positional_embeddings": lambda n: (n["x"], PHASES, "cpu"),
}
MISSING = {2: "torch", 3: "torch", 4: "torch", 9: "RoPEMultiHeadAttention", 11: "RoPETransformer",
           13: "RoPETransformer", 14: "d_model"}  # fmt: skip


@needs_seeds
@pytest.mark.parametrize("row", ARGUMENTS)
def test_what_is_right_equals_our_call(row: str, names: Names, theirs: Any) -> None:
    """The functions that rotate, and the sinusoidal tables."""
    source, name = row.split()
    equal(theirs.names[source][name](*ARGUMENTS[row](names)), run(row, names))


@needs_seeds
def test_the_sentences_names_and_titles() -> None:
    """Each quoted phrase is in its tutorial; the tables have every function and class, and the lesson every title."""
    section = TEXT.split("## Sentences that are wrong")[1].split("\n## ")[0]
    table = re.findall(r"^\| (slide|notebook)[s\d, ]* \| ([^|]+) \|", section, re.MULTILINE)
    assert len(table) == section.count("\n|") - 2 == 6
    for where, phrases in table:
        for phrase in re.findall(r'"(.+?)"', phrases):
            assert phrase in " ".join(seed("000" if where == "slide" else "003").split())
    table = torch.from_numpy(sinusoidal(1001, 64))
    cosines = F.cosine_similarity(table[1], table[[2, 1000]])
    assert [f"{float(cosine):.2f}" for cosine in cosines] == re.findall(r"of (0\.\d\d)", section)
    bodies = [ast.parse(code).body for codes in blocks().values() for code in codes.values()]
    defined = {one.name for body in bodies for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    named = {row.split()[1] for row in ROWS if not row.startswith("from ")}
    assert named == defined | {"ModelArgs", "repeat_kv", "learned_pe"}  # these are only used
    titles = re.findall(r"^Slide (\d+): (.+)", seed("000"), re.MULTILINE)
    for page, (number, title) in zip(sorted(LESSON.glob("*.md")), titles[:14], strict=True):
        assert page.read_text(encoding="utf-8").split("\n\n")[1].startswith(f"*Slide {number}, “{title}”")


def bound(code: str) -> set[str]:
    """Return the names that code imports, assigns or defines outside functions."""
    symbols = symtable.symtable(code, "tutorial", "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


@needs_seeds
@pytest.mark.parametrize("number", range(1, 15))
def test_a_slide_runs_or_fails_as_the_page_says(number: int, theirs: Any) -> None:
    """After the slides before it, and alone: slides 7 and 10 stop, and seven need a name of an earlier slide."""
    code = theirs.blocks["slides"]
    error, alone = theirs.errors["slides", number], ran(code[number], {})
    if number in (7, 10):
        assert "must match the size of tensor b" in str(error) == str(alone)
        runs = "no"
    else:
        assert (error, alone) == (None, MISSING.get(number))
        earlier = [other for other in range(1, number) if MISSING.get(number) in bound(code[other])]
        runs = f"after slide {earlier[0]}" if earlier else "yes"
    assert {runs for row, (runs, *_) in ROWS.items() if row.startswith(f"{number} ") and "to_qk" not in row} == {runs}


@needs_seeds
def test_exercise_and_notebook_run_or_fail_as_the_page_says(theirs: Any) -> None:
    """In order, alone, and the exercise with the import that it lacks; the names of NameErrors."""
    exercise, notebook = (list(theirs.blocks[source].values()) for source in ("exercise", "notebook"))
    errors = {source: [error for (of, _), error in theirs.errors.items() if of == source] for source in theirs.blocks}
    assert errors["exercise"] == [None, None, "nn", "AttentionWithRoPE"]
    assert [ran(code, {}) for code in exercise] == [None, None, "nn", "torch"]
    assert errors["notebook"] == [None] * 5 + ["ModelArgs"]
    assert [ran(code, {}) for code in notebook] == [None, None, "torch", "torch", "nn", "nn"]
    assert list(map(partial(ran, names={"nn": nn}), exercise)) == [None] * 4
    failing = {"AttentionWithRoPE", "SelfAttention", "ModelArgs", "repeat_kv"}
    for row, (runs, *_) in ROWS.items():
        if row.startswith(("exercise", "notebook")):
            assert runs == ("no" if row.split()[1] in failing else "yes")
