"""`attach`: a live transformers model gets exact tables, or any extension method; `detach` gives it back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from ropewalk.attachment.check import ShortForward, check_agreement, has_weights, short_forward
from ropewalk.attachment.layer_attention import LayerAttention, Slice, possible_slices, put_attention
from ropewalk.attachment.layers import labels_of, positions_of, text_config_of
from ropewalk.attachment.live_layout import CallLayouts
from ropewalk.attachment.plan import attention_layers, neutral, planned
from ropewalk.attachment.rotary import Replaced, RotaryModule, fresh_modules, replaced_forward, rotary_modules
from ropewalk.attachment.saving import SavePretrained
from ropewalk.attachment.tables import OwnTables, SeqLen, TablesForward
from ropewalk.errors import RopeError
from ropewalk.methods import Method, Reach, method_named, settled, settled_by_length, trained_length_of, unsettled
from ropewalk.models.positions import Positions
from ropewalk.optional import need
from ropewalk.rope.config import RopeConfig

_MARK = "_ropewalk_attachment"


@dataclass(eq=False)
class Attachment:
    """A live model whose rotation is ours; `attach` makes it.

    - `positions`: each layer's rope, extension and window as they are now. `own`: as the model's config says.
    - `method`, `target`: the method that was asked for and its length in tokens, or None. `labels`: the layer types.
    - `kernels`: whether our attention kernel serves where it can.
    - `difference`: by how much the short forward before and after differed at most; None: not checked, since the
      weights were on the meta device.
    - `seq_len`: tokens, for frequencies that depend on the length (dynamic NTK, LongRoPE). None: the largest position
      of each call, plus one, as transformers does; with a method its target.
    """

    model: nn.Module = field(repr=False)
    own: Positions
    positions: Positions
    method: Method | None = None
    target: int | None = None
    kernels: bool = False
    difference: float | None = None
    _modules: tuple[RotaryModule, ...] = field(default=(), repr=False)
    labels: tuple[str | None, ...] = field(default=(), repr=False)
    _config: Any = field(default=None, repr=False)
    _length: SeqLen = field(default_factory=SeqLen, repr=False)
    _layouts: CallLayouts = field(default_factory=CallLayouts, repr=False)
    _turning: Slice | None = field(default=None, repr=False)
    _reached: bool = field(default=False, repr=False)
    _replaced: list[Replaced] = field(default_factory=list, repr=False)
    _hooks: list[RemovableHandle] = field(default_factory=list, repr=False)
    _states: list[LayerAttention] = field(default_factory=list, repr=False)

    @property
    def ropes(self) -> tuple[RopeConfig | None, ...]:
        """Each layer's rope, None for one without rotation."""
        return self.positions.ropes

    @property
    def attached(self) -> bool:
        """Whether the model is attached; False after `detach`."""
        return bool(self._replaced)

    @property
    def trained_length(self) -> int | None:
        """Tokens that the model was trained to, as its config says, or None."""
        return trained_length_of(self.own)

    @property
    def seq_len(self) -> int | None:
        """The length in tokens for frequencies that depend on it; None: that of each call."""
        return self._length.fixed

    @seq_len.setter
    def seq_len(self, value: int | None) -> None:
        self._length.fixed = value

    def set_positions(self, positions: Positions) -> None:
        """Put the model under other positions; raises `RopeError` where this model cannot be, and stays as it was.

        When an extension first remaps positions, a short forward under one that changes nothing must agree with the
        model's own; when one first acts in attention, every layer that has it must call it.
        """
        if self._turning is None and any(held is not None and held.remaps for held in positions.extensions):
            self._turning = self._found_turning(positions)
        before = self.positions
        try:
            self._put(positions)
            if any(positions.extensions) and not self._reached:
                self._check_weights()
                self._short_forward()
                self._check_reached()
        except BaseException:
            self._put(before)
            raise

    def detach(self) -> None:
        """Give the model back as it was; nothing happens where that has been done."""
        self._restore()
        if vars(self.model).get(_MARK) is self:
            delattr(self.model, _MARK)

    def _put(self, positions: Positions) -> None:
        plan = planned(self._modules, self.labels, self.own, positions)
        rotating = [layer for layer, rope in enumerate(self.own.ropes) if rope is not None]
        served = rotating if self.kernels else list(plan.extensions)
        layers = attention_layers(self.model, self._config, sorted({*plan.overrides, *served}))
        self._restore()
        self.positions = positions
        for held, of_module in zip(self._modules, plan.tables, strict=True):
            forward = TablesForward(of_module, self._length, self._layouts, plan.text_only)
            self._replaced.append(held.replaced(forward))
        for layer, tables in plan.overrides.items():
            hook = OwnTables(tables, self._length)
            self._hooks.append(layers[layer].register_forward_pre_hook(hook, with_kwargs=True))
        for layer in served:
            extension = plan.extensions.get(layer)
            rope, windowed = positions.ropes[layer], self.own.sliding_windows[layer] is not None
            turning, config = self._turning or Slice(False, False), layers[layer].config
            state = LayerAttention(
                extension, rope, windowed, config, turning, self._length, self._layouts, self.kernels
            )
            self._replaced += put_attention(layers[layer], state)
            self._states.append(state)
        if isinstance(self.model, need("transformers", extra="transformers").PreTrainedModel):
            # not peft's wrapper, which writes adapters and no config of the model
            self._replaced.append(Replaced(self.model, "save_pretrained", SavePretrained(self)))
        setattr(self.model, _MARK, self)

    def _found_turning(self, positions: Positions) -> Slice:
        """How this model's heads turn in attention: under an extension that changes nothing it gives what it gave."""
        self._check_weights()
        before, still = self.positions, neutral(self.own, positions)
        error: RopeError | None = None
        try:
            self._put(self.own)
            expected = self._short_forward()
            for turning in possible_slices(self.own):
                self._turning = turning
                self._put(still)
                outputs = self._short_forward()
                self._check_reached()
                try:
                    check_agreement(expected, outputs)
                except RopeError as found:
                    error = error or found
                else:
                    return turning
        finally:
            self._turning = None
            self._put(before)
        assert error is not None, "there is always one way to try"
        raise error

    def _check_weights(self) -> None:
        """Raise `RopeError` where no forward can be tried."""
        if not has_weights(self.model):
            raise RopeError(
                "attach: a method in attention is tried on a short forward, and the weights are on the meta device.",
                facts={"model": type(self.model).__name__},
                cure="Attach where the weights are, for example behind accelerator.prepare(...).",
            )

    def _check_reached(self) -> None:
        """Raise `RopeError` where a layer's extension was not called in the forward before."""
        if not all(state.calls for state in self._states if state.extension is not None):
            raise RopeError(
                "attach: this model's attention does not go through transformers' attention functions.",
                facts={"model": type(self.model).__name__},
                cure="Choose a method of frequencies.",
            )
        self._reached = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Attachment:
        """The handle of a copied model: what it has put into the modules is copied with them."""
        made = object.__new__(type(self))
        memo[id(self)] = made
        shared = ("own", "positions", "method")
        for name, value in vars(self).items():
            setattr(made, name, value if name in shared else copy.deepcopy(value, memo))
        return made

    def __reduce__(self) -> Any:
        raise RopeError(
            "attach: an attached model is not written whole, for it holds functions of this process.",
            facts={"method": None if self.method is None else self.method.name},
            cure="Call handle.detach() first, or model.save_pretrained(folder); copy.deepcopy(model) makes a copy.",
        )

    def _short_forward(self) -> ShortForward:
        return short_forward(self.model, self._config, [held.module for held in self._modules])

    def _restore(self) -> None:
        while self._replaced:
            self._replaced.pop().restore()
        while self._hooks:
            self._hooks.pop().remove()
        self._states.clear()
        self._layouts.forget()


