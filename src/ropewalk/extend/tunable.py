"""Readers that `extend` writes: of our `Decoder`, which can also be tuned, and of a live transformers model.

Another library's model needs only one class like `TunableDecoder`: its `trainable_copy` may use the same adapters by
peft, and its `write_checkpoint` the library's own writer, followed by `rope_fields` in config.json.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ropewalk.atomic_io import read_json, write_json
from ropewalk.attachment import attachment_of
from ropewalk.attention.norm import HALF, RMSNorm
from ropewalk.checkpoints.export import COMPANIONS, write_decoder
from ropewalk.checkpoints.gguf import read_gguf_config
from ropewalk.checkpoints.materialize import without_values
from ropewalk.errors import RopeError
from ropewalk.extend.settings import parts_of
from ropewalk.methods import METHODS, Reach
from ropewalk.models.config import Positions
from ropewalk.models.decoder import Decoder
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader, TunableReader
from ropewalk.readers.transformers import TransformersReader
from ropewalk.training.data import Batch
from ropewalk.training.objective import next_token_loss
from ropewalk.training.run_folder import add_adapters, merge_adapters

ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")


class TunableDecoder(DecoderReader):
    """A `TunableReader` of our `Decoder`."""

    @property
    def module(self) -> Decoder:
        """Return the decoder."""
        return self.model

    def under(self, positions: Positions) -> TunableDecoder:
        """Return the model under other positions, as `Reader.under`."""
        return TunableDecoder(super().under(positions).model, self.name)

    def trainable_copy(self, parts: str, *, rank: int) -> TunableDecoder:
        """Return a copy with the chosen parts in float32 and requiring gradients; the rest is shared and frozen.

        **Arguments:**
        - `parts`: "all"; or, joined by "+": "attention" (projections, and norms between them), "norms", "embeddings"
          (and the head), "lora": adapters of `rank` on q, k, v and o, weighted by 2, by `peft`.

        Adapters start at zero, so the copy computes the same as the model. torch's generator draws their other matrix.

        **Raises:** `RopeError` for unknown parts, a rank below 1, and if `peft` is missing.
        **Sources:** Hu et al. 2021, arXiv:2106.09685; Chen et al. 2023, arXiv:2309.12307 (LongLoRA, which also trains
        norms and embeddings).
        """
        names = parts_of(parts)
        if rank < 1:
            raise RopeError(
                "extend: the adapters' rank must be at least 1.", facts={"rank": rank}, cure="Set `rank` to 16."
            )
        chosen = _trained_names(self.model, names)

        def as_trained(name: str, weight: Tensor) -> nn.Parameter:
            kept = weight.detach().float()
            trained = name in chosen
            return nn.Parameter(kept.clone() if trained else kept, requires_grad=trained)

        twin = _copy_with(
            self.model, {name: as_trained(name, weight) for name, weight in self.model.named_parameters()}
        )
        if "lora" in names:
            add_adapters(twin, rank, ADAPTED)
            for name, weight in twin.named_parameters():  # peft froze all but its own
                weight.requires_grad_(".lora_" in name or name in chosen)
        return TunableDecoder(twin, self.name)

    def trained_count(self, parts: str, *, rank: int) -> int:
        """Return the number of parameters that `trainable_copy` trains."""
        names = parts_of(parts)
        chosen = _trained_names(self.model, names)
        count = sum(weight.numel() for name, weight in self.model.named_parameters() if name in chosen)
        if "lora" in names:
            modules = self.model.named_modules()
            adapted = [m for name, m in modules if name.endswith(ADAPTED) and isinstance(m, nn.Linear)]
            count += sum(rank * (linear.in_features + linear.out_features) for linear in adapted)
        return count

    def next_token_loss(
        self,
        inputs: Tensor,
        targets: Tensor,
        document_ids: Tensor | None,
        *,
        precision: str,
        position_ids: Tensor | None = None,
        seq_len: int | None = None,
    ) -> Tensor:
        """Return the loss of a batch."""
        batch = Batch(inputs, targets, document_ids, position_ids, seq_len)
        return next_token_loss(self.model, batch, precision=precision)

    @contextmanager
    def activation_checkpointing(self, on: bool = True) -> Iterator[None]:
        """Keep only each layer's input for the backward pass, which computes the layer again.

        Memory for activations falls to one `[batch, seq, hidden]` per layer; time grows by about a forward pass.
        Gradients are the same. Source: Chen et al. 2016, arXiv:1604.06174.
        """
        layers = list(self.model.layers) if on else []
        for layer in layers:
            setattr(layer, "forward", partial(checkpoint, layer.forward, use_reentrant=False))  # noqa: B010
        try:
            yield
        finally:
            for layer in layers:
                del layer.forward

    def merged(self) -> TunableDecoder:
        """Add the adapters to the weights of this reader's model, put it into eval mode, and return the reader."""
        merge_adapters(self.model)
        self.model.requires_grad_(False).eval()
        return self

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> TunableDecoder:
        """Return the model on another device or in another dtype, or itself if nothing changes."""
        weights = {
            name: weight.detach().to(device=device, dtype=dtype) for name, weight in self.model.named_parameters()
        }
        if all(weights[name].data_ptr() == weight.data_ptr() for name, weight in self.model.named_parameters()):
            return self
        parameters = {name: nn.Parameter(weight, requires_grad=False) for name, weight in weights.items()}
        return TunableDecoder(_copy_with(self.model, parameters), self.name)

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
        """Write the checkpoint by `write_decoder`."""
        return write_decoder(
            self.model,
            folder,
            rope_fields=rope_fields,
            length=length,
            dtype=dtype,
            source=source,
            shard_bytes=shard_bytes,
        )


