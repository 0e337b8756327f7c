"""Two configs or checkpoints: what differs, and from which distance, by independent float64 angles."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ropewalk.audit.audit import ranges
from ropewalk.audit.compare import Difference, compare
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.load import save
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from tests.diagnosis.models import ROPE, tiny_decoder
from tests.models.material import make, write_gguf
from tests.oracle import ladder, llama3
from tests.rope.models import CONFIGS, fixture, fixture_names


def opened(folder: Path, fields: dict[str, Any], name: str = "b.json") -> Checkpoint:
    """The checkpoint of a config."""
    (folder / name).write_text(json.dumps(fields))
    return Checkpoint.open(folder / name)


def changed(folder: Path, name: str, **fields: Any) -> list[Difference]:
    """A published config against itself with other fields; a field of None is lost."""
    changed = {key: value for key, value in {**fixture(name), **fields}.items() if fields.get(key, "") is not None}
    return compare(Checkpoint.open(CONFIGS / f"{name}.json"), opened(folder, changed))


def first_quarter_turn(one: np.ndarray, other: np.ndarray, longest: int) -> int | None:
    """The first distance, tried in turn, at which the angle between the two rotations of a pair is a quarter turn."""
    distances = np.arange(1, longest, dtype=np.float64)
    apart = np.abs(np.outer(distances, one) - np.outer(distances, other)).max(axis=1)
    late = np.flatnonzero(apart >= np.pi / 2)
    return int(distances[late[0]]) if len(late) else None


def brief(found: list[Difference]) -> list[tuple[str, str, int | None]]:
    return [(each.code, each.severity, each.tokens) for each in found]


@pytest.mark.parametrize("name", fixture_names())
def test_a_config_is_the_same_as_itself(name: str, tmp_path: Path) -> None:
    """Every published config, and its copy in a different folder."""
    assert changed(tmp_path, name) == []


PLAIN = ladder(5e5, 128)
SCALED = llama3(5e5, 128, fixture("llama_3_1_8b")["rope_scaling"])
DYNAMIC_THETA = 1e6 * (2 * 65536 / 32768 - 1) ** (128 / 126)  # transformers' rule at 65,536 tokens
QWEN, PHI = fixture("qwen2_5_7b_yarn")["rope_scaling"], fixture("phi_3_5_mini")["rope_scaling"]
OF_LONG, OF_SHORT = (ladder(1e4, 96) / np.array(PHI[key]) for key in ("long_factor", "short_factor"))
MINISTRAL = fixture("ministral_3_3b")["text_config"]
# a published config, what is lost or changed; the findings, and words of the first
LOST: dict[str, tuple[str, dict[str, Any], list[tuple[str, str, int | None]], str]] = {
    "Llama 3.1's rule": (  # the fast pairs stay, so the first tokens are right, and the later ones are not
        "llama_3_1_8b", {"rope_scaling": None},
        [("frequencies", "error", first_quarter_turn(PLAIN, SCALED, 8192))],
        "quarter turn: A rotates it by 0.0005248 radians per token, B by 0.001414 (B: no scaling)."),
    "theta": (  # a length that was lost with it is only a limit
        "qwen3_0_6b", {"rope_theta": 10_000.0, "max_position_embeddings": 32768},
        [("frequencies", "error", first_quarter_turn(ladder(1e6, 128), ladder(1e4, 128), 40960)),
         ("length", "warning", 32768)], ""),
    "a theta that matters beyond the 4,096 tokens of the model": (
        "llama_2_7b", {"rope_theta": 10_010.0},
        [("frequencies", "note", first_quarter_turn(ladder(1e4, 128), ladder(10_010.0, 128), 100_000))], ""),
    "a theta that matters within them": (
        "llama_2_7b", {"rope_theta": 10_100.0},
        [("frequencies", "error", first_quarter_turn(ladder(1e4, 128), ladder(10_100.0, 128), 4096))], ""),
    "YaRN's 0.1 ln 4 + 1 on queries and on keys": (
        "qwen2_5_7b_yarn", {"rope_scaling": {**QWEN, "attention_factor": 1.0}}, [("factor", "error", 1)],
        f"multiplies logits by {(0.1 * math.log(4) + 1) ** -2:.4g} of A's: yarn without its attention factor."),
    "a partial rotation": (
        "stablelm_3b", {"partial_rotary_factor": 1.0}, [("width", "error", 1)],
        "A rotates 20 of 80 features of a head, B 80 of 80 features"),
    "dynamic NTK, which is plain RoPE up to the trained length": (
        "internlm2_5_7b_dynamic", {"rope_scaling": None},
        [("frequencies", "error", first_quarter_turn(ladder(1e6, 128), ladder(DYNAMIC_THETA, 128), 65536))],
        "in texts of 65,536 tokens."),
    "LongRoPE's long factors": (  # texts of up to 4,096 tokens use the short ones
        "phi_3_5_mini", {"rope_scaling": {**PHI, "long_factor": PHI["short_factor"]}},
        [("frequencies", "error", first_quarter_turn(OF_LONG, OF_SHORT, 131072))], "in texts of 131,072 tokens."),
    "M-RoPE's sections, by which text is rotated alike": (
        "qwen2_vl_7b", {"rope_scaling": {**fixture("qwen2_vl_7b")["rope_scaling"], "mrope_section": [24, 24, 16]}},
        [("axes", "warning", None)], ""),
    "a class, whose pairing only weights could settle": (
        "llama_2_7b", {"model_type": "cohere", "rope_theta": 1e4}, [("pairing", "warning", None)], ""),
    "the factor of queries from token 16,384 on": (
        "ministral_3_3b", {"text_config": {**MINISTRAL, "rope_parameters": {
            **MINISTRAL["rope_parameters"], "llama_4_scaling_beta": 0.0}}}, [("position-scale", "error", 16384)], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_what_was_lost_is_named(name: str, tmp_path: Path) -> None:
    """From the first distance at which it matters, by a search that tries every distance."""
    of, change, expected, words = LOST[name]
    found = changed(tmp_path, of, **change)
    assert brief(found) == expected
    assert words in found[0].message


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    """A theta as float32, as GGUF files store it."""
    fields, theta = fixture("llama_2_7b"), 123_456.789
    one, other = ({**fields, "rope_theta": each} for each in (theta, float(np.float32(theta))))
    assert one != other
    assert compare(opened(tmp_path, one, "a.json"), opened(tmp_path, other)) == []


def test_a_difference_of_width_hides_no_other(tmp_path: Path) -> None:
    """StableLM with another width, theta and scaling at once: frequencies as if both had A's width."""
    expected = first_quarter_turn(ladder(1e4, 20), ladder(5e5, 20), 4096)
    found = changed(tmp_path, "stablelm_3b", partial_rotary_factor=1.0, rope_theta=500_000.0)
    assert brief(found) == [("width", "error", 1), ("frequencies", "error", expected)]
    assert "(B: theta 500000 in place of 10000)" in found[1].message
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    found = changed(tmp_path, "stablelm_3b", partial_rotary_factor=1.0, rope_scaling=yarn)
    assert {each.code for each in found} == {"width", "frequencies", "factor"}
    rule = fixture("phi_3_5_mini")["rope_scaling"]
    shorter = {**rule, **{key: rule[key][:24] for key in ("short_factor", "long_factor")}}
    found = changed(tmp_path, "phi_3_5_mini", rope_scaling=shorter, partial_rotary_factor=0.5, rope_theta=2e4)
    assert [each.code for each in found] == ["width", "frequencies"]  # lists of another length: the fault is named
    assert "(B: theta 20000 in place of 10000)" in found[1].message


