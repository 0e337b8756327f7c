"""The calls of docs/from-tutorials.md equal formulas, and the tutorials in ../shared/seeds do what it says."""

from __future__ import annotations

import ast
import re
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

from tests.docs.seeds import SEEDS, apart, bound, cells, definitions, exercise, ran, seed, slides
from tests.oracle import rotate

ROOT = Path(__file__).parents[2]
PAGE, LESSON = ROOT / "docs" / "from-tutorials.md", ROOT / "docs" / "lesson"
if not PAGE.exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)
TEXT = PAGE.read_text(encoding="utf-8")
needs_seeds = pytest.mark.skipif(SEEDS is None, reason="../shared/seeds is missing")
THETA = 10_000.0
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


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    """Run everything once, in order; return namespaces and exceptions."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plt, "show", lambda: None)
        names: Names = {}
        found = SimpleNamespace(after={}, errors={}, exercise={}, notebook={})
        for number, code in slides().items():
            if number == 13:  # without its last two statements, a forward of 6 s and a print
                code = ast.unparse(ast.Module(ast.parse(code).body[:-2], []))
            found.errors[number] = ran(code, names)
            found.after[number] = dict(names)
            plt.close("all")
        found.exercise_errors = [ran(code, found.exercise) for code in exercise()]
        found.notebook_errors = [ran(code, found.notebook) for code in cells()]
        yield found


# --- the page's names, and comparisons


@pytest.fixture(scope="module")
def names() -> Names:
    """What the page's first two blocks define."""
    found: Names = {}
    torch.manual_seed(0)
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[:2]:
        exec(block, found)
    return found


def run(call: str, names: Names) -> Any:
    """Evaluate a call of the page, its random weights drawn from one seed."""
    torch.manual_seed(1)
    return eval(call, dict(names))


MODULE = re.compile(r"(rw\.[A-Z].+?\))\((?:vectors|ids)")


def module_of(row: str, names: Names) -> Any:
    """Return the module that a row's call `Module(...)(input)` makes, with the weights that it had."""
    return run(MODULE.match(ROWS[row][2])[1], names)  # type: ignore[index]


