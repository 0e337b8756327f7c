"""Image and video models of diffusers: `read` returns the fields of a RopeConfig, `latent_positions` the positions.

Each class of transformer states the features of each axis, or computes them from the size of a head. Pairs are
interleaved, and each axis has its own ladder of frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ropewalk.atomic_io import read_json
from ropewalk.errors import RopeError
from ropewalk.rope.axes import axes_from_sections
from ropewalk.rope.values import MOST_SIZE, as_tuple, as_whole, check_whole, is_number, whole_or_zero

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class _Transformer:
    """The rope of a class.

    - `axes_key`, `axes_dim`: key of the features of each axis, and its default; or a function of head_dim.
    - `theta`, `theta_key`: the base, and its key, if the class has one.
    - `switch`: a key that must be true, else the model has no rotation.
    - `ignored`: keys with "rope" in their name that do not change the angles.
    """

    axes_key: str = ""
    axes_dim: Sizes | Callable[[int], Sizes] = ()
    theta: float = 10_000.0
    theta_key: str = ""
    head_dim: int = 128
    switch: str = ""
    ignored: tuple[str, ...] = ()


def _wan_axes(head_dim: int) -> Sizes:
    side = 2 * (head_dim // 6)
    return head_dim - 2 * side, side, side


def _cogvideox_axes(head_dim: int) -> Sizes:
    return head_dim // 4, head_dim // 8 * 3, head_dim // 8 * 3


_FLUX = _Transformer("axes_dims_rope", (16, 56, 56))
_HUNYUAN_VIDEO = _Transformer("rope_axes_dim", (16, 56, 56), 256.0, "rope_theta")
_WAN = _Transformer("", _wan_axes, ignored=("rope_max_seq_len",))
_LTX = _Transformer(head_dim=64)
TRANSFORMERS: dict[str, _Transformer] = {
    "FluxTransformer2DModel": _FLUX,
    "ChromaTransformer2DModel": _FLUX,
    "Flux2Transformer2DModel": _Transformer("axes_dims_rope", (32, 32, 32, 32), 2000.0, "rope_theta"),
    "Flux3Transformer2DModel": _Transformer("axes_dims_rope", (32, 32, 32, 32), theta_key="rope_theta"),
    "HunyuanVideoTransformer3DModel": _HUNYUAN_VIDEO,
    "HunyuanVideo15Transformer3DModel": _HUNYUAN_VIDEO,
    "HunyuanVideoFramepackTransformer3DModel": _HUNYUAN_VIDEO,
    "HunyuanImageTransformer2DModel": _Transformer("rope_axes_dim", (64, 64), 256.0, "rope_theta"),
    "QwenImageTransformer2DModel": _Transformer("axes_dims_rope", (16, 56, 56), ignored=("use_layer3d_rope",)),
    "WanTransformer3DModel": _WAN,
    "WanVACETransformer3DModel": _WAN,
    "WanAnimateTransformer3DModel": _WAN,
    "SkyReelsV2Transformer3DModel": _WAN,
    "CogVideoXTransformer3DModel": _Transformer(
        "", _cogvideox_axes, head_dim=64, switch="use_rotary_positional_embeddings"
    ),
    "LTXVideoTransformer3DModel": _LTX,
}
"""The rope of each class of diffusers."""


def read(model: Any) -> dict[str, Any]:
    """Return the fields of the `RopeConfig` of a diffusers transformer; see `RopeConfig.from_diffusers`."""
    name, config = _described(model)
    known = TRANSFORMERS[name]
    read_keys = {known.axes_key, known.theta_key, known.switch, *known.ignored}
    words = ("rope", "theta", "rotary")
    unread = {key: config[key] for key in config if any(word in str(key) for word in words) and key not in read_keys}
    if unread:
        raise RopeError(
            f"from_diffusers: diffusers' {name} ignores some rope keys of this config.",
            facts=unread,
            cure="Remove those keys for what diffusers computes, or write RopeConfig(...) yourself.",
        )
    if known.switch and not config.get(known.switch, False):
        raise RopeError(
            "from_diffusers: this model has no rotation.",
            facts={known.switch: config.get(known.switch, False)},
            cure="Use the model without a rope: its positions are added to the embeddings.",
        )
    head_dim = _size("attention_head_dim", config.get("attention_head_dim", known.head_dim))
    if known is _LTX:
        return _ltx(head_dim * _size("num_attention_heads", config.get("num_attention_heads", 32)))
    dims = known.axes_dim(head_dim) if callable(known.axes_dim) else config.get(known.axes_key, known.axes_dim)
    sizes = list(map(whole_or_zero, dims)) if isinstance(dims, (list, tuple)) else []
    if len(sizes) < 2 or min(sizes) < 2 or any(size % 2 for size in sizes) or sum(sizes) != head_dim:
        raise RopeError(
            "from_diffusers: the features of the axes must be even numbers that add up to a head.",
            facts={known.axes_key or "features of the axes": dims, "attention_head_dim": head_dim},
            cure="Correct the config's values.",
        )
    return {
        "head_dim": head_dim,
        "interleaved": True,
        "theta": config.get(known.theta_key, known.theta),
        "axes": axes_from_sections([size // 2 for size in sizes]),
        "axes_restart": True,
    }


def _ltx(width: int) -> dict[str, Any]:
    """Return LTX-Video's fields: one rotation of all heads together, axes in turn, slowest pairs first."""
    steps = width // 6
    slopes = [math.pi / 2 * 10_000.0 ** (i / max(steps - 1, 1)) for i in range(steps)]
    still = (width - 6 * steps) // 2
    return {
        "head_dim": width,
        "interleaved": True,
        "inv_freq": (*(0.0,) * still, *(slope for slope in slopes for _ in range(3))),
        "axes": (*(0,) * still, *(0, 1, 2) * steps),
    }


