"""Write a model under its method as a folder that transformers loads, whole or not at all."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import whole_folder, write_json
from ropewalk.checkpoints.export import COMPANIONS, HubRope, hub_rope, refuse_inexpressible
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.extend.tunable import WritableLive
from ropewalk.methods import Reach
from ropewalk.models.config import Positions
from ropewalk.readers.reader import Reader, TunableReader

SHARD_BYTES = 5_000_000_000  # of one weight file, as transformers has had it
RECORD, LOG, CARD, FIGURE = "extend.json", "training-log.jsonl", "README.md", "extend.png"
SEARCH_RECORD, SEARCH_FIGURE = "search.json", "search.png"
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
_WRITTEN = frozenset({"config.json", CARD, RECORD, LOG, FIGURE, SEARCH_RECORD, SEARCH_FIGURE, *COMPANIONS})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export: the folder, its config.json, the rope in it, and the weights' dtype.

    `rope` is None for a native folder and for families that are not built here. For a GGUF file `folder` is the file
    and `config` its keys of the rope.
    """

    folder: Path
    config: Mapping[str, Any]
    rope: HubRope | None
    dtype: torch.dtype


def check_out(out: str | os.PathLike[str], *, source: str | os.PathLike[str] | None = None, overwrite: bool) -> Path:
    """Return the folder to write; raise `RopeError` if it has other content or is the model's own."""
    place = Path(out)
    if place.suffix == ".gguf":
        raise RopeError(
            "extend: only `extend apply` writes .gguf files.",
            facts={"out": str(place)},
            cure="Write a folder, then: ropewalk extend apply FOLDER --method as-is --out MODEL.gguf",
        )
    if not str(out) or place.is_file():
        raise RopeError(
            "extend: --out names the folder to write.", facts={"out": str(out)}, cure="Pass a new folder: --out DIR."
        )
    if source is not None and place.exists() and find(source).resolve() == place.resolve():
        raise RopeError(
            "extend: --out is the folder that the model is read from.",
            facts={"model": str(source), "out": str(place)},
            cure="Pass another folder.",
        )
    files = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    if files and not overwrite:
        raise RopeError(
            "extend: the output folder is not empty.",
            facts={"out": str(place), "files": files[:8]},
            cure="Pass a new folder, or --overwrite to replace a checkpoint that an export wrote.",
        )
    foreign = [name for name in files if name not in _WRITTEN and not _WEIGHTS.fullmatch(name)]
    if foreign:
        raise RopeError(
            "extend: the output folder holds files that no export writes, and would lose them.",
            facts={"out": str(place), "files": foreign[:8]},
            cure="Pass a new folder.",
        )
    return place


def export(
    reader: TunableReader,
    out: str | os.PathLike[str],
    *,
    method: str,
    reach: Reach,
    source: str | os.PathLike[str] | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
    native: bool = False,
    more_files: Callable[[Exported], Mapping[str, str | bytes]] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Exported:
    """Write a model as a Hugging Face folder that transformers loads, with the same logits.

    **Arguments:**
    - `reader`: under the positions of `method` already; interleaved heads are written half-split.
    - `method`, `reach`: what was applied; see `hub_rope`.
    - `source`: what the model was loaded from. Its config.json is kept except for the rope's keys, and its companions
      are copied. For a GGUF file, ropewalk's own folders and None they are written from the model.
    - `dtype`: of the weights; defaults to the model's own.
    - `native`: write ropewalk's own form, which holds every method and which only `ropewalk.load` opens.
    - `more_files`: called with the result; returns more files of the folder by name: README.md, extend.json, ...
    - `shard_bytes`: the largest weight file; beyond it there are several, and an index.

    **Returns:** an `Exported`.
    **Raises:** `RopeError` if no config of transformers expresses the method or the model, and as `check_out`.

    The folder is written under a temporary name and then renamed, so that it is whole or absent.

    >>> import tempfile
    >>> from ropewalk.checkpoints.load import load
    >>> from ropewalk.extend.tunable import TunableDecoder
    >>> tiny = TunableDecoder(load("tiny"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(tiny, folder + "/x", method="plain", reach=Reach(256, 256), source="tiny").dtype
    torch.bfloat16
    """
    place = check_out(out, source=source, overwrite=overwrite)
    hub = None if native else hub_of(reader, method, reach)
    chosen = reader.dtype if dtype is None else dtype
    names = {str(path.name) for path in place.iterdir()} if place.is_dir() else set()
    with whole_folder(place, frozenset(names) if overwrite else frozenset()) as staging:
        written = (reader if hub is None else reader.under(_positions_of(reader.positions, hub))).write_checkpoint(
            staging,
            rope_fields=None if native else {} if hub is None else hub.fields(),
            length=reach.target if hub is None else hub.max_position_embeddings,
            dtype=chosen,
            source=None if source is None or native else find(source),
            shard_bytes=shard_bytes,
        )
        exported = Exported(folder=place, config=written, rope=hub, dtype=chosen)
        for name, content in (more_files(exported) if more_files is not None else {}).items():
            (staging / name).write_bytes(content.encode() if isinstance(content, str) else content)
        write_json(staging / "config.json", written)
    return exported


def hub_of(reader: Reader, method: str, reach: Reach) -> HubRope | None:
    """Return `hub_rope` of a model without an extension in attention; None for a model that writes its own block.

    Raises `RopeError` if there is no block.
    """
    refuse_inexpressible(method)
    if isinstance(reader, WritableLive):
        reader.check_writable(method, reach)
        return None
    extension = next((one for one in reader.positions.extensions if one is not None), None)
    if extension is not None:
        raise RopeError(
            "extend: an extension in attention cannot be exported: no config.json describes one.",
            facts={"extension": extension},
            cure="Export a method that acts on frequencies; or pass --native, for a folder that ropewalk alone reads.",
        )
    return hub_rope(reader.positions.ropes, method, reach)


def _positions_of(positions: Positions, hub: HubRope) -> Positions:
    """Return each rope as the config expresses it; heads stay interleaved until they are re-ordered."""
    rope = dataclasses.replace(hub.rope, interleaved=positions.present_ropes[0].interleaved)
    ropes = tuple(None if one is None else rope for one in positions.ropes)
    return Positions(ropes, (None,) * len(ropes), positions.sliding_windows)
