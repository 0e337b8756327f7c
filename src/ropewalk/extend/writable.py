"""Readers that `extend` can write: of our `Decoder`, and of a live transformers model.

The model of a different library needs only one class like `WritableDecoder`, with a `write_checkpoint` that uses the
library's own writer and then writes `rope_fields` into config.json.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from ropewalk.atomic_io import read_json, write_json
from ropewalk.attachment import attachment_of
from ropewalk.attention.norm import HALF
from ropewalk.backends.widened import slow_dtype
from ropewalk.checkpoints.export import COMPANIONS, write_decoder
from ropewalk.checkpoints.gguf import read_gguf_config
from ropewalk.checkpoints.materialize import without_values
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.models.config import Positions
from ropewalk.models.decoder import Decoder
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader, WritableReader
from ropewalk.readers.transformers import TransformersReader


class WritableDecoder(DecoderReader):
    """A `WritableReader` of our `Decoder`."""

    @property
    def module(self) -> Decoder:
        """Return the decoder."""
        return self.model

    def under(self, positions: Positions) -> WritableDecoder:
        """Return the model under other positions, as `Reader.under`."""
        return WritableDecoder(super().under(positions).model, self.name)

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> WritableDecoder:
        """Return the model on a device and in a dtype, or itself if nothing changes."""
        weights = {
            name: weight.detach().to(device=device, dtype=dtype) for name, weight in self.model.named_parameters()
        }
        if all(weights[name].data_ptr() == weight.data_ptr() for name, weight in self.model.named_parameters()):
            return self
        parameters = {name: nn.Parameter(weight, requires_grad=False) for name, weight in weights.items()}
        return WritableDecoder(_copy_with(self.model, parameters), self.name)

    def write_checkpoint(
        self,
        folder: Path,
        *,
        rope_fields: Mapping[str, Any] | None,
        length: int,
        dtype: torch.dtype,
        source: Path | None = None,
        shard_bytes: int,
    ) -> dict[str, Any]:
        """Write the checkpoint with `write_decoder`."""
        return write_decoder(
            self.model,
            folder,
            rope_fields=rope_fields,
            length=length,
            dtype=dtype,
            source=source,
            shard_bytes=shard_bytes,
        )


def writable(reader: Reader) -> WritableReader:
    """Return a reader that can be written; raise `RopeError` for other kinds of models."""
    if isinstance(reader, DecoderReader):
        return reader if isinstance(reader, WritableDecoder) else WritableDecoder(reader.model, reader.name)
    if isinstance(reader, TransformersReader):
        return reader if isinstance(reader, WritableLive) else WritableLive.of(reader)
    if hasattr(reader, "write_checkpoint"):
        return cast(WritableReader, reader)
    raise RopeError(
        "extend: a model of this type can be measured, but not written.",
        facts={"reader": type(reader).__name__},
        cure="Pass a checkpoint that rw.load supports.",
    )


def outline_of_gguf(path: Path | None) -> WritableDecoder:
    """Return a GGUF file's model without its weights, which suffices for methods and their keys."""
    assert path is not None
    config = read_gguf_config(path)
    return WritableDecoder(without_values(lambda: Decoder(config)), path.stem)


def decoder_of(reader: WritableReader) -> Decoder:
    """Return the decoder of a reader to write as a GGUF file; raise `RopeError` for another library's model."""
    if isinstance(reader, WritableDecoder):
        return reader.module
    raise RopeError(
        "extend: only models of ropewalk's own families can be written as a GGUF file.",
        facts={"library": reader.library},
        cure="Write a folder, and convert it with llama.cpp's convert_hf_to_gguf.py.",
    )


def _copy_with(model: Decoder, parameters: Mapping[str, nn.Parameter]) -> Decoder:
    """Return a copy of a model with these parameters and the same tokenizer."""
    memo: dict[int, Any] = {id(model.tokenizer): model.tokenizer}
    memo |= {id(weight): parameters[name] for name, weight in model.named_parameters()}
    return copy.deepcopy(model, memo)


_CHECKED = 24  # tokens of the check: half at the beginning, half at the end of the length
AGREED, AGREED_HALF = 1e-3, 0.05  # relative to the largest logit: transformers' angles are float32, cast to 16 bits
_STALE = ("auto_map", "_name_or_path")


