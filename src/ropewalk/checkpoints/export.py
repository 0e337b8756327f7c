"""A rope as a block of config.json, compared with the rope's own numbers below, at and beyond the trained length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ropewalk.attachment.layers import rope_fields
from ropewalk.checkpoints.decoder_config import half_split_rope
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Positions
from ropewalk.rope.frequencies import columns_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubRope:
    """A rope in the form of Hugging Face's config.json.

    - `parameters`: the `rope_parameters` block. `max_position_embeddings`: tokens.
    - `rope`: the half-split rope of the block. `wanted`: the rope that it expresses.
    """

    parameters: dict[str, Any]
    max_position_embeddings: int
    rope: RopeConfig
    wanted: RopeConfig


def refuse_inexpressible(method: str) -> None:
    """Raise `RopeError` for a method that config.json cannot express, with the reason and the closest one it can.

    >>> refuse_inexpressible("yarn")
    >>> refuse_inexpressible("rerope")
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: extend: `rerope` cannot be exported: it clips or regroups positions inside attention...
    """
    record = METHODS.get(method.lower().replace("_", "-"))
    if record is not None and record.config is None:
        raise RopeError(
            f"extend: `{method}` cannot be exported: {record.not_in_config}.",
            facts={"method": method, "nearest that can be": record.nearest},
            cure=f"Export --method {record.nearest}.",
        )


def check_length(length: int | None, method: str, reach: Reach) -> None:
    """Raise `RopeError` for a stated length outside of the extension, or one without effect."""
    if length is None:
        return
    if not METHODS[method].extends:
        raise RopeError(
            f"extend: `{method}` does not extend, so the length would be ignored.",
            facts={"length": length},
            cure="Omit it.",
        )
    if not reach.trained < length <= reach.target:
        raise RopeError(
            "extend: the length must be above the trained length and at most the target.",
            facts={"length": length, "trained length": reach.trained, "target": reach.target},
            cure="Pass a length in between, or omit it for the target.",
        )


def hub_rope(ropes: Sequence[RopeConfig | None], method: str, reach: Reach, *, length: int | None = None) -> HubRope:
    """Return the block and length for these ropes.

    **Arguments:**
    - `ropes`: each layer's rope with the method applied, None for a layer without.
    - `method`: its name, or a name for given factors. `as-is` keeps the stated length, an unscaled rope the trained
      length, others get `reach.target`.
    - `length`: written instead of `reach.target`; the frequencies stay those of the target.

    A rule without a name in transformers, with length-independent frequencies, becomes a `longrope` block with two
    equal lists: one divisor per pair.

    **Raises:** `RopeError` for a method that config.json cannot express, different ropes in different layers,
    frequencies that depend on position or length in an unsupported way, and pairs that do not rotate.

    >>> rope = RopeConfig(8, interleaved=False, max_position_embeddings=16)
    >>> hub_rope((rope, rope), "plain", Reach(16, 64)).parameters
    {'rope_type': 'default', 'rope_theta': 10000.0}
    """
    refuse_inexpressible(method)
    distinct = [rope for rope in dict.fromkeys(map(half_split_rope, ropes)) if rope is not None]
    if len(distinct) != 1:
        raise RopeError(
            f"extend: `{method}` cannot be exported: the config of this family has one rope for all layers."
            if distinct
            else "extend: no layer has a rope, but the config of every family has one.",
            facts={"ropes": distinct, "method": method},
            cure="Choose a method with the same rope in every layer.",
        )
    rope = distinct[0]
    found = _expressed(rope, method, reach, length)
    if found is not None:
        return found
    others = [f"--method {name}" for name in alternatives(rope, method, reach)]
    raise RopeError(
        f"extend: `{method}` cannot be exported: {_reason(rope)}.",
        facts={"rope": rope, "nearest that can be": others[0] if others else "none"},
        cure=f"Export {others[0]}." if others else "Apply it in Python: rw.attach(model, method, target=...).",
    )


def alternatives(
    rope: RopeConfig, method: str, reach: Reach, accepts: Callable[[HubRope], bool] = lambda hub: True
) -> list[str]:
    """Return the other methods that a block expresses for this model, of a few; `accepts` is a further condition."""
    found = []
    for name in ("yarn", "ntk", "dynamic"):
        with suppress(RopeError):  # the rope cannot be extended
            hub = _expressed(METHODS[name].rope(rope, reach), name, reach, None) if name != method else None
            found += [name] if hub is not None and accepts(hub) else []
    return found


def _expressed(rope: RopeConfig, method: str, reach: Reach, length: int | None) -> HubRope | None:
    """Return the block that reads back as the rope, or None.

    `max_position_embeddings` is the target, except for a rule that starts from the trained length, and for an unchanged
    rope, whose scaling may depend on its own number.
    """
    record, scaled = METHODS.get(method), rope.scaling is not None
    unchanged = record is not None and (record.keeps_own or (record.scaling is None and scaled))
    own = (rope.max_position_embeddings if scaled or unchanged else None) or reach.trained
    fields = {**llama_fields(rope), "max_position_embeddings": own, "rope_parameters": {}}
    trained = dataclasses.replace(rope, scaling=None, max_position_embeddings=reach.trained, trained=None)
    before, after = (Positions((one,), (None,), (None,)) for one in (trained, rope))
    target = reach.target if scaled and not unchanged else None
    found = rope_fields(fields, (None,), before, after, method=None, target=target, length=target and length)
    if isinstance(found, str):
        return None
    read = RopeConfig.from_hf({**fields, **found})
    return HubRope(
        parameters=found["rope_parameters"], max_position_embeddings=found["max_position_embeddings"], rope=read,
        wanted=rope,
    )  # fmt: skip


def llama_fields(rope: RopeConfig) -> dict[str, Any]:
    """Return the keys of a Llama's config that the rope needs, without its block."""
    return {"model_type": "llama", "hidden_size": rope.head_dim, "num_attention_heads": 1}


def read_block(block: Mapping[str, Any], rope: RopeConfig, length: int) -> RopeConfig | None:
    """Return the rope of a Llama with this block; None if the block is invalid."""
    try:
        return RopeConfig.from_hf({**llama_fields(rope), "max_position_embeddings": length, "rope_parameters": block})
    except RopeError:
        return None


def compared_lengths(reach: Reach) -> list[int]:
    """Return lengths in tokens for comparing two ropes: below, at and beyond both ends of the extension."""
    trained, target = reach.trained, reach.target
    return sorted({1, max(1, trained - 1), trained, trained + 1, target, 2 * target})


def _reason(rope: RopeConfig) -> str:
    if rope.needs_seq_len:
        return "no config.json can express how its frequencies or its attention factor depend on the length"
    if not all(columns_of(rope)):
        return "divisors cannot express pairs that do not rotate, and this family has no key for them"
    return "no rope_parameters block expresses these frequencies"