def attach(
    model: nn.Module,
    method: str | Method | None = None,
    *,
    target: int | None = None,
    trained_length: int | None = None,
    kernels: bool = False,
) -> Attachment:
    """Give a live transformers model exact rotation, or any extension method, until `detach`.

    - `model`: a model of transformers, on any device and in any dtype. Only this instance changes.
    - `method`: None is the model's own rotation, with angles formed in float64 and rounded once, exact at any position.
      Else a method of `ropewalk.methods`, or its name. `target`: tokens that it is to reach.
    - `trained_length`: tokens that the model was trained to, where its config does not say or says otherwise.
    - `kernels`: let our attention kernel serve eager tensors on the CPU without gradients, also without a method.

    Returns an `Attachment` with `detach()`, `ropes`, `positions`, `method`. A short forward before and after must agree
    (1e-4 of the largest logit for float32 weights, 5 % for 16-bit ones); on the meta device they are not asked. Raises
    `RopeError` where they do not, where a model cannot be attached or a method not be applied; the model is as it was
    then. Under FSDP2 all ranks attach together, before or after the model is sharded.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
    ...                                      num_attention_heads=2))
    >>> handle = attach(model, "yarn", target=8192)
    >>> handle.ropes[0].scaling.factor
    4.0
    >>> handle.detach()
    """
    need("transformers", extra="transformers")
    chosen = method_named(method) if isinstance(method, str) else method
    if attachment_of(model) is not None:
        raise RopeError(
            "attach: the model is attached already.",
            facts={"model": type(model).__name__, "method": getattr(attachment_of(model), "method", None)},
            cure="Call the handle's detach() first; attachment_of(model) gives the handle.",
        )
    config = text_config_of(model)
    modules, own = rotary_modules(model, config), positions_of(model, config)
    labels = labels_of(config)
    handle = Attachment(model, own, own, chosen, target, kernels, _modules=modules, labels=labels, _config=config)
    wanted, length = _under(own, chosen, target, trained_length)
    try:
        handle.difference = _checked(handle)
        handle.set_positions(wanted)
    except BaseException:
        handle.detach()
        raise
    handle.seq_len = length
    return handle


