"""from_hf and to_hf: the spellings they read and write, what they refuse and in which words."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.rope.axes import axes_from_sections
from ropewalk.rope.scaling import ABF, NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Resonance, Scaling, YaRN
from tests.rope.models import CONFIGS, fixture, fixture_names

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 2048,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LATENT = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "partial_rotary_factor": 0.5}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 32,
    "long_factor": [2.0] * 32,
    "original_max_position_embeddings": 512,
}


def read(layer_type: str | None = None, **changes: Any) -> rw.RopeConfig:
    """from_hf of the small Llama with some keys changed; a key set to `...` is removed."""
    fields = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    return rw.RopeConfig.from_hf(fields, layer_type=layer_type)


# --- what is read


def test_path_folder_dict_and_object(tmp_path: Path) -> None:
    """A path, its folder, a str, a dict and an object with to_dict all give the same."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    expected = rw.RopeConfig(64, interleaved=False, max_position_embeddings=2048)
    config_object = namedtuple("Config", ["to_dict"])(lambda: LLAMA)
    for source in (tmp_path / "config.json", tmp_path, str(tmp_path), LLAMA, config_object):
        assert rw.RopeConfig.from_hf(source) == expected


def test_every_fixture_names_its_source() -> None:
    """Each real configuration says where its numbers were read."""
    for name in fixture_names():
        assert len(json.loads((CONFIGS / f"{name}.json").read_text())["_source"]) > 20, name


def test_head_dim_null() -> None:
    """A null or missing head_dim is hidden_size / num_attention_heads, under every spelling of the two."""
    assert read(head_dim=None).head_dim == 64
    assert read(hidden_size=..., num_attention_heads=..., n_embd=256, n_head=4).head_dim == 64
    assert read(hidden_size=..., d_model=512, num_attention_heads=..., n_heads=4).head_dim == 128
    assert read(**LATENT).head_dim == 64  # half of a whole head, of which only the slice rotates


def test_composite_configs() -> None:
    """Of a multimodal config the text part is read; it takes the outer model_type if it has none."""
    inner = {"hidden_size": 2560, "num_attention_heads": 8}
    nested = {"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 1152}}
    config = rw.RopeConfig.from_hf(nested, layer_type="sliding_attention")
    assert (config.head_dim, config.theta) == (256, 10_000.0)
    live = {**nested, "text_config": namedtuple("Config", ["to_dict"])(lambda: {**inner, "head_dim": 128})}
    assert rw.RopeConfig.from_hf(live, layer_type="sliding_attention").head_dim == 128
    assert rw.RopeConfig.from_hf({"model_type": "internvl_chat", "llm_config": LLAMA}).head_dim == 64
    omni = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {**inner, "model_type": "qwen2_vl_text"}}}
    with pytest.raises(rw.RopeError, match="mrope_section"):
        rw.RopeConfig.from_hf(omni)


NESTING = {"model_type": "gemma3_text", "rope_scaling": None}  # a family with a block for each layer type


@pytest.mark.rejects
def test_nested_blocks() -> None:
    """A nested block has its own theta, or its layers' default; one next to the blocks is refused."""
    block: dict[str, Any] = {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {}}
    assert read("full_attention", **NESTING, rope_parameters=block).theta == 1e6
    assert read("sliding_attention", **NESTING, rope_parameters=block).scaling is None
    with pytest.raises(rw.RopeError, match="`rope_theta` is next to the blocks"):
        read("full_attention", **NESTING, rope_parameters={**block, "rope_theta": 7e4})
    with pytest.raises(rw.RopeError, match="llama uses one flat block"):
        read("full_attention", rope_parameters=block)
    same = {"full_attention": {"rope_theta": 1e5}, "sliding_attention": {"rope_theta": 1e5}}
    assert read(**NESTING, rope_parameters=same).theta == 1e5
    stray = fixture("gemma_4_e4b")["text_config"]
    stray["rope_parameters"] |= {"rope_theta": None, "rope_type": "default"}
    assert rw.RopeConfig.from_hf(stray, layer_type="full_attention").scaling == Proportional(0.25)
    assert read(rope_parameters={"rope_type": "proportional"}).scaling == Proportional(1.0)
    assert read("sliding_attention") == read() == read("full_attention")  # any layer type has the only block
    assert read("hybrid", layer_types=["hybrid", "mamba"]) == read()


