"""What the audit says of published configurations, read as their owners would."""

from __future__ import annotations

import pytest

from ropewalk.audit.audit import Audit, audit_sentences
from ropewalk.audit.sources import audits_of, findings_of, layers_of
from ropewalk.checkpoints.checkpoint import Checkpoint
from tests.diagnosis.models import ROPE, tiny_decoder
from tests.rope.models import CONFIGS, fixture_names

# Every warning that a published configuration gets, and why its owner would accept it. At most eight.
WARNINGS: dict[str, dict[str, str]] = {
    "internlm2_5_7b_dynamic": {
        "dynamic-cache": "transformers' dynamic NTK does leave cached keys under old frequencies once a text outgrows "
        "32,768 tokens: the numbers that it computes there are wrong, and the cure changes nothing in the checkpoint",
    },
}
# What is said of the layers besides: windows in tokens by layer type, and what carries a distance beside the rotation.
WINDOWS = {
    "gemma_3_1b": {"full_attention": None, "sliding_attention": 512},
    "gemma_3_27b": {"full_attention": None, "sliding_attention": 1024},
    "gemma_4_e4b": {"full_attention": None, "sliding_attention": 512},
    "laguna_s": {"full_attention": None, "sliding_attention": 512},
    "llama_4_scout": {"chunked_attention": 8192},
    "mistral_7b_v0_1": {None: 4096},
    "modernbert_base": {"full_attention": None, "sliding_attention": 128},
    "olmo_3_1_32b": {"full_attention": None, "sliding_attention": 4096},
    "phi_3_5_mini": {None: 262_144},
    "phi_3_5_vision_su": {None: 262_144},
    "phi_4_mini": {None: 262_144},
    "starcoder2_7b": {None: 4096},
}
REACH_SHOWN = {  # all features turn, all layers rotate and see everything, and the bound lies beyond the training
    "gemma_3_1b": 71_627,
    "gemma_3_27b": 216_916,
    "internlm2_5_7b_dynamic": 120_973,
    "olmo_3_1_32b": 102_595,
    "qwen2_5_7b_yarn": 66_234,
}
TOLD = ("Make ", "Change ", "Set ", "Remove ", "Use factor", "Check ")  # what would change a checkpoint


def source(name: str) -> Checkpoint:
    """A published configuration."""
    return Checkpoint.open(CONFIGS / f"{name}.json")


def audits(name: str) -> list[Audit]:
    """The audit of each of its ropes."""
    return audits_of(source(name))


@pytest.mark.parametrize("name", fixture_names())
def test_warnings_of_published_configurations(name: str) -> None:
    """These, and no others; no error anywhere."""
    read = source(name)
    found = findings_of(read, audits_of(read)[0].target)
    assert {finding.code for finding in found if finding.severity == "warning"} == set(WARNINGS.get(name, {}))
    assert not [finding for finding in found if finding.severity == "error"]


def test_at_most_eight_warn() -> None:
    """Of forty."""
    assert len(WARNINGS) <= 8
    assert len(fixture_names()) == 40


@pytest.mark.parametrize("name", fixture_names())
def test_no_owner_is_told_to_change_a_shipped_checkpoint(name: str) -> None:
    """Notes say what is right and who is concerned."""
    notes = [f for f in findings_of(source(name), 131_072) if f.severity == "note"]
    assert [f.code for f in notes if f.cure.startswith(TOLD)] == []


@pytest.mark.parametrize("name", fixture_names())
def test_the_heuristic_is_shown_where_it_says_something(name: str) -> None:
    """Named as one; never a reach within what the model was trained to."""
    shown = [line for found in audits(name) for line in audit_sentences(found) if "Reach" in line]
    if name not in REACH_SHOWN:
        assert shown == []
    else:
        assert len(shown) == 1
        assert shown[0].startswith(f"Reach by a heuristic (Men et al. 2024): {REACH_SHOWN[name]:,} tokens")


@pytest.mark.parametrize("name", fixture_names())
def test_windows_of_published_configurations(name: str) -> None:
    """Which layers see how far."""
    read = source(name)
    assert {label: layers.window for label, layers in layers_of(read).items()} == WINDOWS.get(
        name, dict.fromkeys(read.ropes)
    )


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("deepseek_v3", "only a slice of each head rotates"),
        ("smollm3_3b", "some layers do not rotate"),
        ("llama_4_scout", "some layers do not rotate"),
        ("llama_2_7b", None),
    ],
)
def test_what_carries_a_distance_beside_the_rotation(name: str, beside: str | None) -> None:
    """Multi-head latent attention, and layers without rotation."""
    assert {layers.other_signal for layers in layers_of(source(name)).values()} == {beside}


def test_layers_of_a_model_that_is_there() -> None:
    """Windows and layers without a rope, read from the model itself."""
    model = tiny_decoder((ROPE, None, ROPE), num_hidden_layers=3, sliding_window=(8, None, 4))
    (found,) = layers_of(Checkpoint.of_positions("", model.config.positions)).values()
    assert (found.window, found.other_signal) == (8, "some layers do not rotate")
    (everything,) = layers_of(Checkpoint.of_positions("", tiny_decoder().config.positions)).values()
    assert (everything.window, everything.other_signal) == (None, None)


def test_all_ropes_of_a_model_have_its_lengths() -> None:
    """Laguna's sliding layers are not asked about another length than its full ones."""
    assert {(found.trained_length, found.target) for found in audits("laguna_s")} == {(8192, 32_768)}
