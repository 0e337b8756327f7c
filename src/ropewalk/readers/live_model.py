"""A live transformers model: its layers and head called separately, its cache, and cached prefixes."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.attachment import attachment_of
from ropewalk.attachment.live_attention import calls_with
from ropewalk.errors import RopeError
from ropewalk.layers.masks import Branches, TokenLayout
from ropewalk.layers.norm import HALF
from ropewalk.layers.precision import to_float64
from ropewalk.optional import need
from ropewalk.readers.losses import likeliest, target_losses, wide_product
from ropewalk.readers.reader import ASK_TOKENS, Advance, QuestionIds, check_questions, check_read

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
else:
    _caches = need("transformers.cache_utils", "transformers")
    DynamicCache, DynamicLayer = _caches.DynamicCache, _caches.DynamicLayer
    DynamicSlidingWindowLayer = _caches.DynamicSlidingWindowLayer


_REPLACING = (DynamicLayer, DynamicSlidingWindowLayer)
"""Layers that create new tensors in an update and do not change the old ones."""


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """A cache layer for all tokens, with one buffer each for keys and values, for `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = max(1, capacity)
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append tokens `[batch, heads, tokens, features]`, and return all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.get_seq_length()
        stop = held + key_states.shape[-2]
        if self._buffers is None or stop > self._buffers[0].shape[-2]:
            self._allocate(max(stop, self.capacity), key_states, value_states)
        assert self._buffers is not None
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., held:stop, :] = states
        self.keys, self.values = (buffer[..., :stop, :] for buffer in self._buffers)
        return self.keys, self.values

    def _allocate(self, tokens: int, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate buffers for `tokens` tokens in the shape of these states, and copy the previous tokens into them."""
        held, buffers = self.get_seq_length(), []
        for states, old in ((key_states, self.keys), (value_states, self.values)):
            buffer = states.new_empty(*states.shape[:-2], tokens, states.shape[-1])
            if held:
                buffer[..., :held, :] = old
            buffers.append(buffer)
        self._buffers = (buffers[0], buffers[1])
        if held:
            self.keys, self.values = (buffer[..., :held, :] for buffer in buffers)

    def copied(self) -> PreallocatedLayer:
        """Return a layer with the same tokens in its own buffers."""
        other = copy.copy(self)
        if self.is_initialized and self._buffers is not None:
            other._allocate(self._buffers[0].shape[-2], self.keys, self.values)
        return other


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


def copied(cache: Any) -> Any:
    """Return an independent cache with the same tokens."""
    other = copy.copy(cache)
    other.layers = [
        layer.copied() if isinstance(layer, PreallocatedLayer) else _snapshot(layer) for layer in cache.layers
    ]
    return other


@contextmanager
def restored(cache: Any) -> Iterator[None]:
    """Remove the tokens appended inside the block from the cache."""
    layers = list(cache.layers)
    before = [
        (layer.keys, layer.values, layer.is_initialized) if isinstance(layer, PreallocatedLayer) else _snapshot(layer)
        for layer in layers
    ]
    try:
        yield
    finally:
        for index, (layer, state) in enumerate(zip(layers, before, strict=True)):
            if isinstance(layer, PreallocatedLayer):
                layer.keys, layer.values, layer.is_initialized = state
                cache.layers[index] = layer
            else:
                cache.layers[index] = state


def held_bytes(cache: Any) -> list[tuple[int, int | None]]:
    """Return each layer's bytes, and its maximal number of tokens (None: no limit)."""
    sizes = []
    for layer in cache.layers:
        own = [value for name, value in vars(layer).items() if name not in ("_buffers", "_sliding_window_tensor")]
        values = [one for value in own for one in (value if isinstance(value, list | tuple) else (value,))]
        window = layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None
        sizes.append((sum(one.numel() * one.element_size() for one in values if isinstance(one, Tensor)), window))
    return sizes


def _snapshot(layer: Any) -> Any:
    """Return a copy that does not change when tokens are appended to the original."""
    return copy.copy(layer) if type(layer) in _REPLACING else copy.deepcopy(layer)


LOGITS = 2**24  # float32 logits that exist at one time: 64 MiB
CHECKED = 6  # tokens of the check, read in two chunks


class LiveModel:
    """The layers and the head of a causal language model of transformers, called separately; modules are not changed.

    `hidden` calls the model's own layers with its cache. `logits` calls its own `forward` with hidden states instead
    of the layers, so soft caps, scales and other steps after the head are the model's. For half types, logits are
    computed in float32 from the rounded hidden states and weights. If nothing follows the head and it is on the CPU,
    losses are `ropewalk.readers.losses.target_losses`, with a product in the half type: a third of the time.

    - `branches`: whether one forward can process several continuations of a cache: all layers have our attention.

    **Raises:** `RopeError` for a model without a head for the next token.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.base, self._shell, self._wide = _halves(model)
        handle = attachment_of(model)
        self.branches = handle is not None and handle.takes_layouts

    def new_cache(self, capacity: int) -> Any:
        """Return the model's own cache for `capacity` tokens."""
        return new_cache(self.model.config, capacity)

    @property
    def device(self) -> torch.device:
        """Return the device of the embeddings."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def hidden(self, input_ids: Tensor, cache: Any, first: int, branches: Branches | None = None) -> Tensor:
        """Return the last hidden states `[rows, tokens, hidden]` of these tokens, from position `first` on.

        `branches`: the tokens are several continuations of the cache's `first` tokens, if `self.branches`.
        """
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
        return _after(self._shell, hidden)

    def target_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the nats of each target, float32 `[tokens]`, from hidden states `[tokens, hidden]`."""
        targets, weight = targets.to(hidden.device), self._plain_weight
        if weight is not None and weight.is_cpu and hidden.dtype == weight.dtype:
            return target_losses(hidden, weight, targets)
        losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        for part, logits in self.logit_slices(hidden):
            losses[part] = F.cross_entropy(logits, targets[part].to(logits.device), reduction="none")
        return losses

    @cached_property
    def _plain_weight(self) -> Tensor | None:
        """Return the half-precision weight of the head if the model only multiplies hidden states by it, else None.

        The model's forward must pass the hidden states unchanged to a stand-in for the head, and return the
        stand-in's logits unchanged. This detects soft caps, scales, a bias and other steps.
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
        """Yield a slice of few tokens and their logits, float32 `[tokens of the slice, vocab]`."""
        rows = max(1, LOGITS // self.model.get_output_embeddings().weight.shape[0])
        for start in range(0, len(hidden), rows):
            part = slice(start, min(start + rows, len(hidden)))
            yield part, self.logits(hidden[part])

    @torch.inference_mode()
    def check(self) -> list[tuple[int, int | None]]:
        """Compare logits from two chunks with the model's own forward, and return `held_bytes` of one token.

        The second chunk is processed twice, as two branches, if that is possible.
        """
        vocab = self.model.get_input_embeddings().weight.shape[0]
        ids = (torch.arange(CHECKED, device=self.device) * 7 + 5)[None] % vocab
        whole = self.model(input_ids=ids, use_cache=False, return_dict=True).logits[0].float()
        cache, half, most = self.new_cache(CHECKED), CHECKED // 2, float(whole.abs().max())
        allowed = (0.05 if self.model.dtype in HALF else 1e-4) * max(1.0, most)

        def difference(*parts: Tensor) -> float:
            logits = self.logits(torch.cat(parts, 1)[0])
            return float((logits - whole).abs().max()) if logits.shape == whole.shape else float("nan")

        start, found = self.hidden(ids[:, :half], cache, 0), float("nan")
        if self.branches:
            doubled = torch.cat((ids[:, half:], ids[:, half:]), 1)  # the rest of the text, twice
            tree = Branches([*range(-1, half - 1), -1, *range(half, 2 * half - 1)], self.device)
            with restored(cache):
                both = torch.split(self.hidden(doubled, cache, half, tree), half, 1)
            found = max(difference(start, one) for one in both)
            self.branches = found <= allowed
        if not self.branches:
            found = difference(start, self.hidden(ids[:, half:], cache, half))
        if not found <= allowed:
            raise RopeError(
                "transformers: in chunks, this model's logits differ from its own forward.",
                facts={"model": type(self.model).__name__, "largest difference": found, "largest logit": most},
                cure="Choose a different model: this one cannot be measured.",
            )
        tokens = half if self.branches else CHECKED
        return [(size // tokens, window) for size, window in held_bytes(cache)]


class _Given(nn.Module):
    """A stand-in for the layers that returns its input embeddings as hidden states.

    Other attributes are those of the layers: Falcon-H1's forward uses the scale of its logits, Chameleon's its image
    tokens.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self._base = (base,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base[0], name)

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


class _WideHead(nn.Module):
    """A half-precision head with float32 products, with accelerate's hook, if there is one."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._linear = (linear,)

    @property
    def hook(self) -> Any:
        """Return accelerate's hook on the head, which may move the weight from a different device for each call."""
        return getattr(self._linear[0], "_hf_hook", None)

    @property
    def bias(self) -> Tensor | None:
        """Return the head's own bias."""
        return self._linear[0].bias

    @property
    def weight(self) -> Tensor:
        """Return the head's own weight."""
        return self._linear[0].weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, float32 `[..., vocab]`."""
        if self.hook is not None:
            (hidden,), _ = self.hook.pre_forward(self._linear[0], hidden)
        logits = wide_product(hidden, self.weight)
        logits = logits if self.bias is None else logits + self.bias.float()
        return logits if self.hook is None else self.hook.post_forward(self._linear[0], logits)


class _Answers(nn.Module):
    """A stand-in for the head that stores its input as `given` and returns fixed logits."""

    def __init__(self, weight: Tensor, logits: Tensor) -> None:
        super().__init__()
        self._weight, self._logits, self.given = (weight,), logits, weight.new_empty(0)

    @property
    def weight(self) -> Tensor:
        """Return the weight of the original head."""
        return self._weight[0]

    def forward(self, hidden: Tensor) -> Tensor:
        self.given = hidden.clone()
        return self._logits[None].clone()


def _after(shell: Any, hidden: Tensor) -> Tensor:
    """Return logits, float32 `[tokens, vocab]`, of a model with replaced layers, from hidden states."""
    out = type(shell).forward(shell, inputs_embeds=hidden[None], use_cache=False, return_dict=True)
    logits: Tensor = out.logits[0].float()
    return logits


def _halves(model: Any) -> tuple[Any, Any, str | None]:
    """Return a model's layers, the model with a stand-in for them, and the name of a head made wide, or None."""
    head, base = model.get_output_embeddings(), model.base_model
    name = model.base_model_prefix
    if model.config.is_encoder_decoder or head is None or base is model or name not in model._modules:
        raise RopeError(
            "transformers: only causal language models can be measured.",
            facts={"model": type(model).__name__, "encoder and decoder": bool(model.config.is_encoder_decoder)},
            cure="Load it with AutoModelForCausalLM.",
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
    """Tokens in a live model's cache; `ropewalk.readers.reader.Prefix` describes its members.

    - `cache`: of one row, with `tokens` tokens. `chunk`: tokens of one forward. Logits exist only for the last token;
      for none if the tokens were processed elsewhere, which allows only questions with their own tokens.
    """

    def __init__(self, live: LiveModel, cache: Any, *, chunk: int, tokens: int = 0) -> None:
        self.live, self.cache, self.chunk = live, cache, chunk
        self._tokens = tokens
        self._next = torch.empty(0, device=live.device)  # log-probabilities of the next token

    @property
    def tokens(self) -> int:
        return self._tokens

    @torch.inference_mode()
    def read(self, input_ids: Sequence[int], *, advance: Advance | None = None) -> None:
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
        return self.ask([((), continuations)])[0]

    @torch.inference_mode()
    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        """Return the log-probability in nats of each continuation of each question.

        The tokens of all questions go through the model as branches of one row, 256 at a time, if it allows that; else
        questions are appended one by one. They are removed again, so the prefix is neither copied nor changed.
        """
        return answers(questions, ASK_TOKENS, self._next, self._process)

    def _process(self, tokens: list[int], parents: list[int], nodes: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each target after its node."""
        if self.live.branches:
            with restored(self.cache):
                hidden = self._hidden(tokens, self._tokens, Branches(parents, self.live.device))
        else:
            hidden = self._line_by_line(tokens, parents)
        likely = torch.empty(len(nodes), dtype=torch.float32, device=nodes.device)
        distinct, index = torch.unique(nodes, return_inverse=True)
        for part, logits in self.live.logit_slices(hidden[distinct.to(hidden.device)]):
            here = (index >= part.start) & (index < part.stop)
            rows, columns = (index[here] - part.start).to(logits.device), targets[here].to(logits.device)
            likely[here] = logits.log_softmax(-1)[rows, columns].to(likely.device)
        return likely

    def _line_by_line(self, tokens: list[int], parents: list[int]) -> Tensor:
        """Return the hidden states of a tree's tokens, with a forward for each line of tokens between two branches."""
        hidden: list[Tensor] = [torch.empty(0)] * len(tokens)
        children: dict[int, list[int]] = {node: [] for node in range(-1, len(tokens))}
        for node, parent in enumerate(parents):
            children[parent].append(node)

        def follow(node: int, start: int) -> None:
            line = [node]
            while len(children[line[-1]]) == 1:
                line += children[line[-1]]
            with restored(self.cache):
                for place, states in zip(line, self._hidden([tokens[one] for one in line], start), strict=True):
                    hidden[place] = states
                for child in children[line[-1]]:
                    follow(child, start + len(line))

        for root in children[-1]:
            follow(root, self._tokens)
        return torch.stack(hidden)

    def _hidden(self, tokens: list[int], start: int, branches: Branches | None = None) -> Tensor:
        """Append tokens to the cache and return their hidden states `[tokens, hidden]`."""
        return self.live.hidden(torch.tensor([tokens], device=self.live.device), self.cache, start, branches)[0]

    def top(self, count: int) -> list[tuple[int, float]]:
        return likeliest(self._next, count)

    @torch.inference_mode()
    def fork(self) -> LivePrefix:
        other = LivePrefix(self.live, copied(self.cache), chunk=self.chunk)
        other._tokens, other._next = self._tokens, self._next
        return other


# Questions and their continuations as trees of tokens: one forward computes many of them

Process = Callable[[list[int], list[int], Tensor, Tensor], Tensor]
"""From tokens, their parents, nodes and targets to the log-probability of each target after its node, float32."""


def answers(questions: Sequence[QuestionIds], most: int, after_prefix: Tensor, process: Process) -> list[list[float]]:
    """Return the log-probability in nats of each continuation of each question, as `Prefix.ask` does.

    **Arguments:**
    - `most`: tokens of one forward. A question with more has a forward of its own.
    - `after_prefix`: log-probabilities of the token after the prefix, float32 `[vocab]`.
    - `process`: runs the tokens of one forward through the model; see `Branches` for the parents.
    """
    check_questions(questions)
    trees = [Tree(question, continuations) for question, continuations in questions]
    found: list[list[float]] = []
    for first, last in runs_of([len(tree.tokens) for tree in trees], most):
        found += _answers_of(trees[first:last], after_prefix, process)
    return found


def _answers_of(trees: Sequence[Tree], after_prefix: Tensor, process: Process) -> list[list[float]]:
    """Return the same from one forward over all tokens of these trees."""
    tokens = [token for tree in trees for token in tree.tokens]
    starts = [0, *itertools.accumulate(len(tree.tokens) for tree in trees)]
    wanted = [
        (start + node if node >= 0 else -1, token)
        for start, tree in zip(starts, trees, strict=False)
        for line in tree.lines
        for node, token in line
    ]
    likely = torch.zeros(len(wanted), dtype=torch.float32, device=after_prefix.device)
    nodes, targets = torch.tensor(wanted, dtype=torch.int64, device=after_prefix.device).reshape(-1, 2).unbind(1)
    at_end = nodes < 0
    likely[at_end] = after_prefix[targets[at_end]]
    if tokens:
        parents = [
            parent if parent < 0 else start + parent
            for start, tree in zip(starts, trees, strict=False)
            for parent in tree.parents
        ]
        likely[~at_end] = process(tokens, parents, nodes[~at_end], targets[~at_end])
    values = iter(to_float64(likely).tolist())
    return [[sum(next(values) for _ in line) for line in tree.lines] for tree in trees]


class Tree:
    """A question and its continuations as a tree of tokens.

    - `parents`: as in `Branches`, numbered within this tree.
    - `lines`: for each continuation, its tokens with their preceding nodes (-1: the prefix).
    """

    def __init__(self, question: Sequence[int], continuations: Sequence[Sequence[int]]) -> None:
        self.tokens, self.parents = list(question), [*range(-1, len(question) - 1)]
        self.lines: list[list[tuple[int, int]]] = []
        after: dict[tuple[int, int], int] = {}
        for continuation in continuations:
            node = len(question) - 1
            line: list[tuple[int, int]] = []
            for token in continuation:
                if line:
                    parent, before = line[-1]
                    node = after.setdefault((parent, before), len(self.tokens))  # shared by equal beginnings
                    if node == len(self.tokens):
                        self.tokens.append(before)
                        self.parents.append(parent)
                line.append((node, token))
            self.lines.append(line)


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
