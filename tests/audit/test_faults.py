"""The catalogue of wrong ropes: `verify` and `check` give each the same name, and `check` any theta and any factor."""

from __future__ import annotations

import dataclasses

import pytest

from ropewalk.audit.causes import cause_of, cause_of_factor, largest_error
from ropewalk.audit.faults import hypotheses, other_faults
from ropewalk.methods.faulty_rules import ByRequest
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import Linear, Llama3, YaRN

PLAIN = RopeConfig(32, interleaved=False, theta=5e5, max_position_embeddings=256)
LONGER = dataclasses.replace(PLAIN, max_position_embeddings=1024)
ROPES = {
    "plain": PLAIN,
    "linear": dataclasses.replace(LONGER, scaling=Linear(4.0)),
    "yarn": dataclasses.replace(LONGER, scaling=YaRN(4.0, 256)),
    "gpt-oss": dataclasses.replace(LONGER, scaling=YaRN(4.0, 256, truncate=False)),
    "llama3": dataclasses.replace(LONGER, scaling=Llama3(8.0, 1.0, 4.0, 256)),
    "partial": dataclasses.replace(PLAIN, rotary_dim=16),
}


def alone(rope: RopeConfig | None) -> ModelRopes:
    return ModelRopes((rope,), (None,), (None,))


@pytest.mark.parametrize("name", ROPES)
def test_check_says_what_verify_says(name: str) -> None:
    """For every fault of frequencies, the name of one with these frequencies."""
    rope, found = ROPES[name], dict[str, tuple[float, ...]]()
    for fault in hypotheses(alone(rope), trained=rope.trained_length or 0)[1:]:
        (wrong,) = fault.positions.ropes
        if wrong is None or wrong.needs_seq_len or wrong.pairs != rope.pairs or fault.name.startswith("abf "):
            continue  # the theta of abf is told
        if fault.by_frequencies:
            found[fault.name] = wrong.columns_at(1)
    told = 0
    for columns in found.values():
        if largest_error(columns, rope.columns_at(1)) <= 1e-4:  # of the pairing or the attention factor
            continue
        cause = cause_of(columns, rope, alone(rope), 1e-5)
        assert cause is not None
        assert cause.cure.endswith(".")
        words = cause.words.partition(" in place of ")[0]
        same = [name for name, other in found.items() if largest_error(columns, other) <= 1e-5]
        assert any(name.startswith(words) for name in same), (words, same)
        told += 1
    assert told >= 20


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("yarn", {"scaling": YaRN(5.5, 256)}, "yarn with factor 5.5 in place of 4"),
        ("gpt-oss", {"scaling": YaRN(37.0, 256, truncate=False)}, "yarn with factor 37 in place of 4"),
        ("gpt-oss", {"scaling": YaRN(4.0, 256)}, "yarn with rounded bounds"),
        ("llama3", {"scaling": Llama3(11.0, 1.0, 4.0, 256)}, "llama3 with factor 11 in place of 8"),
        ("yarn", {"scaling": Llama3(4.0, 1.0, 4.0, 256)}, "llama3 4"),
        ("yarn", {"theta": 123_456.0}, "theta 123456 in place of 500000"),
        ("yarn", {"theta": 22_222.0, "scaling": None}, "no scaling, theta 22222 in place of 500000"),
        ("plain", {"scaling": Linear(3.7)}, "pi 3.7 (linear)"),
        ("partial", {"theta": 77_777.0}, "theta 77777 in place of 500000"),
    ],
)
def test_a_number_of_no_list(name: str, change: dict[str, object], words: str) -> None:
    """Solved for; another rope than a fault's has no cause."""
    rope = ROPES[name]
    found = dataclasses.replace(rope, **change).columns_at(1)  # type: ignore[arg-type]
    cause = cause_of(found, rope, alone(rope), 1e-5)
    assert cause is not None
    assert cause.words == words
    bent = [frequency * (1.1 if pair % 3 == 1 else 1.0) for pair, frequency in enumerate(found)]
    assert cause_of(bent, rope, alone(rope), 1e-5) is None
    assert cause_of(rope.columns_at(1), rope, alone(rope), 1e-5) is None