def test_head_dim_of_a_layer_type() -> None:
    """Gemma 4's full layers have their own head_dim, in the released key and in transformers' per_layer_config."""
    text = fixture("gemma_4_e4b")["text_config"]
    dims = [rw.RopeConfig.from_hf(text, layer_type=t).head_dim for t in ("full_attention", "sliding_attention")]
    assert dims == [512, 256]
    assert rw.RopeConfig.from_hf({**text, "global_head_dim": 320}, layer_type="full_attention").head_dim == 320
    text["per_layer_config"] = {"5": {"head_dim": 384}}
    del text["global_head_dim"]
    assert rw.RopeConfig.from_hf(text, layer_type="full_attention").head_dim == 384
    assert rw.RopeConfig.from_hf(text, layer_type="sliding_attention").head_dim == 256


@pytest.mark.repeats_shapes  # the checker is a frame between the caller and the warning
def test_unknown_family_with_its_pairing() -> None:
    """A config that says how it pairs may have no model_type; an unknown one is read with one warning."""
    assert read(model_type=..., rope_interleave=False).interleaved is False
    assert read(model_type=..., rope_interleave=True, partial_rotary_factor=0.5).rotary_dim == 32
    with pytest.warns(UserWarning, match="'new_model' is unknown, and only its pairing is stated") as told:
        assert read(model_type="new_model", rope_interleave=True).interleaved is True
    assert [Path(warning.filename).name for warning in told] == ["test_hugging_face.py"]


@pytest.mark.parametrize("unread", [{"use_fope": True}, {"use_forget_gate": True}, {"rope_delta": 7}])
def test_unread_settings_of_a_known_family(unread: dict[str, Any]) -> None:
    """One warning names the keys that nothing reads; off, they are passed over."""
    with pytest.warns(UserWarning, match=f"these keys are not used: `{next(iter(unread))}`") as told:
        assert read(**unread) == read()
    assert len(told) == 1
    assert read(**{key: type(value)(0) for key, value in unread.items()}) == read()


@pytest.mark.rejects
def test_a_bare_block() -> None:
    """It is read as in a config of Llama with these sizes, in either pairing, and refused in the same words."""
    sizes: dict[str, Any] = {"head_dim": 64, "max_position_embeddings": 2048}
    for interleaved in (False, True):
        expected = dataclasses.replace(read(rope_parameters={**YARN, "rope_theta": 5e5}), interleaved=interleaved)
        assert rw.RopeConfig.from_block({**YARN, "rope_theta": 5e5}, interleaved=interleaved, **sizes) == expected
    for block in ([1], {"factor": 2.0}, {"full_attention": {}}, {"partial_rotary_factor": 0.5}):
        with pytest.raises(rw.RopeError) as theirs:
            read(rope_parameters=block)
        with pytest.raises(rw.RopeError) as ours:
            rw.RopeConfig.from_block(block, interleaved=False, **sizes)  # type: ignore[arg-type]
        assert str(ours.value) == str(theirs.value)


def test_phi3_yarn_is_longrope() -> None:
    """Phi-3's "su" and "yarn" mean LongRoPE; elsewhere yarn is YaRN."""
    fields = fixture("phi_3_5_mini")
    for word in ("su", "yarn", "longrope"):
        fields["rope_scaling"]["type"] = word
        assert isinstance(rw.RopeConfig.from_hf(fields).scaling, LongRoPE)
    assert isinstance(read(rope_scaling=YARN).scaling, YaRN)


# --- what is refused, and in which words

