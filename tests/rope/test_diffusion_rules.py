"""RIFLEx, DyPE and the base for bidirectional attention against their published formulas, at 40 digits.

The oracles follow the authors' code (thu-ml/RIFLEx, guyyariv/DyPE) line by line and call nothing of the package.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

import ropewalk as rw
from ropewalk.rope.scaling import ABF, NTK, DyPE, Ladder, PerAxis, RIFLEx, Scaling, rule_from_dict

mpmath.mp.dps = 40
Values = list[Any]  # of mpf


def ladder(b: float, d: int) -> Values:
    return [mpf(b) ** (-mpf(2 * i) / d) for i in range(d // 2)]


def ours(rule: Scaling, b: float, d: int) -> list[float]:
    return rw.inverse_frequencies(rw.RopeConfig(d, interleaved=True, theta=b, scaling=rule)).inv_freq[0].tolist()


def agree(actual: list[float], expected: Values, tolerance: str = "4e-14") -> None:
    assert len(actual) == len(expected)
    for mine, truth in zip(actual, expected, strict=True):
        assert abs(mine - truth) <= mpf(tolerance) * abs(truth)


# --- RIFLEx


def riflex(b: float, d: int, k: int, frames: int, share: float) -> Values:
    """get_1d_rotary_pos_embed_riflex: `freqs[k-1] = 0.9 * 2 * torch.pi / L_test`."""
    frequencies = ladder(b, d)
    frequencies[k - 1] = mpf(share) * 2 * mpmath.pi / frames
    return frequencies


@given(st.floats(100.0, 1e5), st.integers(1, 40), st.integers(2, 500), st.sampled_from([0.9, 1.0]), st.data())
def test_riflex(b: float, pairs: int, frames: int, share: float, data: st.DataObject) -> None:
    """Only pair k changes: its period is the new length over `share`."""
    k = data.draw(st.integers(1, pairs))
    agree(ours(RIFLEx(k - 1, frames, share), b, 2 * pairs), riflex(b, 2 * pairs, k, frames, share))


def identify_k(b: float, d: int, repeats: int) -> tuple[int, int]:
    """thu-ml/RIFLEx, identify_k: the pair whose rounded period is nearest to the first frame that repeats."""
    periods = [int(mpmath.nint(2 * mpmath.pi / f)) for f in ladder(b, d)]
    k = min(range(len(periods)), key=lambda j: (abs(periods[j] - repeats), j))
    return k + 1, periods[k]


@given(st.floats(100.0, 1e5), st.integers(1, 40), st.integers(2, 300))
def test_the_intrinsic_pair(b: float, pairs: int, repeats: int) -> None:
    """For any ladder it is the authors' k."""
    k, _ = identify_k(b, 2 * pairs, repeats)
    found = RIFLEx.for_repetition(Ladder(b, 2 * pairs, tuple(range(pairs))), repeats, 2 * repeats)
    assert found == RIFLEx(k - 1, 2 * repeats)


def test_the_authors_example() -> None:
    """HunyuanVideo: b = 256, d = 16, repetition at 48 latent frames gives k = 4 with a period of 50."""
    assert identify_k(256.0, 16, 48) == (4, 50)
    assert RIFLEx.for_repetition(Ladder(256.0, 16, tuple(range(8))), 48, 66) == RIFLEx(3, 66)


def test_periods_are_rounded_before_they_are_compared() -> None:
    """Of b = 256 and d = 44 two rounded periods are equally far from 42; the unrounded ones are not."""
    assert identify_k(256.0, 44, 42)[0] == 8
    assert RIFLEx.for_repetition(Ladder(256.0, 44, tuple(range(22))), 42, 66).pair == 7


def test_riflex_on_the_time_axis() -> None:
    """In `PerAxis` one pair of the time axis changes, and no other."""
    plain = rw.RopeConfig.from_diffusers({"_class_name": "HunyuanVideoTransformer3DModel"})
    longer = dataclasses.replace(plain, scaling=PerAxis((RIFLEx(3, 66), None, None)))
    before, after = (rw.inverse_frequencies(rope).inv_freq for rope in (plain, longer))
    assert (before != after).nonzero().tolist() == [[0, 3]]
    assert after[0, 3].item() == pytest.approx(0.9 * 2 * torch.pi / 66, rel=1e-15)


@pytest.mark.rejects
@pytest.mark.parametrize("wrong", [(-1, 66), (1.5, 66), (3, 1), (3, 66.5), (3, 66, 0.0), (3, 66, 1.5)])
def test_wrong_riflex(wrong: tuple) -> None:
    with pytest.raises(rw.RopeError, match="RIFLEx"):
        RIFLEx(*wrong)


