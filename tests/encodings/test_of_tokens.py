"""Encodings that depend on the tokens, in a whole layer, against naive loops over tokens and heads in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk import encodings
from ropewalk.encodings.path import BLOCK, change_of_products

HIDDEN, HEADS, KV, DIM = 12, 4, 2, 4
OF_TOKENS = ["fox", "path", "selective_rope", "grape", "grape_additive"]


def layer_of(encoding, kv_heads=KV, **changes):
    """A layer in float64 with wide weights, and its numbers in numpy."""
    layer = rw.Attention(
        HIDDEN, HEADS, num_key_value_heads=kv_heads, head_dim=DIM, encoding=encoding, **changes
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-0.9, 0.9)
    return layer, {name: value.detach().double().numpy() for name, value in layer.named_parameters()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def projections(numbers, x, kv_heads):
    """q `[seq, heads, dim]`, and k and v for each query head."""
    seq = len(x)
    q = (x @ numbers["q_proj.weight"].T).reshape(seq, HEADS, DIM)
    k, v = ((x @ numbers[f"{n}_proj.weight"].T).reshape(seq, kv_heads, DIM) for n in "kv")
    repeats = HEADS // kv_heads
    return q, k.repeat(repeats, 1), v.repeat(repeats, 1)


def attended(numbers, v, score):
    """The layer's output `[seq, hidden]` if query i of head h has the logit `score(h, i, j)` for key j."""
    seq = len(v)
    out = np.zeros((seq, HEADS, DIM))
    for h in range(HEADS):
        for i in range(seq):
            logits = np.array([score(h, i, j) for j in range(i + 1)])
            weights = np.exp(logits - logits.max())
            out[i, h] = weights / weights.sum() @ v[: i + 1, h]
    return out.reshape(seq, -1) @ numbers["o_proj.weight"].T


def convolved(raw, weight):
    """Each channel's causal convolution, tap by tap."""
    out = np.zeros_like(raw)
    for t in range(len(raw)):
        for back in range(weight.shape[1]):
            if t >= back:
                out[t] += weight[:, weight.shape[1] - 1 - back] * raw[t - back]
    return out


def compared(layer, x, expected, tolerance=1e-9):
    got = layer(torch.from_numpy(x)[None])[0].detach().numpy()
    np.testing.assert_allclose(got, expected, atol=tolerance, rtol=0)


def test_fox():
    """log f of every token after the key up to the query, added to q.k / sqrt(d)."""
    layer, numbers = layer_of("fox")
    x = np.random.default_rng(0).normal(size=(9, HIDDEN))
    q, k, v = projections(numbers, x, KV)
    gates = sigmoid(x @ numbers["encoding.gate.weight"].T + numbers["encoding.gate.bias"])

    def score(h, i, j):
        forgotten = 1.0
        for token in range(j + 1, i + 1):
            forgotten *= gates[token, h]
        return q[i, h] @ k[j, h] / math.sqrt(DIM) + math.log(forgotten)

    compared(layer, x, attended(numbers, v, score))


@pytest.mark.parametrize("kv_heads", [KV, HEADS])
def test_path(kv_heads):
    """The matrices 1 - beta w w^T of the tokens after the key, multiplied one by one."""
    layer, numbers = layer_of("path", kv_heads)
    x = np.random.default_rng(1).normal(size=(11, HIDDEN))
    q, k, v = projections(numbers, x, kv_heads)
    narrow = "encoding.down.weight" in numbers
    assert narrow == (kv_heads == HEADS)
    raw = (x @ numbers["encoding.down.weight"].T if narrow else x) @ numbers["encoding.up.weight"].T
    w = convolved(raw, numbers["encoding.convolution.weight"])
    w = (w * sigmoid(w)).reshape(len(x), kv_heads, DIM)
    w = w / np.linalg.norm(w, axis=-1, keepdims=True)
    beta = 2 * sigmoid(x @ numbers["encoding.beta.weight"].T + numbers["encoding.beta.bias"])

    def score(h, i, j):
        of, moved = h // (HEADS // kv_heads), k[j, h]
        for token in range(j + 1, i + 1):
            moved = (np.eye(DIM) - beta[token, of] * np.outer(w[token, of], w[token, of])) @ moved
        return q[i, h] @ moved / math.sqrt(DIM)

    compared(layer, x, attended(numbers, v, score))


