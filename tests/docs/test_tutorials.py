"""Every call of docs/from-tutorials.md equals the tutorial's formula, written here in plain torch and numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ropewalk.families import FAMILIES, NO_ROTATION

PAGE = Path(__file__).parents[2] / "docs" / "from-tutorials.md"
if not PAGE.exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = {
    known: (source, fault, step, call)
    for known, source, fault, step, call in re.findall(
        r"^\| (`.+?) \| ([^|`]+?) \| (.+?) \| (\[step \d+\]\([\w/.-]+\)) \| `(.+)` \|$", TEXT, re.MULTILINE
    )
}
THETA = 10_000.0
Names = dict[str, Any]
Case = Callable[[Names, str, Any], None]
CASES: dict[str, Case] = {}


def case(known: str) -> Callable[[Case], Case]:
    """Register the test of the row whose first column begins with `known`."""

    def register(test: Case) -> Case:
        CASES[known] = test
        return test

    return register


@pytest.fixture(scope="module")
def names() -> Names:
    """What the page's first two blocks define."""
    found: Names = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[:2]:
        exec(block, found)
    return found


def run(call: str, names: Names) -> Any:
    """Evaluate a call of the page, its random weights drawn from one seed."""
    torch.manual_seed(1)
    return eval(call, dict(names))


def module_of(call: str, names: Names) -> Any:
    """Return the module that a call `Module(...)(input)` makes, with the weights that it had."""
    return run(re.match(r"(.+?\))\((?:vectors|ids)", call)[1], names)  # type: ignore[index]


def equal(got: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Compare numbers, shapes included."""
    arrays = [np.asarray(one.detach() if isinstance(one, Tensor) else one) for one in (got, wanted)]
    np.testing.assert_allclose(*arrays, rtol=0, atol=tolerance, strict=False)
    assert arrays[0].shape == arrays[1].shape


# --- the tutorials' formulas


def angles_of(seq: int, d: int) -> np.ndarray:
    """Position times theta^(-2i/d), `[seq, d/2]`."""
    return np.outer(np.arange(seq), THETA ** (-np.arange(0, d, 2) / d))


def sinusoidal(seq: int, d: int) -> np.ndarray:
    """The Transformer's table: sines in even columns, cosines in odd ones."""
    table = np.zeros((seq, d))
    div = np.exp(np.arange(0, d, 2) * (-np.log(THETA) / d))
    table[:, 0::2], table[:, 1::2] = np.sin(np.arange(seq)[:, None] * div), np.cos(np.arange(seq)[:, None] * div)
    return table


def rope_encoding(seq: int, d: int) -> np.ndarray:
    """The array that is called RoPE: the sinusoidal table, its frequencies from a power."""
    table = np.zeros((seq, d))
    angles = np.arange(seq)[:, None] / np.power(THETA, np.arange(0, d, 2) / d)
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


def rope_embed(x: np.ndarray, position: int) -> np.ndarray:
    """Rotate neighbours of one vector, pair by pair."""
    out = np.zeros_like(x)
    for i in range(0, len(x), 2):
        angle = position / THETA ** (i / len(x))
        out[i] = x[i] * np.cos(angle) - x[i + 1] * np.sin(angle)
        out[i + 1] = x[i] * np.sin(angle) + x[i + 1] * np.cos(angle)
    return out


def apply_rope(x: np.ndarray) -> np.ndarray:
    """Rotate neighbours of `[..., seq, d]` by positions from 0."""
    angles, out = angles_of(*x.shape[-2:]), np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
    out[..., 1::2] = x[..., 0::2] * np.sin(angles) + x[..., 1::2] * np.cos(angles)
    return out


def hugging_face(x: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin with `[batch, heads, seq, d]`: half-split pairs, each pair twice in the table."""
    angles = torch.from_numpy(angles_of(*x.shape[-2:])).float()
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def frequencies_complex(d: int, seq: int) -> Tensor:
    """e^(i angle) by torch.polar, complex64 `[seq, d/2]`."""
    angles = torch.outer(torch.arange(seq).float(), 1.0 / THETA ** (torch.arange(0, d, 2).float() / d))
    return torch.polar(torch.ones_like(angles), angles)


def rotary_complex(x: Tensor, table: Tensor) -> Tensor:
    """Neighbours as complex numbers, times the table; x is `[batch, seq, heads, d]`."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table[None, :, None]).reshape(x.shape)


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """Copy each head of `[batch, heads, seq, d]` for its group of queries."""
    batch, heads, seq, d = x.shape
    return x[:, :, None].expand(batch, heads, times, seq, d).reshape(batch, heads * times, seq, d)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d)) v, and the weights; `[batch, heads, seq, d]`."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v, scores.softmax(-1)