OTHER = r"(?s)\A(?!.*Did you mean).*"  # a word with a different meaning is no misspelling
REJECTED: list[tuple[str, dict[str, Any], str]] = [
    ("learned positions", {"model_type": "gpt2"}, "no rotary embedding; gpt2 uses learned absolute positions"),
    ("no model_type", {"model_type": ...}, "never guessed"),
    ("unknown model_type", {"model_type": "lama"}, r"(?s)never guessed.*'lama'.*Did you mean `llama`\?"),
    ("unknown model_type, cure", {"model_type": "xyz"}, '(?s)own code rotates .* add "rope_interleave".*PaTH and FoX'),
    ("PaTH", {"model_type": "path_attn", "rope_interleave": True}, "path_attn cannot be described .*PaTH"),
    ("unknown with a gate", {"model_type": "xyz", "use_forget_gate": True, "rope_interleave": True}, "not use RoPE"),
    ("flag against the class", {"rope_interleave": True}, "`rope_interleave` contradicts the pairing of transformers'"),
    ("flag not boolean", {"model_type": "deepseek_v3", "rope_interleave": "yes"}, "`rope_interleave` contradicts"),
    ("unknown rope_type", {"rope_parameters": {"rope_type": "yran"}}, r"(?s)unknown `rope_type`.*Did you mean `yarn`"),
    ("rope_type no string", {"rope_parameters": {"rope_type": 3}}, "unknown `rope_type`"),
    ("unknown key", {"rope_parameters": {**YARN, "beta_fats": 16}}, r"(?s)unknown key `beta_fats`.*`beta_fast`"),
    ("key of Ministral", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1}}, "key `llama_4_scaling_beta`"),
    ("key of another rule", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3}}, "unknown key"),
    ("mrope in a text model", {"rope_parameters": {"mrope_section": [8, 12, 12]}}, "unknown key `mrope_section`"),
    ("key of vLLM", {"rope_parameters": {**YARN, "attn_factor": 1.0}}, OTHER + "`attention_factor` replaces that"),
    ("its ramp", {"rope_parameters": {**YARN, "extrapolation_factor": 1.0}}, OTHER + "no Hugging Face key does"),
    ("key far from all", {"rope_parameters": {**YARN, "scaling_factor": 1.0}}, OTHER + "Known: "),
    ("rule of a digit", {"rope_parameters": {"rope_type": "llama4"}}, OTHER + "Known: "),
    ("rule of two names", {"rope_parameters": {"rope_type": "dynamic_yarn"}}, OTHER + "Known: "),
    ("model of a digit", {"model_type": "llama5"}, OTHER + "If the model's own code rotates"),
    ("missing factor", {"rope_parameters": {"rope_type": "linear"}}, "'linear' needs the key `factor`"),
    ("factor a string", {"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "`factor` must be a finite"),
    ("theta a list", {"rope_theta": [1e4, 1e6]}, "`rope_theta` must be a finite number"),
    ("list of strings", {"rope_parameters": {**LONG, "long_factor": ["a"] * 32}}, "`long_factor` must be a list"),
    ("length no whole number", {"rope_parameters": {**YARN, "original_max_position_embeddings": 1.5}}, "whole number"),
    ("truncate no boolean", {"rope_parameters": {**YARN, "truncate": 1}}, "`truncate` must be true or false"),
    ("ratio without a length", {"rope_parameters": LONG, "max_position_embeddings": ...}, "to compute it"),
    ("no head_dim at all", {"hidden_size": ...}, "neither `head_dim` nor the two numbers"),
    ("indivisible", {"hidden_size": 250, "num_attention_heads": 3}, "is not a multiple of `num_attention_heads`"),
    ("partial ignored by the class", {"partial_rotary_factor": 0.5}, "means 32 rotated features, but .* rotates 64"),
    ("partial in the block", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "but transformers' llama rotates 64"),
    ("partial beside a null", {"rope_parameters": {"partial_rotary_factor": None}, "partial_rotary_factor": 0.5},
     r"(?s)means 32.*partial_rotary_factor +0\.5"),
    ("partial of a slice", LATENT | {"model_type": "glm4_moe_lite"}, "means 32 rotated features, but .* rotates 64"),
    ("partial of a scaled slice", LATENT | {"rope_scaling": YARN}, "means 32 rotated features, but .* rotates 64"),
    ("rotary_dim ignored", {"rotary_dim": 32}, "`rotary_dim` means 32 rotated features"),
    ("two fractions", {"model_type": "phi", "partial_rotary_factor": 0.5, "rotary_dim": 16}, "`rotary_dim` means"),
    ("block no object", {"rope_parameters": [1]}, "`rope_parameters` must be an object or null"),
    ("two blocks", {"rope_parameters": YARN, "rope_scaling": {**YARN, "factor": 8.0}}, "both present and differ"),
    ("stray key beside nested", {**NESTING, "rope_parameters": {"full_attention": {}, "factor": 2.0}}, "`factor` is"),
    ("stray rule beside nested", {**NESTING, "rope_parameters": {"full_attention": {}, "rope_type": "yarn"}}, "next"),
    ("flat for several thetas", {"model_type": "gemma3_text", "rope_parameters": YARN}, "a block for each layer type"),
    ("theta of a fixed class", {"model_type": "gptj", "rope_theta": 5e5}, "gptj ignores rope blocks and `rope_theta`"),
    ("its block", {"model_type": "gptj", "rope_parameters": {"rope_theta": 5e5}}, "gptj ignores rope blocks"),
    ("its rule", {"model_type": "gptj", "rope_scaling": {"type": "linear", "factor": 2.0}}, "gptj ignores rope blocks"),
    ("alibi", {"model_type": "falcon", "alibi": True}, "this falcon has no rotation"),
    ("sections", {"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [8, 8, 8]}}, "sum to"),
    ("two sections", {"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [16, 16]}}, "three"),
    ("interleaved sections", {"model_type": "qwen2_vl", "rope_scaling": {"mrope_interleaved": True}}, "contradicts"),
    ("ernie", {"model_type": "ernie4_5_vl_moe_text", "rope_parameters": {"mrope_section": [10, 12, 10]}}, "and time"),
    ("odd halves", {"model_type": "qwen2_vl_vision", "embed_dim": 60, "num_heads": 10}, "number must be even"),
    ("odd alternation", {"model_type": "neomme", "head_dim": 6, "layer_type": "sliding_attention"}, "must be even"),
    ("several thetas", fixture("gemma_3_1b"), r"(?s)`layer_type` is None.*'full_attention' or 'sliding_attention'"),
    ("unknown layer type", fixture("gemma_3_1b") | {"layer_type": "global"}, "(?s)no such `layer_type`.*sliding_atten"),
    ("near", fixture("gemma_3_1b") | {"layer_type": "full_atention"}, "Did you mean `full_attention`"),
    ("unknown in a flat config", {"layer_type": "global"}, "no such `layer_type`"),
    ("linear attention", fixture("qwen3_5_9b") | {"layer_type": "linear_attention"}, "have no rotation"),
    ("layer type no name", {"layer_type": 3}, "`layer_type` must be a string"),
    ("layer type a list", {"layer_type": ["x"]}, "`layer_type` must be a string"),
    ("layer types no list", {"layer_type": "full_attention", "layer_types": 3}, "`layer_types` a list of strings"),
    ("layer types no names", {"layer_type": "full_attention", "layer_types": [{}]}, "`layer_types` a list of strings"),
]  # fmt: skip


@pytest.mark.rejects
@pytest.mark.parametrize(("changes", "message"), [case[1:] for case in REJECTED], ids=[case[0] for case in REJECTED])
def test_rejected(changes: dict[str, Any], message: str) -> None:
    """Whatever is unknown, missing or impossible raises, and says the rule, the facts and the cure."""
    with pytest.raises(rw.RopeError, match=message) as error:
        read(**changes)
    assert error.value.facts
    assert error.value.cure.endswith((".", "?"))


@pytest.mark.rejects
def test_layers_without_rotation() -> None:
    """A null block is said to have no rotation."""
    nope = {"full_attention": None, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(rw.RopeError, match="no rotation") as error:
        read("full_attention", **NESTING, rope_parameters=nope)
    assert "rope=None" in error.value.cure
    assert read("sliding_attention", **NESTING, rope_parameters=nope).theta == 1e4
    with pytest.raises(rw.RopeError, match="`layer_type` is None"):
        read(**NESTING, rope_parameters=nope)


@pytest.mark.rejects
def test_rejected_files(tmp_path: Path) -> None:
    """A missing file, a truncated one and a list are named."""
    with pytest.raises(rw.RopeError, match="no such file"):
        rw.RopeConfig.from_hf(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(rw.RopeError, match="cannot be read"):
        rw.RopeConfig.from_hf(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(rw.RopeError, match="contains list, not an object"):
        rw.RopeConfig.from_hf(tmp_path)
    for source in (3, None, "", dict):
        with pytest.raises(rw.RopeError, match="must be a path, a dict"):
            rw.RopeConfig.from_hf(source)
    for source in ("x" * 5000, "a\0b"):
        with pytest.raises(rw.RopeError, match="cannot be read"):
            rw.RopeConfig.from_hf(source)


def test_the_caller_keeps_his_config() -> None:
    """Reading changes nothing in the dict that was passed."""
    for name in fixture_names():
        fields = fixture(name)
        before = json.dumps(fields)
        for layer_type in (None, "full_attention", "sliding_attention"):
            with contextlib.suppress(rw.RopeError):  # no layer type where there are several thetas
                rw.RopeConfig.from_hf(fields, layer_type=layer_type)
        assert json.dumps(fields) == before


# --- to_hf

lists = st.lists(st.floats(0.5, 80.0), min_size=32, max_size=32).map(tuple)
factors, tokens = st.floats(1.0, 64.0), st.integers(64, 8192)


def rule(kind: type[Scaling], *given: Any, **named: Any) -> st.SearchStrategy[Callable[[], Scaling | None]]:
    """Rules of a kind, built in the test and not while drawing."""
    return st.builds(partial, st.just(kind), *given, **named)


some, mscale = st.none() | st.floats(0.5, 2.0), st.none() | st.floats(0.1, 2.0)
rules = st.one_of(
    st.just(lambda: None), rule(Linear, factors), rule(DynamicNTK, factors),
    rule(
        YaRN, factors, tokens, attention_factor=some, beta_fast=st.floats(8.0, 64.0), beta_slow=st.floats(0.5, 4.0),
        mscale=mscale, mscale_all_dim=mscale, truncate=st.booleans(),
    ),
    rule(LongRoPE, lists, lists, tokens, factor=st.none() | factors),
    rule(LongRoPE, lists, lists, tokens, attention_factor=st.floats(0.5, 2.0)),
    rule(LongRoPE, lists, lists, tokens, short_mscale=factors, long_mscale=factors),
    rule(Llama3, factors, st.floats(0.5, 1.0), st.floats(2.0, 8.0), tokens),
    rule(Proportional, st.floats(0.0, 1.0), factors),
)  # fmt: skip


@given(rules, st.floats(100.0, 1e7), st.booleans())
def test_round_trip(build: Callable[[], Scaling | None], theta: float, interleaved: bool) -> None:
    """from_hf of a base config that carries to_hf's block is the config again, for every rule."""
    config = rw.RopeConfig(64, interleaved=interleaved, theta=theta, scaling=build(), max_position_embeddings=4096)
    base = {"rope_interleave": interleaved, "head_dim": 64, "max_position_embeddings": 4096}
    block = json.loads(json.dumps(config.to_hf()))
    assert rw.RopeConfig.from_hf({**base, "rope_parameters": block}) == config


@given(st.integers(1, 150), st.integers(1, 150))
def test_round_trip_of_a_partial_rotation(pairs: int, others: int) -> None:
    """The exported fraction gives back exactly the rotary dimension, for every pair of numbers."""
    config = rw.RopeConfig(2 * (pairs + others), interleaved=True, rotary_dim=2 * pairs)
    base = {"rope_interleave": True, "head_dim": config.head_dim}
    assert rw.RopeConfig.from_hf({**base, "rope_parameters": config.to_hf()}) == config


@pytest.mark.parametrize(
    "rule",
    [
        NTK(8.0), DynamicNTK(4.0, variant="paper"), YaRN(4.0, 512, variant="paper"), ABF(4e6), Resonance(),
        YaRN(4.0, 512, 1.3, variant="paper"), Resonance(YaRN(4.0, 512)), Resonance(ABF(4e6)),
    ],
)  # fmt: skip
def test_rules_without_a_name_export_as_what_computes_the_same(rule: Scaling) -> None:
    """NTK, ABF, Resonance and the papers' variants become a block with the same frequencies and attention factor."""
    config = rw.RopeConfig(64, interleaved=False, theta=5e5, scaling=rule, max_position_embeddings=2048)
    again = rw.RopeConfig.from_hf({**LLAMA, "rope_parameters": config.to_hf()})
    for seq_len in (100, 512, 4096):
        mine = rw.inverse_frequencies(config, seq_len if config.needs_seq_len else None)
        theirs = rw.inverse_frequencies(again, seq_len if again.needs_seq_len else None)
        assert (mine.inv_freq - theirs.inv_freq).abs().max() <= 1e-14
        assert mine.attention_factor == pytest.approx(theirs.attention_factor, rel=1e-14)


@pytest.mark.rejects
def test_what_no_block_can_say() -> None:
    """ERNIE's order of axes, and a scaled or uneven vision tower are refused."""
    with pytest.raises(rw.RopeError, match="no `mrope_section` expresses"):
        rw.RopeConfig(12, interleaved=True, axes=(1, 2, 1, 2, 0, 0)).to_hf()
    with pytest.raises(rw.RopeError, match="NTK needs at least two pairs"):
        rw.RopeConfig(2, interleaved=False, scaling=NTK(2.0)).to_hf()
    with pytest.raises(rw.RopeError, match="Resonance becomes `longrope`"):
        rw.RopeConfig(8, interleaved=False, scaling=Resonance(), max_position_embeddings=1).to_hf()
    shortest = rw.RopeConfig(8, interleaved=False, scaling=Resonance(), max_position_embeddings=2).to_hf()
    assert shortest["original_max_position_embeddings"] == 2
    vision = rw.RopeConfig(64, interleaved=False, axes=axes_from_sections([8, 24]), axes_restart=True)
    even = dataclasses.replace(vision, axes=axes_from_sections([16, 16]))
    assert even.to_hf() == {"rope_type": "axial", "rope_theta": 1e4}
    for config in (vision, dataclasses.replace(even, scaling=Linear(2.0))):
        with pytest.raises(rw.RopeError, match="height and width in equal halves"):
            config.to_hf()