@pytest.mark.parametrize("kv_heads", [KV, HEADS])
def test_selective_rope(kv_heads):
    """Each pair is rotated by the sum of its steps, times theta^(-2i/d)."""
    layer, numbers = layer_of(encodings.SelectiveRoPE(theta=50.0, rank=3), kv_heads)
    x = np.random.default_rng(2).normal(size=(10, HIDDEN))
    q, k, v = projections(numbers, x, kv_heads)
    parts = x.reshape(len(x), HEADS, HIDDEN // HEADS)
    normed = (parts / np.linalg.norm(parts, axis=-1, keepdims=True)).reshape(x.shape)
    raw = normed @ numbers["encoding.down.weight"].T @ numbers["encoding.up.weight"].T
    steps = convolved(raw, numbers["encoding.convolution.weight"]).reshape(len(x), kv_heads, DIM // 2)

    def angle(h, t, pair):
        return sum(steps[token, h // (HEADS // kv_heads), pair] for token in range(t + 1)) / 50.0 ** (2 * pair / DIM)

    def score(h, i, j):
        total = 0.0
        for pair in range(DIM // 2):
            a = complex(q[i, h, pair], q[i, h, pair + DIM // 2]) * np.exp(1j * angle(h, i, pair))
            b = complex(k[j, h, pair], k[j, h, pair + DIM // 2]) * np.exp(1j * angle(h, j, pair))
            total += (a * b.conjugate()).real
        return total / math.sqrt(DIM)

    compared(layer, x, attended(numbers, v, score))


def exponential(skew):
    """exp of a real skew-symmetric matrix, by the eigenvectors of the Hermitian matrix i times it."""
    values, vectors = np.linalg.eigh(1j * skew)
    return (vectors @ np.diag(np.exp(-1j * values)) @ vectors.conj().T).real


@pytest.mark.parametrize("learned_planes", [True, False])
def test_grape(learned_planes):
    """q exp(-i X) exp(j X) k with the skew X = B L B^T, each exponential of the whole matrix."""
    layer, numbers = layer_of(encodings.GRAPE(theta=100.0, learned_planes=learned_planes))
    x = np.random.default_rng(3).normal(size=(8, HIDDEN))
    q, k, v = projections(numbers, x, KV)
    basis = np.eye(DIM)
    if learned_planes:
        lower = np.zeros((DIM, DIM))
        entries = iter(numbers["encoding.skew"])
        for row in range(DIM):
            for column in range(row):
                lower[row, column] = next(entries)
        basis = exponential(lower - lower.T)
        np.testing.assert_allclose(basis @ basis.T, np.eye(DIM), atol=1e-12)
    generator = np.zeros((DIM, DIM))
    for pair in range(DIM // 2):
        frequency = 100.0 ** (-2 * pair / DIM) * math.exp(numbers["encoding.exponents"][pair])
        generator[pair + DIM // 2, pair], generator[pair, pair + DIM // 2] = frequency, -frequency
    generator = basis @ generator @ basis.T

    def score(h, i, j):
        return (exponential(i * generator) @ q[i, h]) @ (exponential(j * generator) @ k[j, h]) / math.sqrt(DIM)

    compared(layer, x, attended(numbers, v, score), 1e-7 if learned_planes else 1e-9)


def test_grape_additive():
    """A slope for each query and key: ALiBi's times three positive numbers."""
    layer, numbers = layer_of("grape_additive")
    x = np.random.default_rng(4).normal(size=(8, HIDDEN))
    q, k, v = projections(numbers, x, KV)
    u, v_direction = (
        numbers[f"encoding.{n}"] / np.linalg.norm(numbers[f"encoding.{n}"], axis=-1, keepdims=True) for n in "uv"
    )

    def softplus(z):
        return math.log(1 + math.exp(z))

    def score(h, i, j):
        omega = softplus(numbers["encoding.omega"][h]) * 2.0 ** (-8 * (h + 1) / HEADS)
        gates = softplus(v_direction[h] @ q[i, h] / math.sqrt(DIM)) + softplus(u[h] @ k[j, h] / math.sqrt(DIM))
        return q[i, h] @ k[j, h] / math.sqrt(DIM) + (j - i) * omega * gates

    compared(layer, x, attended(numbers, v, score))


@settings(max_examples=25, deadline=None)
@given(
    total=st.integers(1, 2 * BLOCK + 9), seq=st.integers(1, 9), groups=st.integers(1, 2), seed=st.integers(0, 10**6),
    same=st.booleans(),
)  # fmt: skip
def test_products_by_blocks_equal_products_one_by_one(total, seq, groups, seed, same):
    """Over one, two and three blocks, for queries at any keys, the same in all rows or not."""
    draw = np.random.default_rng(seed)
    seq = min(seq, total)
    keys, w = draw.normal(size=(2, 2, 1, total, DIM))
    w /= np.linalg.norm(w, axis=-1, keepdims=True)
    beta, q = 2 * draw.random((2, 1, total)), draw.normal(size=(2, seq, groups, DIM))
    first = int(draw.integers(0, total - seq + 1))
    queries = first + np.arange(seq) if same else np.sort(draw.integers(0, total, (2, seq)))
    got = change_of_products(*map(torch.from_numpy, (q, keys, w, beta, queries)), first if same else None).numpy()
    for row in range(2):
        at = queries if same else queries[row]
        for number, i in enumerate(at):
            moved = q[row, number].copy()  # [groups, dim]
            for j in range(i, -1, -1):
                change = (moved - q[row, number]) @ keys[row, 0, j]
                np.testing.assert_allclose(got[row, :, number, j], change, atol=1e-9, rtol=0)
                moved = moved - beta[row, 0, j] * (moved @ w[row, 0, j])[:, None] * w[row, 0, j]


def test_constant_gates_are_alibi():
    """FoX with log f = -slope, and additive GRAPE with gates that add to 1."""
    alibi, _ = layer_of("alibi")
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)], dtype=torch.float64)
    x = torch.randn(2, 9, HIDDEN, dtype=torch.float64)
    fox, _ = layer_of("fox")
    grape, _ = layer_of("grape_additive")
    for layer in (fox, grape):
        layer.load_state_dict(alibi.state_dict(), strict=False)
    with torch.no_grad():
        fox.encoding.gate.weight.zero_()
        fox.encoding.gate.bias.copy_(-torch.log(torch.expm1(slopes)))  # sigmoid gives exp(-slope)
        grape.encoding.omega.fill_(math.log(math.expm1(1 / (2 * math.log(2)))))  # two gates of softplus(0)
        grape.encoding.u.zero_()
        grape.encoding.v.zero_()
    torch.testing.assert_close(fox(x), alibi(x), atol=1e-11, rtol=0)
    torch.testing.assert_close(grape(x), alibi(x), atol=1e-7, rtol=0)  # the slopes are exact, omega is a parameter


def test_untrained_grape_is_rope():
    """The planes start as pairs of features, and the frequencies as RoPE's."""
    rope, grape = rw.Attention(HIDDEN, HEADS, head_dim=DIM, encoding="rope"), None
    grape = rw.Attention(HIDDEN, HEADS, head_dim=DIM, encoding="grape")
    grape.load_state_dict(rope.state_dict(), strict=False)
    x = torch.randn(2, 30, HIDDEN)
    torch.testing.assert_close(grape(x), rope(x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("beta", [-40.0, 0.0])
def test_path_without_steps_is_no_encoding(beta):
    """beta = 0 leaves q.k; any other beta does not."""
    plain, _ = layer_of("none")
    path, _ = layer_of("path")
    path.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        path.encoding.beta.weight.zero_()
        path.encoding.beta.bias.fill_(beta)
    x = torch.randn(1, 9, HIDDEN, dtype=torch.float64)
    difference = (path(x) - plain(x)).abs().max()
    assert difference < 1e-12 if beta else difference > 1e-3


@pytest.mark.parametrize("name", OF_TOKENS)
def test_gradients(name):
    """Of a layer's input, against differences of its outputs."""
    layer, _ = layer_of(name)
    x = torch.randn(1, 5, HIDDEN, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_long_row_is_exact(name):
    """Sums of 700 tokens, and products over 11 blocks, in float32 as in float64."""
    layer, _ = layer_of(name)
    x = torch.randn(1, 700, HIDDEN, dtype=torch.float64)
    exact = layer(x)
    torch.testing.assert_close(layer.float()(x.float()).double(), exact, atol=2e-4, rtol=0)
