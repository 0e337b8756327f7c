"""The learned tensors of a rotation in a checkpoint: LeRoPE's factors and FoPE's coefficients."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from ropewalk.checkpoints.load import open_safetensors
from ropewalk.checkpoints.sources import no_safetensors
from ropewalk.errors import RopeError


def read_alpha(folder: str | os.PathLike[str]) -> tuple[float, ...]:
    """Return LeRoPE's `alpha`, the learned logarithm of each frequency's factor, from a checkpoint's weights.

    **Arguments:** `folder`: with safetensors files, one with the tensor `rotary_emb.alpha` (transformers) or
    `lerope.alpha` (Mistral's own format). Other tensors are not loaded.

    **Returns:** one number for each pair, for `RopeConfig.from_hf(folder, alpha=...)`.
    **Raises:** `RopeError` if there is no such tensor, or more than one.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"model.rotary_emb.alpha": torch.tensor([0.5, -0.25])}, Path(folder) / "model.safetensors")
    ...     read_alpha(folder)
    (0.5, -0.25)
    """
    found = _read(Path(folder), "rotary_emb.alpha", "lerope.alpha")
    return tuple(found.double().flatten().tolist())


def read_coefficients(folder: str | os.PathLike[str]) -> tuple[Tensor, Tensor]:
    """Return FoPE's `cos_coef` and `sin_coef` from a checkpoint's weights, in their stored dtype.

    **Arguments:** `folder`: with safetensors files. Other tensors are not loaded.

    **Returns:** two tensors `[key heads, kept pairs, kept pairs]` or `[kept pairs, kept pairs]`, for
    `FourierEmbedding`.
    **Raises:** `RopeError` if there are no such tensors, or several pairs of them.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> stored = {f"model.rotary_emb.{name}": torch.eye(3) for name in ("cos_coef", "sin_coef")}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(stored, Path(folder) / "model.safetensors")
    ...     [tuple(coefficients.shape) for coefficients in read_coefficients(folder)]
    [(3, 3), (3, 3)]
    """
    return _read(Path(folder), "rotary_emb.cos_coef"), _read(Path(folder), "rotary_emb.sin_coef")


def _read(folder: Path, *endings: str) -> Tensor:
    """Return the only tensor of the folder's safetensors files with one of these endings in its name."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise no_safetensors(folder)
    opened = map(open_safetensors, files)
    places = [(file, name) for file in opened for name in file.keys() if f".{name}".endswith(endings)]  # noqa: SIM118
    if len(places) != 1:
        raise RopeError(
            "read: a checkpoint with a learned rotation must have exactly one such tensor.",
            facts={"folder": str(folder), "endings": endings, "found": [name for _, name in places]},
            cure="Fetch every weight file of one checkpoint into one folder.",
        )
    file, name = places[0]
    tensor: Tensor = file.get_tensor(name).clone()  # not a view of the file
    return tensor