def test_a_factor_for_each_request() -> None:
    """The smallest power of two that covers the request, at most the rule's; nothing within the original length."""
    rope = dataclasses.replace(ROPES["yarn"], scaling=ByRequest(YaRN(4.0, 256)))
    for length, factor in ((200, 1.0), (256, 1.0), (257, 2.0), (512, 2.0), (513, 4.0), (5000, 4.0)):
        expected = PLAIN if factor == 1 else dataclasses.replace(LONGER, scaling=YaRN(factor, 256))
        assert rope.columns_at(length) == expected.columns_at(length)
        assert rope.attention_factor_at(length) == expected.attention_factor_at(length)
    named = {one.name: one for one in hypotheses(alone(ROPES["yarn"]), trained=256)}
    assert named["a factor for each request"].positions.ropes == (rope,)


def test_flags_of_layers_without_rotation() -> None:
    """Ignored and inverted; a recurrent layer stays without a rope, and a model whose layers all rotate has no such."""
    labels = ("full_attention", "full_attention", "linear_attention")
    own = ModelRopes((PLAIN, None, None), (None,) * 3, (None,) * 3, labels=labels)
    named = {one.name: one.positions.ropes for one in hypotheses(own, trained=256)}
    assert named["rotation on all layers"] == (PLAIN, PLAIN, None)
    assert named["rotation on the other layers only"] == (None, PLAIN, None)
    assert not any(one.name.startswith("rotation on") for one in hypotheses(alone(PLAIN), trained=256))


def test_a_scaling_twice_has_both_names() -> None:
    """Two by two is four."""
    rope = RopeConfig(16, interleaved=False, max_position_embeddings=128, scaling=Linear(2.0))
    for trained, name in ((128, "pi 4 (linear)"), (64, "pi 4 from 64 (linear)")):
        assert f"scaling twice, which is {name}" in [one.name for one in hypotheses(alone(rope), trained=trained)]


def test_keys_that_an_engine_ignores() -> None:
    """A stated attention factor and mscale, with the usual factor in their place; nothing for a block without them."""
    for rule, name in (
        (YaRN(4.0, 256, attention_factor=1.3), "yarn, attention_factor ignored"),
        (YaRN(4.0, 256, mscale=0.7, mscale_all_dim=0.5), "yarn, mscale ignored"),
    ):
        named = {one.name: one for one in hypotheses(alone(dataclasses.replace(LONGER, scaling=rule)), trained=256)}
        (rope,) = named[name].positions.ropes
        assert rope == ROPES["yarn"]
        expected = dataclasses.replace(LONGER, scaling=rule)  # `check` measures the factor
        cause = cause_of_factor(rope.attention_factor_at(1), expected, alone(expected), 1e-5)
        assert cause is not None
        assert cause.name == name
    assert not any("ignored" in one.name for one in hypotheses(alone(ROPES["yarn"]), trained=256))


def test_an_attention_factor_on_sliding_layers() -> None:
    """llama.cpp's: a file's factor in every layer; YaRN's own 0.1 ln(factor) + 1 only in those that scale."""
    full = dataclasses.replace(LONGER, scaling=YaRN(4.0, 256, attention_factor=1.3))
    own = ModelRopes((PLAIN, full), (None, None), (64, None))
    named = {one.name: one.positions.ropes for one in hypotheses(own, trained=256)}
    for name, factor in (("1.3", 1.3), ("1.14", 1.3 / ROPES["yarn"].attention_factor_at(2))):
        sliding, other = named[f"attention factor {name} on sliding layers, too"]
        assert other == full
        assert sliding is not None
        assert sliding.columns_at(2) == pytest.approx(PLAIN.columns_at(2), rel=1e-12)
        assert sliding.attention_factor_at(2) == pytest.approx(factor)


def test_the_other_pairing_of_blocks_is_interleaved() -> None:
    """Pairs that are half-split inside the features of each axis."""
    rope = RopeConfig(16, interleaved=False, axes=(0,) * 4 + (1,) * 4, axis_blocks=True)
    swapped = [one.positions.ropes[0] for one in other_faults(ModelRopes((rope,), (None,), (None,)))
               if one.name == "the other pairing"]  # fmt: skip
    assert [(one.interleaved, one.axis_blocks) for one in swapped] == [(True, False)]
