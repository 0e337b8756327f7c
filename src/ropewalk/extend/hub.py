"""What a Hugging Face config can say of a decoder's ropes: the exact block, or the reason why there is none.

A block is never argued to be right. It is read back, and its frequencies and attention factor are held against the
rope's own at lengths below, at and beyond the trained length.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ropewalk.checkpoints.decoder_config import half_split_rope
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach, longrope_block
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of, first_columns_of

EXACT = 1e-9  # relative: a block's numbers are float64, written in full


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubRope:
    """A rope as Hugging Face's config.json says it.

    - `parameters`: the `rope_parameters` block. `max_position_embeddings`: tokens.
    - `original_max_position_embeddings`: tokens, to be written at the top of the config as well, where some readers
      look for it; None where the block has none.
    - `rope`: what the block reads back as; half-split.
    """

    parameters: dict[str, Any]
    max_position_embeddings: int
    original_max_position_embeddings: int | None
    rope: RopeConfig

    def fields(self) -> dict[str, Any]:
        """The keys of config.json that say it, in transformers 5's spelling and, beside it, in that of version 4.

        Version 4 does not know `rope_parameters`: without the old keys it would read the model unscaled, silently.
        """
        found: dict[str, Any] = {
            "rope_parameters": self.parameters,
            "rope_theta": self.parameters["rope_theta"],
            "max_position_embeddings": self.max_position_embeddings,
        }
        if self.parameters["rope_type"] != "default":
            found["rope_scaling"] = self.parameters
        if self.original_max_position_embeddings is not None:
            found["original_max_position_embeddings"] = self.original_max_position_embeddings
        return found


def refuse_inexpressible(method: str) -> None:
    """Raise `RopeError` for a method that config.json cannot express, with the reason and the closest one that it can.

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
            cure=f"Export --method {record.nearest}; or pass --native, for a folder that ropewalk alone reads.",
        )


def hub_rope(ropes: Sequence[RopeConfig | None], method: str, reach: Reach) -> HubRope:
    """The block and length that say these ropes.

    **Arguments:**
    - `ropes`: each layer's rope with the method applied, None for a layer without.
    - `method`: its name, or that of factors from elsewhere. `as-is` keeps the stated length, an unscaled rope the
      trained one, others get `reach.target`.

    A rule that transformers has no name for, but whose frequencies do not depend on the length, becomes a `longrope`
    block whose two lists are equal: one divisor per pair.

    **Raises:** `RopeError` for a method that config.json cannot express, ropes that differ from layer to layer,
    frequencies that depend on position or on length in a way that no block has, and pairs that stand still.

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
            else "extend: no layer has a rope, and the config of every family has one.",
            facts={"ropes": distinct, "method": method},
            cure="Choose a method that gives every layer the same rope; or pass --native, for ropewalk alone.",
        )
    rope = distinct[0]
    length = _stated_length(rope, method, reach)
    lengths = compared_lengths(reach)
    for block in _candidates(rope, reach):
        read = read_block(block, rope, length)
        if read is not None and same_rope(read, rope, lengths):
            return _with_extras(block, read, length)
    raise RopeError(
        f"extend: `{method}` cannot be exported: {_reason(rope)}.",
        facts={"rope": rope, "nearest that can be": _nearest(rope)},
        cure=f"Export {_nearest(rope)}; or pass --native, for a folder that ropewalk alone reads.",
    )


def _stated_length(rope: RopeConfig, method: str, reach: Reach) -> int:
    """`max_position_embeddings`: the length that is wanted, but where the rule itself starts from the trained one.

    A model whose rope is not changed keeps its own number, which its scaling may read.
    """
    record = METHODS.get(method)
    starts_at_max = rope.scaling is not None and rope.scaling.starts_at_max_length
    unchanged = record is not None and (record.keeps_own or (record.scaling is None and rope.scaling is not None))
    if starts_at_max or unchanged:
        return rope.max_position_embeddings or reach.trained
    return reach.trained if rope.scaling is None else reach.target


def _candidates(rope: RopeConfig, reach: Reach) -> list[dict[str, Any]]:
    """Blocks that may say the rope: its own, unless that is longrope, then one divisor per pair."""
    blocks = []
    with suppress(RopeError):  # a rule without a name in transformers
        blocks.append(rope.to_hf())
    divisors = longrope_block(rope, reach.trained, reach.target)
    return [block for block in blocks if block["rope_type"] != "longrope"] + ([] if divisors is None else [divisors])


def read_block(block: Mapping[str, Any], rope: RopeConfig, length: int) -> RopeConfig | None:
    """The rope that a Llama with this block has; None where the block is refused."""
    config = {"model_type": "llama", "hidden_size": rope.head_dim, "num_attention_heads": 1, "head_dim": rope.head_dim}
    try:
        return RopeConfig.from_hf({**config, "max_position_embeddings": length, "rope_parameters": block})
    except RopeError:
        return None


def compared_lengths(reach: Reach) -> list[int]:
    """Tokens at which two ropes are compared: below, at and beyond both ends of the extension."""
    trained, target = reach.trained, reach.target
    return sorted({1, max(1, trained - 1), trained, trained + 1, target, 2 * target})


def same_rope(
    one: RopeConfig, other: RopeConfig, lengths: Sequence[int], *, relative: float = EXACT, absolute: float = 0.0
) -> bool:
    """Whether two ropes turn every pair by the same angle at these lengths, and weigh logits the same.

    `absolute`: radians per token below which two frequencies are the same whatever their ratio.
    """

    def close(a: float, b: float) -> bool:
        return math.isclose(a, b, rel_tol=relative, abs_tol=absolute)

    if (one.rotary_dim, one.axes) != (other.rotary_dim, other.axes) or first_columns_of(other) is not None:
        return False
    return all(
        close(attention_factor_of(one, length), attention_factor_of(other, length))
        and all(map(close, columns_of(one, length), columns_of(other, length)))
        for length in lengths
    )


def _with_extras(block: dict[str, Any], read: RopeConfig, length: int) -> HubRope:
    """The block, with what other readers than transformers need to see the same.

    vLLM reads longrope's factor for queries and keys from `short_mscale` and `long_mscale`, and else takes
    sqrt(1 + ln s / ln L) whatever `attention_factor` says; so they are there where that would be another number.
    """
    trained = block.get("original_max_position_embeddings")
    if block["rope_type"] == "longrope" and trained is not None:
        scale, factor = length / trained, block["attention_factor"]
        assumed = math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1 else 1.0
        if not math.isclose(assumed, factor, rel_tol=EXACT):
            block = {**block, "short_mscale": factor, "long_mscale": factor}
    return HubRope(
        parameters=block, max_position_embeddings=length, original_max_position_embeddings=trained, rope=read
    )


def _reason(rope: RopeConfig) -> str:
    if first_columns_of(rope) is not None:
        return "transformers has no key for LongRoPE's unscaled first tokens"
    if rope.needs_seq_len:
        return "its frequencies or its attention factor follow the length in a way that no config.json describes"
    if not all(columns_of(rope)):
        return "pairs that stand still cannot be said by divisors, and this family has no other key"
    return "no rope_parameters block gives these frequencies back"


def _nearest(rope: RopeConfig) -> str:
    if first_columns_of(rope) is not None:
        return "the same factors with unscaled_tokens=0"
    return "--method dynamic" if rope.needs_seq_len else "--method yarn"
