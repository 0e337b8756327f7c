"""A live transformers model: its layers and head called separately, its cache, and cached prefixes."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ropewalk.attachment import attachment_of
from ropewalk.attachment.check import ordinary_ids
from ropewalk.attachment.live_attention import calls_with
from ropewalk.attachment.rotary import text_config_of
from ropewalk.attention.masks import Branches, TokenLayout
from ropewalk.errors import RopeError
from ropewalk.imports import need
from ropewalk.precision import HALF, slow_dtype, to_float64

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
else:
    _caches = need("transformers.cache_utils", "transformers")
    DynamicCache, DynamicLayer = _caches.DynamicCache, _caches.DynamicLayer
    DynamicSlidingWindowLayer = _caches.DynamicSlidingWindowLayer

ASK_TOKENS = 256  # tokens of questions in one forward: enough to fill the matrices, few enough for their own mask
QuestionIds = tuple[Sequence[int], Sequence[Sequence[int]]]
"""Token ids to append to a prefix, and the continuations to score after them; at least one token each."""
Top = list[tuple[int, float]]
"""Tokens with their log-probabilities in nats, the likeliest first."""
Tree = tuple[list[tuple[int, int]], list[list[tuple[int, int]]]]
"""Nodes (parent as in `Branches`, token), and for each continuation its tokens with their preceding nodes."""


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """A cache layer for all tokens, with one buffer each for keys and values, for `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._slots, self._capacity = 0, capacity
        self._buffers: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append tokens `[batch, heads, tokens, features]`, and return all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new, old, held = (key_states, value_states), self._buffers, self.get_seq_length()
        stop = held + key_states.shape[-2]
        if stop > self._slots:
            self._slots = max(stop, self._capacity)
            self._buffers = [states.new_empty(*states.shape[:-2], self._slots, states.shape[-1]) for states in new]
            for buffer, states in zip(self._buffers, old, strict=False):
                buffer[..., :held, :] = states[..., :held, :]
        for buffer, states in zip(self._buffers, new, strict=True):
            buffer[..., held:stop, :] = states
        self.keys, self.values = (buffer[..., :stop, :] for buffer in self._buffers)
        return self.keys, self.values


_APPENDING = (DynamicLayer, DynamicSlidingWindowLayer, PreallocatedLayer)
"""Layers whose update leaves the tensors of earlier tokens as they are."""


def new_cache(config: Any, capacity: int) -> Any:
    """Return transformers' cache for a config, with full layers allocated for `capacity` tokens."""
    cache = DynamicCache(config=config)
    cache.layers = [PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def cache_argument(model: Any) -> str:
    """Return the name under which a model's forward takes its cache: from transformers 5.24 on "cache".

    >>> from types import SimpleNamespace
    >>> cache_argument(SimpleNamespace(forward=lambda input_ids, past_key_values=None: None))
    'past_key_values'
    """
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names and "past_key_values" not in names else "past_key_values"


@contextmanager
def restored(cache: Any) -> Iterator[None]:
    """Remove the tokens appended inside the block from the cache."""
    before = [copy.copy(one) if type(one) in _APPENDING else copy.deepcopy(one) for one in cache.layers]
    try:
        yield
    finally:
        cache.layers = before


LOGITS = 2**24  # float32 logits that exist at one time: 64 MiB
CHECKED = 6  # tokens of the check, read in two chunks
HEAD_ROWS = 256  # tokens of one product with the head
CACHED = 2**19  # logits that a CPU widens and sums at one time: inside its caches it takes a third of the time
WIDENED_ROWS = 4096  # rows of the head that are float32 at one time


class LiveModel:
    """The layers and the head of a causal language model of transformers, called separately; modules are not changed.

    `logits` calls the model's own `forward` with hidden states instead of the layers, so soft caps, scales and other
    steps after the head are the model's. For half types, logits are computed in float32 from the rounded hidden states
    and weights. If nothing follows the head and it is on a CPU that multiplies the half type fast, losses are those of
    `half_losses`: a third of the time.

    - `branches`: whether one forward can process several continuations of a cache: all layers have our attention.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.base, layers = model, model.base_model, model.base_model_prefix
        head = model.get_output_embeddings()
        if model.config.is_encoder_decoder or head is None or layers not in model._modules:
            raise RopeError(
                "transformers: only causal language models can be measured.",
                facts={"model": type(model).__name__, "encoder and decoder": bool(model.config.is_encoder_decoder)},
                cure="Load it with AutoModelForCausalLM.",
            )
        self._head, self._shell = head, copy.copy(model)
        self._shell._modules = {**model._modules, layers: _GivenLayers(self.base)}
        handle = attachment_of(model)
        self.branches = handle is not None and handle.takes_layouts

    @property
    def device(self) -> torch.device:
        """Return the device of the embeddings."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def hidden(self, input_ids: Tensor, cache: Any, first: int, branches: Branches | None = None) -> Tensor:
        """Return the last hidden states `[rows, tokens, hidden]` of tokens or branches, from position `first` on."""
        rows, tokens = input_ids.shape
        total = first + tokens
        layout = TokenLayout(
            rows, tokens, input_ids.device, start=first, total=total, capacity=total, cached=True, branches=branches
        )
        positions = layout.position_ids()[None].expand(rows, -1)
        cached = {} if cache is None else {cache_argument(self.base): cache}
        with calls_with(layout) if self.branches else nullcontext():
            out = self.base(
                input_ids=input_ids, position_ids=positions, use_cache=cache is not None, return_dict=True, **cached
            )
        hidden: Tensor = out.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits, float32 `[tokens, vocab]`, from hidden states `[tokens, hidden]`."""
        weight = getattr(self._head, "weight", None)
        own = not isinstance(weight, Tensor) or self._head._forward_hooks  # products of hooks may need the half type
        with nullcontext() if own else _WideHead(self._head.weight.shape):
            out = type(self._shell).forward(self._shell, inputs_embeds=hidden[None], use_cache=False, return_dict=True)
        logits: Tensor = out.logits[0].float()
        return logits

    def target_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the nats of each target, float32 `[tokens]`, from hidden states `[tokens, hidden]`."""
        targets, weight = targets.to(hidden.device), self._plain_weight
        if weight is not None and weight.is_cpu and hidden.dtype == weight.dtype:
            return half_losses(hidden, weight, targets)
        losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        for part, logits in self.logit_slices(hidden):
            losses[part] = F.cross_entropy(logits, targets[part].to(logits.device), reduction="none")
        return losses

    @cached_property
    def _plain_weight(self) -> Tensor | None:
        """Return the half-precision weight of the head if the model only multiplies hidden states by it, else None.

        The logits of its forward must be the product's, bit for bit. None also for a type that the device multiplies
        slowly.
        """
        weight = getattr(self._head, "weight", None)
        moved = hasattr(self._head, "_hf_hook")  # accelerate's may bring the weight from a different device
        if moved or not _is_plain_half(weight) or slow_dtype(weight.dtype, weight.device.type):
            return None
        random = torch.Generator().manual_seed(0)
        hidden = 30 * torch.randn(2, weight.shape[1], generator=random).to(weight)
        same = torch.equal(self.logits(hidden.clone()), wide_product(hidden[None], weight)[0])
        return weight if same else None

    def logit_slices(self, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield a slice of few tokens and their logits, float32 `[tokens of the slice, vocab]`."""
        rows = max(1, LOGITS // self._head.weight.shape[0])
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            yield part, self.logits(hidden[part])

    @torch.inference_mode()
    def check(self) -> list[tuple[int, int | None]]:
        """Compare logits from two chunks with the model's own forward, and return the bytes of one token in each layer.

        The second chunk is processed twice, as two branches, if that is possible.
        """
        rows = self.model.get_input_embeddings().weight.shape[0]  # a live model may have fewer than its config says
        ids = ordinary_ids(text_config_of(self.model))[None, :CHECKED].to(self.device) % rows
        whole = self.model(input_ids=ids, use_cache=False, return_dict=True).logits[0].float()
        least, most = float(whole.min()), float(whole.max())
        if not math.isfinite(most - least) or least == most:
            raise RopeError(
                "transformers: the model's logits are all equal or not finite, so its weights are empty or damaged.",
                facts={"model": type(self.model).__name__, "logits": [least, most]},
                cure="Fetch or save the weights again.",
            )
        cache, half = new_cache(self.model.config, CHECKED), CHECKED // 2
        size = max(most, -least)
        allowed = (0.05 if self.model.dtype in HALF else 1e-4) * max(1.0, size)
        start, rest = self.hidden(ids[:, :half], cache, 0), ids[:, half:]

        def difference(*ends: Tensor) -> float:
            found = [self.logits(torch.cat((start, end), 1)[0]) for end in ends]
            same = all(logits.shape == whole.shape for logits in found)
            return max(float((logits - whole).abs().max()) for logits in found) if same else float("nan")

        if self.branches:
            tree = Branches([*range(-1, half - 1), -1, *range(half, 2 * half - 1)], self.device)
            with restored(cache):
                both = self.hidden(torch.cat((rest, rest), 1), cache, half, tree)
            largest = difference(*torch.split(both, half, 1))
            self.branches = largest <= allowed
        if not self.branches:
            largest = difference(self.hidden(rest, cache, half))
        if not largest <= allowed:
            raise RopeError(
                "transformers: in chunks, this model's logits differ from its own forward.",
                facts={"model": type(self.model).__name__, "largest difference": largest, "largest logit": size},
                cure="Choose a different model: this one cannot be measured.",
            )
        tokens = half if self.branches else CHECKED
        layers = [layer for layer in cache.layers if isinstance(layer, DynamicLayer) and layer.is_initialized]
        return [
            ((one.keys.nbytes + one.values.nbytes) // tokens, getattr(one, "sliding_window", None)) for one in layers
        ]


def half_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the nats of each target, float32 `[tokens]`, from products in a half type.

    `hidden`: `[tokens, hidden]`, in the dtype of `weight`, `[vocab, hidden]`. `targets`: int64 `[tokens]`.

    **Numerics:** sums in float32 are rounded to the half type: a logit of 20 by up to 0.06. Therefore about the
    target's logit is subtracted from all logits of a token, which softmax ignores. Those with an effect on the loss are
    then small, and so are their errors: on SmolLM2 0.002 nats instead of 0.026, root mean square.

    >>> half_losses(torch.ones(1, 2).half(), torch.eye(3, 2).half(), torch.tensor([2]))
    tensor([1.8620])
    """
    losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
    few = max(1, CACHED // len(weight))
    for start in range(0, len(targets), HEAD_ROWS):
        part, wanted = hidden[start : start + HEAD_ROWS], targets[start : start + HEAD_ROWS]
        near = (part.float() * weight[wanted].float()).sum(-1, keepdim=True).to(weight.dtype)
        logits = torch.addmm(near.expand(-1, len(weight)), part, weight.t(), beta=-1)
        of_part = [
            F.cross_entropy(rows.float(), own, reduction="none")
            for rows, own in zip(torch.split(logits, few), torch.split(wanted, few), strict=True)
        ]
        losses[start : start + len(part)] = torch.cat(of_part)
    return losses


def wide_product(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return float32 logits `[..., vocab]` from half-precision values, converting few rows of the head at a time."""
    wide = hidden.float()
    return torch.cat([F.linear(wide, rows.float()) for rows in torch.split(weight, WIDENED_ROWS)], -1)


class _GivenLayers(nn.Module):
    """A stand-in for the layers, without weights, that returns its input embeddings as hidden states.

    Its attributes are theirs: Falcon-H1's forward uses the scale of the layers' logits, Chameleon's their image tokens.
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self._layers = (layers,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layers[0], name)

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Outputs:
        return _Outputs(inputs_embeds)


class _Outputs:
    """Outputs of a model's layers: hidden states, and None for everything else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]


class _WideHead(TorchFunctionMode):
    """A mode in which the product with a half-precision head, `[vocab, hidden]`, is float32."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (self._product if func is F.linear else func)(*args, **(kwargs or {}))

    def _product(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not (_is_plain_half(weight) and weight.shape == self.shape):
            return F.linear(input, weight, bias)
        logits = wide_product(input, weight)
        return logits if bias is None else logits + bias.float()


def _is_plain_half(weight: Any) -> TypeGuard[Tensor]:
    return type(weight) in (Tensor, nn.Parameter) and weight.dtype in HALF


def likeliest(log_probs: Tensor, count: int) -> Top:
    """Return the `count` largest of log-probabilities `[vocab]`, the largest first.

    >>> likeliest(torch.tensor([-2.0, -0.5, -1.0]), 2)
    [(1, -0.5), (2, -1.0)]
    """
    best = log_probs.topk(min(count, len(log_probs)))
    return list(zip(best.indices.tolist(), to_float64(best.values).tolist(), strict=True))


class Prefix:
    """Tokens in a model's cache, after which questions are asked.

    - `cache`: of one row, with `tokens` tokens.
    """

    def __init__(self, live: LiveModel, cache: Any, tokens: int) -> None:
        self.live, self.cache, self.tokens = live, cache, tokens

    @torch.inference_mode()
    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        """Return the log-probability in nats of each continuation of each question, summed over its tokens.

        Each question comes directly after the prefix, which is neither copied nor changed. The tokens of all questions
        go through the model as branches of one row, 256 at a time, if it allows that; else each line is appended alone.
        """
        trees = [tree_of(question, continuations) for question, continuations in questions]
        answers: list[list[float]] = []
        for first, last in runs_of([len(nodes) for nodes, _ in trees], ASK_TOKENS):
            answers += self._answers(trees[first:last])
        return answers

    def _answers(self, trees: Sequence[Tree]) -> list[list[float]]:
        """Return the answers from one forward over all tokens of these trees."""
        tokens: list[int] = []
        parents: list[int] = []
        wanted: list[tuple[int, int]] = []
        for nodes, lines in trees:
            start = len(tokens)
            tokens += [token for _, token in nodes]
            parents += [parent if parent < 0 else start + parent for parent, _ in nodes]
            wanted += [(start + node, token) for line in lines for node, token in line]
        if self.live.branches:
            with restored(self.cache):
                hidden = self._hidden(tokens, Branches(parents, self.live.device))
        else:
            hidden = self._line_by_line(tokens, parents)
        before, targets = torch.tensor(wanted, device=hidden.device).unbind(1)
        likely = torch.empty(len(before), dtype=torch.float32, device=hidden.device)
        distinct, index = torch.unique(before, return_inverse=True)
        for part, logits in self.live.logit_slices(hidden[distinct]):
            here = (index >= part.start) & (index < part.stop)
            rows, columns = (index[here] - part.start).to(logits.device), targets[here].to(logits.device)
            likely[here] = logits.log_softmax(-1)[rows, columns].to(likely.device)
        values = iter(to_float64(likely).tolist())
        return [[sum(next(values) for _ in line) for line in lines] for _, lines in trees]

    def _line_by_line(self, tokens: list[int], parents: list[int]) -> Tensor:
        """Return the hidden states of the tokens of trees, with a forward for each line from a root to a leaf."""
        hidden: dict[int, Tensor] = {}
        for leaf in sorted({*range(len(tokens))} - {*parents}):
            line = [leaf]
            while parents[line[0]] >= 0:
                line.insert(0, parents[line[0]])
            with restored(self.cache):
                hidden |= zip(line, self._hidden([tokens[node] for node in line]), strict=True)
        return torch.stack([hidden[node] for node in range(len(tokens))])

    def _hidden(self, tokens: list[int], branches: Branches | None = None) -> Tensor:
        """Append tokens to the cache and return their hidden states `[tokens, hidden]`."""
        ids = torch.tensor([tokens], device=self.live.device)
        return self.live.hidden(ids, self.cache, self.tokens, branches)[0]


def tree_of(question: Sequence[int], continuations: Sequence[Sequence[int]]) -> Tree:
    """Return a question and its continuations as a tree of tokens: what begins alike is read once."""
    nodes: dict[tuple[int, int], int] = {}
    asked, lines = [-1], []
    for token in question:
        asked.append(nodes.setdefault((asked[-1], token), len(nodes)))
    for continuation in continuations:
        before = asked[-1:]
        for token in continuation[:-1]:
            before.append(nodes.setdefault((before[-1], token), len(nodes)))
        lines.append(list(zip(before, continuation, strict=True)))
    return [*nodes], lines


def runs_of(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield runs (first, last) of a list with a total size of at most `most`; a larger item is a run of its own.

    >>> list(runs_of([3, 4, 2, 9, 1], 7))
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    first, total = 0, 0
    for index, size in enumerate(sizes):
        if index > first and total + size > most:
            yield first, index
            first, total = index, 0
        total += size
    if sizes:
        yield first, len(sizes)
