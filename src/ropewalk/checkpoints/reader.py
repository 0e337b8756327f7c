"""`Reader`: a causal language model of transformers to measure, question and extend, of any family."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.attachment import Attachment, attachment_of
from ropewalk.attachment.config_keys import fields_under
from ropewalk.attachment.handle import attach_silently
from ropewalk.attachment.rotary import positions_of, text_config_of
from ropewalk.errors import RopeError, library_errors
from ropewalk.imports import need
from ropewalk.methods import Reach, trained_length_of
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.tokenizer import TextTokenizer, ids_of

if TYPE_CHECKING:
    from ropewalk.checkpoints.live_model import LiveModel, Prefix, Top

CHUNK = 2048  # tokens of one forward: enough for large products, few enough for caches and memory
TWINS = 4  # copies of a model at the frequencies of fixed lengths that are kept
Losses = npt.NDArray[np.float64]
Advance = Callable[[int], None]
"""Called with the number of processed tokens."""
Asking = Mapping[int, Callable[["Prefix"], None]]
"""Functions by number of tokens; each is called with the prefix of that many tokens."""


class Reader:
    """A reader of a causal language model of transformers.

    - `model`: a `PreTrainedModel` with a head for the next token; it does not change.
    - `tokenizer`: of transformers with a fast backend, of `tokenizers`, or a `TextTokenizer`. `name`: in reports.

    The reader uses a copy that shares every weight. If `ropewalk.attach` supports the model, the copy rotates with
    exact tables; otherwise only the model's own rotation can be measured. The constructor compares six tokens in two
    chunks with the model's own forward. Losses and log-probabilities are in nats.

    **Raises:** `RopeError` for a model that is not a causal language model, or has an unknown rotation.
    """

    def __init__(self, model: Any, tokenizer: Any = None, name: str | None = None) -> None:
        from ropewalk.checkpoints.live_model import LiveModel

        self.model = _twin(model)
        self._refused: RopeError | None = None
        LiveModel(self.model)  # raises if it is not a causal language model
        if attachment_of(self.model) is None:
            self._own: ModelRopes = positions_of(self.model, text_config_of(self.model))
            self._refused = _attach(self.model)
        self.name = name or _name_of(model)
        self.tokenizer = text_tokenizer(tokenizer, model)
        self.live = LiveModel(self.model)
        with library_errors(
            "transformers: the model fails on six tokens in two chunks.",
            facts={"model": type(self.model).__name__},
            cure="Restore its config, and run it on a few tokens with a cache first.",
        ):
            self._per_token = self.live.check()
        self._twins: dict[object, LiveModel] = {}

    @property
    def library(self) -> str:
        """Return "transformers", its version, and the model's class."""
        return f"transformers {sys.modules['transformers'].__version__}, {type(self.model).__name__}"

    @property
    def positions(self) -> ModelRopes:
        """Return the rope, window and extension of each layer."""
        handle = attachment_of(self.model)
        return self._own if handle is None else handle.positions

    def config_under(self, method: str, reach: Reach, length: int | None = None) -> dict[str, Any] | None:
        """Return the keys of config.json under a method, nested as there; None if none express it.

        `length`: stated instead of the target.
        """
        whole, config = self.model.config, text_config_of(self.model)
        fields = fields_under(config.to_dict(), self.positions, method, reach, length)
        part = None if config is whole else next((key for key, value in vars(whole).items() if value is config), None)
        return None if isinstance(fields, str) else fields if part is None else {part: fields}

    @property
    def trained_length(self) -> int | None:
        """Return the trained length in tokens, with the model's own scaling, or None if unknown."""
        return trained_length_of(self.positions)

    @property
    def device(self) -> torch.device:
        """Return the device of the embeddings."""
        return self.live.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(weight.numel() for weight in self.model.parameters())

    def digest(self) -> str:
        """Return a short hash of the config and every bit of every weight."""
        config = json.dumps(_lasting(self.model.config.to_dict()), sort_keys=True, default=str)
        digest = hashlib.sha256(f"{type(self.model).__name__} {config} {self.positions!r}".encode())
        for name, weight in self.model.state_dict(keep_vars=True).items():
            whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # of a DTensor's parts
            flat = whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + hashlib.sha256(flat.data).digest())
        return digest.hexdigest()[:20]

    def under(self, positions: ModelRopes) -> Reader:
        """Return the same model with shared weights and these positions in its layers; raise `RopeError` if it cannot.

        `method.positions(reader.positions, reach)` returns them for a method.
        """
        trained = [[rope.trained for rope in each.present_ropes] for each in (positions, self.positions)]
        if positions == self.positions and (trained[0] == trained[1] or self._refused is not None):
            return self
        if self._refused is not None:
            raise RopeError(
                "transformers: this model's rotation cannot be replaced, so only the unchanged model can be measured.",
                facts={"model": type(self.model).__name__, "reason": self._refused.rule},
                cure="Pass --methods plain,crop.",
            ) from self._refused
        other = copy.copy(self)
        other.model = _twin(self.model)
        other.move(positions)
        _handle(self.model).share_checks(_handle(other.model))
        return other

    def move(self, positions: ModelRopes) -> None:
        """Set these positions in the layers of a copy from `under`; raise `RopeError`, unchanged, if that fails."""
        _handle(self.model).set_positions(positions)
        self.live, self._twins = type(self.live)(self.model), {}

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of the keys and values of `tokens` tokens; layers with a window hold at most its tokens."""
        return sum(size * min(tokens, window or tokens) for size, window in self._per_token)

    @torch.inference_mode()
    def window_losses(
        self,
        input_ids: Tensor,
        *,
        first: int = 1,
        seq_len: int | None = None,
        chunk: int = CHUNK,
        advance: Advance | None = None,
        asking: Asking | None = None,
        until: Callable[[Losses], bool] | None = None,
    ) -> Losses:
        """Return the losses of one window from token `first` on, each given all tokens before it.

        **Arguments:**
        - `input_ids`: int64 `[tokens]`, at positions 0, 1, ... `first`: at least 1 (token 0 has no context).
        - `seq_len`: tokens, for frequencies that depend on the length; defaults to the number of tokens.
        - `chunk`: tokens of one forward; `advance` is called with their number after each.
        - `asking`: each function is called after its number of tokens, with a prefix that can answer questions.
        - `until`: called after each chunk with the losses so far; if it returns True, the rest is not read.

        **Returns:** float64 `[tokens - first]`; entry i belongs to token `first + i`.
        """
        from ropewalk.checkpoints.live_model import ASK_TOKENS, Prefix, new_cache

        if input_ids.ndim != 1 or not 1 <= first < len(input_ids) or chunk < 1:
            raise RopeError(
                "window_losses: `input_ids` must be [tokens] with at least two, and `first` one of them but not 0.",
                facts={"input_ids": input_ids, "first": first, "chunk": chunk},
                cure="Pass the token ids of one window, and 1 <= first < tokens.",
            )
        tokens, live = len(input_ids), self._at(len(input_ids) if seq_len is None else seq_len)
        asking, start = asking or {}, 0
        losses = torch.empty(tokens, dtype=torch.float32)
        ids, cache = input_ids.to(live.device), None
        if tokens > chunk or asking:
            cache = new_cache(self.model.config, tokens + ASK_TOKENS)
        for stop in chunk_ends(tokens, chunk, asking):
            hidden = live.hidden(ids[None, start:stop], cache, start)[0]
            scored = max(start, first - 1), min(stop, tokens - 1)
            targets = ids[scored[0] + 1 : scored[1] + 1]
            of_chunk = live.target_losses(hidden[scored[0] - start : scored[1] - start], targets)
            losses[scored[0] + 1 : scored[1] + 1] = of_chunk.cpu()
            if advance is not None:
                advance(stop - start)
            if stop in asking:
                asking[stop](Prefix(live, cache, stop))
            start = stop
            so_far = np.asarray(losses[first : scored[1] + 1].double())
            if until is not None and len(so_far) and until(so_far):
                return so_far
        return np.asarray(losses[first:].double())

    @torch.inference_mode()
    def top_after(
        self, input_ids: Sequence[int], lengths: Sequence[int], *, count: int, seq_len: int, chunk: int = CHUNK
    ) -> list[Top]:
        """Return the `count` likeliest tokens after the first n, for each n of the ascending `lengths`, in one pass.

        Each has its log-probability in nats, the likeliest first, at the frequencies of `seq_len` tokens.
        """
        from ropewalk.checkpoints.live_model import likeliest, new_cache

        live, cache, last = self._at(seq_len), new_cache(self.model.config, seq_len), lengths[-1]
        tops: list[Top] = []
        for start in range(0, last, chunk):
            part = torch.tensor([list(input_ids[start : min(start + chunk, last)])], device=live.device)
            hidden = live.hidden(part, cache, start)[0]
            rows = [length - 1 - start for length in lengths if start < length <= start + len(hidden)]
            tops += [likeliest(live.logits(hidden[row : row + 1])[0].log_softmax(-1), count) for row in rows]
        return tops

    def _at(self, seq_len: int) -> LiveModel:
        """Return the model at the frequencies of this length: a copy, so that threads with other lengths differ.

        Lengths with the same frequencies share a copy.
        """
        if not self.positions.needs_seq_len:
            return self.live
        if self._refused is not None:
            raise RopeError(
                "transformers: this model's frequencies depend on the length and change from chunk to chunk.",
                facts={"model": type(self.model).__name__, "reason": self._refused.rule},
                cure="Choose a different model: this one cannot be measured.",
            ) from self._refused
        ropes = set(self.positions.present_ropes)
        key = frozenset((rope, rope.columns_at(seq_len), rope.attention_factor_at(seq_len)) for rope in ropes)
        live = self._twins.get(key)
        if live is None:
            twin = _twin(self.model)
            _handle(twin).seq_len = seq_len
            live = type(self.live)(twin)
            kept = list(self._twins.items())[1 - TWINS :]
            self._twins = {**dict(kept), key: live}
        return live


def chunk_ends(tokens: int, chunk: int, stops: Iterable[int] = ()) -> list[int]:
    """Return the end of each forward of a window: every `chunk` tokens, and at the stops inside it.

    >>> chunk_ends(10, 4, [0, 1, 5, 12])
    [1, 4, 5, 8, 10]
    """
    return sorted({*range(chunk, tokens, chunk), *(stop for stop in stops if 0 < stop < tokens), tokens})


def text_tokenizer(tokenizer: Any, model: Any) -> TextTokenizer | None:
    """Return a `TextTokenizer` from a tokenizer of transformers or `tokenizers`; return ours and None unchanged.

    Raises `RopeError` for a tokenizer of transformers without a fast backend.
    """
    if tokenizer is None or isinstance(tokenizer, TextTokenizer):
        return tokenizer
    kit = need("tokenizers").Tokenizer
    backend = tokenizer if isinstance(tokenizer, kit) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, kit):
        raise RopeError(
            "transformers: this tokenizer has no fast form.",
            facts={"tokenizer": type(tokenizer).__name__},
            cure="Load it with AutoTokenizer from a folder with a tokenizer.json.",
        )
    own = kit.from_str(backend.to_str())
    own.no_truncation()
    own.no_padding()
    configs = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True), model.config]
    begin = ids_of(own, *(getattr(holder, "bos_token_id", None) for holder in (tokenizer, *configs)))
    end = ids_of(own, *(getattr(holder, "eos_token_id", None) for holder in (*configs, tokenizer)))
    template = getattr(tokenizer, "chat_template", None)
    return TextTokenizer(
        own, begin[0] if begin else None, end, chat_template=template if isinstance(template, str) else None
    )


def _attach(model: Any) -> RopeError | None:
    """Attach exact rotation with our kernels, or without them if the model refuses; return the error if both fail."""
    refused: RopeError | None = None
    for kernels in (True, False):
        try:
            attach_silently(model, kernels=kernels)
            return None
        except RopeError as error:
            refused = error
    return refused


def _lasting(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config without the keys that depend on where, when and in which dtype it was loaded."""
    return {
        key: _lasting(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in ("_name_or_path", "dtype", "transformers_version")
    }


def _handle(model: Any) -> Attachment:
    """Return the handle of an attached model."""
    handle = attachment_of(model)
    assert handle is not None, "the model was attached"
    return handle


def _twin(model: Any) -> Any:
    """Return a copy in eval mode that shares every weight."""
    memo: dict[int, Any] = {id(weight): weight for weight in model.parameters()}
    return copy.deepcopy(model, memo).eval()


def _name_of(model: Any) -> str:
    """Return the last part of the model's path, or its class."""
    path = str(getattr(model.config, "_name_or_path", "") or "").rstrip("/")
    return path.rpartition("/")[2] or type(model).__name__