class WritableLive(TransformersReader):
    """A reader of a live model that can be written under a method of frequencies."""

    @classmethod
    def of(cls, reader: TransformersReader) -> WritableLive:
        """Return the same reader in this class."""
        other = cls.__new__(cls)
        vars(other).update(vars(reader))
        return other

    @property
    def module(self) -> nn.Module:
        """Return the model."""
        model: nn.Module = self.model
        return model

    def under(self, positions: Positions) -> WritableLive:
        """Return the model under other positions, as `Reader.under`."""
        return self.of(super().under(positions))

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> WritableLive:
        """Return the model on a device and in a dtype; this reader's own model does not change."""
        if device in (None, str(self.device), self.device) and dtype in (None, self.dtype):
            return self
        return self.of(self.with_model(copy.deepcopy(self.model).to(device=device, dtype=dtype)))

    def check_writable(self, method: str, reach: Reach) -> None:
        """Raise `RopeError` unless a config of this family can express the model's ropes."""
        handle = attachment_of(self.model)
        if handle is None:
            raise RopeError(
                "extend: the model's rotation cannot be replaced, so no method can be applied.",
                facts={"library": self.library},
                cure="Write the keys printed by `ropewalk doctor` into config.json yourself.",
            )
        handle.method, handle.target = METHODS.get(method), reach.target
        try:
            handle.rope_fields()
        except RopeError as error:
            changes = handle.positions != handle.own
            raise RopeError(
                error.rule.replace("save_pretrained", "extend"),
                facts={"library": self.library},
                cure=f"Apply it in Python: rw.attach(model, {method!r}, target=...)."
                if changes
                else "Use the model unchanged.",
            ) from error

    def write_checkpoint(
        self,
        folder: Path,
        *,
        rope_fields: Mapping[str, Any] | None,
        length: int,
        dtype: torch.dtype,
        source: Path | None = None,
        shard_bytes: int,
    ) -> dict[str, Any]:
        """Write the checkpoint with transformers' own writer, load it again, and compare logits."""
        if rope_fields is None:
            raise RopeError(
                "extend: only ropewalk's own families can be written in ropewalk's own form.",
                facts={"library": self.library},
                cure="Leave out `native`, and choose a method that config.json can express.",
            )
        from ropewalk.readers.loading import quietly

        rounded = self.to(dtype=dtype)
        with quietly():
            rounded.model.save_pretrained(folder, max_shard_size=shard_bytes)
        written = {key: value for key, value in read_json(folder / "config.json").items() if key not in _STALE}
        self._write_companions(folder, source, length)
        slow = slow_dtype(self.dtype, str(self.device))
        rounded.to(dtype=torch.float32 if slow else self.dtype)._check(folder, length)
        return written

    def _write_companions(self, folder: Path, source: Path | None, length: int) -> None:
        """Write the tokenizer and the other files of a checkpoint."""
        if source is not None and source.is_dir():
            for name in COMPANIONS:
                if (source / name).is_file():
                    shutil.copyfile(source / name, folder / name)
        elif self.tokenizer is not None:
            self.tokenizer.save(folder)
        path = folder / "tokenizer_config.json"
        content = read_json(path) if path.is_file() else {}
        if isinstance(content.get("model_max_length"), int) and content["model_max_length"] < length:
            write_json(path, {**content, "model_max_length": length})

    @torch.inference_mode()
    def _check(self, folder: Path, length: int) -> None:
        """Raise `RopeError` unless transformers computes our logits from the folder, near both ends of `length`."""
        from ropewalk.readers.loading import load_live

        theirs, _ = load_live(folder, self.dtype, self.device)
        half = _CHECKED // 2
        far = max(half, length - half)
        positions = torch.tensor([[*range(half), *range(far, far + half)]], device=self.device)
        ids = (positions * 7 + 5) % self.model.get_input_embeddings().weight.shape[0]
        apart, most = 0.0, 1.0
        for count in (half, _CHECKED):  # within the length at which frequencies may switch, and beyond it
            own, other = (
                model(input_ids=ids[:, :count], position_ids=positions[:, :count], use_cache=False).logits.float()
                for model in (self.model, theirs)
            )
            apart, most = max(apart, float((own - other).abs().max())), max(most, float(own.abs().max()))
        allowed = AGREED_HALF if self.dtype in HALF else AGREED
        if not apart <= allowed * most:
            raise RopeError(
                "extend: transformers computes different logits from this folder, so it is not written.",
                facts={"largest difference": apart, "largest logit": most, "library": self.library},
                cure="Use rw.attach(model, method, target=...): the family also uses other keys for its rope.",
            )
