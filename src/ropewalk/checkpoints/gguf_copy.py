"""A decoder's rope as keys and divisors of a GGUF file, and the copy of a file with them.

llama.cpp applies theta, linear scaling and YaRN for every architecture. Its `llama` also applies one divisor for each
pair (`rope_freqs` as in Llama 3, which expresses any fixed frequencies) or two for LongRoPE. It ignores YaRN's betas
in a file for all written architectures: betas other than 32 and 1 become divisors, or raise with the server's flags.
The rope of the keys is compared with the original, as in `export`. Source: llama.cpp's
src/llama-context.cpp and src/models/.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.atomic_io import whole_file
from ropewalk.checkpoints.export import HubRope, alternatives, compared_lengths, read_block
from ropewalk.checkpoints.gguf import ROPE_TENSORS, USUAL_BETAS, rope_parameters
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.errors import RopeError
from ropewalk.imports import need
from ropewalk.methods import Reach
from ropewalk.progress import Progress, SilentProgress
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of, same_rope
from ropewalk.rope.scaling.yarn import yarn_mscale
from ropewalk.version import __version__

WITH_DIVISORS = ("llama",)
"""The written architectures with support for `rope_freqs` and `rope_factors_*`."""
STILL = 1e30  # the divisor of a pair that does not rotate, as llama.cpp's converter writes it for Gemma 4
CLOSE = 1e-6  # relative: a GGUF file's numbers are float32
_NEGLIGIBLE = 1e-15  # radians per token
_VERSION = "ropewalk.version"  # marks a file that ropewalk may replace; see `atomic_io`


@dataclass(frozen=True)
class GGUFRope:
    """A rope in the form of a GGUF file.

    - `keys`: metadata without the architecture's prefix: str, bool, int and float values.
    - `divisors`: of each pair's frequency, by the name of the tensor without ".weight".
    """

    keys: Mapping[str, str | bool | int | float]
    divisors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def gguf_rope(hub: HubRope, arch: str, method: str, reach: Reach, *, finetuned: bool = False) -> GGUFRope:
    """Return the keys and divisors for the rope of a `rope_parameters` block.

    **Arguments:** `arch`: llama.cpp's architecture. `finetuned`: whether the model was trained with its scaling.
    **Raises:** `RopeError` if llama.cpp cannot express the rope, or `arch` ignores the keys.

    >>> from ropewalk.checkpoints.export import hub_rope
    >>> from ropewalk.methods import METHODS
    >>> rope = METHODS["pi"].rope(RopeConfig(8, interleaved=False), Reach(16, 64))
    >>> gguf_rope(hub_rope((rope,), "pi", Reach(16, 64)), "llama", "pi", Reach(16, 64)).keys["rope.scaling.factor"]
    4.0
    """
    rope = hub.rope
    scaling = _scaling_keys(hub, arch, reach)
    if scaling is None:
        reason = (
            "its frequencies depend on the length, but llama.cpp fixes them when it starts"
            if hub.parameters["rope_type"] == "dynamic"
            else f"llama.cpp's `{arch}` applies theta, a linear factor and YaRN, but no divisor for each pair"
        )
        others = alternatives(hub.wanted, method, reach, lambda other: _scaling_keys(other, arch, reach) is not None)
        raise RopeError(
            f"extend: `{method}` cannot be written as a GGUF file: {reason}.",
            facts={"rope": rope, "nearest that can be": f"--method {others[0]}" if others else "none"},
            cure=(f"Pass --method {others[0]}, or apply" if others else "Apply") + " it to the model's folder.",
        )
    keys, divisors = scaling
    stated = {
        "context_length": hub.max_position_embeddings,
        "rope.freq_base": math.nan if isinstance(rope.theta, tuple) else float(rope.theta),
        **keys,
        **({"rope.scaling.finetuned": finetuned} if rope.scaling is not None else {}),
    }
    block = rope_parameters(stated, divisors, rope.head_dim, "the file to be written", arch=arch)
    read = read_block(block, rope, hub.max_position_embeddings)
    lengths = compared_lengths(reach)
    if read is None or not same_rope(read, rope, lengths, relative=CLOSE, absolute=_NEGLIGIBLE):
        raise RopeError(
            f"extend: `{method}` cannot be written as a GGUF file: its keys cannot express these frequencies.",
            facts={"rope": rope, "keys": stated},
            cure="Apply it to the model's folder.",
        )
    return GGUFRope(stated, divisors)


def _scaling_keys(hub: HubRope, arch: str, reach: Reach) -> tuple[dict[str, Any], dict[str, tuple[float, ...]]] | None:
    """Return the scaling keys and the divisors, by the block's type; None if none express it."""
    block, rope = hub.parameters, hub.rope
    own = None if rope.scaling is None else rope.scaling.original_length
    original = {"rope.scaling.original_context_length": own or reach.trained}
    kind = block["rope_type"]
    if kind == "default":
        return {}, {}
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(block["factor"]), **original}, {}
    if kind == "yarn" and block.get("truncate", True) and _usual_betas(block):
        return {"rope.scaling.type": "yarn", **_yarn(block, rope), **original}, {}
    if arch not in WITH_DIVISORS or kind == "dynamic":
        return None
    switch = rope.switch_length
    plain = columns_of(RopeConfig(rope.head_dim, interleaved=False, theta=rope.theta))
    factor = attention_factor_of(rope, (switch or 1) + 1)  # `gguf_rope` rejects one that depends on the length
    attention = {} if factor == 1.0 else {"rope.scaling.attn_factor": factor}
    if switch is None or columns_of(rope, switch) == columns_of(rope, switch + 1):
        return {**attention, **original}, {"rope_freqs": _divisors(plain, columns_of(rope, (switch or 1) + 1))}
    return (
        {"rope.scaling.type": "longrope", **attention, **original},
        {
            "rope_factors_short": _divisors(plain, columns_of(rope, switch)),
            "rope_factors_long": _divisors(plain, columns_of(rope, switch + 1)),
        },
    )


