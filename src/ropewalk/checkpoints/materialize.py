"""Build modules around tensors on disk, checked by name and shape, without copies."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ropewalk.atomic_io import LARGEST, open_file, parse
from ropewalk.errors import RopeError
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.decoder import Decoder


def forget_pages(mapped: mmap.mmap, begin: int, size: int) -> None:
    """Release the pages of a mapping that contain only these bytes, which must be unmodified."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    page = mmap.PAGESIZE
    first, last = -(-begin // page) * page, (begin + size) // page * page
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the entry of each tensor in a safetensors file (dtype, shape, data_offsets), and where the data begin.

    Raises `OSError`, `ValueError`, `KeyError` or `TypeError` for a damaged header, or one that is too large.
    Source: the format in safetensors' README (8 bytes of length, a JSON header, then the data).
    """
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LARGEST:
            raise OSError(errno.EFBIG, f"a header of {length:,} bytes", str(path))
        header = parse(file.read(length))
    entries = {name: entry for name, entry in dict(header).items() if name != "__metadata__"}
    for entry in entries.values():
        numbers = [*entry["shape"], *entry["data_offsets"]]
        if not isinstance(entry["dtype"], str) or not all(isinstance(number, int) for number in numbers):
            raise OSError(errno.EINVAL, "an entry of the header has a wrong type", str(path))
    return entries, 8 + length


class Widened:
    """A validated, mapped safetensors file that releases the pages of converted tensors.

    In safetensors' own mapping these pages would stay in memory as a second copy of the model.
    """

    def __init__(self, path: Path) -> None:
        header, begin = read_header(path)
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._begins = {name: begin + entry["data_offsets"][0] for name, entry in header.items()}

    def read(self, name: str, shape: tuple[int, ...], stored: torch.dtype, dtype: torch.dtype) -> Tensor:
        """Return one tensor, converted from dtype `stored` to a different `dtype`."""
        count, begin = prod(shape), self._begins[name]
        if count == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        converted = torch.frombuffer(self._map, dtype=stored, count=count, offset=begin).to(dtype)
        forget_pages(self._map, begin, count * stored.itemsize)
        return converted.view(shape)


ModuleT = TypeVar("ModuleT", bound=nn.Module)

_CURE = "Use config and weights of one model, and fetch the file again if it is damaged."
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Stored:
    """One tensor of a checkpoint, not yet loaded: its name in the file, shape and dtype, and a function to load it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[torch.dtype | None], Tensor]


def materialize(config: DecoderConfig, stored: Mapping[str, Stored], dtype: torch.dtype | None, where: str) -> Decoder:
    """Return a Decoder with the stored tensors as its parameters: built without memory, filled without copies.

    `stored` is keyed by the Decoder's own names. Every name and shape is checked before anything is loaded.
    """
    if config.num_hidden_layers > len(stored):  # before a damaged number of layers is built
        raise RopeError(
            "load: tensors are missing from the checkpoint.",
            facts={"checkpoint": where, "tensors": len(stored), "num_hidden_layers": config.num_hidden_layers},
            cure=_CURE,
        )
    hidden, head_dim = config.hidden_size, config.head_dim or 0
    sizes = {  # shapes that contain every size of the config: torch cannot even count the numbers of damaged ones
        "embed_tokens.weight": (config.vocab_size, hidden),
        "layers.0.self_attn.q_proj.weight": (config.num_attention_heads * head_dim, hidden),
        "layers.0.self_attn.k_proj.weight": (config.kv_heads * head_dim, hidden),
        "layers.0.mlp.up_proj.weight": (config.intermediate_size, hidden),
    }
    _check_names(sizes, {name: stored[name] for name in sizes if name in stored}, where)
    _check_shapes(sizes, stored, where)
    return fill(lambda: Decoder(config), stored, dtype, where)


def fill(build: Callable[[], ModuleT], stored: Mapping[str, Stored], dtype: torch.dtype | None, where: str) -> ModuleT:
    """Return the module from `build`, in eval mode, with the stored tensors, all checked before any is loaded."""
    model = without_values(build)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    _check_names(wanted, stored, where)
    _check_shapes(wanted, stored, where)
    for name in wanted:
        if stored[name].dtype not in FLOATS:
            raise RopeError(
                "load: a weight is not stored in a plain floating type.",
                facts={"checkpoint": where, "tensor": stored[name].name, "dtype": stored[name].dtype},
                cure="Use an unquantised checkpoint, or a GGUF file.",
            )
    if dtype is None:
        dtype = reduce(torch.promote_types, {stored[name].dtype for name in wanted})
    weights = {name: stored[name].read(dtype) for name in wanted}
    model.load_state_dict(weights, strict=True, assign=True)
    return model.eval()


def without_values(build: Callable[[], ModuleT]) -> ModuleT:
    """Return the module from `build` on the meta device: shapes without values.

    >>> from ropewalk.checkpoints.load import read_config
    >>> without_values(lambda: Decoder(read_config("tiny"))).embed_tokens.weight.device.type
    'meta'
    """
    with torch.device("meta"), _WithoutValues():
        return build()


class _WithoutValues(TorchFunctionMode):
    """A mode that skips random initialization, which has no effect on meta and makes torch import dynamo."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _check_names(wanted: Mapping[str, Any], stored: Mapping[str, Stored], where: str) -> None:
    """Raise `RopeError` with the first few names unless parameters and tensors match one to one."""
    for rule, names in (
        ("load: tensors are missing from the checkpoint.", [name for name in wanted if name not in stored]),
        (
            "load: the checkpoint contains tensors that the model does not have.",
            [tensor.name for name, tensor in stored.items() if name not in wanted],
        ),
    ):
        if names:
            more = {"and more": len(names) - 4} if len(names) > 4 else {}
            raise RopeError(rule, facts={"checkpoint": where, "tensors": names[:4], **more}, cure=_CURE)


def _check_shapes(wanted: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored], where: str) -> None:
    """Raise `RopeError` for the first stored tensor with an unexpected shape."""
    for name, shape in wanted.items():
        tensor = stored[name]
        if tensor.shape != shape:
            raise RopeError(
                "load: the shape of a tensor differs from the config.",
                facts={"checkpoint": where, "tensor": tensor.name, "shape": tensor.shape, "expected": shape},
                cure=_CURE,
            )