@contextmanager
def attached(
    model: nn.Module,
    method: str | Method | None = None,
    *,
    target: int | None = None,
    trained_length: int | None = None,
    kernels: bool = False,
) -> Iterator[Attachment]:
    """`attach` for the time of a `with` block; arguments, errors and handle as there.

    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
    ...                                      num_attention_heads=2))
    >>> with attached(model) as handle:
    ...     out = model(torch.tensor([[1, 2, 3]]), position_ids=torch.tensor([[10**6, 10**6 + 1, 10**6 + 2]]))
    >>> attachment_of(model) is None
    True
    """
    handle = attach(model, method, target=target, trained_length=trained_length, kernels=kernels)
    try:
        yield handle
    finally:
        handle.detach()


def attachment_of(model: nn.Module) -> Attachment | None:
    """The handle of an attached model, or None; a deep copy of an attached model has one of its own."""
    held = vars(model).get(_MARK)
    return held if isinstance(held, Attachment) and held.attached else None


def _checked(handle: Attachment) -> float | None:
    """Attach with the model's own positions, and compare a short forward before and after; None without weights."""
    if not has_weights(handle.model):
        return None
    fresh = fresh_modules(handle._modules)  # a cast has spoilt the live tables: what they ought to give
    as_meant = [
        replaced_forward(held.module, fresh[held.name].forward) for held in handle._modules if held.name in fresh
    ]
    try:
        before = handle._short_forward()
    finally:
        for one in reversed(as_meant):
            one.restore()
    handle.set_positions(handle.own)
    return check_agreement(before, handle._short_forward())


def _under(
    own: Positions, method: Method | None, target: int | None, trained_length: int | None
) -> tuple[Positions, int | None]:
    """The positions under a method, and the length that frequencies depending on one are taken at."""
    if method is None or method.keeps_own:
        return own, None
    rope = unsettled(own)
    answer = None if rope is None or trained_length is None else settled_by_length(rope, trained_length)
    if answer is not None:
        own = settled(own, answer, "trained_length")
    trained = trained_length or trained_length_of(own)
    if trained is None:
        raise RopeError(
            "attach: the length that the model was trained to is not known, and methods start from it.",
            facts={"method": method.name},
            cure="Pass trained_length=...",
        )
    if target is None and method.extends:
        raise RopeError(
            f"attach: `{method.name}` needs the length that it is to reach.",
            facts={"trained_length": trained},
            cure=f"Pass target=..., for example {4 * trained}.",
        )
    wanted = method.positions(own, Reach(trained, target or trained))
    return wanted, target if wanted.needs_seq_len else None
