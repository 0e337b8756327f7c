"""A live transformers model under a method as the folder that transformers loads to the same logits."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ropewalk.atomic_io import read_json, write_json
from ropewalk.attachment import attachment_of
from ropewalk.attention.norm import HALF
from ropewalk.errors import RopeError
from ropewalk.extend.decoder_export import COMPANIONS
from ropewalk.methods import METHODS, Reach
from ropewalk.models.positions import Positions
from ropewalk.readers.transformers import TransformersReader

_CHECKED = 24  # tokens of the check: half at the beginning, half at the end of the length
AGREED, AGREED_HALF = 1e-3, 0.05  # of the largest logit: transformers' own angles are float32, and cast to 16 bits
_STALE = ("auto_map", "_name_or_path")


class WritableLive(TransformersReader):
    """A reader of a live model that can be written under a method of frequencies; it cannot be tuned here."""

    @classmethod
    def of(cls, reader: TransformersReader) -> WritableLive:
        """The same reader, which can be written."""
        other = cls.__new__(cls)
        vars(other).update(vars(reader))
        return other

    @property
    def module(self) -> nn.Module:
        """The model."""
        found: nn.Module = self.model
        return found

    def under(self, positions: Positions) -> WritableLive:
        """As `Reader.under`."""
        return self.of(super().under(positions))

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> WritableLive:
        """The model on another device or in another dtype; this reader's own stays as it is."""
        if device in (None, str(self.device), self.device) and dtype in (None, self.dtype):
            return self
        return self.of(self.with_model(copy.deepcopy(self.model).to(device=device, dtype=dtype)))

    def check_writable(self, method: str, reach: Reach) -> None:
        """Raise `RopeError` unless a config of this family can say the ropes as they are now."""
        handle = attachment_of(self.model)
        if handle is None:
            raise RopeError(
                "extend: this model's rotation cannot be replaced, so no method can be applied to it.",
                facts={"library": self.library},
                cure="Put the keys that `ropewalk doctor` prints into config.json by hand.",
            )
        handle.method, handle.target = METHODS.get(method), reach.target
        handle.rope_fields()

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
        """As `TunableReader.write_checkpoint`, by transformers' own writer; the folder is read back and compared."""
        if rope_fields is None:
            raise RopeError(
                "extend: ropewalk's own form holds the families that are built here, and this is another.",
                facts={"library": self.library},
                cure="Leave --native out, with a method that config.json can express.",
            )
        from ropewalk.readers.live.loading import quietly

        rounded = self.to(dtype=dtype)
        with quietly():
            rounded.model.save_pretrained(folder, max_shard_size=shard_bytes)
        written = {key: value for key, value in read_json(folder / "config.json").items() if key not in _STALE}
        self._write_beside(folder, source, length)
        rounded.to(dtype=self.dtype)._check(folder, length)
        return written

    def _write_beside(self, folder: Path, source: Path | None, length: int) -> None:
        """The tokenizer, and what else lies beside a checkpoint."""
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
        """Read the folder back by transformers: its logits must be ours, near the beginning and near the length."""
        from ropewalk.readers.live.loading import load_live

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
                "extend: transformers does not compute the same from this folder, so it is not written.",
                facts={"largest difference": apart, "largest logit": most, "library": self.library},
                cure="Use rw.attach(model, method, target=...): the family reads its rope's keys elsewhere as well.",
            )

    def trainable_copy(self, parts: str, *, rank: int) -> NoReturn:
        """Raises `RopeError`: tuning is done on our own decoder."""
        raise self._untunable()

    def trained_count(self, parts: str, *, rank: int) -> NoReturn:
        """Raises `RopeError`, as `trainable_copy`."""
        raise self._untunable()

    def next_token_loss(self, inputs: Tensor, targets: Tensor, document_ids: Any, **options: Any) -> NoReturn:
        """Raises `RopeError`, as `trainable_copy`."""
        raise self._untunable()

    def activation_checkpointing(self, on: bool = True) -> NoReturn:
        """Raises `RopeError`, as `trainable_copy`."""
        raise self._untunable()

    def merged(self) -> NoReturn:
        """Raises `RopeError`, as `trainable_copy`."""
        raise self._untunable()

    def _untunable(self) -> RopeError:
        return RopeError(
            "extend: a model of this family can be measured and applied, but not tuned here.",
            facts={"library": self.library},
            cure="Train it by transformers, peft or TRL under rw.attach(model, method, target=...); then "
            "save_pretrained writes the method.",
        )