def equal(got: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Compare numbers or tuples of them, shapes included."""
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for pair in pairs:
        arrays = [np.asarray(one.detach() if isinstance(one, Tensor) else one) for one in pair]
        np.testing.assert_allclose(*arrays, rtol=0, atol=tolerance)
        assert arrays[0].shape == arrays[1].shape


ORDER = [3, 1, 9, 0, 4, 2, 8, 5, 7, 6]


# --- formulas


def angles_of(seq: int, d: int) -> np.ndarray:
    """Position times theta^(-2i/d), `[seq, d/2]`."""
    return np.outer(np.arange(seq), THETA ** (-np.arange(0, d, 2) / d))


def sinusoidal(seq: int, d: int) -> np.ndarray:
    """The Transformer's table: sines in even columns, cosines in odd ones."""
    angles = angles_of(seq, d)
    return np.stack((np.sin(angles), np.cos(angles)), -1).reshape(seq, d)


def rotated(x: Tensor, *, interleaved: bool = True, pairs: int | None = None) -> Tensor:
    """Rotate the first pairs, by default all, of `[..., seq, d]` by positions from 0."""
    angles = angles_of(*x.shape[-2:])[:, :pairs]
    return torch.from_numpy(rotate(x.detach().numpy(), angles, interleaved=interleaved)).float()


def by_token(rotate: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Rotate `[batch, seq, heads, d]`."""
    return rotate(x.transpose(1, 2)).transpose(1, 2)


PHASES = torch.from_numpy(np.exp(1j * angles_of(10, 16))).to(torch.complex64)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """softmax(q k^T / sqrt(d)) v; `[batch, heads, seq, d]`, each key head for a group of queries."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v


def projected(layer: nn.Linear, x: Tensor) -> Tensor:
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def heads_of(module: Any, x: Tensor) -> list[Tensor]:
    """q, k and v `[batch, heads, seq, d]` of our layer's projections."""
    parts = (projected(layer, x) for layer in (module.q_proj, module.k_proj, module.v_proj))
    return [part.unflatten(-1, (-1, module.head_dim)).transpose(1, 2) for part in parts]


def attention(module: Any, x: Tensor, rotate: Any = lambda x: x, causal: bool = False) -> Tensor:
    """A multi-head layer with the weights of ours."""
    q, k, v = heads_of(module, x)
    return projected(module.o_proj, softmax_attention(rotate(q), rotate(k), v, causal).transpose(1, 2).flatten(-2))


def normed(norm: Any, x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def transformer_layer(layer: Any, x: Tensor, causal: bool = True) -> Tensor:
    """Our block: attention, then a gated feed-forward layer, each after a norm."""
    x = x + attention(layer.self_attn, normed(layer.input_layernorm, x), rotated, causal)
    inner, mlp = normed(layer.post_attention_layernorm, x), layer.mlp
    return x + projected(mlp.down_proj, F.silu(projected(mlp.gate_proj, inner)) * projected(mlp.up_proj, inner))


def transformer(model: Any, ids: Tensor, causal: bool = True) -> Tensor:
    """Embeddings, all blocks, the last norm."""
    x = model.embed_tokens.weight[ids]
    for layer in model.layers:
        x = transformer_layer(layer, x, causal)
    return normed(model.norm, x)


# --- the calls

FORMULAS: dict[str, Callable[[Names], Any]] = {
    "1 rope_embed": lambda n: rotated(n["vectors"]),
    "2 apply_rope": lambda n: rotated(n["vectors"]),
    "4 RoPEMultiHeadAttention": lambda n: attention(n["module"], n["vectors"], rotated),
    "4 apply_rope_to_qk": lambda n: (rotated(n["q"]), rotated(n["few_k"])),
    "5 absolute_positional_encoding": lambda n: sinusoidal(10, 64),
    "5 rope_encoding": lambda n: sinusoidal(10, 64),
    "6 rope_attention": lambda n: softmax_attention(rotated(n["q"]), rotated(n["k"]), n["v"]),
    "9 RoPETransformerLayer": lambda n: transformer_layer(n["model"].layers[0], n["vectors"]),
    "9 RoPETransformer": lambda n: transformer(n["model"], n["ids"]),
    "11 RoPELanguageModel": lambda n: transformer(n["model"], n["ids"]) @ head_of(n["model"]).T,
    "13 RoPETextClassifier": lambda n: pooled(n["module"], n["ids"]),
    "14 rope_encoding": lambda n: sinusoidal(10, 64),
    "14 sinusoidal_encoding": lambda n: sinusoidal(10, 64),
    "exercise apply_rotary_pos_emb": lambda n: by_token(rotated, n["x"]),
    "exercise precompute_freqs_cis": lambda n: PHASES,
    "exercise apply_rotary_pos_emb_complex": lambda n: by_token(rotated, n["x"]),
    "exercise AttentionWithRoPE": lambda n: attention(n["module"], n["vectors"], rotated),
    "notebook compute_rotary_positional_frequencies": lambda n: PHASES,
    "notebook rotary_positional_embeddings": lambda n: by_token(rotated, n["x"]),
    "notebook MultiHeadAttentionBlock": lambda n: attention(n["module"], n["vectors"]),
    "notebook SelfAttention": lambda n: attention(n["module"], n["vectors"], rotated, causal=True),
    "notebook repeat_kv": lambda n: softmax_attention(n["q"], n["few_k"], n["few_v"]),
    "from rotary-embedding-torch": lambda n: torch.cat((rotated(n["q"][..., :8]), n["q"][..., 8:]), -1),
    "from flash-attention": lambda n: by_token(partial(rotated, interleaved=False, pairs=4), n["x"]),
    "from transformers": lambda n: tuple(rotated(n[name], interleaved=False) for name in ("q", "k")),
    "from Meta's Llama": lambda n: (by_token(rotated, n["x"]),) * 2,
}


def head_of(model: Any) -> Tensor:
    return model.embed_tokens.weight if model.lm_head is None else model.lm_head.weight


def pooled(model: Any, ids: Tensor) -> Tensor:
    """The logits of the mean of all vectors."""
    return projected(model.classifier, transformer(model, ids, causal=False).mean(1))


@pytest.mark.parametrize("row", FORMULAS)
def test_a_call_equals_its_formula(row: str, names: Names) -> None:
    """The call of a row, as it stands in the table."""
    module = {"module": module_of(row, names)} if MODULE.match(ROWS[row][2]) else {}
    equal(run(ROWS[row][2], names), FORMULAS[row](names | module))


def test_what_the_layers_do_with_positions(names: Names) -> None:
    """An embedding after a cache, tables that are added, and a causal mask, which the tutorials have not."""
    last = names["q"][:, :, 9:]
    late, _ = names["rope"](last, last.clone(), position_ids=torch.tensor([9]), layout="bhsd")
    equal(late, rotated(names["q"])[:, :, 9:])
    learned = run(ROWS["14 learned_pe"][2].split(".embedded")[0], names)
    equal(learned.embedded(names["vectors"], names["positions"]), names["vectors"] + next(learned.parameters())[:10])
    model, ids, changed = names["model"], names["ids"], names["ids"].clone()
    changed[:, -1] = (ids[:, -1] + 1) % 100
    equal(model(changed)[:, :-1], model(ids)[:, :-1])
    assert apart(*(transformer(model, one, causal=False)[:, :-1] for one in (ids, changed))) > 1e-4
    arguments = run(ROWS["notebook ModelArgs"][2], names)
    assert (arguments.num_key_value_heads, arguments.ropes) == (2, (names["config"],) * 2)


def test_relative_attention(names: Names) -> None:
    """A number for each head and distance is added to the scores, so the order has an effect."""
    module, x = module_of("7 RelativePositionAttention", names), names["vectors"]
    nn.init.normal_(module.encoding.bias.weight)
    q, k, v = heads_of(module, x)
    bias = module.encoding.bias.weight[torch.arange(10)[:, None] - torch.arange(10) + 128].permute(2, 0, 1)
    equal(module(x), projected(module.o_proj, ((q @ k.mT / 4 + bias).softmax(-1) @ v).transpose(1, 2).flatten(-2)))
    assert apart(module(x[:, ORDER]), module(x)[:, ORDER]) > 0.01


def test_the_figures(names: Names) -> None:
    """The calls in the rows of slides 8, 10 and 12 draw, and tests/figures checks what; slide 3's curves are tables."""
    figures = {row: run(call, names) for row, (*_, call) in ROWS.items() if "rw.figures." in call}
    assert {int(row.split()[0]) for row, figure in figures.items() if figure.axes} == {8, 10, 12}
    for table, part in zip(run(ROWS["3 visualize_rope_extrapolation"][-1], names), (np.cos, np.sin), strict=True):
        equal(table[:, 0], part(np.arange(1000)), 1e-6)
    distances, mean = figures["12 rope_attention_decay"].axes[0].lines[0].get_data()
    assert np.max(mean[np.asarray(distances) > 1]) < 0.98  # cos n comes back to 1


def test_every_row_is_tested() -> None:
    """By its formula, or in a test of its own; only one slide rotates."""
    own = {row for row, (*_, call) in ROWS.items() if "rw.figures." in call}
    own |= {"3 visualize_rope_extrapolation", "7 RelativePositionAttention", "14 learned_pe", "notebook ModelArgs"}
    assert set(ROWS) == own | set(FORMULAS)
    assert len(re.findall(r"^\| .*`", TEXT, re.MULTILINE)) == len(ROWS)
    assert {row for row, (_, rotates, _) in ROWS.items() if rotates == "yes" and row[0].isdigit()} == {"2 apply_rope"}


# --- the tutorials' own code

COS, SIN = (part(torch.from_numpy(angles_of(10, 64)).float())[None] for part in (torch.cos, torch.sin))
ARGUMENTS: dict[str, Callable[[Names], tuple[Any, ...]]] = {  # of functions that equal our calls
    "2 apply_rope": lambda n: (n["vectors"], COS, SIN, None),
    "5 absolute_positional_encoding": lambda n: (10, 64),
    "14 sinusoidal_encoding": lambda n: (10, 64),
    "exercise apply_rotary_pos_emb": lambda n: (n["x"], n["positions"]),
    "exercise precompute_freqs_cis": lambda n: (16, 10),
    "exercise apply_rotary_pos_emb_complex": lambda n: (n["x"], PHASES),
    "notebook compute_rotary_positional_frequencies": lambda n: (16, 10, "cpu"),
    "notebook rotary_positional_embeddings": lambda n: (n["x"], PHASES, "cpu"),
}


@needs_seeds
@pytest.mark.parametrize("row", ARGUMENTS)
def test_what_is_right_equals_our_call(row: str, names: Names, theirs: Any) -> None:
    """The functions that rotate, and the sinusoidal tables; `position` of `apply_rope` is unused."""
    source, name = row.split()
    function = (theirs.after[int(source)] if source.isdigit() else getattr(theirs, source))[name]
    equal(function(*ARGUMENTS[row](names)), run(ROWS[row][2], names))


@needs_seeds
def test_the_sentences(names: Names, theirs: Any) -> None:
    """Each quoted phrase is in its tutorial; rows of the sinusoidal table have the stated cosines."""
    section = TEXT.split("## Sentences that are wrong")[1].split("\n## ")[0]
    table = re.findall(r"^\| (slide|notebook)[s\d, ]* \| ([^|]+) \|", section, re.MULTILINE)
    assert len(table) == section.count("\n|") - 2 == 6
    for where, phrases in table:
        for phrase in re.findall(r'"(.+?)"', phrases):
            assert phrase in " ".join(seed("000" if where == "slide" else "003").split())
    rows = torch.from_numpy(sinusoidal(1001, 64))
    cosines = F.cosine_similarity(rows[1], rows[[2, 1000]])
    assert [f"{float(cosine):.2f}" for cosine in cosines] == re.findall(r"of (0\.\d\d)", section)


@needs_seeds
def test_the_tables_have_all_names_and_the_lesson_all_titles() -> None:
    """Functions and classes of all blocks, and three names that are only used."""
    defined = {name for code in (*slides().values(), *exercise(), *cells()) for name in definitions(code)}
    named = {row.split()[1] for row in ROWS if not row.startswith("from ")}
    assert named == defined | {"ModelArgs", "repeat_kv", "learned_pe"}
    titles = re.findall(r"^Slide (\d+): (.+)", seed("000"), re.MULTILINE)
    for page, (number, title) in zip(sorted(LESSON.glob("*.md")), titles[:14], strict=True):
        assert page.read_text(encoding="utf-8").split("\n\n")[1].startswith(f"*Slide {number}, “{title}”")


MISSING = {2: "torch", 3: "torch", 4: "torch", 9: "RoPEMultiHeadAttention", 11: "RoPETransformer",
           13: "RoPETransformer", 14: "d_model"}  # fmt: skip


@needs_seeds
@pytest.mark.parametrize("number", range(1, 15))
def test_a_slide_runs_or_fails_as_the_page_says(number: int, theirs: Any) -> None:
    """After the slides before it, and alone: slides 7 and 10 stop, and seven need a name of an earlier slide."""
    code = slides()
    error, alone = theirs.errors[number], ran(code[number], {})
    if number in (7, 10):
        assert isinstance(error, RuntimeError)
        assert "must match the size of tensor b" in str(error)
        assert str(alone) == str(error)
        runs = "no"
    else:
        assert error is None
        assert getattr(alone, "name", alone) == MISSING.get(number)
        earlier = [other for other in range(1, number) if MISSING.get(number) in bound(code[other])]
        runs = f"after slide {earlier[0]}" if earlier else "yes"
    stated = {runs for row, (runs, *_) in ROWS.items() if row.startswith(f"{number} ") and "to_qk" not in row}
    assert stated == {runs}


@needs_seeds
def test_exercise_and_notebook_run_or_fail_as_the_page_says(theirs: Any) -> None:
    """In order, alone, and the exercise with the import that it lacks; the names of NameErrors."""
    for errors, wanted in (
        (theirs.exercise_errors, [None, None, "nn", "AttentionWithRoPE"]),
        ([ran(code, {}) for code in exercise()], [None, None, "nn", "torch"]),
        (theirs.notebook_errors, [None] * 5 + ["ModelArgs"]),
        ([ran(code, {}) for code in cells()], [None, None, "torch", "torch", "nn", "nn"]),
    ):
        assert [getattr(error, "name", error) for error in errors] == wanted
    completed = {"nn": nn}
    assert [ran(code, completed) for code in exercise()] == [None] * 4
    failing = {"AttentionWithRoPE", "SelfAttention", "ModelArgs", "repeat_kv"}
    for source, name in (row.split() for row in ROWS if row.startswith(("exercise", "notebook"))):
        assert ROWS[f"{source} {name}"][0] == ("no" if name in failing else "yes")