def tunable(reader: Reader) -> TunableReader:
    """Return a reader that can be trained and written; raise `RopeError` for other kinds of models."""
    if isinstance(reader, DecoderReader):
        return reader if isinstance(reader, TunableDecoder) else TunableDecoder(reader.model, reader.name)
    if isinstance(reader, TransformersReader):
        return reader if isinstance(reader, WritableLive) else WritableLive.of(reader)
    if hasattr(reader, "trainable_copy") and hasattr(reader, "write_checkpoint"):
        return cast(TunableReader, reader)
    raise RopeError(
        "extend: a model of this kind can be measured, but not written.",
        facts={"reader": type(reader).__name__},
        cure="Pass a checkpoint that rw.load reads.",
    )


def outline_of_gguf(path: Path | None) -> TunableDecoder:
    """Return a GGUF file's model without its weights, which methods and their keys do not depend on."""
    assert path is not None
    config = read_gguf_config(path)
    return TunableDecoder(without_values(lambda: Decoder(config)), path.stem)


def decoder_of(reader: TunableReader) -> Decoder:
    """Return the decoder of a reader to write as a GGUF file; raise `RopeError` for another library's model."""
    if isinstance(reader, TunableDecoder):
        return reader.module
    raise RopeError(
        "extend: only models of ropewalk's own families can be written as a GGUF file.",
        facts={"library": reader.library},
        cure="Write a folder, and convert it by llama.cpp's convert_hf_to_gguf.py.",
    )


def _copy_with(model: Decoder, parameters: Mapping[str, nn.Parameter]) -> Decoder:
    """Return a copy of a model with these parameters and the same tokenizer."""
    memo: dict[int, Any] = {id(model.tokenizer): model.tokenizer}
    memo |= {id(weight): parameters[name] for name, weight in model.named_parameters()}
    return copy.deepcopy(model, memo)


def _trained_names(model: Decoder, parts: tuple[str, ...]) -> set[str]:
    """Return the names of the model's own parameters that are trained."""
    names = {name for name, _ in model.named_parameters()}
    if "all" in parts:
        return names
    chosen: set[str] = set()
    if "attention" in parts:
        chosen |= {name for name in names if ".self_attn." in name}
    if "embeddings" in parts:
        chosen |= {name for name in names if name.startswith(("embed_tokens.", "lm_head."))}
    if "norms" in parts:
        norms = {name for name, module in model.named_modules() if isinstance(module, RMSNorm | nn.LayerNorm)}
        chosen |= {name for name in names if name.rpartition(".")[0] in norms}
    return chosen


_CHECKED = 24  # tokens of the check: half at the beginning, half at the end of the length
AGREED, AGREED_HALF = 1e-3, 0.05  # relative to the largest logit: transformers' angles are float32, cast to 16 bits
_STALE = ("auto_map", "_name_or_path")


class WritableLive(TransformersReader):
    """A reader of a live model that can be written under a method of frequencies, but not tuned."""

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
        """Return the model on another device or in another dtype; this reader's own does not change."""
        if device in (None, str(self.device), self.device) and dtype in (None, self.dtype):
            return self
        return self.of(self.with_model(copy.deepcopy(self.model).to(device=device, dtype=dtype)))

    def check_writable(self, method: str, reach: Reach) -> None:
        """Raise `RopeError` unless a config of this family can express the model's ropes."""
        handle = attachment_of(self.model)
        if handle is None:
            raise RopeError(
                "extend: this model's rotation cannot be replaced, so no method can be applied to it.",
                facts={"library": self.library},
                cure="Put the keys that `ropewalk doctor` prints into config.json yourself.",
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
        """Write the checkpoint by transformers' own writer, load it again and compare logits."""
        if rope_fields is None:
            raise RopeError(
                "extend: only ropewalk's own families can be written in ropewalk's own form.",
                facts={"library": self.library},
                cure="Leave `native` out, with a method that config.json can express.",
            )
        from ropewalk.readers.loading import quietly

        rounded = self.to(dtype=dtype)
        with quietly():
            rounded.model.save_pretrained(folder, max_shard_size=shard_bytes)
        written = {key: value for key, value in read_json(folder / "config.json").items() if key not in _STALE}
        self._write_companions(folder, source, length)
        rounded.to(dtype=self.dtype)._check(folder, length)
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
                "extend: transformers does not compute the same from this folder, so it is not written.",
                facts={"largest difference": apart, "largest logit": most, "library": self.library},
                cure="Use rw.attach(model, method, target=...): the family also uses other keys for its rope.",
            )

    def trainable_copy(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise `RopeError`: only our own decoder can be tuned."""
        raise RopeError(
            "extend: a model of this family can be measured and written, but not tuned.",
            facts={"library": self.library},
            cure="Train it by transformers, peft or TRL under rw.attach(model, method, target=...); then "
            "save_pretrained writes the method.",
        )

    trained_count = next_token_loss = activation_checkpointing = merged = trainable_copy
