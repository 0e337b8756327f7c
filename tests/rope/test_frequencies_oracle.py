"""Every scaling rule against its published formula at 40 digits; nothing here calls the package's arithmetic.

Notation as in the papers: b is theta, d the rotary dimension, s the factor, L the trained and l the sequence length."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

import ropewalk as rw
from ropewalk.rope.frequencies import GRID, reach, smallest_theta
from ropewalk.rope.scaling import ABF, NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Resonance, Scaling, YaRN
from ropewalk.rope.tables import make_tables, phase_tables, turns_per_token
from tests import oracle

mpmath.mp.dps = 40
Values = list[Any]  # of mpf

bases = st.floats(100.0, 1e7)
factors = st.floats(1.0, 128.0)
lengths = st.integers(64, 1_000_000)
dims = st.integers(2, 64).map(lambda pairs: 2 * pairs)


def ladder(b: float, d: int) -> Values:
    """RoFormer, eq. 15: theta_i = b^(-2(i-1)/d)."""
    return [mpf(b) ** (-mpf(2 * i) / d) for i in range(d // 2)]


def turns_of(b: float, d: int, length: int) -> Values:
    """YaRN, eq. 17 (r): how many turns each pair makes within `length` tokens."""
    return [length * f / (2 * mpmath.pi) for f in ladder(b, d)]


def agree(rule: Scaling | None, b: float, d: int, expected: Values, *, l: int | None = None, limit: int = 4096) -> None:  # noqa: E741
    """The package's float64 frequencies are within 4e-14 relative of the formula (1e-11 where a ramp weighs them)."""
    config = rw.RopeConfig(d, interleaved=True, theta=b, scaling=rule, max_position_embeddings=limit)
    actual = rw.inverse_frequencies(config, l).inv_freq[0].tolist()
    assert len(actual) == len(expected)
    for mine, truth in zip(actual, expected, strict=True):
        assert abs(mine - truth) <= (mpf("1e-11") if isinstance(rule, (YaRN, Llama3)) else mpf("4e-14")) * abs(truth)


def factor_of(rule: Scaling, *, limit: int = 4096, l: int | None = None) -> float:  # noqa: E741
    """The package's attention factor under a config of that longest position."""
    d = 2 * len(rule.short_factor) if isinstance(rule, LongRoPE) else 8
    config = rw.RopeConfig(d, interleaved=True, scaling=rule, max_position_embeddings=limit)
    return rw.inverse_frequencies(config, l).attention_factor


@given(bases, dims)
def test_plain(b: float, d: int) -> None:
    """No rule: RoFormer's own frequencies."""
    agree(None, b, d, ladder(b, d))


@given(bases, dims, factors)
def test_position_interpolation(b: float, d: int, s: float) -> None:
    """Chen et al. 2023, eq. 4: f'(x, m) = f(x, m / s)."""
    agree(Linear(s), b, d, [f / mpf(s) for f in ladder(b, d)])


