"""Export of a `Decoder` as a folder: the rope block of config.json, weights, tokenizer and companions.

Before a block is written, its frequencies and attention factor are compared with the rope's own at lengths below, at
and beyond the trained length.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.atomic_io import read_json, write_json
from ropewalk.attachment.layers import rope_fields
from ropewalk.checkpoints.decoder_config import NATIVE, config_to_hf, config_to_native, half_split_rope
from ropewalk.checkpoints.hugging_face import hugging_face_form, save_tokenizer, special_ids, stored_names
from ropewalk.checkpoints.load import read_config
from ropewalk.errors import RopeError
from ropewalk.families import DECODERS
from ropewalk.methods import METHODS, Reach
from ropewalk.models.config import DecoderConfig, Positions
from ropewalk.models.decoder import Decoder
from ropewalk.optional import need
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import columns_of

SHARD_BYTES = 5_000_000_000  # of one weight file: transformers' former default


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubRope:
    """A rope in the form of Hugging Face's config.json.

    - `parameters`: the `rope_parameters` block. `max_position_embeddings`: tokens.
    - `original_max_position_embeddings`: tokens, also written at the top level of the config, where some programs
      expect it; None if the block has none.
    - `rope`: the half-split rope of the block. `wanted`: the rope that it expresses.
    """

    parameters: dict[str, Any]
    max_position_embeddings: int
    original_max_position_embeddings: int | None
    rope: RopeConfig
    wanted: RopeConfig

    def fields(self) -> dict[str, Any]:
        """Return the keys of config.json in the spellings of transformers 5 and 4.

        Version 4 ignores `rope_parameters`: without the old keys the model would silently stay unscaled.
        """
        fields: dict[str, Any] = {
            "rope_parameters": self.parameters,
            "rope_theta": self.parameters["rope_theta"],
            "max_position_embeddings": self.max_position_embeddings,
        }
        if self.parameters["rope_type"] != "default":
            fields["rope_scaling"] = self.parameters
        if self.original_max_position_embeddings is not None:
            fields["original_max_position_embeddings"] = self.original_max_position_embeddings
        return fields


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
            cure=f"Export --method {record.nearest}; or pass --native, for a folder that only ropewalk loads.",
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
            cure="Choose a method with the same rope in every layer; or pass --native, for ropewalk only.",
        )
    rope = distinct[0]
    found = _expressed(rope, method, reach, length)
    if found is not None:
        return found
    others = [f"--method {name}" for name in alternatives(rope, method, reach)]
    raise RopeError(
        f"extend: `{method}` cannot be exported: {_reason(rope)}.",
        facts={"rope": rope, "nearest that can be": others[0] if others else "none"},
        cure=(f"Export {others[0]}; or pass" if others else "Pass")
        + " --native, for a folder that only ropewalk loads.",
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
    block, stated = found["rope_parameters"], found["max_position_embeddings"]
    read = RopeConfig.from_hf({**fields, **found})
    return HubRope(
        parameters=block,
        max_position_embeddings=stated,
        original_max_position_embeddings=block.get("original_max_position_embeddings"),
        rope=read,
        wanted=rope,
    )


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


# A checkpoint's files other than weights and config, which also apply to the extended model, and its licences.
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "NOTICE.txt",
)
_ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings")


def write_decoder(
    model: Decoder,
    folder: Path,
    *,
    rope_fields: Mapping[str, Any] | None,
    length: int,
    dtype: torch.dtype,
    source: Path | None,
    shard_bytes: int,
) -> dict[str, Any]:
    """Write weights, tokenizer and companions; return the content of config.json, which the caller writes.

    **Arguments:**
    - `folder`: exists and is empty. `dtype`: of the weights. `shard_bytes`: the largest weight file.
    - `rope_fields`: the rope's keys of config.json; interleaved heads are written half-split. None writes ropewalk's
      own form, with all of `DecoderConfig`.
    - `length`: tokens; a lower `model_max_length` of the tokenizer is raised to it.
    - `source`: the checkpoint of the model. From a Hugging Face folder, config.json is kept except for the rope's keys,
      the dtype and `auto_map` (its code is not copied), and companions are copied.

    **Raises:** `RopeError` if no family of transformers computes this model.
    """
    native = rope_fields is None
    config, weights = (model.config, model.state_dict()) if native else hugging_face_form(model)
    kept = None if native else _config_of(source, config)
    written = config_to_native(config) if rope_fields is None else _written_config(config, kept, rope_fields)
    written |= (special_ids(model.tokenizer) if kept is None else {}) | {"dtype": str(dtype).removeprefix("torch.")}
    write_weights(stored_names(weights, native=native), folder, dtype=dtype, shard_bytes=shard_bytes)
    if kept is not None and source is not None:
        _copy_companions(source, folder, length)
    else:
        save_tokenizer(model.tokenizer, folder)
    return written


def write_weights(weights: Mapping[str, Tensor], folder: Path, *, dtype: torch.dtype, shard_bytes: int) -> list[Path]:
    """Write tensors as model.safetensors, or as shards of at most `shard_bytes` with an index; return the files.

    One shard is in memory at a time; a tensor larger than a shard gets a shard of its own.
    """
    save_file = need("safetensors.torch").save_file
    size = torch.finfo(dtype).bits // 8
    shards: list[list[str]] = [[]]
    left = shard_bytes
    for name, tensor in weights.items():
        if shards[-1] and tensor.numel() * size > left:
            shards.append([])
            left = shard_bytes
        shards[-1].append(name)
        left -= tensor.numel() * size
    paths: list[Path] = []
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        cast = {name: weights[name].detach().to("cpu", dtype).contiguous() for name in names}
        save_file(cast, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
        paths.append(folder / file)
    if len(shards) > 1:
        total = sum(tensor.numel() for tensor in weights.values()) * size
        write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})
    return paths


def _config_of(source: Path | None, config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json of a Hugging Face folder if it describes this model except for its ropes; else None."""
    if source is None or not source.is_dir():
        return None
    content = read_json(source / "config.json")
    if content.get("model_type") == NATIVE:
        return None
    read = read_config(content)
    if dataclasses.replace(read, rope=None) != dataclasses.replace(config, rope=None, extension=None):
        return None  # the model was changed after loading, so its own config is written
    return content


def _written_config(
    config: DecoderConfig, kept: Mapping[str, Any] | None, rope_fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config.json to write; raise `RopeError` if no family of transformers computes this model."""
    if kept is not None:
        left_out = (*_ROPE_KEYS, "auto_map", "torch_dtype")
        written = {key: value for key, value in kept.items() if key not in left_out}
        return {**written, "architectures": [DECODERS[str(kept["model_type"])].architecture], **rope_fields}
    written = config_to_hf(config)
    if written["model_type"] == NATIVE:
        raise RopeError(
            "extend: this model cannot be exported: no supported family can express it.",
            facts={"families": tuple(DECODERS), "norm": config.norm, "hidden_act": config.hidden_act},
            cure="Pass --native, for a folder that only ropewalk loads.",
        )
    return {**written, **rope_fields}


def _copy_companions(source: Path, folder: Path, length: int) -> None:
    """Copy a checkpoint's companions, with `model_max_length` at least `length`, which transformers checks."""
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    path = folder / "tokenizer_config.json"
    content = read_json(path) if path.is_file() else {}
    if isinstance(content.get("model_max_length"), int) and content["model_max_length"] < length:
        write_json(path, {**content, "model_max_length": length})
