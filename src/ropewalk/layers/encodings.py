"""Alternatives to RoPE with one interface, `Encoding`: on embeddings, on queries and keys, or on scores."""

from __future__ import annotations

from ropewalk.errors import RopeError
from ropewalk.layers.absolute import LearnedAbsolute, NoPE, Sinusoidal
from ropewalk.layers.biases import FIRE, KERPLE, ALiBi, RelativeBias, T5Bias
from ropewalk.layers.encoding import Encoding, EncodingConfig, Places, Sizes
from ropewalk.layers.relative import TransformerXL, XPos
from ropewalk.rope.config import RopeConfig

__all__ = [
    "ENCODINGS", "FIRE", "KERPLE", "ROPE_NAMES", "ALiBi", "Encoding", "EncodingConfig", "LearnedAbsolute", "NoPE",
    "Places", "RelativeBias", "Sinusoidal", "Sizes", "T5Bias", "TransformerXL", "XPos", "resolve",
]  # fmt: skip

ENCODINGS: dict[str, type[EncodingConfig]] = {
    config.name: config
    for config in (NoPE, Sinusoidal, LearnedAbsolute, RelativeBias, T5Bias, TransformerXL, ALiBi, KERPLE, FIRE, XPos)
}  # fmt: skip
"""The settings class of each encoding by its name."""

ROPE_NAMES = ("rope", "axial")


def resolve(encoding: str | EncodingConfig | RopeConfig, head_dim: int) -> EncodingConfig | RopeConfig:
    """Return the settings of an encoding.

    **Arguments:**
    - `encoding`: a key of `ENCODINGS` or one of `ROPE_NAMES`, for default settings; or settings, returned unchanged.
      "rope" is half-split RoPE of the whole head. "axial" assigns the first half of the pairs to the first coordinate
      of a grid and the second half to the other.
    - `head_dim`: features of one head.

    **Raises:** `RopeError` for an unknown name, and for "axial" if `head_dim` is not a multiple of 4.

    >>> resolve("alibi", 64)
    ALiBi()
    """
    if isinstance(encoding, EncodingConfig | RopeConfig):
        return encoding
    if encoding == "rope":
        return RopeConfig(head_dim, interleaved=False)
    if encoding == "axial":
        if head_dim % 4:
            raise RopeError(
                "encodings: axial RoPE needs a head_dim that is a multiple of 4.",
                facts={"head_dim": head_dim},
                cure="The two axes need the same number of pairs.",
            )
        return RopeConfig(
            head_dim, interleaved=False, axes=(0,) * (head_dim // 4) + (1,) * (head_dim // 4), axes_restart=True
        )
    if not isinstance(encoding, str) or encoding not in ENCODINGS:
        raise RopeError(
            "encodings: unknown encoding.",
            facts={"encoding": encoding, "known": sorted([*ENCODINGS, *ROPE_NAMES])},
            cure="Choose one of these, or pass settings such as rw.encodings.T5Bias(num_buckets=64).",
        )
    return ENCODINGS[encoding]()
