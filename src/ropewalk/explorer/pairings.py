"""What the wrong pairing does to a trained model: its loss, and how it continues a text."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ropewalk.gallery.material import rotary_model
from ropewalk.gallery.pairing import SMOLLM2, converted, losses, shown_name
from ropewalk.models.decoder import Decoder
from ropewalk.models.generate import generate

TEXTS, TOKENS, NEW_TOKENS = 8, 256, 32
PROMPT = "The whale rose slowly out of the dark water, and the old captain"
NAMES = {"tiny": "tiny (in the package)", "SmolLM2-135M-Instruct.Q4_1": "SmolLM2 135M Instruct"}


def pairing_entries() -> list[dict[str, Any]]:
    """The built-in model, and the SmolLM2 that the environment names, as `ropewalk figure pairing` measures them."""
    smollm2 = os.environ.get(SMOLLM2)
    return [_entry(name) for name in ("tiny", *([smollm2] if smollm2 else []))]


def _entry(name: str) -> dict[str, Any]:
    model = rotary_model(name)
    measured = losses(model, TEXTS, TOKENS)
    wrong = model.with_positions(
        rope=tuple(
            None if rope is None else dataclasses.replace(rope, interleaved=not rope.interleaved)
            for rope in model.config.ropes
        )
    )
    assert model.tokenizer is not None
    ids, decode = model.tokenizer.encode(PROMPT), model.tokenizer.decode
    cases = dict(zip(measured["bars"], (model, wrong, converted(wrong)), strict=True))
    return {
        "model": NAMES.get(shown_name(name), shown_name(name)),
        "interleaved": next(rope.interleaved for rope in model.config.ropes if rope is not None),
        "uniform": measured["uniform"],
        "prompt": PROMPT,
        "cases": [
            {"name": case, "loss": measured["bars"][case], "continuation": decode(continued(one, ids))}
            for case, one in cases.items()
        ],
        "note": f"{TEXTS} windows of {TOKENS} tokens of Moby Dick",
    }


def continued(model: Decoder, ids: list[int]) -> list[int]:
    """The likeliest next tokens after the prompt."""
    return generate(model, [ids], max_new_tokens=NEW_TOKENS)[0]