def _yarn(block: Mapping[str, Any], rope: RopeConfig) -> dict[str, float]:
    """Return YaRN's numbers; llama.cpp multiplies its own 0.1 ln(factor) + 1 by attn_factor."""
    factor = float(getattr(rope.scaling, "factor", block["factor"]))
    keys = {"rope.scaling.factor": factor}
    attention = attention_factor_of(rope) / yarn_mscale(factor, 1.0)
    if not math.isclose(attention, 1.0, rel_tol=1e-9):
        keys["rope.scaling.attn_factor"] = attention
    return keys


def _usual_betas(block: Mapping[str, Any]) -> bool:
    return all(block.get(key) in (None, usual) for key, usual in USUAL_BETAS.items())


def _divisors(plain: tuple[float, ...], scaled: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(old / new if new else STILL for old, new in zip(plain, scaled, strict=True))


def copy_gguf(source: GGUFFile, path: Path, rope: GGUFRope | None, progress: Progress | None = None) -> None:
    """Copy a GGUF file with a new rope, all other keys and weights byte for byte.

    `rope` None keeps the file's own. The write is atomic; it needs memory for one tensor.
    """
    gguf, arch, shown = need("gguf"), source.metadata["general.architecture"], progress or SilentProgress()
    kinds, tensor_kinds = gguf.GGUFValueType, gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(None, arch)
    writer.data_alignment = int(source.metadata.get("general.alignment", 32))
    writer.add_string(_VERSION, __version__)
    replaced = () if rope is None else (f"{arch}.rope.scal", f"{arch}.rope.freq_base", f"{arch}.context_length")
    for key, typed in source.typed.items():
        if key in ("general.architecture", _VERSION) or key.startswith(replaced or "\0") or typed.value == []:
            continue  # the writer does not support empty arrays
        element = () if typed.element is None else (kinds(typed.element),)
        writer.add_key_value(key, typed.value, kinds(typed.kind), *element)
    adders = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in (rope.keys if rope is not None else {}).items():
        adders[type(value)](f"{arch}.{key}", value)
    divisors = {} if rope is None else {f"{name}.weight": of for name, of in rope.divisors.items()}
    new = {name: np.array(of, dtype=np.float32) for name, of in divisors.items()}
    kept = [name for name in source.tensors if rope is None or name not in ROPE_TENSORS]
    for name, values in new.items():
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes, tensor_kinds.F32)
    for name in kept:
        tensor = source.tensors[name]
        writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), tensor.size, tensor_kinds(tensor.kind))
    shown.begin(f"writing {path.name} (MiB)", sum(source.tensors[name].size for name in kept) >> 20)
    with whole_file(path) as temporary:
        try:
            writer.write_header_to_file(temporary)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for values in new.values():
                writer.write_tensor_data(values)
            done = 0
            for name in kept:
                writer.write_tensor_data(source.stored(name))
                before, done = done, done + source.tensors[name].size
                shown.advance((done >> 20) - (before >> 20))
        finally:
            writer.close()