def _described(model: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the class, and the config of a path, a dict or a live transformer."""
    if isinstance(model, (str, PathLike)):
        path = Path(model)
        places = [path / "config.json", path / "transformer" / "config.json"] if path.is_dir() else [path]
        file = next((place for place in places if place.is_file()), places[-1])
        model = read_json(file, "from_diffusers", "Pass the folder of the pipeline or of its transformer.")
    if isinstance(model, Mapping):
        config, names = model, [str(model.get("_class_name"))]
    elif isinstance(getattr(model, "config", None), Mapping) and not isinstance(model, type):
        config, names = model.config, [kind.__name__ for kind in type(model).__mro__]
    else:
        raise RopeError(
            "from_diffusers: pass the transformer of a diffusers pipeline, its config, or the path of its folder.",
            facts={"model": model},
            cure="For example RopeConfig.from_diffusers(pipe.transformer).",
        )
    for name in names:
        if name in TRANSFORMERS:
            return name, config
    raise RopeError(
        "from_diffusers: the rope of this class is unknown.",
        facts={"_class_name": names[0]},
        cure=f"Pass one of {', '.join(TRANSFORMERS)}, or write RopeConfig(..., axes=..., axes_restart=True) yourself.",
    )


def _size(name: str, value: Any) -> int:
    check_whole("from_diffusers", most=MOST_SIZE, optional=False, **{name: value})
    return int(value)


# --- positions


@dataclass(frozen=True)
class _Latents:
    """The numbering of a family's latents.

    - `text`: positions of text tokens: "zero", "last" (counted on the last axis, which images have at 0) or "after"
      (counted on all axes after the largest row and column, which count from the middle of the image). None: text
      does not rotate, and the model takes one image or video.
    - `apart`: image i starts at frame i * `apart`. `last_behind`: the last image is at frame -1.
    - `flat`: positions are (row, column), without a frame.
    """

    text: Literal["zero", "last", "after"] | None = None
    apart: int = 1
    last_behind: bool = False
    flat: bool = False


LATENTS: dict[str, _Latents] = {
    "wan": _Latents(),
    "hunyuan_video": _Latents(),
    "cogvideox": _Latents(),
    "ltx": _Latents(),
    "hunyuan_image": _Latents(flat=True),
    "flux": _Latents("zero"),
    "flux2": _Latents("last", apart=10),
    "qwen_image": _Latents("after"),
    "qwen_image_layered": _Latents("after", last_behind=True),
}
"""The numbering of each family's latents."""


def latent_positions(
    family: str, *grids: tuple[int, int, int], text: int = 0, scale: tuple[float, float, float] | None = None
) -> Tensor:
    """Return the positions of the tokens of an image or video model of diffusers.

    **Arguments:**
    - `family`:
      - "wan" (also SkyReels), "hunyuan_video", "cogvideox": (frame, row, column). CogVideoX 1.0 stretches the rows and
        columns of videos of other sizes than its own; 1.5 does not.
      - "hunyuan_image": (row, column).
      - "flux" (also Chroma): text (0, 0, 0), then (0, row, column). Kontext's reference image has 1 instead of 0.
      - "flux2": text (0, 0, 0, token), then (0, row, column, 0); reference image i has 10 i instead of the first 0.
      - "qwen_image": text after the largest row and column, the same number on all axes; then (frame, row, column) with
        rows and columns counted from the middle. Image i of an edit starts at frame i.
      - "qwen_image_layered": the same with the last image, the input, at frame -1.
      - "ltx": (frame, row, column) as real numbers, 2 x - 1 of the share x of a base size. It needs `scale`.
    - `grids`: (frames, rows, columns) of each image or video, in patches; several only for FLUX and Qwen-Image.
    - `text`: text tokens that rotate, before the latents. Other families do not rotate text.
    - `scale`: LTX's `rope_interpolation_scale`: (8 / frame rate, 32, 32) in its pipelines.

    **Returns:** int64 `[text + latents, axes]`; float64 for LTX.
    **Raises:** `RopeError` for an unknown family, and for grids or text that it does not support.
    **Source:** diffusers 0.42.1, the transformers and pipelines of each family.

    >>> latent_positions("flux", (1, 1, 2), text=1).tolist()
    [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    >>> latent_positions("qwen_image", (1, 2, 2), text=1).tolist()
    [[1, 1, 1], [0, -1, -1], [0, -1, 0], [0, 0, -1], [0, 0, 0]]
    """
    known = LATENTS.get(family) if isinstance(family, str) else None
    if known is None:
        raise RopeError(
            "latent_positions: unknown family.", facts={"family": family}, cure=f"Choose from {', '.join(LATENTS)}."
        )
    sizes = [_checked_grid(grid) for grid in grids]
    tokens, several = as_whole(text), known.text is not None
    if not sizes or (len(sizes) > 1 and not several) or (known.flat and sizes[0][0] > 1):
        raise RopeError(
            f"latent_positions: {family} takes {'images' if several else 'one image or video'}"
            f"{' without frames' if known.flat else ''}.",
            facts={"grids": grids},
            cure="Pass (frames, rows, columns) of each; an image has 1 frame.",
        )
    if tokens is None or tokens < 0 or (tokens and not several):
        raise RopeError(
            "latent_positions: `text` must be a number of tokens, and 0 for a model that does not rotate text.",
            facts={"family": family, "text": text},
            cure="Rotate only the latents: their tokens are q[:, :n] or q[:, -n:].",
        )
    scales = [is_number(each) and each > 0 for each in as_tuple(scale)]
    if (scale is not None) != (family == "ltx") or (scale is not None and scales != [True] * 3):
        raise RopeError(
            "latent_positions: `scale` is for LTX only, and must be three numbers above 0.",
            facts={"family": family, "scale": scale},
            cure="LTX's pipelines pass (8 / frame_rate, 32, 32).",
        )
    starts, centred = [i * known.apart for i in range(len(sizes))], known.text == "after"
    if known.last_behind:
        starts[-1] = -1
    latents = torch.cat([_grid(size, start, centred) for size, start in zip(sizes, starts, strict=True)])
    if scale is not None:
        bases = (20.0, 2048.0, 2048.0)
        share = torch.tensor([s / base for s, base in zip(scale, bases, strict=True)], dtype=torch.float64)
        return 2 * latents * share.to("cpu") - 1
    if known.flat:
        return latents[:, 1:]
    words = torch.zeros(tokens, 3, dtype=torch.int64, device="cpu")
    count = torch.arange(tokens, device="cpu")[:, None]
    if known.text == "last":
        return torch.cat([torch.cat([words, count], -1), torch.cat([latents, torch.zeros_like(latents[:, :1])], -1)])
    if centred:
        after = max(max(rows // 2, columns // 2) for _, rows, columns in sizes)
        words = words + count + (max(after, len(sizes) - 1) if known.last_behind else after)
    return torch.cat([words, latents])


def _checked_grid(grid: Any) -> tuple[int, int, int]:
    sizes = list(map(whole_or_zero, grid)) if isinstance(grid, (tuple, list)) else []
    if len(sizes) != 3 or min(sizes) < 1:
        raise RopeError(
            "latent_positions: a grid must be (frames, rows, columns), whole numbers of at least 1.",
            facts={"grid": grid},
            cure="Count patches: the sides of the latents divided by the size of a patch.",
        )
    return sizes[0], sizes[1], sizes[2]


def _grid(size: tuple[int, int, int], start: int, centred: bool) -> Tensor:
    """Return int64 `[frames * rows * columns, 3]`, frame by frame and row by row."""
    frames, rows, columns = (torch.arange(count, device="cpu") for count in size)
    if centred:
        rows, columns = (side - (len(side) - len(side) // 2) for side in (rows, columns))
    return torch.stack(torch.meshgrid(frames + start, rows, columns, indexing="ij"), dim=-1).reshape(-1, 3)
