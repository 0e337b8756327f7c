"""The adapter of live transformers models of any family."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.attachment import Attachment, attachment_of
from ropewalk.attachment.handle import attach_silently
from ropewalk.attachment.layers import config_form_of, positions_of, text_config_of
from ropewalk.errors import RopeError
from ropewalk.layers.prompts import Tokenizer
from ropewalk.methods import ConfigForm, trained_length_of
from ropewalk.readers.digest import digest_of
from ropewalk.readers.losses import Top, likeliest
from ropewalk.readers.reader import (
    ASK_TOKENS,
    CHUNK,
    Advance,
    Asking,
    Losses,
    check_window,
    chunk_ends,
)
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.of_layers import Positions

if TYPE_CHECKING:
    from ropewalk.readers.live_model import LiveModel, LivePrefix


class TransformersReader:
    """A reader of a causal language model of transformers; `ropewalk.readers.reader.Reader` describes its members.

    - `model`: a `PreTrainedModel` with a head for the next token; it does not change.
    - `tokenizer`: of transformers with a fast backend, of `tokenizers`, or a `TextTokenizer`. `name`: in reports.

    Windows are processed in chunks through the model's own cache, with the head applied to few tokens at a time to
    bound memory. The reader uses a copy that shares every weight. If `ropewalk.attach` supports the model, the copy
    rotates with exact tables; otherwise only the model's own rotation can be measured. The constructor compares six
    tokens in two chunks with the model's own forward.

    **Raises:** `RopeError` for a model that is not a causal language model, or has an unknown rotation.
    """

    def __init__(self, model: Any, tokenizer: Any = None, name: str | None = None) -> None:
        from ropewalk.readers.live_model import LiveModel
        from ropewalk.readers.loading import text_tokenizer

        self.model = _twin(model)
        self._refused: RopeError | None = None
        LiveModel(self.model)  # raises if it is not a causal language model
        if attachment_of(self.model) is None:
            self._own: Positions = positions_of(self.model, text_config_of(self.model))
            self._refused = _attach(self.model)
        self._name = name or _name_of(model)
        self._tokenizer = text_tokenizer(tokenizer, model)
        self.live = LiveModel(self.model)
        self._per_token = self.live.check()
        self._frozen = _Frozen(self.model)

    @property
    def name(self) -> str:
        return self._name

    @property
    def library(self) -> str:
        """Return "transformers", its version, and the model's class."""
        return f"transformers {sys.modules['transformers'].__version__}, {type(self.model).__name__}"

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._tokenizer

    @property
    def positions(self) -> Positions:
        handle = attachment_of(self.model)
        return self._own if handle is None else handle.positions

    @property
    def config_form(self) -> ConfigForm:
        return config_form_of(self.model.config, text_config_of(self.model))

    @property
    def trained_length(self) -> int | None:
        return trained_length_of(self.positions)

    @property
    def device(self) -> torch.device:
        return self.live.device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters())

    def digest(self) -> str:
        config = json.dumps(_lasting(self.model.config.to_dict()), sort_keys=True, default=str)
        described = f"{type(self.model).__name__} {config} {self.positions!r}"
        return digest_of(described, self.model.state_dict(keep_vars=True).items())

    def under(self, positions: Positions) -> TransformersReader:
        own = self.positions
        same_training = [rope.trained for rope in positions.present_ropes] == [
            rope.trained for rope in own.present_ropes
        ]
        if positions == own and (same_training or self._refused is not None):
            return self
        if self._refused is not None:
            raise RopeError(
                "transformers: this model's rotation cannot be replaced, so only the unchanged model can be measured.",
                facts={"model": type(self.model).__name__, "reason": self._refused.rule},
                cure="Pass --methods plain,crop.",
            ) from self._refused
        model = _twin(self.model)
        _handle(model).set_positions(positions)
        return self.with_model(model)

    def with_model(self, model: Any) -> TransformersReader:
        """Return the same reader with a different copy of its model."""
        other = copy.copy(self)
        other.model, other.live, other._frozen = model, type(self.live)(model), _Frozen(model)
        return other

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
        from ropewalk.readers.live_model import LivePrefix

        check_window(input_ids, first, chunk)
        tokens, live = len(input_ids), self._at(len(input_ids) if seq_len is None else seq_len)
        asking, start = asking or {}, 0
        losses = torch.empty(tokens, dtype=torch.float32)
        ids = input_ids.to(live.device)
        cache = live.new_cache(tokens + (ASK_TOKENS if asking else 0)) if tokens > chunk or asking else None
        for stop in chunk_ends(tokens, chunk, asking):
            hidden = live.hidden(ids[None, start:stop], cache, start)[0]
            scored = max(start, first - 1), min(stop, tokens - 1)
            targets = ids[scored[0] + 1 : scored[1] + 1]
            of_chunk = live.target_losses(hidden[scored[0] - start : scored[1] - start], targets)
            losses[scored[0] + 1 : scored[1] + 1] = of_chunk.cpu()
            if advance is not None:
                advance(stop - start)
            if stop in asking:
                asking[stop](LivePrefix(live, cache, chunk=chunk, tokens=stop))
            start = stop
            so_far = np.asarray(losses[first : scored[1] + 1].double())
            if until is not None and len(so_far) and until(so_far):
                return so_far
        return np.asarray(losses[first:].double())

    def prefix(
        self, input_ids: Sequence[int], *, seq_len: int, chunk: int = CHUNK, advance: Advance | None = None
    ) -> LivePrefix:
        from ropewalk.readers.live_model import LivePrefix

        live = self._at(seq_len)
        prefix = LivePrefix(live, live.new_cache(seq_len + ASK_TOKENS), chunk=chunk)
        prefix.read(input_ids, advance=advance)
        return prefix

    @torch.inference_mode()
    def top_after(
        self, input_ids: Sequence[int], lengths: Sequence[int], *, count: int, seq_len: int, chunk: int = CHUNK
    ) -> list[Top]:
        live = self._at(seq_len)
        cache, tops, last = live.new_cache(seq_len), list[Top](), lengths[-1]
        for start in range(0, last, chunk):
            part = torch.tensor([list(input_ids[start : min(start + chunk, last)])], device=live.device)
            hidden = live.hidden(part, cache, start)[0]
            rows = [length - 1 - start for length in lengths if start < length <= start + len(hidden)]
            tops += [likeliest(live.logits(hidden[row : row + 1])[0].log_softmax(-1), count) for row in rows]
        return tops

    def _at(self, seq_len: int) -> LiveModel:
        """Return the model at the frequencies of this length."""
        if not self.positions.needs_seq_len:
            return self.live
        if self._refused is not None:
            raise RopeError(
                "transformers: this model's frequencies depend on the length and change from chunk to chunk.",
                facts={"model": type(self.model).__name__, "reason": self._refused.rule},
                cure="Choose a different model: this one cannot be measured.",
            ) from self._refused
        return self._frozen.at(seq_len)