def heads_of(module: Any, x: Tensor) -> list[Tensor]:
    """q, k and v `[batch, heads, seq, d]` of a layer's projections."""
    parts = (x @ project.weight.T for project in (module.q_proj, module.k_proj, module.v_proj))
    return [part.unflatten(-1, (-1, module.head_dim)).transpose(1, 2) for part in parts]


def attention(module: Any, x: Tensor, *, rotated: bool, causal: bool = False) -> tuple[Tensor, Tensor]:
    """A multi-head layer with the module's weights, and its attention weights."""
    q, k, v = heads_of(module, x)
    if rotated:
        q, k = hugging_face(q), hugging_face(k)
    out, weights = softmax_attention(q, k, v, causal)
    return out.transpose(1, 2).flatten(-2) @ module.o_proj.weight.T, weights


def normed(norm: Any, x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def transformer_layer(layer: Any, x: Tensor, causal: bool) -> Tensor:
    """A pre-norm block: attention, then a gated feed-forward layer."""
    x = x + attention(layer.self_attn, normed(layer.input_layernorm, x), rotated=True, causal=causal)[0]
    inner, mlp = normed(layer.post_attention_layernorm, x), layer.mlp
    gate = inner @ mlp.gate_proj.weight.T
    return x + (gate * gate.sigmoid() * (inner @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T


def transformer(model: Any, ids: Tensor, causal: bool) -> Tensor:
    """Embeddings, all blocks, the last norm."""
    x = model.embed_tokens.weight[ids]
    for layer in model.layers:
        x = transformer_layer(layer, x, causal)
    return normed(model.norm, x)


# --- one case for each row


@case("`softmax(q @ k.T / sqrt(d)) @ v`")
def _(names: Names, call: str, got: Any) -> None:
    """The formula; and a shuffled input gives the shuffled result."""
    module, order = module_of(call, names), torch.randperm(10)
    equal(got, attention(module, names["vectors"], rotated=False)[0])
    equal(module(names["vectors"][:, order]), got[:, order])


@case("`absolute_positional_encoding(")
def _(names: Names, call: str, got: Any) -> None:
    """It is the sinusoidal table; the learned one is a parameter that ends."""
    equal(got, sinusoidal(10, 64), 1e-12)
    table = names["rw"].encodings.LearnedAbsolute(10).build(names["Sizes"](64, 4, 16))
    assert [tuple(weight.shape) for weight in table.parameters()] == [(10, 64)]
    with pytest.raises(names["rw"].RopeError, match="no vector for this position"):
        table.embedded(torch.zeros(1, 11, 64), torch.arange(11))


@case("`torch.cat([x, table], -1)`")
def _(names: Names, call: str, got: Any) -> None:
    """Addition keeps the width that concatenation doubles."""
    table = torch.from_numpy(sinusoidal(10, 64)).float()
    equal(got, names["vectors"] + table)
    assert torch.cat([names["vectors"], table[None]], -1).shape[-1] == 2 * got.shape[-1] == 128


@case("`sinusoidal_encoding(")
def _(names: Names, call: str, got: Any) -> None:
    equal(got, sinusoidal(10, 64), 1e-12)


@case("`rope_encoding(")
def _(names: Names, call: str, got: Any) -> None:
    """One array by two names, up to rounding; RoPE rotates by its angles."""
    assert 0 < np.abs(rope_encoding(100, 64) - sinusoidal(100, 64)).max() < 1e-12
    equal(got, hugging_face(names["x"].transpose(1, 2)).transpose(1, 2))
    table = torch.from_numpy(rope_encoding(10, 16)).float()[:, None]
    assert (names["x"] + table - got).abs().max() > 0.1


@case("`RelativePositionAttention`")
def _(names: Names, call: str, got: Any) -> None:
    """A number for each head and clipped distance is added to scores; indexed by width it would be blind to order."""
    module, x, order = module_of(call, names), names["vectors"], torch.randperm(10)
    torch.nn.init.normal_(module.encoding.bias.weight)
    q, k, v = heads_of(module, x)
    distance = torch.arange(10)[:, None] - torch.arange(10)
    bias = module.encoding.bias.weight[distance.clamp(-128, 128) + 128].permute(2, 0, 1)
    weights = (q @ k.transpose(-1, -2) / 4 + bias).softmax(-1)
    equal(module(x), (weights @ v).transpose(1, 2).flatten(-2) @ module.o_proj.weight.T)
    assert (module(x[:, order]) - module(x)[:, order]).abs().max() > 0.01
    table = torch.randn(127)[torch.arange(64)[:, None] - torch.arange(64) + 63]
    blind = run('rw.Attention(64, 4, encoding="none", causal=False)', names)
    equal(blind((x + x @ table)[:, order]), blind(x + x @ table)[:, order])


@case("`rope_embed(")
def _(names: Names, call: str, got: Any) -> None:
    equal(got[0, 0, 0], rope_embed(names["vectors"][0, 0].numpy(), 7))


@case("`theta ** (-arange(0, d, 2) / d)`")
def _(names: Names, call: str, got: Any) -> None:
    """float64, where float32 is off by its rounding."""
    wanted = THETA ** (-np.arange(0, 16, 2) / 16)
    equal(got, wanted, 1e-16)
    assert got.dtype == torch.float64
    assert np.abs(np.float32(wanted) - wanted).max() > 1e-9


@case("`apply_rope(x)`")
def _(names: Names, call: str, got: Any) -> None:
    """With the axis of heads; without it the error names the cure."""
    equal(got, apply_rope(names["vectors"].numpy()))
    with pytest.raises(names["rw"].RopeError, match=r"x\.unsqueeze\(2\)"):
        names["rw"].apply_rotary_pos_emb(names["vectors"], names["positions"])


@case("`apply_rope_to_qk(")
def _(names: Names, call: str, got: Any) -> None:
    """Fewer key heads; a position after a cache is an argument."""
    equal(got[0], hugging_face(names["q"]))
    equal(got[1], hugging_face(names["few_k"]))
    last = names["q"][:, :, 9:]
    late, _ = names["rope"](last, last.clone(), position_ids=torch.tensor([9]), layout="bhsd")
    equal(late, hugging_face(names["q"])[:, :, 9:])
    assert (hugging_face(last) - late).abs().max() > 0.1  # from 0 again


@case("`apply_rotary_pos_emb(x, position_ids, theta)`")
def _(names: Names, call: str, got: Any) -> None:
    """Equal near 0; at position 1,000,000 the cosine of a product in float32 is wrong by 0.04."""
    equal(got, apply_rope(names["x"].numpy().swapaxes(1, 2)).swapaxes(1, 2))
    far, inv_freq = np.arange(999_000, 1_000_000), THETA ** (-np.arange(0, 64, 2) / 64)
    truth = np.cos(np.outer(far, inv_freq))
    usual = np.cos(np.float32(far)[:, None] * np.float32(inv_freq))
    ones = torch.tensor([1.0, 0.0]).repeat(32).expand(1, 1000, 1, 64)
    ours = names["rw"].apply_rotary_pos_emb(ones, torch.from_numpy(far), THETA)[0, :, 0, 0::2]
    assert np.abs(usual - truth).max() == pytest.approx(0.0386, abs=1e-4)  # as step 11 prints
    equal(ours, truth, 1.2e-7)


@case("`apply_rotary_pos_emb_complex(")
def _(names: Names, call: str, got: Any) -> None:
    """The complex product; on half-split weights it is a different rotation."""
    equal(got, rotary_complex(names["x"], frequencies_complex(16, 10)))
    assert (got - hugging_face(names["x"].transpose(1, 2)).transpose(1, 2)).abs().max() > 0.1


@case("`compute_rotary_positional_frequencies(")
@case("`precompute_freqs_cis(")
def _(names: Names, call: str, got: Any) -> None:
    """Complex tables, not frequencies."""
    equal(got, frequencies_complex(16, 10))
    assert got.is_complex()


@case("`rotary_positional_embeddings(")
def _(names: Names, call: str, got: Any) -> None:
    """The rotated x and not a table."""
    equal(got, rotary_complex(names["x"], frequencies_complex(16, 10)))
    assert got.shape == names["x"].shape


@case("`apply_rotary_pos_emb(q, k, cos, sin)`")
def _(names: Names, call: str, got: Any) -> None:
    for ours, before in zip(got, (names["q"], names["k"]), strict=True):
        equal(ours, hugging_face(before))


@case("`rope_attention(")
def _(names: Names, call: str, got: Any) -> None:
    equal(got, softmax_attention(hugging_face(names["q"]), hugging_face(names["k"]), names["v"])[0])


@case("`rope_attention_pattern()`")
def _(names: Names, call: str, got: Any) -> None:
    """The weights of each head; random vectors give most of them no place of their own."""
    wanted = attention(module_of(call.removesuffix("[1]"), names), names["vectors"], rotated=True)[1]
    equal(got, wanted)
    equal(got.sum(-1), torch.ones(1, 4, 10))


@case("`RoPEMultiHeadAttention`")
def _(names: Names, call: str, got: Any) -> None:
    """Both directions; without `causal=False` ours does not see later tokens."""
    module, x = module_of(call, names), names["vectors"]
    equal(got, attention(module, x, rotated=True)[0])
    default = run("rw.Attention(64, 4, rope=config)", names)
    equal(default(x), attention(default, x, rotated=True, causal=True)[0])
    assert (default(x) - got).abs().max() > 0.01


@case("`MultiHeadAttentionBlock`")
def _(names: Names, call: str, got: Any) -> None:
    equal(got, attention(module_of(call, names), names["vectors"], rotated=False)[0])


@case("`repeat_kv(")
def _(names: Names, call: str, got: Any) -> None:
    """As with copied heads, in torch's attention and in the layer."""
    few_k, few_v = (repeat_kv(names[name], 2) for name in ("few_k", "few_v"))
    equal(got, softmax_attention(names["q"], few_k, few_v)[0])
    layer = run('rw.Attention(64, 4, num_key_value_heads=2, encoding="none", causal=False)', names)
    q, k, v = heads_of(layer, names["vectors"])
    out = softmax_attention(q, repeat_kv(k, 2), repeat_kv(v, 2))[0]
    equal(layer(names["vectors"]), out.transpose(1, 2).flatten(-2) @ layer.o_proj.weight.T)


@case("`SelfAttention`")
def _(names: Names, call: str, got: Any) -> None:
    """Llama's loop over tokens with `start_pos` and a cache of fixed size; and our layer token by token."""
    layer, x, rw = module_of(call, names), names["vectors"], names["rw"]
    table, cached = frequencies_complex(16, 10), torch.zeros(2, 1, 10, 2, 16)
    cache = rw.KVCache(num_layers=1, batch=1, num_key_value_heads=2, head_dim=16)
    theirs, ours = [], []
    for start_pos in range(10):
        token = x[:, start_pos : start_pos + 1]
        q, k, v = (part.transpose(1, 2) for part in heads_of(layer, token))
        q, k = (rotary_complex(part, table[start_pos : start_pos + 1]) for part in (q, k))
        cached[0, :, start_pos], cached[1, :, start_pos] = k[:, 0].detach(), v[:, 0].detach()
        keys, values = (repeat_kv(one[:, : start_pos + 1].transpose(1, 2), 2) for one in cached)
        out, _ = softmax_attention(q.transpose(1, 2), keys, values)
        theirs.append(out.transpose(1, 2).flatten(-2) @ layer.o_proj.weight.T)
        ours.append(layer(token, cache=cache))
    equal(got, torch.cat(theirs, 1))
    equal(torch.cat(ours, 1), torch.cat(theirs, 1))


@case("`RoPETransformerLayer`")
def _(names: Names, call: str, got: Any) -> None:
    """A causal block; the classifier's is bidirectional."""
    layer, x = names["model"].layers[0], names["vectors"]
    equal(got, transformer_layer(layer, x, causal=True))
    both = run("rw.TextClassifier(labels)", names).layers[0]
    equal(both(x), transformer_layer(both, x, causal=False))


@case("`RoPETransformer`")
def _(names: Names, call: str, got: Any) -> None:
    equal(got, transformer(names["model"], names["ids"], causal=True))


@case("`RoPELanguageModel`")
def _(names: Names, call: str, got: Any) -> None:
    """Logits; a later token changes no earlier one, which it would without the mask."""
    model, ids = names["model"], names["ids"].clone()
    head = model.embed_tokens.weight if model.lm_head is None else model.lm_head.weight
    equal(got, transformer(model, ids, causal=True) @ head.T)
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % 100
    equal(model(changed)[:, :-1], got[:, :-1])
    open_before, open_after = (transformer(model, one, causal=False)[:, :-1] for one in (ids, changed))
    assert (open_before - open_after).abs().max() > 1e-4


@case("`RoPETextClassifier`")
def _(names: Names, call: str, got: Any) -> None:
    """The mean of the vectors; with pooling="first" the first one, [CLS]."""
    model, ids = module_of(call, names), names["ids"]
    vectors, head = transformer(model, ids, causal=False), model.classifier
    equal(got, vectors.mean(1) @ head.weight.T + head.bias)
    first = run('rw.TextClassifier(replace(labels, pooling="first"))', names)
    equal(first(ids), transformer(first, ids, causal=False)[:, 0] @ first.classifier.weight.T + first.classifier.bias)


@case("`rope_attention_decay()`")
def _(names: Names, call: str, got: Any) -> None:
    """Equal vectors: the mean of all pairs' cosines. One pair's cosine comes back to 1; this mean does not."""
    distances, d = np.arange(16), 64
    equal(got, np.cos(np.outer(distances, THETA ** (-np.arange(0, d, 2) / d))).mean(1), 1e-12)
    assert np.cos(np.arange(1, 1000)).max() > 0.9999
    whole = names["ENTRIES"]["decay"].numbers(length=1000, texts=1, tokens=16)["equal"]
    assert whole[1:].max() == whole[1] < 0.98


@case("`visualize_rope_extrapolation()`")
def _(names: Names, call: str, got: Any) -> None:
    """Angles, modulo a turn, above the largest that a pair had in 4,096 tokens; the sines stay within -1 and 1."""
    inv_freq, positions = THETA ** (-np.arange(0, 128, 2) / 128), np.linspace(0, 8191, 16)
    for position, row in zip(positions, got, strict=True):
        for frequency, unseen in zip(inv_freq, row, strict=True):
            whole_turn = 4096 * frequency >= 2 * np.pi
            assert unseen == (not whole_turn and (position * frequency) % (2 * np.pi) >= 4096 * frequency)
    assert 0 < got.mean() < 0.5
    assert np.abs(np.sin(np.outer(positions, inv_freq))).max() <= 1


# --- the page


@pytest.mark.parametrize("known", ROWS)
def test_a_row_equals_the_tutorials_formula(known: str, names: Names) -> None:
    """Its call, as it stands in the table, against the formula of its name."""
    tests = [test for start, test in CASES.items() if known.startswith(start)]
    assert len(tests) == 1
    call = ROWS[known][3]
    tests[0](names, call, run(call, names))


def test_every_item_of_the_tutorials_has_a_row() -> None:
    """Every formula here is a row, every slide with code and the other sources are named, every step is linked."""
    assert [start for start in CASES if not any(known.startswith(start) for known in ROWS)] == []
    assert len(re.findall(r"^\| `", TEXT, re.MULTILINE)) == len(ROWS) >= 28
    assert "| `RoPEMultiHeadAttention`, `AttentionWithRoPE` |" in TEXT
    named = {int(number) for source, *_ in ROWS.values() if "slide" in source for number in re.findall(r"\d+", source)}
    assert named | {int(number) for number in re.findall(r"\*\*Slide (\d+)", TEXT)} == set(range(1, 14))
    assert {"exercise", "notebook"} <= {source for source, *_ in ROWS.values()}
    steps = {int(re.match(r"\[step (\d+)\]", step)[1]) for _, _, step, _ in ROWS.values()}  # type: ignore[index]
    assert steps | {14} == set(range(1, 15))
    for _, _, step, _ in ROWS.values():
        number, target = re.fullmatch(r"\[step (\d+)\]\((.+)\)", step).groups()  # type: ignore[union-attr]
        assert f"{int(number):02}-" in target
        assert (PAGE.parent / target).exists()


def test_the_named_families_rotate_or_do_not() -> None:
    """As the table of families has them."""
    assert {"llama", "mistral", "qwen3", "gemma3_text", "phi3", "deepseek_v3", "glm", "gpt_oss"} <= set(FAMILIES)
    assert {NO_ROTATION[name] for name in ("gpt2", "bert")} == {"learned absolute positions"}
    assert {NO_ROTATION[name] for name in ("bloom", "mpt")} == {"ALiBi"}
    assert NO_ROTATION["t5"] == "a relative position bias"
    assert NO_ROTATION["mamba"].startswith("no positions")
