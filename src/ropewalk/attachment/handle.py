"""`attach` and its handle: exact tables or an extension method in a live transformers model, until `detach`."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from ropewalk.attachment.check import ShortForward, check_agreement, has_weights, short_forward, typical_difference
from ropewalk.attachment.config_keys import rope_fields
from ropewalk.attachment.live_attention import (
    WITH_MASKS,
    CallLayouts,
    LayerAttention,
    Slice,
    attention_layers,
    neutral,
    possible_slices,
    replace_attention,
)
from ropewalk.attachment.rotary import (
    OwnTables,
    Replaced,
    Tables,
    TablesForward,
    fresh,
    plan_layers,
    positions_of,
    replace_forward,
    rotary_modules,
    text_config_of,
    was_cast,
)
from ropewalk.errors import RopeError, check_kind, library_errors
from ropewalk.imports import need
from ropewalk.methods import Method, Reach, method_named, settled_by_length, trained_length_of, why_no_effect
from ropewalk.precision import warn_if_slow
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.values import check_whole

_MARK = "_ropewalk_attachment"
STATED = "attached_method"  # key of config.json: the method of a saved model that no rope in a config is


def save_attached(model: nn.Module, *args: Any, **options: Any) -> Any:
    """Save as the model's class does, with the method in config.json: its rope, or its name for `attach`.

    It is the `save_pretrained` of an attached model, and of a model inside it.

    **Raises:** `RopeError` for positions of `set_positions` that config.json cannot express, and warns for such a
    method.
    """
    handle, save = attachment_of(model), type(model).save_pretrained  # type: ignore[attr-defined]
    if handle is None:  # after `detach` a shallow copy of the model keeps this function
        return save(model, *args, **options)
    config, fields = handle._config, handle._written_fields()
    before = {name: getattr(config, name) for name in (*fields, STATED) if hasattr(config, name)}
    vars(config).pop(STATED, None)
    try:
        for name, value in fields.items():
            setattr(config, name, value)
        cure = "Restore the config that the model was built with, and check the folder."
        facts = {"model": type(model).__name__}
        with library_errors("save_pretrained: transformers cannot save the model.", facts=facts, cure=cure):
            return save(model, *args, **options)
    finally:
        vars(config).pop(STATED, None)
        for name, value in before.items():
            setattr(config, name, value)


class Attachment:
    """The handle of an attached model, returned by `attach`; a `with` block detaches the model at its end.

    - `positions`: each layer's current rope, extension and window. `own`: those of the model's config.
    - `method`, `target`: the method and its length in tokens, or None.
    - `kernels`: whether ropewalk's attention kernel runs for supported calls.
    - `difference`: the largest difference of the short forward before and after; None if the weights were on the meta
      device and nothing was compared.
    - `seq_len`: tokens, for frequencies that depend on the length (dynamic NTK, LongRoPE). None: the largest position
      of each call, plus one, as in transformers; with a method its target.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
    ...                                      num_attention_heads=2))
    >>> handle = attach(model, "dca", target=8192)
    >>> print(handle)  # doctest: +ELLIPSIS
    <Attachment of LlamaForCausalLM: dca to 8,192 tokens, differs by ...>
    >>> handle.detach()
    """

    def __init__(self, model: nn.Module, *, kernels: bool = False) -> None:
        """Read the ropes and the rotary modules of a model, which does not change."""
        need("transformers", extra="transformers")
        _check_free(model)
        self.model, self.kernels, self._config = model, kernels, text_config_of(model)
        try:
            self.own = self.positions = positions_of(model, self._config)
        except RopeError as error:
            facts = {**error.facts, "class": type(model).__name__, "file": inspect.getfile(type(model))}
            raise RopeError(error.rule, facts=facts, cure=error.cure) from error
        self._modules: Mapping[nn.Module, Tables] = rotary_modules(model, self._config, self.own)
        self.method: Method | None = None
        self.target: int | None = None
        self.difference: float | None = None
        self._layouts = CallLayouts()
        self._slice: Slice | None = None
        self._called = False
        self._noise: float | None = None
        self._stated: tuple[ModelRopes, dict[str, Any]] | None = None
        self._forwards: list[TablesForward] = []
        self._states: list[LayerAttention] = []
        self._undo: list[Callable[[], None]] = []
        self._undo_layers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        """Return one line: the model's class, and what is attached."""
        name = type(self.model).__name__
        if not self.attached:
            return f"<Attachment of {name}: detached>"
        words = "exact tables" if self.method is None else self.method.name
        words += "" if self.target is None else f" to {self.target:,} tokens"
        words += ", with kernels" if self.kernels else ""
        words += "" if self.difference is None else f", differs by {self.difference:.1g}"
        return f"<Attachment of {name}: {words}>"

    @property
    def ropes(self) -> tuple[RopeConfig | None, ...]:
        """Return each layer's rope; None for a layer without rotation."""
        return self.positions.ropes

    @property
    def attached(self) -> bool:
        """Return whether the model is attached; False after `detach`."""
        return bool(self._undo)

    @property
    def trained_length(self) -> int | None:
        """Return the trained length of the model's config in tokens, or None."""
        return trained_length_of(self.own)

    @property
    def seq_len(self) -> int | None:
        return self._layouts.seq_len

    @seq_len.setter
    def seq_len(self, value: int | None) -> None:
        self._layouts.seq_len = value

    @property
    def takes_layouts(self) -> bool:
        """Return whether every layer's attention follows the layout of `calls_with`, so that branches are possible."""
        windowed = {"full_attention": False, "sliding_attention": True}  # chunks follow neither rule
        known = all(
            label is None or windowed.get(label) == (window is not None)
            for label, window in zip(self.own.labels, self.own.sliding_windows, strict=True)
        )
        masked = getattr(self._config, "_attn_implementation", None) in WITH_MASKS
        return self.attached and known and masked and len(self._states) == self.positions.num_layers

    def set_positions(self, positions: ModelRopes) -> None:
        """Set the ropes and extensions of the model.

        When an extension first remaps positions, a short forward under a neutral extension must agree with the model's
        own. When an extension first acts in attention, every layer with it must call it.

        **Raises:** `RopeError` if the model does not support these positions; the model then does not change.
        """
        if not self.attached:
            _check_free(self.model)
        if any(positions.extensions) and not self._called and not has_weights(self.model):
            raise RopeError(
                "attach: a method in attention needs a short forward, but the weights are on the meta device.",
                facts={"model": type(self.model).__name__},
                cure="Attach after the weights are loaded, for example after accelerator.prepare(...).",
            )
        if self._slice is None and positions.remaps:
            self._slice = self._matching_slice(positions)
        before = self.positions
        try:
            self._install(positions)
            if any(positions.extensions) and not self._called:
                self._short_forward()
                self._check_called()
        except BaseException:
            self._install(before)
            raise

    def share_checks(self, other: Attachment) -> None:
        """Keep what the short forwards of a copy of this model showed: the rotated features, and the rounding noise."""
        self._slice, self._noise = other._slice, other._noise

    def _written_fields(self) -> dict[str, Any]:
        """Return the keys of config.json: those of the current ropes, none if they are its own, or the method's name.

        **Raises:** `RopeError` if config.json cannot express the positions, and they are not those of the method.
        """
        method, (positions, stated) = self.method, self._stated or (None, None)
        if self.positions == self.own and (method is None or not method.extends):
            return {}
        found = rope_fields(self._config.to_dict(), self.own, self.positions, method=method, target=self.target)
        if isinstance(found, dict):
            return found
        what = "these positions" if method is None else f"`{method.name}`"
        rule = f"save_pretrained: {what} cannot be written into a config.json: {found}."
        if self.positions != positions:
            raise RopeError(
                rule,
                facts={"nearest that can be": "plain" if method is None else method.nearest},
                cure="Detach the model first; attaching did not change its weights.",
            )
        again = "Other programs run the saved model without it. After loading, rw.attach(model) applies it again."
        warnings.warn(f"{rule} {again}", stacklevel=3)
        return {STATED: stated}

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def detach(self) -> None:
        """Restore the model's own rotation; do nothing if it is not attached."""
        self._clear_layers()
        while self._undo:
            self._undo.pop()()
        self._forwards.clear()

    def _start(self, positions: ModelRopes) -> None:
        """Attach the model's own positions, compare its outputs with those before, and set others."""
        try:
            if has_weights(self.model):
                before = self._forward_before()
                self.difference = check_agreement(before, self._own_forward(), self._rounding_noise)
            self.set_positions(positions)
        except BaseException:
            self.detach()
            raise

    def _forward_before(self) -> ShortForward:
        """Run the short forward of the model as it is, except for rotary modules that a cast has rounded."""
        uncast = [replace_forward(module, fresh(module).forward) for module in self._modules if was_cast(module)]
        try:
            facts = {"model": type(self.model).__name__}
            cure = "Restore the config that the model was built with, and run it on a few tokens first."
            with library_errors("attach: the model's own forward fails on a few tokens.", facts=facts, cure=cure):
                return self._short_forward()
        finally:
            for one in reversed(uncast):
                one.restore()

    def _install(self, positions: ModelRopes) -> None:
        """Install tables, hooks and attention functions for these positions in the modules."""
        plan = plan_layers(self._modules.values(), self.own, positions)
        extensions = {layer: one for layer, one in enumerate(positions.extensions) if one is not None}
        rotating = [layer for layer, rope in enumerate(self.own.ropes) if rope is not None]
        needed = {*plan.overrides, *(rotating if self.kernels else extensions)}
        layers = attention_layers(self.model, self._config, sorted(needed))
        replaced = sorted(layers) if self.kernels else list(extensions)
        self._clear_layers()
        if not self._undo:
            self._replace_forwards()
        self.positions = positions
        self._layouts.text_only = plan.text_only
        for forward, tables in zip(self._forwards, plan.tables, strict=True):
            forward.tables = tables
        for layer, of_layer in plan.overrides.items():
            hook = OwnTables(of_layer, self._layouts)
            self._undo_layers.append(layers[layer].register_forward_pre_hook(hook, with_kwargs=True).remove)
        for layer in replaced:
            rope, own, rotated = positions.ropes[layer], self.own.ropes[layer], self._slice or Slice(False, False)
            if rope is not None and own is not None and rope.interleaved != own.interleaved:  # a pairing not its own
                rotated = Slice(rotated.trailing, not rotated.interleaved)
            state = LayerAttention(
                extensions.get(layer), rope, self.own.sliding_windows[layer], layers[layer].config, rotated,
                self._layouts, self.kernels,
            )  # fmt: skip
            self._undo_layers += [one.restore for one in replace_attention(layers[layer], state)]
            self._states.append(state)

    def _replace_forwards(self) -> None:
        """Replace the forwards of the rotary modules, and mark the modules so that no other handle replaces them."""
        for module in self._modules:
            forward = TablesForward(self._layouts)
            self._forwards.append(forward)
            self._undo += [Replaced(module, _MARK, self).restore, replace_forward(module, forward).restore]
        whole = need("transformers", extra="transformers").PreTrainedModel
        for module in self.model.modules():  # not peft's wrapper, which writes adapters and no config of the model
            if isinstance(module, whole) and text_config_of(module) is self._config:
                self._undo.append(Replaced(module, "save_pretrained", partial(save_attached, module)).restore)

    def _matching_slice(self, positions: ModelRopes) -> Slice:
        """Return the rotated features of a head: under a neutral extension the model must agree with itself."""
        before, still = self.positions, neutral(self.own, positions)
        errors = []
        try:
            expected = self._own_forward()
            for candidate in possible_slices(self.own):
                self._slice = candidate
                self._install(still)
                outputs = self._short_forward()
                self._check_called()
                try:
                    check_agreement(expected, outputs, self._rounding_noise)
                    return candidate
                except RopeError as error:
                    errors.append(error)
            raise errors[0]
        finally:
            self._slice = None
            self._install(before)

    def _check_called(self) -> None:
        """Raise `RopeError` if the last forward did not call the extension of each layer."""
        if not all(state.called for state in self._states if state.extension is not None):
            raise RopeError(
                "attach: this model's attention does not go through transformers' attention functions.",
                facts={"model": type(self.model).__name__},
                cure="Choose a method that scales frequencies.",
            )
        self._called = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Attachment:
        """Copy the handle with its model and with the replacements in its modules."""
        made = object.__new__(type(self))
        memo[id(self)] = made
        shared = ("own", "positions", "method")
        for name, value in vars(self).items():
            setattr(made, name, value if name in shared else copy.deepcopy(value, memo))
        return made

    def __reduce__(self) -> Any:
        raise RopeError(
            "attach: an attached model cannot be pickled, because it contains local functions.",
            facts={"method": self.method and self.method.name},
            cure="Call handle.detach() first, or model.save_pretrained(folder); copy.deepcopy(model) makes a copy.",
        )

    def _own_forward(self) -> ShortForward:
        """Run the short forward under the model's own positions."""
        self._install(self.own)
        return self._short_forward()

    def _rounding_noise(self) -> float:
        """Return the typical difference caused by a different rounding of all cosines and sines; 0 if none is coarse.

        In 32 bits a smooth computation moves 16 times further for 16 times the change. Quantized activations do not:
        they move by whole steps for a small change, too.
        """
        if self._noise is None:
            own = self._own_forward()
            sizes = (torch.finfo(own.dtype).eps / 2,) if own.dtype.itemsize < 4 else (2.0**-12, 2.0**-8)
            moved = []
            try:
                for nudge in sizes:
                    self._layouts.nudge = nudge
                    moved.append(typical_difference(own, self._short_forward()))
            finally:
                self._layouts.nudge = 0.0
            self._noise = moved[0] if len(moved) == 1 or moved[0] > moved[1] / 8 else 0.0
        return self._noise

    def _short_forward(self) -> ShortForward:
        return short_forward(self.model, self._config, self._modules)

    def _clear_layers(self) -> None:
        """Restore the attention layers."""
        while self._undo_layers:
            self._undo_layers.pop()()
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
    """Apply exact rotation, or any extension method, to a live transformers model until `detach`.

    **Arguments:**
    - `model`: a model of transformers, on any device and in any dtype. Only this instance changes.
    - `method`: a method of `ropewalk.methods`, or its name. None is the model's own rotation, with angles formed in
      float64 and rounded once, exact at any position; if an attached model was saved, the method that was attached.
    - `target`: the target length of the method in tokens.
    - `trained_length`: the trained length in tokens, if the model's config does not contain it or has a wrong one.
    - `kernels`: run ropewalk's attention kernel on eager CPU tensors, also without a method.

    **Returns:** an `Attachment` with `detach()`, `ropes`, `positions`, `method`.
    **Raises:** `RopeError` if the model or its wrapper is already attached, if the model is not supported, if the
    method cannot be applied, or if a short forward before and after does not agree. The model then does not change.
    **Warns:** if the weights are in a dtype that their CPU multiplies slowly, which `attach` does not change.
    **Numerics:** the forwards must agree within 1e-4 of the largest logit in float32, and within three times the
    model's own rounding noise in 16 bits or with quantized activations. Weights on the meta device are not compared.

    Under FSDP2 all ranks attach together, before or after the model is sharded.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
    ...                                      num_attention_heads=2))
    >>> handle = attach(model, "yarn", target=8192)
    >>> handle.ropes[0].scaling.factor
    4.0
    >>> print(handle)  # doctest: +ELLIPSIS
    <Attachment of LlamaForCausalLM: yarn to 8,192 tokens, differs by ...>
    >>> handle.detach()
    """
    check_kind("attach", nn.Module, "Load it first: AutoModelForCausalLM.from_pretrained(...).", model=model)
    warn_if_slow(model, "attach")
    stated = getattr(text_config_of(model), STATED, None) if method is None else None
    if stated is not None:
        if not isinstance(stated, Mapping) or set(stated) != {"method", "target", "trained_length"}:
            raise RopeError(
                f"attach: `{STATED}` in the model's config is not what save_pretrained of an attached model writes.",
                facts={STATED: stated},
                cure='Correct or remove the key, or pass a method; "plain" is none.',
            )
        method, target, trained_length = stated["method"], stated["target"], stated["trained_length"]
    chosen = method if method is None or isinstance(method, Method) else method_named(method)
    handle = Attachment(model, kernels=kernels)
    wanted, length = _under(handle.own, chosen, target, trained_length)
    handle.method, handle.target = chosen, target
    handle._start(wanted)
    handle.seq_len = length
    if chosen is not None:
        handle._stated = wanted, {"method": chosen.name, "target": target, "trained_length": trained_length}
    return handle


