"""GGUF files, written with the `gguf` library: a copy of a file with new rope keys, or a Decoder's weights.

Names, the order of q's and k's rows and the metadata follow llama.cpp's convert_hf_to_gguf.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.atomic_io import whole_file
from ropewalk.checkpoints.decoder_config import config_to_hf, half_split
from ropewalk.checkpoints.gguf import INNER, OUTER, PERMUTED, ROPE_TENSORS
from ropewalk.checkpoints.gguf_file import GGUFFile, TypedValue
from ropewalk.checkpoints.gguf_tokenizer import vocabulary_metadata
from ropewalk.checkpoints.hugging_face import hugging_face_form
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.optional import need
from ropewalk.progress import Progress, SilentProgress
from ropewalk.rope.pairing import convert_pairing
from ropewalk.version import __version__

Quantization = Literal["f32", "f16", "q8_0"]
_FILE_TYPES: Mapping[Quantization, int] = {"f32": 0, "f16": 1, "q8_0": 7}  # llama.h's llama_ftype
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "ministral": "llama"} | {
    name: name for name in PERMUTED if name != "llama"
}
WRITTEN = tuple(sorted(set(_ARCHITECTURES.values())))
"""The supported architectures of llama.cpp."""
_NOPE_STEP = 4  # every fourth layer of SmolLM3 has no rotation; llama.cpp's smollm3 has no key for it
_CHUNK = 1 << 24  # numbers in one conversion: 64 MiB of float32
_VERSION = "ropewalk.version"  # marks a file that ropewalk may replace; see `atomic_io`
_OURS = {ours: name for name, ours in (OUTER | INNER).items()}


@dataclass(frozen=True)
class GGUFRope:
    """A rope in the form of a GGUF file.

    - `keys`: metadata without the architecture's prefix: str, bool, int and float values.
    - `divisors`: of each pair's frequency, by the name of the tensor without ".weight".
    """

    keys: Mapping[str, str | bool | int | float]
    divisors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Entry:
    """One tensor to write: its name, shape and type, the source of its bytes, and a function to call afterwards."""

    name: str
    shape: tuple[int, ...]
    kind: int
    source: _Converted | npt.NDArray[Any]
    done: Callable[[], None] = lambda: None


def architecture_of(config: DecoderConfig) -> str:
    """Return llama.cpp's architecture of a decoder; raise `RopeError` if there is none.

    >>> from ropewalk.checkpoints.load import read_config
    >>> architecture_of(read_config("tiny"))
    'llama'
    """
    family = config_to_hf(half_split(config))["model_type"]
    if family not in _ARCHITECTURES:
        raise RopeError(
            "extend: this model cannot be written as a GGUF file: no supported architecture can express it.",
            facts={"model_type": family, "known": sorted(_ARCHITECTURES)},
            cure="Write a folder: --out DIR.",
        )
    arch = _ARCHITECTURES[family]
    if any(window is not None for window in config.sliding_windows):
        raise RopeError(
            f"extend: llama.cpp's `{arch}` has no sliding window, so its results would differ.",
            facts={"sliding_window": next(window for window in config.sliding_windows if window is not None)},
            cure="Write a folder: --out DIR.",
        )
    rotates = [rope is not None for rope in config.ropes]
    if rotates != [arch != "smollm3" or (layer + 1) % _NOPE_STEP != 0 for layer in range(len(rotates))]:
        raise RopeError(
            f"extend: llama.cpp's `{arch}` rotates different layers from this model.",
            facts={"layers without rotation": [layer for layer, rotated in enumerate(rotates) if not rotated]},
            cure="Write a folder: --out DIR.",
        )
    return arch


def copy_gguf(source: GGUFFile, path: Path, rope: GGUFRope | None, progress: Progress | None = None) -> None:
    """Copy a GGUF file with a new rope, all other keys and weights byte for byte.

    `rope` None keeps the file's own. The write is atomic; it needs memory for one tensor.
    """
    arch = source.metadata["general.architecture"]
    writer = _writer(arch, int(source.metadata.get("general.alignment", 32)))
    replaced = () if rope is None else (f"{arch}.rope.scal", f"{arch}.rope.freq_base", f"{arch}.context_length")
    for key in source.metadata:
        if key not in ("general.architecture", _VERSION) and not key.startswith(replaced or "\0"):
            _add_typed(writer, key, source.typed(key))
    if rope is not None:
        _add_rope(writer, arch, rope)
    entries = [
        _Entry(name, tensor.shape, tensor.kind, source.stored(name), lambda name=name: source.forget(name))  # type: ignore[misc]
        for name, tensor in source.tensors.items()
        if rope is None or name not in ROPE_TENSORS
    ]
    _write(writer, path, [*_rope_entries(rope), *entries], progress)


def write_gguf(
    model: Decoder,
    path: Path,
    rope: GGUFRope,
    *,
    quantization: Quantization = "f16",
    name: str = "",
    progress: Progress | None = None,
) -> None:
    """Write a decoder as a GGUF file with a rope: matrices in `quantization`, vectors in float32, and its tokenizer.

    Rows that cannot be divided into blocks are stored in float16.

    **Raises:** `RopeError` if llama.cpp does not support this model or its tokenizer, or if float16 cannot represent a
    weight.
    """
    arch = architecture_of(model.config)
    config, weights = hugging_face_form(model)
    heads = {key: config.head_dim for key in weights if PERMUTED[arch] and re.search(r"\.[qk]_proj\.", key)}
    writer = _writer(arch)
    if name:
        writer.add_name(name)
    writer.add_file_type(_FILE_TYPES[quantization])
    writer.add_quantization_version(need("gguf").GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    _add_rope(writer, arch, rope)
    if model.tokenizer is not None:
        for key, value in vocabulary_metadata(model.tokenizer, config.vocab_size).items():
            _add(writer, key, value)
    entries = [_entry(gguf_name(key), tensor, quantization, heads.get(key)) for key, tensor in weights.items()]
    _write(writer, path, [*_rope_entries(rope), *entries], progress)


def gguf_name(name: str) -> str:
    """Return the GGUF name of a Decoder's tensor.

    >>> gguf_name("layers.3.self_attn.q_proj.weight")
    'blk.3.attn_q.weight'
    """
    layer, inner = re.fullmatch(r"(?:layers\.(\d+)\.)?(.+)", name).groups()  # type: ignore[union-attr]
    part, _, kind = inner.rpartition(".")
    return f"{'' if layer is None else f'blk.{layer}.'}{_OURS[part]}.{kind}"


class _Converted:
    """A tensor to convert and quantise while writing, some rows at a time.

    - `head_dim`: re-orders the features of heads of this size from half-split to interleaved; None keeps the order.
    """

    def __init__(self, name: str, tensor: Tensor, kind: int, head_dim: int | None) -> None:
        gguf = need("gguf")
        self.name, self.tensor, self.head_dim = name, tensor, head_dim
        self.kind = gguf.GGMLQuantizationType(kind)
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        self.nbytes = tensor.numel() // block * size

    def _rows(self) -> Iterator[npt.NDArray[np.float32]]:
        rows = self.tensor.detach()
        if self.head_dim is not None:
            rows = convert_pairing(rows, to="interleaved", head_dim=self.head_dim, dim=0)
        count = max(1, _CHUNK // max(1, rows[0].numel()))
        for begin in range(0, len(rows), count):
            part = rows[begin : begin + count]
            yield part.to("cpu", torch.float32).contiguous().numpy()

    def tofile(self, file: Any) -> None:
        """Write the whole tensor."""
        gguf = need("gguf")
        for values in self._rows():
            with np.errstate(over="ignore"):
                stored = gguf.quants.quantize(values, self.kind)
            if stored.dtype == np.float16 and not np.isfinite(stored).all():
                raise RopeError(
                    "extend: a weight is too large for float16, or not a number.",
                    facts={"tensor": self.name, "largest": float(np.abs(values).max())},
                    cure="Pass --quantization f32.",
                )
            np.ascontiguousarray(stored).tofile(file)


def _entry(name: str, tensor: Tensor, quantization: Quantization, head_dim: int | None) -> _Entry:
    """Return a weight's entry: vectors in float32, rows that cannot be divided into blocks in float16."""
    kinds = need("gguf").GGMLQuantizationType
    kind = {"f32": kinds.F32, "f16": kinds.F16, "q8_0": kinds.Q8_0}[quantization]
    if tensor.ndim < 2:
        kind = kinds.F32
    elif kind == kinds.Q8_0 and tensor.shape[-1] % 32:
        kind = kinds.F16
    return _Entry(name, tuple(tensor.shape), int(kind), _Converted(name, tensor, kind, head_dim))


