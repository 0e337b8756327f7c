"""A decoder's rope as keys and divisors of a GGUF file, and the copy of a file with them.

llama.cpp applies theta, linear scaling and YaRN for every architecture. Its `llama` also applies one divisor for each
pair (`rope_freqs` as in Llama 3, which expresses any fixed frequencies) or two for LongRoPE. It ignores YaRN's betas
in a file for all written architectures: betas other than 32 and 1 become divisors, or raise with the server's flags.
The rope of the keys is compared with the original. Source: llama.cpp's
src/llama-context.cpp and src/models/.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.atomic_io import whole_file
from ropewalk.checkpoints.gguf_file import ROPE_TENSORS, GGUFFile
from ropewalk.checkpoints.gguf_rope import STOPPED, scaled_rope
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.progress import Progress, SilentProgress
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import compared_lengths, same_rope
from ropewalk.rope.scaling.yarn import yarn_mscale
from ropewalk.version import __version__

WITH_DIVISORS = ("llama",)
"""The written architectures with support for `rope_freqs` and `rope_factors_*`."""
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


def gguf_rope(rope: RopeConfig, arch: str, method: str, reach: Reach, *, length: int | None = None) -> GGUFRope | str:
    """Return the keys and divisors for a half-split rope, or the reason why llama.cpp cannot express it, as a clause.

    **Arguments:**
    - `rope`: with the method applied. `method`: its name, or a name for given factors.
    - `arch`: llama.cpp's architecture. `length`: tokens, stated instead of the target.

    >>> from ropewalk.methods import METHODS
    >>> rope = METHODS["pi"].rope(RopeConfig(8, interleaved=False), Reach(16, 64))
    >>> gguf_rope(rope, "llama", "pi", Reach(16, 64)).keys["rope.scaling.factor"]
    4.0
    """
    record, scaled = METHODS.get(method), rope.scaling is not None
    unchanged = record is not None and (record.keeps_own or (record.scaling is None and scaled))
    own = (rope.max_position_embeddings if unchanged else None) or reach.trained
    context, lengths = (length or reach.target) if scaled and not unchanged else own, (reach.trained, reach.target)
    with suppress(RopeError):
        for theta, keys, divisors in _scalings(rope, arch, reach, context):
            stated = {"context_length": context, "rope.freq_base": theta, **keys}
            read = scaled_rope(stated, divisors, rope.head_dim, "the file to be written", arch=arch)
            if same_rope(read, rope, compared_lengths(*lengths), relative=CLOSE, absolute=_NEGLIGIBLE):
                return GGUFRope(stated, divisors)
    if rope.needs_seq_len and rope.switch_length is None:
        return "its frequencies depend on the length, but llama.cpp fixes them when it starts"
    if arch in WITH_DIVISORS:
        return "the keys of a .gguf file cannot express these frequencies"
    return f"llama.cpp's `{arch}` applies theta, a linear factor and YaRN, but no divisor for each pair"


def _scalings(
    rope: RopeConfig, arch: str, reach: Reach, context: int
) -> Iterator[tuple[float, dict[str, Any], dict[str, tuple[float, ...]]]]:
    """Yield theta, the scaling keys and the divisors that may express a rope: by its rule, then by divisors."""
    original = {
        "rope.scaling.original_context_length": (rope.scaling and rope.scaling.original_length) or reach.trained
    }
    trained = {"rope.scaling.finetuned": rope.scaling_is_trained is True}
    with suppress(RopeError):  # transformers has no name for the rule: divisors follow
        length = rope.max_position_embeddings or context
        sizes: dict[str, Any] = {"head_dim": rope.head_dim, "interleaved": False, "max_position_embeddings": length}
        named = RopeConfig.from_block(rope.to_hf(), **sizes).to_hf()
        kind, theta, keys = named["rope_type"], float(named["rope_theta"]), dict[str, Any]()
        if kind in ("linear", "yarn"):
            keys = {"rope.scaling.type": kind, "rope.scaling.factor": float(named["factor"]), **original, **trained}
        if kind == "yarn":
            attention = rope.attention_factor_at() / yarn_mscale(float(named["factor"]), 1.0)  # of llama.cpp's own
            keys |= {} if math.isclose(attention, 1.0, rel_tol=1e-9) else {"rope.scaling.attn_factor": attention}
        if keys or kind == "default":
            yield theta, keys, {}
    switch = rope.switch_length
    if arch not in WITH_DIVISORS or rope.rotary_dim != rope.head_dim or (rope.needs_seq_len and switch is None):
        return
    plain = RopeConfig(rope.head_dim, interleaved=False, theta=rope.theta).columns_at()
    factor = rope.attention_factor_at((switch or 1) + 1)  # one that depends on the length does not read back
    keys = ({} if factor == 1.0 else {"rope.scaling.attn_factor": factor}) | original | trained
    if switch is None or rope.columns_at(switch) == rope.columns_at(switch + 1):
        yield rope.theta, keys, {"rope_freqs": _divisors(plain, rope.columns_at((switch or 1) + 1))}
        return
    lists = {
        "rope_factors_short": _divisors(plain, rope.columns_at(switch)),
        "rope_factors_long": _divisors(plain, rope.columns_at(switch + 1)),
    }
    chosen = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": switch}
    yield rope.theta, keys | chosen, lists


def _divisors(plain: tuple[float, ...], scaled: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(old / new if new else STOPPED for old, new in zip(plain, scaled, strict=True))


def copy_gguf(source: GGUFFile, path: Path, rope: GGUFRope | None, progress: Progress | None = None) -> None:
    """Copy a GGUF file with a new rope, all other keys and weights byte for byte.

    `rope` None keeps the file's own. The write is atomic; it needs memory for one tensor. Source: ggml's docs/gguf.md.
    """
    arch, shown = source.metadata["general.architecture"], progress or SilentProgress()
    replaced = ("\0",) if rope is None else (f"{arch}.rope.scal", f"{arch}.rope.freq_base", f"{arch}.context_length")
    kept = {key: entry for key, entry in source.entries.items() if not key.startswith(replaced)}
    kept.pop(_VERSION, None)  # of an earlier copy
    first = "general.architecture"  # and our mark at once after it: `may_replace` reads the start of a file
    entries = {first: kept.pop(first), _VERSION: _entry(_VERSION, __version__), **kept}
    entries |= {f"{arch}.{key}": _entry(f"{arch}.{key}", value) for key, value in (rope.keys if rope else {}).items()}
    divisors = {f"{name}.weight": np.array(of, dtype="<f4") for name, of in (rope.divisors if rope else {}).items()}
    tensors = [(name, values.shape, 0, values.view(np.uint8).data) for name, values in divisors.items()]
    for name, tensor in source.tensors.items():
        if rope is None or name not in ROPE_TENSORS:
            tensors.append((name, tensor.shape, tensor.kind, source.stored(name).data))
    alignment = int(source.metadata.get("general.alignment", 32))
    header, offset = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(entries)), *entries.values()], 0
    for name, shape, kind, data in tensors:
        header.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset))
        offset += len(data) + -len(data) % alignment
    shown.begin(f"writing {path.name} (MiB)", offset >> 20)
    with whole_file(path) as temporary, temporary.open("wb") as out:
        for data in (memoryview(b"".join(header)), *(one[-1] for one in tensors)):
            before = out.tell() >> 20
            out.write(data)
            out.write(b"\0" * (-len(data) % alignment))
            shown.advance((out.tell() >> 20) - before)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _entry(key: str, value: str | bool | float) -> bytes:
    """Return a key and its value, with ggml's number of its type, as a file stores them."""
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", 8) + _string(value)
    number, code = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}[type(value)]
    return _string(key) + struct.pack(f"<I{code}", number, value)