def test_layers_are_grouped(tmp_path: Path) -> None:
    """The layers of each type by number, where both configs state them, else by their type."""
    types = {"layer_types": [*["sliding_attention"] * 5, "full_attention"] * 2, "num_hidden_layers": 12}
    gemma = {**fixture("gemma_3_1b"), **types}
    one = opened(tmp_path, gemma, "a.json")
    found = compare(one, opened(tmp_path, {**gemma, "rope_local_base_freq": 1e6}))
    assert [(each.code, each.layer_type) for each in found] == [("frequencies", "layers 0-4, 6-10")]
    found = compare(one, opened(tmp_path, {**gemma, "layer_types": [*types["layer_types"][:-1], "sliding_attention"]}))
    assert [(each.code, each.layer_type) for each in found] == [("frequencies", "layer 11"), ("window", "layer 11")]
    assert [each.tokens for each in found][1] == 512
    unseen = changed(tmp_path, "mistral_7b_v0_1", sliding_window=131_072)
    assert [each.severity for each in unseen if each.code == "window"] == ["error"]
    for window, severity in ((32_767, "error"), (32_768, "note")):  # no text of a stated length is longer
        found = compare(opened(tmp_path, {**gemma, **types, "sliding_window": window}, "a.json"),
                        opened(tmp_path, {**gemma, **types, "sliding_window": 65_536}))  # fmt: skip
        assert [each.severity for each in found if each.code == "window"] == [severity]
    assert {each.layer_type for each in changed(tmp_path, "gemma_3_1b", rope_theta=1e5)} == {"full_attention"}


