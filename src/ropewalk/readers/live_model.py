"""A live transformers model for reading: its layers and head apart, its cache, and continuations of a cached prefix."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ropewalk.attention.norm import HALF
from ropewalk.errors import RopeError
from ropewalk.models.precision import to_float64
from ropewalk.readers.losses import likeliest, target_losses
from ropewalk.readers.reader import Advance, QuestionIds, check_questions, check_read

_REPLACING = (DynamicLayer, DynamicSlidingWindowLayer)
"""Layers whose update makes new tensors and leaves the former ones as they were."""


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """A layer over all tokens whose keys and values are views of one tensor each, made for `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = max(1, capacity)
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append tokens `[batch, heads, tokens, features]`; returns all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.get_seq_length()
        stop = held + key_states.shape[-2]
        if self._room is None or stop > self._room[0].shape[-2]:
            self._make_room(max(stop, self.capacity), key_states, value_states, held)
        assert self._room is not None
        for room, states in zip(self._room, (key_states, value_states), strict=True):
            room[..., held:stop, :] = states
        self.keys, self.values = (room[..., :stop, :] for room in self._room)
        return self.keys, self.values

    def _make_room(self, tokens: int, key_states: Tensor, value_states: Tensor, held: int) -> None:
        rooms = []
        for states, kept in ((key_states, self.keys), (value_states, self.values)):
            room = states.new_empty(*states.shape[:-2], tokens, states.shape[-1])
            if held:
                room[..., :held, :] = kept
            rooms.append(room)
        self._room = (rooms[0], rooms[1])

    def copied(self) -> RoomyLayer:
        """The same tokens in tensors of its own."""
        other = RoomyLayer(self.capacity)
        if self.is_initialized and self._room is not None:
            other.lazy_initialization(self.keys, self.values)
            held = self.get_seq_length()
            other._make_room(self._room[0].shape[-2], self.keys, self.values, 0)
            assert other._room is not None
            for room, states in zip(other._room, (self.keys, self.values), strict=True):
                room[..., :held, :] = states
            other.keys, other.values = (room[..., :held, :] for room in other._room)
        return other


def new_cache(config: Any, capacity: int) -> Any:
    """The cache that transformers makes for a config, with room for `capacity` tokens in its full layers."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def copied(cache: Any) -> Any:
    """A cache with the same tokens that goes on by itself."""
    other = copy.copy(cache)
    other.layers = [layer.copied() if isinstance(layer, RoomyLayer) else _kept(layer) for layer in cache.layers]
    return other


@contextmanager
def taken_back(cache: Any) -> Iterator[None]:
    """What is appended within is gone afterwards."""
    before = [
        (layer.keys, layer.values, layer.is_initialized) if isinstance(layer, RoomyLayer) else _kept(layer)
        for layer in cache.layers
    ]
    layers = list(cache.layers)
    try:
        yield
    finally:
        for index, kept in enumerate(before):
            layer = layers[index]
            if isinstance(layer, RoomyLayer):
                layer.keys, layer.values, layer.is_initialized = kept
                cache.layers[index] = layer
            else:
                cache.layers[index] = kept


def held_bytes(cache: Any) -> list[tuple[int, int | None]]:
    """For each layer the bytes of its keys and values (or states), and the tokens that it holds at most, or None."""
    found = []
    for layer in cache.layers:
        tensors = (value for value in _tensors(vars(layer)))
        window = layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None
        found.append((sum(tensor.numel() * tensor.element_size() for tensor in tensors), window))
    return found


def _tensors(values: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that a layer holds, views of others left out."""
    for name, value in values.items():
        several = value if isinstance(value, list | tuple) else (value,)
        if name not in ("_room", "_sliding_window_tensor"):
            yield from (one for one in several if isinstance(one, torch.Tensor))


def _kept(layer: Any) -> Any:
    """A layer that is not changed by what is appended to the original."""
    return copy.copy(layer) if type(layer) in _REPLACING else copy.deepcopy(layer)


LOGITS = 2**24  # float32 logits that exist at one time: 64 MiB
WIDENED_ROWS = 4096  # rows of the head that are float32 at one time
CHECKED = 6  # tokens of the check, read in two chunks


class LiveModel:
    """The halves of a causal language model of transformers, whose modules stay as they are.

    `hidden` goes through the model's own layers and cache; `logits` through its own `forward`, in which the layers
    are replaced by the hidden states: so soft caps, scales and whatever else follows the head are the model's.
    Of half types, logits are computed in float32 from the rounded hidden states and weights. Losses of a head on the
    CPU with nothing behind it are `ropewalk.readers.losses.target_losses`, whose product is of the half type: a third
    of the time.

    Raises `RopeError` for a model without a head for the next token, and where the halves disagree with the whole.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.base, self._shell, self._wide = _halves(model)

    def new_cache(self, capacity: int) -> Any:
        """The model's own cache with room for so many tokens."""
        return new_cache(self.model.config, capacity)

    @property
    def device(self) -> torch.device:
        """Where its embeddings are."""
        found: torch.device = self.model.get_input_embeddings().weight.device
        return found

    def hidden(self, input_ids: Tensor, cache: Any, first: int) -> Tensor:
        """The last hidden states `[rows, tokens, hidden]` of tokens from position `first` on; cache None: no cache."""
        rows, tokens = input_ids.shape
        positions = torch.arange(first, first + tokens, device=input_ids.device)[None].expand(rows, -1)
        given = {} if cache is None else {"past_key_values": cache}
        out = self.base(
            input_ids=input_ids, position_ids=positions, use_cache=cache is not None, return_dict=True, **given
        )
        found: Tensor = out.last_hidden_state
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 `[tokens, vocab]` after hidden states `[tokens, hidden]`."""
        return _after(self._shell, hidden)

    def target_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Nats of each target, float32 `[tokens]`, after hidden states `[tokens, hidden]`."""
        targets, weight = targets.to(hidden.device), self._weight_alone
        if weight is not None and weight.is_cpu and hidden.dtype == weight.dtype:
            return target_losses(hidden, weight, targets)
        losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        for part, logits in self.logit_slices(hidden):
            losses[part] = F.cross_entropy(logits, targets[part].to(logits.device), reduction="none")
        return losses

    @cached_property
    def _weight_alone(self) -> Tensor | None:
        """The head's weight, of a half type, where the model does nothing to hidden states but multiply by it.

        Asked of the model: its forward has to hand a stand-in for the head what it was given, and to return unchanged
        what the stand-in answers. So soft caps, scales, a bias and whatever a model may do else are found.
        """
        head = None if self._wide is None else self._shell._modules[self._wide]
        if head is None or head.bias is not None or head.hook is not None:
            return None
        random = torch.Generator().manual_seed(0)
        hidden = torch.randn(2, head.weight.shape[1], generator=random).to(head.weight)
        logits = torch.randn(2, head.weight.shape[0], generator=random).to(head.weight.device) * 30
        stand_in = _Answers(head.weight, logits)
        shell = copy.copy(self._shell)
        shell._modules = {**self._shell._modules, self._wide: stand_in}
        same = torch.equal(_after(shell, hidden.clone()), logits) and torch.equal(stand_in.given, hidden[None])
        return head.weight if same else None

    def logit_slices(self, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The logits of a few tokens after the other: which they are, and float32 `[of them, vocab]`."""
        rows = max(1, LOGITS // self.model.get_output_embeddings().weight.shape[0])
        for start in range(0, len(hidden), rows):
            part = slice(start, min(start + rows, len(hidden)))
            yield part, self.logits(hidden[part])

    @torch.inference_mode()
    def check(self) -> list[tuple[int, int | None]]:
        """Hold the halves, in two chunks through the cache, against the whole; returns `held_bytes` of one token."""
        vocab = self.model.get_input_embeddings().weight.shape[0]
        ids = (torch.arange(CHECKED, device=self.device) * 7 + 5)[None] % vocab
        whole = self.model(input_ids=ids, use_cache=False, return_dict=True).logits[0].float()
        cache, half = self.new_cache(CHECKED), CHECKED // 2
        parts = [self.hidden(ids[:, :half], cache, 0), self.hidden(ids[:, half:], cache, half)]
        found = self.logits(torch.cat(parts, 1)[0])
        most = float(whole.abs().max())
        allowed = (0.05 if found.shape == whole.shape and self.model.dtype in HALF else 1e-4) * max(1.0, most)
        if found.shape != whole.shape or not float((found - whole).abs().max()) <= allowed:
            difference = float((found - whole).abs().max()) if found.shape == whole.shape else float("nan")
            raise RopeError(
                "transformers: read in chunks this model does not give the logits of its own forward.",
                facts={"model": type(self.model).__name__, "largest difference": difference, "largest logit": most},
                cure="It cannot be measured here.",
            )
        return [(size // CHECKED, window) for size, window in held_bytes(cache)]


class _Given(nn.Module):
    """Stands in place of the layers: what it is given as embeddings are the hidden states, everything else is theirs.

    A forward may ask the layers for a number: Falcon-H1 for the scale of its logits, Chameleon for its image tokens.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self._base = (base,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base[0], name)

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Outputs:
        return _Outputs(inputs_embeds)


class _Outputs:
    """What a model's head takes from its layers: hidden states, and None for everything else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]


class _WideHead(nn.Module):
    """A head of half precision whose products are float32; accelerate's hook on it, if any, brings its weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._linear = (linear,)

    @property
    def hook(self) -> Any:
        """What accelerate put at the head: it may lie on another device, or be fetched for each call."""
        return getattr(self._linear[0], "_hf_hook", None)

    @property
    def bias(self) -> Tensor | None:
        """The bias of the head, as it is."""
        return self._linear[0].bias

    @property
    def weight(self) -> Tensor:
        """The weight of the head, as it is."""
        return self._linear[0].weight

    def forward(self, hidden: Tensor) -> Tensor:
        """float32 `[..., vocab]`."""
        if self.hook is not None:
            (hidden,), _ = self.hook.pre_forward(self._linear[0], hidden)
        wide = hidden.float()
        logits = torch.cat([F.linear(wide, rows.float()) for rows in torch.split(self.weight, WIDENED_ROWS)], -1)
        logits = logits if self.bias is None else logits + self.bias.float()
        return logits if self.hook is None else self.hook.post_forward(self._linear[0], logits)


class _Answers(nn.Module):
    """Stands in place of the head: keeps what it is given, and answers with logits that it was made with."""

    def __init__(self, weight: Tensor, logits: Tensor) -> None:
        super().__init__()
        self._weight, self._logits, self.given = (weight,), logits, weight.new_empty(0)

    @property
    def weight(self) -> Tensor:
        """The weight of the head in whose place it stands."""
        return self._weight[0]

    def forward(self, hidden: Tensor) -> Tensor:
        self.given = hidden.clone()
        return self._logits[None].clone()


def _after(shell: Any, hidden: Tensor) -> Tensor:
    """float32 `[tokens, vocab]`: what a model whose layers are replaced makes of hidden states `[tokens, hidden]`."""
    out = type(shell).forward(shell, inputs_embeds=hidden[None], use_cache=False, return_dict=True)
    found: Tensor = out.logits[0].float()
    return found


def _halves(model: Any) -> tuple[Any, Any, str | None]:
    """The layers of a model, the model with hidden states in their place, and the name of a head made wide."""
    head, base = model.get_output_embeddings(), model.base_model
    name = model.base_model_prefix
    if model.config.is_encoder_decoder or head is None or base is model or name not in model._modules:
        raise RopeError(
            "transformers: this is no causal language model, and nothing else can be measured.",
            facts={"model": type(model).__name__, "encoder and decoder": bool(model.config.is_encoder_decoder)},
            cure="Load it by AutoModelForCausalLM.",
        )
    shell = copy.copy(model)
    shell._modules = dict(model._modules)
    shell._modules[name] = _Given(base)
    wide = None
    if type(head) is nn.Linear and head.weight.dtype in HALF:
        for child, module in model._modules.items():
            if module is head:
                shell._modules[child], wide = _WideHead(head), child
    return base, shell, wide


class LivePrefix:
    """Tokens that have gone through a live model once; see `ropewalk.readers.reader.Prefix`.

    - `cache`: of one row, empty. `chunk`: tokens of one forward. Logits exist for the last token alone.
    """

    def __init__(self, live: LiveModel, cache: Any, *, chunk: int) -> None:
        self.live, self.cache, self.chunk = live, cache, chunk
        self._tokens = 0
        self._next = torch.empty(0)  # log-probabilities of the next token

    @property
    def tokens(self) -> int:
        """How many tokens it holds."""
        return self._tokens

    @property
    def next_log_probs(self) -> Tensor:
        """The log-probability of every token after the last one, float32 `[vocab]`."""
        return self._next

    @torch.inference_mode()
    def read(self, input_ids: Sequence[int], *, advance: Advance | None = None) -> None:
        """Put more tokens at the end, at least one."""
        check_read(input_ids, self._tokens)
        last = torch.empty(0)
        for start in range(0, len(input_ids), self.chunk):
            part = list(input_ids[start : start + self.chunk])
            last = self._hidden(part, self._tokens)[-1:]
            self._tokens += len(part)
            if advance is not None:
                advance(len(part))
        self._next = self.live.logits(last)[0].log_softmax(-1)

    def log_probs(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        """The log-probability in nats of each continuation, the sum over its tokens; the prefix stays as it was."""
        return self.ask([((), continuations)])[0]

    @torch.inference_mode()
    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        """For each question, read after the prefix, the log-probability of each of its continuations.

        Questions are read one after the other and taken back: the prefix is neither copied nor changed.
        """
        check_questions(questions)
        return [self._answers(list(question), continuations) for question, continuations in questions]

    def _answers(self, question: list[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """The log-probabilities of the continuations of one question."""
        with taken_back(self.cache):
            first = self._next
            if question:
                first = self.live.logits(self._hidden(question, self._tokens)[-1:])[0].log_softmax(-1)
            start = self._tokens + len(question)
            found = to_float64(first[torch.tensor([one[0] for one in continuations], device=first.device)]).tolist()
            for index, continuation in enumerate(continuations):
                if len(continuation) > 1:
                    found[index] += self._following(list(continuation), start)
        return [float(one) for one in found]

    def _following(self, tokens: list[int], start: int) -> float:
        """The log-probability of the tokens after the first, each given those before it."""
        with taken_back(self.cache):
            logits = self.live.logits(self._hidden(tokens[:-1], start))
        targets = torch.tensor(tokens[1:], device=logits.device)
        likely = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        return float(to_float64(likely).sum())

    def _hidden(self, tokens: list[int], start: int) -> Tensor:
        """Hidden states `[tokens, hidden]` of tokens that are appended."""
        return self.live.hidden(torch.tensor([tokens], device=self.live.device), self.cache, start)[0]

    def top(self, count: int) -> list[tuple[int, float]]:
        """The `count` likeliest next tokens and their log-probabilities in nats, the likeliest first."""
        return likeliest(self._next, count)

    @torch.inference_mode()
    def fork(self) -> LivePrefix:
        """A copy that can be read on independently."""
        other = LivePrefix(self.live, copied(self.cache), chunk=self.chunk)
        other._tokens, other._next = self._tokens, self._next
        return other