def _rope_entries(rope: GGUFRope | None) -> list[_Entry]:
    """Return the divisors' tensors, float32."""
    return [
        _Entry(f"{name}.weight", (len(divisors),), 0, np.array(divisors, dtype=np.float32))
        for name, divisors in (rope.divisors if rope is not None else {}).items()
    ]


def _writer(arch: str, alignment: int = 32) -> Any:
    writer = need("gguf").GGUFWriter(None, arch)
    writer.data_alignment = alignment
    writer.add_string(_VERSION, __version__)
    return writer


def _add(writer: Any, key: str, value: Any) -> None:
    """Add one key by the type of its value: ints become uint32, floats float32."""
    adders = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    adders.get(type(value), writer.add_array)(key, value)


def _add_typed(writer: Any, key: str, value: TypedValue) -> None:
    """Add one key with its stored type, except an empty array, which the writer does not support."""
    kinds = need("gguf").GGUFValueType
    if value.element is None:
        writer.add_key_value(key, value.value, kinds(value.kind))
    elif value.value:
        writer.add_key_value(key, value.value, kinds(value.kind), kinds(value.element))


def _add_rope(writer: Any, arch: str, rope: GGUFRope) -> None:
    for key, value in rope.keys.items():
        _add(writer, f"{arch}.{key}", value)


def _write(writer: Any, path: Path, entries: list[_Entry], progress: Progress | None) -> None:
    """Write the file atomically: header, metadata, the tensors' information, then one tensor after the other."""
    kinds, shown = need("gguf").GGMLQuantizationType, progress or SilentProgress()
    for entry in entries:
        writer.add_tensor_info(entry.name, entry.shape, np.dtype(np.float32), entry.source.nbytes, kinds(entry.kind))
    shown.begin(f"writing {path.name}", sum(entry.source.nbytes for entry in entries) >> 20)
    with whole_file(path) as temporary:
        try:
            writer.write_header_to_file(temporary)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            done = 0
            for entry in entries:
                writer.write_tensor_data(entry.source)
                entry.done()
                before, done = done, done + entry.source.nbytes
                shown.advance((done >> 20) - (before >> 20))
        finally:
            writer.close()