class _Frozen:
    """Copies of a model at the frequencies of fixed lengths, to make threads with different lengths independent.

    The last few are kept; lengths with the same frequencies share a copy.
    """

    KEPT = 4

    def __init__(self, model: Any) -> None:
        self._model, self._lock = model, Lock()
        self._twins: dict[object, LiveModel] = {}

    def at(self, seq_len: int) -> LiveModel:
        """Return the copy for a length in tokens."""
        from ropewalk.readers.live_model import LiveModel

        ropes = set(_handle(self._model).positions.present_ropes)
        key = frozenset((rope, columns_of(rope, seq_len), attention_factor_of(rope, seq_len)) for rope in ropes)
        with self._lock:
            if key not in self._twins:
                twin = _twin(self._model)
                _handle(twin).seq_len = seq_len
                self._twins[key] = LiveModel(twin)
                while len(self._twins) > self.KEPT:
                    del self._twins[next(iter(self._twins))]
            return self._twins[key]


def _attach(model: Any) -> RopeError | None:
    """Attach exact rotation with our kernels, or without them if the model refuses; return the error if both fail."""
    refused: RopeError | None = None
    for kernels in (True, False):
        try:
            attach_silently(model, kernels=kernels)
        except RopeError as error:
            refused = error
        else:
            return None
    return refused


def _lasting(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config without the keys that depend on where, when and in which dtype it was loaded."""
    kept = {
        key: value for key, value in config.items() if key not in ("_name_or_path", "dtype", "transformers_version")
    }
    return {key: _lasting(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _handle(model: Any) -> Attachment:
    """Return the handle of an attached model."""
    handle = attachment_of(model)
    assert handle is not None, "the model was attached"
    return handle


def adapt(model: object, name: str | None) -> TransformersReader | None:
    """Return a reader of a transformers model, or of a pair (model, tokenizer); None for anything else."""
    tokenizer = None
    if isinstance(model, tuple) and len(model) == 2:
        model, tokenizer = model
    if "transformers" not in sys.modules:
        return None
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's adapters stay in it
    if not isinstance(model, sys.modules["transformers"].PreTrainedModel):
        return None
    return TransformersReader(model, tokenizer, name)


def _twin(model: Any) -> Any:
    """Return a copy in eval mode that shares every weight."""
    memo: dict[int, Any] = {id(weight): weight for weight in model.parameters()}
    return copy.deepcopy(model, memo).eval()


def _name_of(model: Any) -> str:
    """Return the last part of the model's path, or its class."""
    path = str(getattr(model.config, "_name_or_path", "") or "").rstrip("/")
    return path.rpartition("/")[2] or type(model).__name__
