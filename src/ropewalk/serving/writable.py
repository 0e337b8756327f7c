"""Write the model of a reader as a Hugging Face folder, and check it by its logits."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import read_json, write_json
from ropewalk.attachment import attachment_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.errors import RopeError
from ropewalk.layers.norm import HALF
from ropewalk.methods import METHODS, Reach
from ropewalk.rotation.backends.widened import slow_dtype
from ropewalk.serving.engines import flat_block

_CHECKED = 24  # tokens of the check: half at the beginning, half at the end of the length
AGREED, AGREED_HALF = 1e-3, 0.05  # relative to the largest logit: transformers' angles are float32, cast to 16 bits
_STALE = ("auto_map", "_name_or_path")
SHARD_BYTES = 5_000_000_000  # of one weight file: transformers' former default
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


def check_writable(reader: Reader, method: str, reach: Reach, length: int | None = None) -> None:
    """Raise `RopeError` unless a config of this family can express the model's ropes."""
    handle = attachment_of(reader.model)
    if handle is None:
        raise RopeError(
            "extend: the model's rotation cannot be replaced, so no method can be applied.",
            facts={"library": reader.library},
            cure="Write the keys printed by `ropewalk doctor` into config.json yourself.",
        )
    handle.method, handle.target, handle.length = METHODS.get(method), reach.target, length
    try:
        handle.rope_fields()
    except RopeError as error:
        changes = handle.positions != handle.own
        raise RopeError(
            error.rule.replace("save_pretrained", "extend"),
            facts={"library": reader.library},
            cure=f"Apply it in Python: rw.attach(model, {method!r}, target=...)."
            if changes
            else "Use the model unchanged.",
        ) from error


def in_dtype(reader: Reader, dtype: torch.dtype) -> Reader:
    """Return the reader with its model in a dtype on the CPU; the reader's own model does not change."""
    if dtype == reader.dtype and reader.device.type == "cpu":
        return reader
    return reader.with_model(copy.deepcopy(reader.model).to(device="cpu", dtype=dtype))


def write_checkpoint(
    reader: Reader, folder: Path, *, length: int, dtype: torch.dtype, source: Path | None = None
) -> dict[str, Any]:
    """Write the checkpoint with transformers' own writer, load it again, and compare logits.

    **Arguments:**
    - `folder`: exists and is empty. `dtype`: of the weights.
    - `length`: the intended length in tokens. `source`: the original checkpoint, whose other files are copied.

    **Returns:** the content of config.json, with the rope also under the keys of transformers 4.
    **Raises:** `RopeError` if transformers computes different logits from the folder.
    """
    from ropewalk.checkpoints.opening import quietly

    rounded = in_dtype(reader, dtype)
    with quietly():
        rounded.model.save_pretrained(folder, max_shard_size=SHARD_BYTES)
    written = {key: value for key, value in read_json(folder / "config.json").items() if key not in _STALE}
    written = _with_former_keys(written)
    write_json(folder / "config.json", written)
    _write_companions(reader, folder, source, length)
    slow = slow_dtype(reader.dtype, str(reader.device))
    _check(in_dtype(rounded, torch.float32 if slow else reader.dtype), folder, length)
    return written


def _with_former_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with its rope under the keys of transformers 4, which ignores `rope_parameters`, as well."""
    block = config.get("rope_parameters")
    if config.get("model_type") == "olmo3" and isinstance(block, Mapping):
        block = flat_block(block)
    if not isinstance(block, Mapping) or "rope_type" not in block:  # none, or one for each layer type
        return dict(config)
    names = ("rope_theta", "original_max_position_embeddings")
    former = {name: block[name] for name in names if name in block}
    return {**config, **former, **({} if block["rope_type"] == "default" else {"rope_scaling": block})}


def _write_companions(reader: Reader, folder: Path, source: Path | None, length: int) -> None:
    """Write the tokenizer and the other files of a checkpoint."""
    if source is not None and source.is_dir():
        for name in COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
    elif reader.tokenizer is not None:
        reader.tokenizer.save(folder)
    path = folder / "tokenizer_config.json"
    content = read_json(path) if path.is_file() else {}
    if isinstance(content.get("model_max_length"), int) and content["model_max_length"] < length:
        write_json(path, {**content, "model_max_length": length})


@torch.inference_mode()
def _check(reader: Reader, folder: Path, length: int) -> None:
    """Raise `RopeError` unless transformers computes our logits from the folder, near both ends of `length`."""
    from ropewalk.checkpoints.opening import load_live

    theirs, _ = load_live(folder, reader.dtype, reader.device)
    half = _CHECKED // 2
    far = max(half, length - half)
    positions = torch.tensor([[*range(half), *range(far, far + half)]], device=reader.device)
    ids = (positions * 7 + 5) % reader.model.get_input_embeddings().weight.shape[0]
    apart, most = 0.0, 1.0
    for count in (half, _CHECKED):  # within the length at which frequencies may switch, and beyond it
        own, other = (
            model(input_ids=ids[:, :count], position_ids=positions[:, :count], use_cache=False).logits.float()
            for model in (reader.model, theirs)
        )
        apart, most = max(apart, float((own - other).abs().max())), max(most, float(own.abs().max()))
    allowed = AGREED_HALF if reader.dtype in HALF else AGREED
    if not apart <= allowed * most:
        raise RopeError(
            "extend: transformers computes different logits from this folder, so it is not written.",
            facts={"largest difference": apart, "largest logit": most, "library": reader.library},
            cure="Use rw.attach(model, method, target=...): the family also uses other keys for its rope.",
        )
