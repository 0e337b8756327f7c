"""Heads of the built-in model, as the picture of scores by distance needs them."""

from __future__ import annotations

from typing import Any

from ropewalk.gallery.heads import as_complex
from ropewalk.gallery.material import attention_inputs, queries_and_keys, rotary_model, windows
from ropewalk.rope.frequencies import columns_of

TEXTS, TOKENS = 16, 256


def head_entries(source: str = "tiny") -> dict[str, Any]:
    """Each head's mean score at distance D is sum_pairs re cos(D f) - im sin(D f), and `rest`.

    As `ropewalk.gallery.heads.head_scores`: over every query and key of the text, each query put D tokens after each
    key. Scaled by 1/sqrt(head_dim).
    """
    model = rotary_model(source)
    rope = next(rope for rope in model.config.ropes if rope is not None)
    found = []
    for layer, seen in enumerate(attention_inputs(model, windows(model, TEXTS, TOKENS))):
        assert seen.attention.rope == rope
        q, k = (x.double().mean((0, 2)) for x in queries_and_keys(seen))
        for head, (one_q, one_k) in enumerate(zip(q, k, strict=True)):
            pairs_q, rest_q = as_complex(one_q, rope)
            pairs_k, rest_k = as_complex(one_k, rope)
            product = pairs_q * pairs_k.conj() / rope.head_dim**0.5
            found.append(
                {
                    "layer": layer,
                    "head": head,
                    "re": _numbers(product.real),
                    "im": _numbers(product.imag),
                    "rest": float(f"{float(rest_q @ rest_k) / rope.head_dim**0.5:.6g}"),
                }
            )
    return {
        "model": source,
        "text": f"{TEXTS} windows of {TOKENS} tokens of Moby Dick",
        "trainedLength": rope.trained_length,
        "invFreq": list(columns_of(rope)),
        "heads": found,
    }


def _numbers(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]
