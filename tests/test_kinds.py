"""Arguments of a wrong type: each public entry raises `RopeError`, which names the argument, and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import ropewalk as rw
from ropewalk.audit.audit import audit
from ropewalk.audit.vectors import conformance_vectors
from ropewalk.rotation.backends import explain_attention
from ropewalk.serving.serve import serve_config

X, TABLE = torch.ones(1, 2, 1, 4), torch.ones(2, 2)
JUNK: list[Any] = [3.5, "", object(), [1.0], {}, float("nan"), 10**23, b"x"]


def rotated(**changes: Any) -> object:
    """A rotation with other arguments."""
    return rw.rotate(**{"x": X, "cos": TABLE, "sin": TABLE, "interleaved": False, **changes})


@functools.cache
def live() -> Any:
    """A small model of transformers."""
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1))


CALLS: list[tuple[str, Callable[[Any], object]]] = [
    ("`x`", lambda value: rotated(x=value)),
    ("`cos`", lambda value: rotated(cos=value)),
    ("`sin`", lambda value: rotated(sin=value)),
    ("layout", lambda value: rotated(layout=value)),
    ("`height`", lambda value: rw.positions.grid_positions(value, 2)),
    ("`model`", lambda value: rw.save(value, "folder")),
    ("`config`", audit),
    ("load: ", lambda value: rw.load(value or "")),
    ("load: ", lambda value: conformance_vectors(value or "")),
    ("`windows`", lambda value: rw.doctor("tiny", windows=value or 0)),
    ("`target`", lambda value: rw.doctor("tiny", target=value or 0)),
    ("`trained_length`", lambda value: rw.doctor("tiny", trained_length=value or 0)),
    ("methods: ", lambda value: rw.doctor("tiny", methods=value or [""])),
    ("device", lambda value: rw.doctor("tiny", device=value)),
    ("dtype", lambda value: rw.doctor("tiny", dtype=value)),
    ("`up_to`", lambda value: rw.verify("tiny", "transformers", up_to=value)),
    ("`max_tokens`", lambda value: rw.verify("tiny", "transformers", max_tokens=value)),
    ("`target`", lambda value: serve_config("tiny", "vllm", target=value)),
    ("method", lambda value: serve_config("tiny", "vllm", method=value or 3)),  # type: ignore[arg-type]
    ("`model`", rw.attach),
    ("unknown method", lambda value: rw.attach(live(), value)),
    ("`target`", lambda value: rw.attach(live(), "yarn", target=value)),
]


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_a_wrong_type_is_refused_by_name(name: str, call: Callable[[Any], object]) -> None:
    """No AttributeError of an inner function, and nothing is loaded from the network or written."""
    for value in JUNK:
        with pytest.raises(rw.RopeError, match=name):
            call(value)


P, IDS, CONFIG = rw.positions, torch.arange(2), rw.RopeConfig(4, interleaved=False)
ROPE, LEARNED = rw.RotaryEmbedding(CONFIG), rw.rotation.LearnedFrequencies(CONFIG)
BY_LENGTH = rw.RotaryEmbedding(
    rw.RopeConfig(4, interleaved=False, max_position_embeddings=4, scaling=rw.scaling.DynamicNTK())
)
TURN = {"cos": TABLE, "sin": TABLE, "interleaved": False, "rotary_dim": None, "layout": "bshd", "scale": 1.0}
TURN |= {"backend": None}
WINDOW = {"rotary_offset": 0}
PLACED = {"offset": 0, "seq_len": None, "layout": "bshd", "rotary_offset": 0, "inplace": False}
STORE = rw.fused.Store(*torch.zeros(2, 1, 1, 8, 4), X, IDS[None])
LLAMA = {"model_type": "llama", "head_dim": 8}
KNOWN = {  # the numbers of a rule without defaults
    "of": rw.scaling.Linear(2.0), "by": rw.scaling.Linear(2.0), "rules": (None,), "alpha": (0.0, 0.0), "factor": 2.0,
    "original_max_position_embeddings": 16, "theta": 1e6, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "clipped": 2,
    "short_factor": (1.0, 1.0), "long_factor": (1.0, 2.0),
}  # fmt: skip
ROTATIONS: list[tuple[Callable[..., object], dict[str, Any]]] = [
    (rw.rotate, {"x": X, "inverse": False, "inplace": False, "out": None, **TURN, **WINDOW}),
    (rw.rotate_qk, {"q": X, "k": X.clone(), "inverse": False, "inplace": False, **TURN, **WINDOW}),
    (rw.RotaryEmbedding, {"config": CONFIG}),
    (ROPE, {"q": X, "k": X.clone(), "position_ids": IDS, **PLACED}),
    (ROPE.rotate, {"x": X, "position_ids": IDS, "inverse": False, "out": None, "backend": None, **PLACED}),
    (ROPE.shift, {"keys": X, "delta": 1, "layout": "bshd", "rotary_offset": 0, "inplace": False}),
    (ROPE.cos_sin, {"position_ids": IDS, "dtype": torch.float32}),
    (BY_LENGTH.cos_sin, {"position_ids": IDS, "seq_len": 9}),
    (rw.rotation.LearnedFrequencies, {"config": CONFIG, "num_heads": None, "mixed": True}),
    (LEARNED, {"q": X, "k": X, "position_ids": IDS, "layout": "bshd"}),
    (LEARNED.cos_sin, {"position_ids": IDS}),
    (rw.apply_rotary_pos_emb, {"x": X, "position_ids": IDS, "theta": 1e4, "interleaved": True}),
    (rw.rotation.apply_rotary_complex, {"x": X, "freqs_cis": torch.complex(TABLE, TABLE)}),
    (rw.rotation.freqs_cis, {"cos": TABLE, "sin": TABLE}),
    (rw.inverse_frequencies, {"config": CONFIG, "seq_len": None}),
    (rw.convert_pairing, {"source": X, "to": "half", "head_dim": 4, "rotary_dim": None, "dim": -1}),
    (rw.explain_backends, {"x": X}),
    (explain_attention, {"q": X, "k": X, "v": X}),
    (rw.fused.qk_norm_rotate, {"q": X, "k": X, "q_weight": X[0, 0, 0], "k_weight": X[0, 0, 0], "eps": 1e-6,
                               "store": None, **TURN}),
    (rw.fused.rotate_store, {"q": X, "k": X, "store": STORE, **TURN, **WINDOW}),
    (P.positions_from, {"cu_seqlens": torch.tensor([0, 2]), "offsets": 0, "max_seqlen": None, "tokens": None}),
    (P.positions_from, {"offsets": 0, "max_seqlen": 3}),
    (P.mrope_positions, {"token_types": torch.tensor([0, 1]), "images": [(1, 2, 2)], "videos": (),
                         "spatial_merge_size": 2, "frame_intervals": 1.0, "split_frames": False, "attention_mask": None,
                         "cu_seqlens": None}),
    (P.grid_positions, {"height": 2, "width": 2, "start": 0, "merge": 1, "normalized": False}),
    (P.positions_for_rank, {"layout": "llama3", "tokens": 4, "rank": 0, "cp": 2,
                            "cu_seqlens": torch.tensor([0, 4])}),
    (P.text_positions, {"position_ids": IDS, "axes": 2}),
    (P.axes_from_sections, {"sections": [1, 1], "interleaved": False}),
    (lambda grid, **more: P.latent_positions("flux", grid, **more), {"grid": (1, 2, 2), "text": 0, "scale": None}),
    (rw.RopeConfig, {f.name: getattr(CONFIG, f.name) for f in dataclasses.fields(rw.RopeConfig)}),
    (rw.RopeConfig.from_hf, {"config": LLAMA, "layer_type": None, "alpha": None}),
    (rw.RopeConfig.from_diffusers, {"model": {"_class_name": "WanTransformer3DModel", "attention_head_dim": 128}}),
    *((rule, {f.name: KNOWN.get(f.name) if f.default is dataclasses.MISSING else f.default
              for f in dataclasses.fields(rule)})
      for rule in rw.scaling.RULES.values() if rule.__module__.startswith("ropewalk.")),
]  # fmt: skip
OTHERS = [None, True, -1, 0, "x", [], (), [None], {1: 2}, int, torch.ones(2), X, torch.tensor(3)]


@pytest.mark.rejects
@pytest.mark.parametrize(("call", "arguments"), ROTATIONS)
def test_the_lower_packages_refuse_wrong_types(call: Callable[..., object], arguments: dict[str, Any]) -> None:
    """Each argument in turn of each public function: a result or `RopeError`, and no error of an inner function."""
    call(**arguments)
    for name in arguments:
        for value in (*JUNK, *OTHERS):
            with contextlib.suppress(rw.RopeError):
                call(**{**arguments, name: value})
