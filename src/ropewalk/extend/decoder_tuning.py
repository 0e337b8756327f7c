"""What extending needs of our `Decoder` besides reading: its parameters, and a folder of its weights.

A reader of another library's model needs one class like `TunableDecoder`, and nothing else in this room: its
`trainable_copy` may use the same adapters by peft, and its `write_checkpoint` the library's own writer, followed by
`rope_fields` in config.json.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ropewalk.attention.norm import RMSNorm
from ropewalk.checkpoints.gguf import read_gguf_config
from ropewalk.checkpoints.materialize import without_values
from ropewalk.errors import RopeError
from ropewalk.extend.decoder_export import write_decoder
from ropewalk.extend.live_export import WritableLive
from ropewalk.extend.parts import parts_of
from ropewalk.models.decoder import Decoder
from ropewalk.models.positions import Positions
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader, TunableReader
from ropewalk.readers.transformers import TransformersReader
from ropewalk.training.adapters import add_adapters, merge_adapters
from ropewalk.training.data import Batch
from ropewalk.training.longce import longce_weights
from ropewalk.training.objective import next_token_loss

ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")


class TunableDecoder(DecoderReader):
    """A `TunableReader` of our `Decoder`."""

    @property
    def module(self) -> Decoder:
        """The decoder."""
        return self.model

    def under(self, positions: Positions) -> TunableDecoder:
        """As `Reader.under`."""
        return TunableDecoder(super().under(positions).model, self.name)

    def trainable_copy(self, parts: str, *, rank: int) -> TunableDecoder:
        """A copy whose chosen parts are float32 and require gradients; the rest is shared and frozen.

        **Arguments:**
        - `parts`: "all"; or, joined by "+", "attention" (projections, and norms within), "norms", "embeddings" (and the
          head), "lora": adapters of `rank` on q, k, v and o, weighted by 2, by `peft`.

        Adapters begin at zero, so that the copy computes what the model does. Their other matrix is drawn by torch's
        generator. Sources: Hu et al. 2021, arXiv:2106.09685; Chen et al. 2023, arXiv:2309.12307 (LongLoRA: norms and
        embeddings as well).
        **Raises:** `RopeError` for unknown parts, a rank below 1, and where `peft` is missing.
        """
        names = parts_of(parts)
        if rank < 1:
            raise RopeError(
                "extend: the adapters' rank must be at least 1.", facts={"rank": rank}, cure="Pass --rank 16."
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
        """How many numbers `trainable_copy` lets be trained."""
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
        token_weights: str | None = None,
        perturbed_ids: Tensor | None = None,
        distillation_weights: Tensor | None = None,
    ) -> Tensor:
        """As `TunableReader.next_token_loss`."""
        batch = Batch(inputs, targets, document_ids, position_ids, seq_len, perturbed_ids, distillation_weights)
        weights = longce_weights(self.model, batch, precision=precision) if token_weights == "longce" else None
        return next_token_loss(self.model, batch, precision=precision, token_weights=weights)

    @contextmanager
    def activation_checkpointing(self, on: bool = True) -> Iterator[None]:
        """Within, a layer keeps its input alone and is computed again in the backward pass.

        Memory for activations falls from all of a layer's to one `[batch, seq, hidden]` per layer; time grows by about
        a forward pass. Gradients are the same. Source: Chen et al. 2016, arXiv:1604.06174.
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
        """The trained model in eval mode, its adapters added to the weights; this reader's own model is changed."""
        merge_adapters(self.model)
        self.model.requires_grad_(False).eval()
        return self

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> TunableDecoder:
        """The model on another device or in another dtype: itself, where it is that already."""
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
        """As `TunableReader.write_checkpoint`."""
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
    """A reader whose model can be trained and written; raises `RopeError` where its kind of model cannot be."""
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
    """A GGUF file's model without its weights: all that a method and its keys depend on."""
    assert path is not None
    config = read_gguf_config(path)
    return TunableDecoder(without_values(lambda: Decoder(config)), path.stem)


def decoder_of(reader: TunableReader) -> Decoder:
    """The decoder of a reader that is to be written as a GGUF file; raises `RopeError` for another library's model."""
    if isinstance(reader, TunableDecoder):
        return reader.module
    raise RopeError(
        "extend: only models of the families that are built here can be written as a GGUF file.",
        facts={"library": reader.library},
        cure="Write a folder, and convert that by llama.cpp's convert_hf_to_gguf.py.",
    )


def _copy_with(model: Decoder, parameters: Mapping[str, nn.Parameter]) -> Decoder:
    """A copy of a model with these parameters in place of its own, and the same tokenizer."""
    memo: dict[int, Any] = {id(model.tokenizer): model.tokenizer}
    memo |= {id(weight): parameters[name] for name, weight in model.named_parameters()}
    return copy.deepcopy(model, memo)


def _trained_names(model: Decoder, parts: tuple[str, ...]) -> set[str]:
    """The names of the model's own parameters that are trained."""
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