def test_layers_without_rotation(tmp_path: Path) -> None:
    """SmolLM 3 with rotation in every layer."""
    flags = fixture("smollm3_3b")["no_rope_layers"]
    found = changed(tmp_path, "smollm3_3b", no_rope_layers=[1] * len(flags))
    assert brief(found) == [("layers", "error", 1)]
    assert found[0].layer_type == f"layers {ranges([n for n, rotates in enumerate(flags) if not rotates])}"
    assert found[0].message.endswith("they rotate only in B.")


def test_our_own_form_is_compared_by_layer(tmp_path: Path) -> None:
    """A folder that no family describes: a rope, none, and a different one."""
    other = RopeConfig(8, interleaved=False, theta=1e6, max_position_embeddings=16)
    for name, ropes in (("a", (ROPE, None, other)), ("b", (ROPE, ROPE, other))):
        save(tiny_decoder(ropes, num_hidden_layers=3), tmp_path / name)
    a, b = Checkpoint.open(tmp_path / "a"), Checkpoint.open(tmp_path / "b")
    assert compare(a, a) == []
    assert [(each.code, each.layer_type) for each in compare(a, b)] == [("layers", "layer 1")]


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q4_0])
def test_a_gguf_file_and_its_origin(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    """Interleaved pairs with permuted rows are the same function; unpermuted rows and a lost rule are not."""
    model = make("llama-llama3", hidden_size=64, intermediate_size=64)
    model.save_pretrained(tmp_path / "folder")
    folder, state = Checkpoint.open(tmp_path / "folder"), model.state_dict()
    plain = make(
        "llama", hidden_size=64, intermediate_size=64, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    divisors = ladder(5e5, 16) / llama3(5e5, 16, model.config.rope_parameters)
    extra = {"rope_freqs.weight": torch.from_numpy(divisors.astype(np.float32))}
    right = write_gguf(tmp_path / "right.gguf", model.config, state, kind=kind, extra=extra)
    assert compare(folder, Checkpoint.open(right)) == compare(Checkpoint.open(right), folder) == []
    wrong = write_gguf(tmp_path / "wrong.gguf", model.config, state, kind=kind, extra=extra, permute=False)
    found = compare(folder, Checkpoint.open(wrong))
    assert brief(found) == [("pairing", "error", 1)]
    assert "the query rows of B are in the same order" in found[0].message
    lost = write_gguf(tmp_path / "lost.gguf", plain.config, state, kind=kind)
    assert [each.code for each in compare(folder, Checkpoint.open(lost))] == ["frequencies"]
    unseen = compare(Checkpoint.open(tmp_path / "folder" / "config.json"), Checkpoint.open(right))
    assert brief(unseen) == [("pairing", "note", None)]


def test_rows_that_were_permuted_for_nothing(tmp_path: Path) -> None:
    """Two Hugging Face folders of one pairing, whose converter permuted the rows anyway."""
    from ropewalk.rope.pairing import convert_pairing

    model = make("llama")
    model.save_pretrained(tmp_path / "a")
    query = model.model.layers[0].self_attn.q_proj.weight
    query.data.copy_(convert_pairing(query.data, to="interleaved", head_dim=8, dim=0))
    model.save_pretrained(tmp_path / "b")
    found = compare(Checkpoint.open(tmp_path / "a"), Checkpoint.open(tmp_path / "b"))
    assert brief(found) == [("pairing", "error", 1)]
    assert "were permuted for pairs (0,1), (2,3)" in found[0].message


QWEN35 = fixture("qwen3_5_9b")


def test_a_model_without_rotation_is_compared(tmp_path: Path) -> None:
    """Granite 4 without positions (its class's default) against the same with rope, and Nemotron-H against itself."""
    granite = {"model_type": "granitemoehybrid", "hidden_size": 64, "num_attention_heads": 1}
    (tmp_path / "a.json").write_text(json.dumps(granite))
    still = Checkpoint.open(tmp_path / "a.json", rotates=False)
    turning = opened(tmp_path, {**granite, "position_embedding_type": "rope"})
    for pair, which in (((still, turning), "A"), ((turning, still), "B")):
        (found,) = compare(*pair)
        assert (found.code, found.severity, f"no layer of {which} rotates" in found.message) == (
            "layers",
            "error",
            True,
        )
    assert compare(still, still) == []
    with pytest.raises(RopeError, match="has no rotation"):
        Checkpoint.open(tmp_path / "a.json")


def test_a_drafter_has_its_own_width(tmp_path: Path) -> None:
    """Theta, scaling and length must fit: vLLM 0.32.0 stops at the shorter length (config/speculative.py, 1633)."""
    target = opened(tmp_path, fixture("qwen3_8b"), "a.json")
    sizes = {"num_hidden_layers": 5, "num_attention_heads": 16, "head_dim": 64}
    drafter = {**fixture("qwen3_8b"), **sizes}
    found = compare(opened(tmp_path, drafter), target)
    assert brief(found) == [("width", "note", 1)]
    found = compare(opened(tmp_path, {**drafter, "rope_theta": 1e4, "max_position_embeddings": 2048}), target)
    assert [(each.code, each.severity) for each in found] == [
        ("frequencies", "error"), ("length", "warning"), ("width", "note"),
    ]  # fmt: skip
    assert all("neither is a copy" in each.cure for each in found)
    assert compare(opened(tmp_path, drafter), target, drafter=True) == []
    longer = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32_768}
    found = compare(target, opened(tmp_path, {**drafter, "rope_scaling": longer}), drafter=True)
    assert [(each.code, each.severity) for each in found] == [("frequencies", "error"), ("factor", "error")]
    assert all(each.cure.startswith("A drafter has its own width") for each in found)


def test_axes_that_only_one_config_states(tmp_path: Path) -> None:
    """A rope block without M-RoPE's keys: the same in transformers, and one axis in vLLM 0.32.0 (see test_lint.py)."""
    text = QWEN35["text_config"]
    lost = {"rope_type": "default", "rope_theta": text["rope_parameters"]["rope_theta"]}
    whole = {**QWEN35, "vision_config": {"depth": 2}}
    right = opened(tmp_path, whole, "a.json")
    found = compare(right, opened(tmp_path, {**whole, "text_config": {**text, "rope_parameters": lost}}))
    assert brief(found) == [("axes", "warning", None)]
    assert found[0].message.startswith("B: The block lacks `mrope_section`")