def attach_silently(model: nn.Module, *, kernels: bool = False) -> Attachment:
    """Make a model's own rotation exact like `attach`, without its warning of a slow dtype."""
    handle = Attachment(model, kernels=kernels)
    handle._start(handle.own)
    return handle


def attachment_of(model: nn.Module) -> Attachment | None:
    """Return the handle of an attached model, of its wrapper or of its inner model; None if none is attached.

    A deep copy of an attached model has its own handle.

    >>> import torch
    >>> attachment_of(torch.nn.Linear(2, 2)) is None
    True
    """
    marks = (vars(module).get(_MARK) for module in model.modules())
    return next((handle for handle in marks if isinstance(handle, Attachment) and handle.attached), None)


def _check_free(model: nn.Module) -> None:
    """Raise `RopeError` if the model, its wrapper or its inner model is attached."""
    handle = attachment_of(model)
    if handle is not None:
        raise RopeError(
            "attach: the model is already attached, itself or through a wrapper.",
            facts={"attached": type(handle.model).__name__, "method": handle.method and handle.method.name},
            cure="Call detach() of its handle first: ropewalk.attachment.attachment_of(model).detach().",
        )


def _under(
    own: ModelRopes, method: Method | None, target: int | None, trained_length: int | None
) -> tuple[ModelRopes, int | None]:
    """Return the positions under a method, and the length for frequencies that depend on one."""
    check_whole("attach", target=target, trained_length=trained_length)
    if method is None or method.keeps_own:
        return own, None
    own = settled_by_length(own, trained_length)
    trained = trained_length or trained_length_of(own)
    if trained is None:
        raise RopeError(
            "attach: methods need the trained length of the model, which is unknown.",
            facts={"method": method.name},
            cure="Pass trained_length=...",
        )
    if target is None and method.extends:
        raise RopeError(
            f"attach: `{method.name}` needs a target length.",
            facts={"trained_length": trained},
            cure=f"Pass target=..., for example {4 * trained}.",
        )
    reach = Reach(trained, target or trained)
    wanted = method.positions(own, reach)
    no_effect = why_no_effect(own, wanted, reach.target) if method.extends else None
    if no_effect is not None:
        raise RopeError(
            f"attach: `{method.name}` has no effect on this model: {no_effect}.",
            facts={"trained_length": trained, "target": target, "windows": {w for w in own.sliding_windows if w}},
            cure="Use the model without a method, or choose one that changes it for this target.",
        )
    return wanted, target if wanted.needs_seq_len else None