@pytest.mark.rejects
@pytest.mark.parametrize("wrong", [0, "48", None])
def test_a_wrong_repetition(wrong: Any) -> None:
    with pytest.raises(rw.RopeError, match="RIFLEx"):
        RIFLEx.for_repetition(Ladder(256.0, 16, tuple(range(8))), wrong, 66)


def test_a_pair_that_does_not_exist() -> None:
    """Refused with one ladder when the config is made, and with several when the axis is known."""
    with pytest.raises(rw.RopeError, match="RIFLEx: the axis has no pair"):
        rw.RopeConfig(16, interleaved=True, scaling=RIFLEx(8, 66))
    plain = rw.RopeConfig.from_diffusers({"_class_name": "HunyuanVideoTransformer3DModel"})
    with pytest.raises(rw.RopeError, match="RIFLEx: the axis has no pair"):
        rw.inverse_frequencies(dataclasses.replace(plain, scaling=PerAxis((RIFLEx(8, 66), None, None))))


# --- DyPE


def dype(b: float, d: int, s: float, trained: int, kappa: float) -> Values:
    """guyyariv/DyPE, get_1d_rotary_pos_embed with yarn=True: PI and NTK by one ramp, then plain by a second one."""

    def find_correction_factor(rotations: Any) -> Any:
        return d * mpmath.log(trained / (rotations * 2 * mpmath.pi)) / (2 * mpmath.log(mpf(b)))

    def kept(upper: float, lower: float) -> Values:
        low = mpmath.floor(find_correction_factor(mpf(upper) * mpf(kappa)))
        high = mpmath.ceil(find_correction_factor(mpf(lower) * mpf(kappa)))
        low, high = max(low, 0), min(high, d - 1)
        low, high = max(0, low), min(d // 2, high)
        if low == high:
            high += mpf("0.001")
        return [1 - min(mpf(1), max(mpf(0), (i - low) / (high - low))) for i in range(d // 2)]

    plain = ladder(b, d)
    linear = [f / mpf(s) for f in plain]
    ntk = ladder(mpf(b) * mpf(s) ** (mpf(d) / (d - 2)), d)
    mixed = [f * (1 - m) + g * m for f, g, m in zip(linear, ntk, kept(1.25, 0.75), strict=True)]
    return [f * (1 - m) + g * m for f, g, m in zip(mixed, plain, kept(16, 2), strict=True)]


@given(
    st.sampled_from([1e4, 256.0, 2000.0]), st.sampled_from([16, 32, 42, 56, 64]), st.floats(1.01, 16.0),
    st.integers(32, 256), st.floats(0.2, 1.0),
)  # fmt: skip
def test_dype_of_the_code(b: float, d: int, s: float, trained: int, t: float) -> None:
    """Every step at which the authors' ramps do not turn round (low <= high)."""
    highest = d * mpmath.log(trained / (1.25 * t * t * 2 * mpmath.pi)) / (2 * mpmath.log(b))
    if mpmath.floor(highest) <= d // 2:
        agree(ours(DyPE(s, trained, t * t), b, d), dype(b, d, s, trained, t * t), "1e-11")


def test_dype_ends_at_the_plain_ladder() -> None:
    """At the last steps fewer and fewer pairs are scaled, and at strength 0 none."""
    plain = [float(f) for f in ladder(1e4, 56)]
    changed = [
        sum(a != pytest.approx(b, rel=1e-9) for a, b in zip(ours(DyPE(4.0, 64, t * t), 1e4, 56), plain, strict=True))
        for t in (1.0, 0.5, 0.2, 0.1, 0.003, 0.0)
    ]
    assert changed == sorted(changed, reverse=True)
    assert changed[0] > changed[2] > 0 == changed[-1] == changed[-2]


def test_dype_by_axis_and_step() -> None:
    """FLUX at 4096 x 2048: base_patches 64, so rows and columns are scaled by their own factors, the first axis not."""
    flux = rw.RopeConfig.from_diffusers({"_class_name": "FluxTransformer2DModel"})
    scaled = dataclasses.replace(flux, scaling=DyPE.at_step(0.6, (1, 256, 128), 64))
    columns = rw.inverse_frequencies(scaled).inv_freq.sum(0).tolist()
    kappa = 0.6**2
    expected = [*ladder(1e4, 16), *dype(1e4, 56, 4.0, 64, kappa), *dype(1e4, 56, 2.0, 64, kappa)]
    agree(columns, expected, "1e-11")
    within = DyPE.at_step(0.6, (1, 64, 32), 64)
    assert within == PerAxis((None, None, None))


@pytest.mark.parametrize("t", [1.0, 0.7, 0.25, 0.0])
def test_dype_with_ntk(t: float) -> None:
    """FluxPosEmbed, method "ntk": theta * (s^(d/(d-2)))^(2 t^2)."""
    rule = DyPE.at_step(t, (1, 256, 64), 64, method="ntk").rules
    assert rule[0] is rule[2] is None
    assert isinstance(rule[1], NTK)
    theta = mpf(1e4) * (mpf(4) ** (mpf(56) / 54)) ** (2 * mpf(t) ** 2)
    agree(ours(rule[1], 1e4, 56), ladder(theta, 56))


def test_the_attention_factor_of_dype() -> None:
    """The authors multiply cos and sin by 0.1 ln(s) + 1, which is YaRN's factor of queries and of keys."""
    config = rw.RopeConfig(56, interleaved=True, scaling=DyPE(4.0, 64))
    assert rw.inverse_frequencies(config).attention_factor == pytest.approx(0.1 * float(mpmath.log(4)) + 1, rel=1e-15)
    with pytest.raises(rw.RopeError, match="one attention factor"):
        rw.RopeConfig(16, interleaved=True, axes=(0,) * 4 + (1,) * 4, axes_restart=True,
                      scaling=PerAxis((None, DyPE(4.0, 64))))  # fmt: skip


@pytest.mark.parametrize("wrong", [(0.5, 64), (4.0, 0), (4.0, 64, -0.1), (4.0, 64, 1.1), (4.0, 64, 1.0, 0.0)])
def test_wrong_dype(wrong: tuple) -> None:
    with pytest.raises(rw.RopeError, match="DyPE"):
        DyPE(*wrong)


@pytest.mark.rejects
@pytest.mark.parametrize(
    "wrong", [{"timestep": 999}, {"grid": (1, 0, 4)}, {"grid": 4}, {"trained": 0}, {"method": "pi"}]
)
def test_a_wrong_step(wrong: dict) -> None:
    with pytest.raises(rw.RopeError, match="DyPE"):
        DyPE.at_step(**{"timestep": 0.5, "grid": (1, 256, 256), "trained": 64, **wrong})


# --- bidirectional attention


def critical(b: float, d: int, trained: int, target: int, sides: int) -> Any:
    """LongLLaDA: lambda = b^-1 (t / 2 pi)^(d / d_extra); UltraLLaDA takes 2 T in place of both lengths."""
    extra = 2 * mpmath.ceil(mpf(d) / 2 * mpmath.log(sides * trained / (2 * mpmath.pi)) / mpmath.log(mpf(b)))
    return mpf(b) * (sides * target / (2 * mpmath.pi)) ** (mpf(d) / extra) / mpf(b)


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("target", [8192, 16_384, 131_072])
def test_the_base_of_the_critical_pair(sides: int, target: int) -> None:
    """LLaDA-8B: theta 500,000, 128 features, trained on 4,096 tokens."""
    found = ABF.for_critical_pair(500_000.0, 128, 4096, target, two_sided=sides == 2)
    assert found.theta == pytest.approx(float(critical(500_000.0, 128, 4096, target, sides)), rel=1e-13)


def test_the_published_factors() -> None:
    """LongLLaDA's lambda for LLaDA: 4, 14, 31 and 55 for 8k, 16k, 24k and 32k tokens (rounded up)."""
    rules = [ABF.for_critical_pair(500_000.0, 128, 4096, 1024 * k) for k in (8, 16, 24, 32)]
    assert [-int(-rule.theta // 500_000) for rule in rules] == [4, 14, 31, 55]


def test_two_sides_slow_the_critical_pair_to_both_distances() -> None:
    """With 2 T, the first pair that did not turn fully in training turns once within -T to T."""
    rule = ABF.for_critical_pair(500_000.0, 128, 4096, 131_072, two_sided=True)
    assert 2 * torch.pi / ours(rule, 500_000.0, 128)[35] == pytest.approx(2 * 131_072, rel=1e-9)


@pytest.mark.rejects
@pytest.mark.parametrize(
    "wrong",
    [(1.0, 128, 4096, 8192), (5e5, 7, 4096, 8192), (5e5, 128, 4096, 2048), (5e5, 128, 3, 8), (5e5, "128", 4096, 8192)],
)
def test_wrong_lengths(wrong: tuple) -> None:
    with pytest.raises(rw.RopeError, match="ABF"):
        ABF.for_critical_pair(*wrong)


@pytest.mark.parametrize("rule", [RIFLEx(3, 66), DyPE(4.0, 64, 0.25), DyPE.at_step(0.5, (1, 256, 64), 64)])
def test_rules_survive_a_file(rule: Scaling) -> None:
    assert rule_from_dict(rule.to_dict()) == rule