@given(bases, st.integers(3, 64).map(lambda pairs: 2 * pairs), factors)
def test_ntk_aware(b: float, d: int, s: float) -> None:
    """YaRN paper, definition 1: b' = b s^(d/(d-2)); the slowest pair is then divided by s exactly, the fastest by 1."""
    changed = mpf(b) * mpf(s) ** (mpf(d) / (d - 2))
    expected = [changed ** (-mpf(2 * i) / d) for i in range(d // 2)]
    agree(NTK(s), b, d, expected)
    assert expected[0] == 1
    assert mpmath.almosteq(expected[-1], ladder(b, d)[-1] / mpf(s), rel_eps=mpf("1e-30"))


@given(bases, st.integers(3, 64).map(lambda pairs: 2 * pairs), factors, lengths, st.floats(0.1, 20.0))
def test_dynamic_ntk(b: float, d: int, s: float, limit: int, ratio: float) -> None:
    """Emozilla's code: s' = s l/L - (s - 1) for l > L; the YaRN paper, section 3.3: s' = max(1, l/L)."""
    l = max(1, int(limit * ratio))  # noqa: E741
    beyond = mpf(max(l, limit)) / limit
    for variant, scale in (("transformers", mpf(s) * beyond - (mpf(s) - 1)), ("paper", beyond)):
        changed = mpf(b) * scale ** (mpf(d) / (d - 2))
        expected = [changed ** (-mpf(2 * i) / d) for i in range(d // 2)]
        agree(DynamicNTK(s, variant), b, d, expected, l=l, limit=limit)  # type: ignore[arg-type]


@given(bases, dims, factors, lengths, st.floats(0.25, 4.0), st.floats(0.5, 60.0))
def test_yarn_of_the_paper(b: float, d: int, s: float, trained: int, alpha: float, width: float) -> None:
    """YaRN, eq. 18 to 20: (1 - gamma(r)) theta/s + gamma(r) theta, with gamma linear in r between alpha and beta."""
    beta = alpha + width
    expected = []
    for f, r in zip(ladder(b, d), turns_of(b, d, trained), strict=True):
        gamma = 0 if r < alpha else 1 if r > beta else (r - mpf(alpha)) / (mpf(beta) - mpf(alpha))
        expected.append((1 - gamma) * f / mpf(s) + gamma * f)
    agree(YaRN(s, trained, beta_fast=beta, beta_slow=alpha, variant="paper"), b, d, expected)


def yarn_code(b: float, d: int, s: float, trained: int, beta: float, alpha: float, truncate: bool) -> Values:
    """jquesnelle/yarn, LlamaYaRNScaledRotaryEmbedding: find_correction_range and linear_ramp_mask."""

    def find_correction_dim(rotations: float) -> Any:
        return d * mpmath.log(trained / (mpf(rotations) * 2 * mpmath.pi)) / (2 * mpmath.log(mpf(b)))

    low, high = find_correction_dim(beta), find_correction_dim(alpha)
    if truncate:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = max(low, mpf(0)), min(high, mpf(d - 1))
    if low == high:
        high += mpf("0.001")
    masks = [1 - min(mpf(1), max(mpf(0), (i - low) / (high - low))) for i in range(d // 2)]
    return [f / mpf(s) * (1 - mask) + f * mask for f, mask in zip(ladder(b, d), masks, strict=True)]


@given(bases, dims, factors, st.integers(512, 1_000_000), st.floats(8.0, 64.0), st.floats(0.5, 4.0))
def test_yarn_of_the_code(b: float, d: int, s: float, trained: int, beta: float, alpha: float) -> None:
    """The reference code's ramp, linear in the index of the pair; the bounds are not rounded here."""
    rule = YaRN(s, trained, beta_fast=beta, beta_slow=alpha, truncate=False)
    agree(rule, b, d, yarn_code(b, d, s, trained, beta, alpha, truncate=False))


PUBLISHED = [  # theta, rotary dim, factor, trained length: Llama-2 x16, Qwen2.5, DeepSeek-V3, gpt-oss, OLMo 3
    (1e4, 128, 16.0, 4096),
    (1e6, 128, 4.0, 32_768),
    (1e4, 64, 40.0, 4096),
    (150_000.0, 64, 32.0, 4096),
    (5e5, 128, 8.0, 8192),
]


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("b", "d", "s", "trained"), PUBLISHED)
def test_yarn_of_the_code_on_published_models(b: float, d: int, s: float, trained: int, truncate: bool) -> None:
    """The same with the bounds rounded outward, on the numbers of released checkpoints."""
    for beta in (32.0, 1.0):  # equal bounds are a step: Kimi-K2
        rule = YaRN(s, trained, beta_fast=beta, truncate=truncate)
        agree(rule, b, d, yarn_code(b, d, s, trained, beta, 1.0, truncate))


@given(st.floats(1.0, 1024.0), st.floats(0.1, 2.0), st.floats(0.1, 2.0))
def test_yarn_attention_factor(s: float, mscale: float, all_dim: float) -> None:
    """YaRN, eq. 22: sqrt(1/t) = 0.1 ln s + 1; DeepSeek divides two of them, with ln weighted by its mscales."""

    def g(weight: float) -> Any:
        return mpf("0.1") * mpf(weight) * mpmath.log(mpf(s)) + 1

    assert factor_of(YaRN(s, 512)) == pytest.approx(float(g(1)), rel=1e-14)
    both = YaRN(s, 512, mscale=mscale, mscale_all_dim=all_dim)
    assert factor_of(both) == pytest.approx(float(g(mscale) / g(all_dim)), rel=1e-14)
    assert factor_of(YaRN(s, 512, mscale=mscale)) == pytest.approx(float(g(1)), rel=1e-14)
    assert factor_of(YaRN(s, 512, attention_factor=1.25, mscale=mscale, mscale_all_dim=all_dim)) == 1.25


@given(bases, st.lists(st.tuples(st.floats(1.0, 4.0), st.floats(1.0, 80.0)), min_size=2, max_size=48), lengths)
def test_longrope(b: float, divisors: list[tuple[float, float]], trained: int) -> None:
    """LongRoPE, eq. 3: theta_i / lambda_i; the short list up to the trained length, the long one beyond it."""
    short, long = zip(*divisors, strict=True)
    d = 2 * len(divisors)
    rule = LongRoPE(short, long, trained)
    for l, chosen in ((1, short), (trained, short), (trained + 1, long), (10 * trained, long)):  # noqa: E741
        expected = [f / mpf(x) for f, x in zip(ladder(b, d), chosen, strict=True)]
        agree(rule, b, d, expected, l=l, limit=8 * trained)


@given(lengths, st.floats(1.0, 64.0))
def test_longrope_attention_factor(trained: int, s: float) -> None:
    """LongRoPE's code: sqrt(1 + ln s / ln L), s by default the ratio of the lengths, on both sides of the switch."""
    lists = ((1.0, 1.0), (2.0, 2.0))
    expected = float(mpmath.sqrt(1 + mpmath.log(mpf(s)) / mpmath.log(mpf(trained))))
    for l in (trained, trained + 1):  # noqa: E741
        assert factor_of(LongRoPE(*lists, trained, factor=s), l=l) == pytest.approx(expected, rel=1e-14)
    ratio = float(mpmath.sqrt(1 + mpmath.log(mpf(4)) / mpmath.log(mpf(trained))))
    assert factor_of(LongRoPE(*lists, trained), limit=4 * trained, l=1) == pytest.approx(ratio, rel=1e-14)


@given(bases, dims, factors, lengths, st.floats(0.25, 2.0), st.floats(0.1, 8.0))
def test_llama3(b: float, d: int, s: float, trained: int, low: float, width: float) -> None:
    """Meta's llama-models, apply_scaling: by wavelength, with a smooth band between trained/low and trained/high."""
    high = low + width
    expected = []
    for freq in ladder(b, d):
        wavelen = 2 * mpmath.pi / freq
        if wavelen < mpf(trained) / mpf(high):
            expected.append(freq)
        elif wavelen > mpf(trained) / mpf(low):
            expected.append(freq / mpf(s))
        else:
            smooth = (mpf(trained) / wavelen - mpf(low)) / (mpf(high) - mpf(low))
            expected.append((1 - smooth) * freq / mpf(s) + smooth * freq)
    rule = Llama3(s, low, high, trained)
    agree(rule, b, d, expected)
    assert factor_of(rule) == 1.0


def test_llama3_equal_bands_are_a_step() -> None:
    """Llama 4 Scout publishes low = high = 1: pairs that complete a turn stay, the others are divided."""
    expected = [f if r >= 1 else f / 16 for f, r in zip(ladder(5e5, 128), turns_of(5e5, 128, 8192), strict=True)]
    agree(Llama3(16.0, 1.0, 1.0, 8192), 5e5, 128, expected)


@given(bases, dims, st.floats(0.0, 1.0), factors)
def test_proportional(b: float, d: int, p: float, s: float) -> None:
    """p-RoPE: the first int(p d / 2) pairs turn, with exponents over the whole head; the others stand still."""
    turning = int(p * d // 2)
    expected = [f / mpf(s) if i < turning else mpf(0) for i, f in enumerate(ladder(b, d))]
    agree(Proportional(p, s), b, d, expected)


@given(bases, dims, st.floats(1.5, 1e9))
def test_abf(b: float, d: int, larger: float) -> None:
    """Xiong et al. 2023, section 4.1: RoPE's own formula with another base; nothing of the config's theta is left."""
    agree(ABF(larger), b, d, ladder(larger, d))
    assert factor_of(ABF(larger)) == 1.0


def rounded(frequencies: Values) -> Values:
    """Wang et al. 2024: each wavelength lambda = 2 pi / theta becomes its nearest whole number of tokens."""
    return [2 * mpmath.pi / mpmath.nint(2 * mpmath.pi / f) for f in frequencies]


def _clear(frequencies: Values) -> bool:
    """No wavelength lies so near a half that float64 could round it to the other side."""
    lengths = [2 * mpmath.pi / f for f in frequencies]
    return all(abs(x - mpmath.floor(x) - mpf("0.5")) > mpf("1e-11") * (1 + x) for x in lengths)


@given(bases, dims, factors)
def test_resonance(b: float, d: int, s: float) -> None:
    """Rounded wavelengths on plain RoPE and on position interpolation."""
    for of, below in ((None, ladder(b, d)), (Linear(s), [f / mpf(s) for f in ladder(b, d)])):
        if _clear(below):
            agree(Resonance(of), b, d, rounded(below))


@pytest.mark.parametrize(("b", "d", "s", "trained"), PUBLISHED)
def test_resonance_yarn_on_published_models(b: float, d: int, s: float, trained: int) -> None:
    """Resonance YaRN: YaRN's frequencies with whole wavelengths, and YaRN's attention factor."""
    below = yarn_code(b, d, s, trained, 32.0, 1.0, truncate=True)
    assert _clear(below)
    rule = Resonance(YaRN(s, trained))
    agree(rule, b, d, rounded(below))
    assert factor_of(rule) == pytest.approx(float(mpf("0.1") * mpmath.log(mpf(s)) + 1), rel=1e-14)
    assert rule.original_length == trained


# --- how far a base reaches


def sums(theta: float, dim: int, tokens: int) -> np.ndarray:
    """sum_i cos(m theta^(-2i/dim)) for m = 0 .. tokens - 1: Men et al. 2024, eq. 8, written out."""
    frequencies = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    return np.cos(np.arange(tokens)[:, None] * frequencies).sum(1)


@given(st.floats(10.0, 1e6), st.integers(2, 40).map(lambda pairs: 2 * pairs), st.integers(1, 3000))
def test_reach_is_the_first_fall_below_zero(theta: float, dim: int, first: int) -> None:
    """The blocked sums fall below zero where the plain ones do, from any first distance on."""
    found = sums(theta, dim, 20_000)
    if np.abs(found).min() < 1e-9:
        return
    below = np.flatnonzero(found[first:] < 0)
    frequencies = theta ** (-np.arange(0, dim, 2) / dim)
    assert reach(frequencies, 19_999, first=first) == (first + int(below[0]) if len(below) else None)


def test_reach_across_the_grid() -> None:
    """One slow pair turns negative at a quarter turn: beyond the first 1,048,576 distances too, and at the last."""
    slow, turn = np.array([np.pi / 2 / 1_500_000.5]), 1_500_001
    assert [reach(slow, limit) for limit in (2_000_000, turn, turn - 1)] == [turn, turn, None]
    assert (reach(slow, turn, first=turn), reach(np.array([3.0]), 5)) == (turn, 1)


@pytest.mark.parametrize(("dim", "tokens"), [(64, 512), (64, 1024), (32, 700)])
def test_smallest_theta_is_the_first_of_the_grid(dim: int, tokens: int) -> None:
    """No smaller base of the grid suffices, by trying every one of them; the one that is found does."""
    found = smallest_theta(dim, tokens, at_least=100.0)
    assert sums(found, dim, tokens).min() >= 0
    smaller = 10 ** (np.arange(2 * GRID, round(GRID * np.log10(found))) / GRID)
    assert len(smaller) > 100
    assert all(sums(theta, dim, tokens).min() < 0 for theta in smaller)
    end = int(np.flatnonzero(sums(found, dim, 8 * tokens) < 0)[0])  # it suffices for just so many tokens
    assert smallest_theta(dim, end, at_least=found) == found < smallest_theta(dim, end + 1, at_least=found)


@pytest.mark.parametrize(
    ("dim", "tokens", "published", "within"),
    [(128, 4096, 2.7e4, 0.07), (128, 8192, 8.4e4, 0.01), (64, 8192, 3.9e5, 0.01)],
)
def test_numbers_of_the_paper(dim: int, tokens: int, published: float, within: float) -> None:
    """Men et al.'s table: 2.7e4 for 4k (their grid is coarser: ours is 2.87e4) and 8.4e4 for 8k, at 128 features."""
    assert smallest_theta(dim, tokens, at_least=published / 2) == pytest.approx(published, rel=within)


def test_never_below_what_is_asked() -> None:
    """A base that suffices is returned as it is; one that does not is raised, and the answer never lies below it."""
    assert smallest_theta(128, 8192, at_least=500_000.0) == 500_000.0
    assert smallest_theta(64, 1024, at_least=10_000.0) > 10_000.0
    assert smallest_theta(64, 1) == 10 ** (1 / GRID)  # any base suffices for one token
    with pytest.raises(rw.RopeError, match="a base of at least 1"):
        smallest_theta(64, 512, at_least=0.5)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((63, 512), "must be even"),
        ((64, 0), "must be even"),
        ((64, 512.0), "must be even"),
        ((2, 512), "no base suffices"),
    ],
)
def test_refused(arguments: tuple[int, int], message: str) -> None:
    """Impossible sizes, and one pair alone, whose cosine falls below zero whatever the base."""
    with pytest.raises(rw.RopeError, match=message):
        smallest_theta(*arguments)


# --- tables


BOUND = 1.2e-7
POSITIONS = np.unique(
    np.concatenate(
        [
            np.arange(6), [255, 4095, 131_071, 999_999, 1_000_000, 2**24 + 1, 9_999_999, 10_000_000],
            np.random.default_rng(0).integers(0, 10_000_001, 12), -np.array([1, 77, 131_072, 10_000_000]),
        ]
    )
)  # fmt: skip


@pytest.mark.parametrize("theta", [1e2, 1e3, 1e4, 1e5, 1e6, 1e7])
@pytest.mark.parametrize("dim", [64, 128])
def test_within_one_rounding_to_ten_million(theta, dim):
    """cos and sin are within 1.2e-7 of mpmath at every theta, also far beyond any trained length and below zero."""
    angle = oracle.angles(POSITIONS, theta, dim)
    rope = rw.RotaryEmbedding(rw.RopeConfig(dim, interleaved=True, theta=theta))
    cos, sin = rope.cos_sin(torch.from_numpy(POSITIONS))
    assert cos.dtype == sin.dtype == torch.float32
    np.testing.assert_allclose(cos.double().numpy(), np.cos(angle), rtol=0, atol=BOUND)
    np.testing.assert_allclose(sin.double().numpy(), np.sin(angle), rtol=0, atol=BOUND)
    cos64, sin64 = rope.cos_sin(torch.from_numpy(POSITIONS), dtype=torch.float64)
    np.testing.assert_allclose(cos64.numpy(), np.cos(angle), rtol=0, atol=5e-9)
    np.testing.assert_allclose(sin64.numpy(), np.sin(angle), rtol=0, atol=5e-9)


@pytest.mark.parametrize("theta", [1e2, 1e4, 1e7])
def test_the_error_grows_with_the_angle_beyond_ten_million(theta):
    """Beyond the promised range an angle is off by 2^-51 of its size and no more, at any integer, as is documented."""
    far = np.array([2**28, 2**32, -(2**32) - 7, 10**12 + 7, 2**53 - 1, 2**60 + 12_345, 2**63 - 1, -(2**63)])
    config = rw.RopeConfig(64, interleaved=True, theta=theta)
    size = np.abs(far.astype(np.float64))[:, None] * rw.inverse_frequencies(config).inv_freq[0].numpy()
    angle = oracle.angles(far, theta, 64)
    for table, truth in zip(
        rw.RotaryEmbedding(config).cos_sin(torch.from_numpy(far)), (np.cos(angle), np.sin(angle)), strict=True
    ):
        error = np.abs(table.double().numpy() - truth)
        assert (error <= 2.0**-25 + 2.0**-51 * size).all()
        assert error[0].max() <= BOUND  # 268 million
        assert error[3].max() > BOUND  # 10^12: no promise that holds everywhere
        assert error[-1].max() > 0.1


FREQUENCIES = (*rw.RopeConfig(64, interleaved=True).columns_at(), 3.0, 4.0, 2.0**100, 0.0)


def test_turns_per_token_are_the_nearest_integers():
    """Each frequency in 2^-64 of a turn is within half a unit of its float64 value, modulo whole turns."""
    with mpmath.workdps(120):
        for frequency, turns in zip(FREQUENCIES, turns_per_token(FREQUENCIES), strict=True):
            assert -(2**63) <= turns < 2**63
            off = mpmath.mpf(frequency) * 2**64 / (2 * mpmath.pi) - turns
            assert abs(off - mpmath.nint(off / 2**64) * 2**64) <= 0.5


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, BOUND), (torch.float64, 1e-15)], ids=str)
def test_the_integer_phase_to_position_2_to_the_53(dtype, rounding):
    """An angle is off by 2^-65 turns per token and the table's rounding, at any position up to 2^53."""
    places = [0, 1, -77, 131_071, 9_999_999, 2**24 + 1, 10**9 + 7, 2**40 - 1, 10**15 + 1, 2**53 - 1, 2**53, -(2**53)]
    columns = FREQUENCIES[:-3]
    positions = torch.tensor(places)[:, None]
    cos, sin = phase_tables(positions, torch.tensor(turns_per_token(columns)), dtype)
    with mpmath.workdps(60):
        for row, place in enumerate(places):
            bound = rounding + 2 * np.pi * 2.0**-65 * abs(place)
            for pair, frequency in enumerate(columns):
                angle = mpmath.mpf(frequency) * place
                assert abs(cos[row, pair].item() - mpmath.cos(angle)) <= bound
                assert abs(sin[row, pair].item() - mpmath.sin(angle)) <= bound


def test_any_leading_shape_and_real_coordinates():
    """Positions keep their shape; real coordinates are allowed."""
    cos, sin = make_tables(torch.tensor([[0.5, -0.25]]), (2.0, 1.0))
    assert cos.shape == (1, 2, 2)
    np.testing.assert_allclose(sin.numpy(), np.sin([[[1.0, 0.5], [-0.5, -0.25]]]), rtol=1e-6)
