"""A live transformers model: its layers' ropes and windows, its rotary modules, and our tables in them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ropewalk.attachment.probe import (
    NEAR,
    Order,
    called_rows,
    frequencies_of,
    is_named_rotary,
    takes_positions,
    tensors_of,
)
from ropewalk.errors import RopeError, library_errors
from ropewalk.families import family_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import TYPE_KEYS, ModelRopes, is_windowed
from ropewalk.rope.tables import text_positions
from ropewalk.rope.values import MOST_SIZE, as_whole
from ropewalk.rotation.embedding import RotaryEmbedding

_UNDER_HOOK = "_old_forward"  # accelerate's hooks (device_map, offloading) keep the forward that they wrap there
_FAR = (0, 1, 77, 1000, 4095, 12_345, 20_011, 30_011)
MadeT = TypeVar("MadeT")


def text_config_of(model: nn.Module) -> Any:
    """Return the config of the decoder of a live model; raise `RopeError` if it is not a transformers model."""
    config = getattr(model, "config", None)
    if config is None or not callable(getattr(config, "get_text_config", None)):
        raise RopeError(
            "attach: `model` must be a live transformers model.",
            facts={"model": type(model).__name__},
            cure="Load it with AutoModelForCausalLM.from_pretrained(...); ropewalk's own Decoder is already exact.",
        )
    text = config.get_text_config(decoder=True)
    count, types = as_whole(getattr(text, "num_hidden_layers", None)), [getattr(text, key, None) for key in TYPE_KEYS]
    named = all(isinstance(one, list | tuple) and all(isinstance(label, str) for label in one) for one in types if one)
    if not (callable(getattr(text, "to_dict", None)) and count is not None and 0 <= count <= MOST_SIZE and named):
        raise RopeError(
            "attach: the text config must be transformers', with a number of layers and a list of their types.",
            facts={"model": type(model).__name__, "text config": text, "num_hidden_layers": count, "types": types},
            cure="Restore the config that the model was built with.",
        )
    return text


def positions_of(model: nn.Module, config: Any) -> ModelRopes:
    """Return each layer's rope and window; the factors that are learned, and stated windows, are the live modules'.

    **Raises:** `RopeError` as `RopeConfig.from_hf`.
    """
    family = family_named(config.model_type)
    learned, alpha = None if family is None else family.module.learned, None
    if learned is not None:
        tensors = (tensors_of(one).get(learned) for one in model.modules() if belongs_to(one, config.model_type))
        alpha = next((tensor for tensor in tensors if tensor is not None), None)
    found = ModelRopes.from_hf(config, alpha=alpha)
    live = _live_windows(model, config.model_type)
    # Exaone 4 has the number in every layer, and uses it by the layer's type
    windows = (
        live.get(layer, window) if window or label is None or is_windowed(label) else None
        for layer, (label, window) in enumerate(zip(found.labels, found.sliding_windows, strict=True))
    )
    return replace(found, sliding_windows=tuple(windows))


def belongs_to(module: nn.Module, model_type: str) -> bool:
    """Return whether a module was built from a config of this model_type, not for another part of the model."""
    return bool(getattr(getattr(module, "config", None), "model_type", None) == model_type)


def _live_windows(model: nn.Module, model_type: str) -> dict[int, int | None]:
    """Return the `sliding_window` (or None) of each attention module with this attribute, by layer."""
    windows: dict[int, int | None] = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and hasattr(module, "sliding_window") and belongs_to(module, model_type):
            window = module.sliding_window
            windows[layer] = window if isinstance(window, int) and window > 0 else None
    return windows


# --- the form of a module's tables, and ours in it


@dataclass(frozen=True)
class Format:
    """The form of a rotary module's tables `[batch, seq, width]`.

    - `order`: of the pairs' numbers along the width, not "blocks".
    - `follows_input`: whether the tables have the dtype of the hidden states; else they are float32.
    - `negated`: the tables have the positive angle, and the class's function rotates by minus the angle.
    """

    order: Order
    follows_input: bool
    negated: bool = False

    def arranged(self, cos: Tensor, sin: Tensor, factor: float, dtype: torch.dtype) -> tuple[Tensor, Tensor] | Tensor:
        """Return tables `[batch, seq, pairs]` times the attention factor in this form, rounded once to `dtype`."""
        if self.negated:
            sin = -sin
        cos, sin = cos * factor, sin * factor
        if self.order == "complex":
            return torch.complex(cos, sin)
        if self.follows_input:
            cos, sin = cos.to(dtype), sin.to(dtype)
        if self.order == "once":
            return cos, sin
        if self.order == "doubled":
            return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
        return cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)


def positions_by_axis(position_ids: Tensor, axes: int) -> Tensor:
    """Return position ids `[batch, seq]` or `[axes, batch, seq]` with the axes last."""
    if axes == 1:
        return position_ids
    if position_ids.ndim < 3:
        return text_positions(position_ids, axes)
    return position_ids.movedim(0, -1).expand(*position_ids.shape[1:], axes)


def learned_format(module: nn.Module, label: str | None, rope: RopeConfig, name: str) -> Format:
    """Return the form of the tables of `rope` from a new module.

    Near and far positions, on axes that differ, are compared to float32's rounding.

    **Raises:** `RopeError` if no known form matches its numbers.
    """
    lengths = [length for length in (rope.switch_length, rope.max_position_embeddings) if length and rope.needs_seq_len]
    forms, right = set[tuple[Order, bool]](), True
    for places in (NEAR, _FAR, *((0, 1, length // 2, length + length // 3) for length in lengths)):
        rows = next(called_rows(module, label, rope, places), None)
        right &= rows is not None and rows.cos.shape[-1] == rope.pairs and not rows.arrangement.sines_first
        if rows is not None and right:
            length = rows.seq_len or 1
            differences, allowed, negated = rows.differences(rope, length, rope.attention_factor_at(length))
            right = bool((differences <= allowed).all()) and rows.arrangement.order != "blocks"
            forms.add((rows.arrangement.order, negated))
    if not right or len(forms) != 1:
        raise RopeError(
            f"attach: the tables of {name} differ from those of the config.",
            facts={"class": type(module).__name__, "layer_type": label, "rope": rope},
            cure="Use the model without attaching it.",
        )
    ((order, negated),) = forms
    low = next(called_rows(module, label, rope, NEAR, torch.bfloat16))
    return Format(order, low.dtype == torch.bfloat16, negated)


@dataclass(frozen=True)
class LayerTables:
    """The tables of one layer type: rope (None: no rotation, cos 1 and sin 0 for `pairs` pairs), form and axes."""

    rope: RopeConfig | None
    form: Format
    axes: int
    pairs: int

    def __call__(
        self, x: Tensor, position_ids: Tensor, seq_len: int | None, nudge: float
    ) -> tuple[Tensor, Tensor] | Tensor:
        """Return cos and sin of these positions in the form of the model's module.

        `seq_len`, `nudge`: as in `Calls`. To read the largest position breaks a compiler's graph.
        """
        positions = positions_by_axis(position_ids, self.axes)  # also refuses another number of axes
        if self.rope is None:
            cos = torch.ones(*positions.shape[: positions.ndim - (self.axes > 1)], self.pairs, device=x.device)
            return self.form.arranged(cos, torch.zeros_like(cos), 1.0, x.dtype)
        rotary, length = RotaryEmbedding(self.rope), None
        if self.rope.needs_seq_len:
            length = int(position_ids.max()) + 1 if seq_len is None else seq_len
        cos, sin = rotary.cos_sin(positions, length)
        factor = rotary.attention_factor_at(length)
        if nudge:
            random = torch.Generator().manual_seed(0)  # torch's own random state does not change
            signs = [torch.randn(table.shape, generator=random, device="cpu").sign() for table in (cos, sin)]
            cos, sin = (x * (1 + nudge * sign.to(x.device)) for x, sign in zip((cos, sin), signs, strict=True))
        return self.form.arranged(cos.to(x.device), sin.to(x.device), factor, x.dtype)


class TablesForward:
    """The forward of one rotary module, by layer type, without a reference to the module or to a tensor.

    - `tables`: set for each `ModelRopes` of the model.
    - `own`: the module's own forward; set by `detach` if a wrapper still calls this one.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.tables: Mapping[str | None, LayerTables] = {}
        self.own: Callable[..., Any] | None = None

    @torch.no_grad()
    def __call__(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor] | Tensor:
        if self.own is not None:
            out: tuple[Tensor, Tensor] | Tensor
            out = self.own(x, position_ids) if layer_type is None else self.own(x, position_ids, layer_type)
            return out
        if not torch.compiler.is_compiling():
            self.calls.forget()
            if self.calls.text_only and position_ids.ndim == 3 and bool((position_ids != position_ids[:1]).any()):
                raise RopeError(
                    "attach: this method needs positions of plain text, equal on every axis.",
                    facts={"position_ids": position_ids},
                    cure="For images and videos choose a method that scales the frequencies of all layers alike.",
                )
        if layer_type not in self.tables:  # the class gets the layer type, but has one table for all
            layer_type = None
        return self.tables[layer_type](x, position_ids, self.calls.seq_len, self.calls.nudge)


class PerCall:
    """One value shared by the layers of a call, for a tensor (a mask, positions) and a key; thread-safe."""

    def __init__(self) -> None:
        self._held: tuple[Hashable, Callable[[], Tensor | None], Any] | None = None

    def forget(self) -> None:
        """Forget the last call, because a new forward begins."""
        self._held = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PerCall:
        return PerCall()

    def of(self, key: Hashable, given: Tensor | None, make: Callable[[], MadeT]) -> MadeT:
        """Return the value if it belongs to this tensor and this key; else make it."""
        version = None if given is None or given.is_inference() else given._version
        key, held = (key, version), self._held
        if held is not None and held[0] == key and held[1]() is given:
            value: MadeT = held[2]
            return value
        made = make()
        self._held = key, (lambda: None) if given is None else weakref.ref(given), made  # one write
        return made


class Calls:
    """What the modules of an attached model share: its settings, and values of the current call.

    - `seq_len`: tokens, for frequencies that depend on the length; None: the largest position of each call, plus one.
    - `text_only`: whether positions of several axes must be equal on each.
    - `nudge`: a fraction to change every cosine and sine by, up or down at random, to measure the rounding noise.
    - `tables`: cos and sin of layers with the same tables.
    """

    def __init__(self) -> None:
        self.seq_len: int | None = None
        self.text_only, self.nudge = False, 0.0
        self.tables: dict[LayerTables, PerCall] = {}

    def forget(self) -> None:
        """Forget the last call, because a new forward begins."""
        for value in self.tables.values():
            value.forget()


class OwnTables:
    """A hook before one attention layer with a different rope than other layers of its rotary module."""

    def __init__(self, tables: LayerTables, calls: Calls) -> None:
        self.tables, self.calls, self.shared = tables, calls, calls.tables.setdefault(tables, PerCall())

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        position_ids = kwargs.get("position_ids")
        if "position_embeddings" not in kwargs or position_ids is None:
            raise RopeError(
                "attach: this model does not pass position ids to its attention layers, so they must share one rope.",
                facts={"layer": type(module).__name__, "arguments": ", ".join(kwargs)},
                cure="Choose a method with one rope for all layers.",
            )
        x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        seq_len, nudge = self.calls.seq_len, self.calls.nudge
        with torch.no_grad():
            if torch.compiler.is_compiling():
                tables = self.tables(x, position_ids, seq_len, nudge)
            else:
                key = seq_len, nudge, x.dtype, x.device, torch.is_inference_mode_enabled()
                tables = self.shared.of(key, position_ids, lambda: self.tables(x, position_ids, seq_len, nudge))
        return args, {**kwargs, "position_embeddings": tables}


# --- rotary modules


Tables = Mapping[str | None, LayerTables]
"""The tables of one rotary module by layer type."""


def rotary_modules(model: nn.Module, config: Any, own: ModelRopes) -> dict[nn.Module, Tables]:
    """Return the own tables of each rotary module of the decoder of `config`, without other parts (vision towers).

    **Raises:** `RopeError` if there is none, or if the form of its tables is unknown.
    """
    modules = {
        module: _own_tables(name, module, own)
        for name, module in model.named_modules()
        if is_named_rotary(module) and belongs_to(module, config.model_type)
    }
    if not modules:
        raise RopeError(
            f"attach: this {config.model_type} has no rotary module whose tables can be replaced.",
            facts={"model": type(model).__name__},
            cure="Use the model without attaching it.",
        )
    return modules


def _own_tables(name: str, module: nn.Module, own: ModelRopes) -> Tables:
    made, tables = fresh(module), dict[str | None, LayerTables]()
    if not takes_positions(module):
        raise RopeError(
            f"attach: {type(module).__name__} has arguments other than hidden states and position ids.",
            facts={"module": type(module)},
            cure="Use the model without attaching it.",
        )
    labels: list[str | None] = [label for _, label, _ in frequencies_of(module) if label]
    for label in labels or [None]:
        ropes = own.of_label(label)
        if not ({label, None} & own.by_type.keys() or (label is None and len(ropes) == 1)):
            raise RopeError(
                "attach: the layer types of a rotary module differ from those of the config.",
                facts={"module": name, "its layer type": label, "the config's": sorted(map(str, own.by_type))},
                cure="Use the model without attaching it.",
            )
        for rope in ropes:
            form = learned_format(made, label, rope, name)
            tables[label] = LayerTables(rope, form, rope.num_axes, rope.pairs)
    return tables


def fresh(module: nn.Module) -> nn.Module:
    """Return a new module of the same class and config on the CPU: a cast may have rounded the live frequencies.

    Learned factors of the frequencies are copied: no config contains them.
    """
    make: Any = type(module)
    facts = {"module": make.__name__}
    cure = "Restore the config that the model was built with."
    with (
        torch.device("cpu"),
        library_errors("attach: a rotary module cannot be built from its config.", facts=facts, cure=cure),
    ):
        made: nn.Module = make(module.config)
    family = family_named(getattr(module.config, "model_type", ""))
    name = (family and family.module.learned) or ""
    learned = tensors_of(module).get(name)
    if learned is not None:
        tensors_of(made)[name].detach().copy_(learned.detach())
    return made


def was_cast(module: nn.Module) -> bool:
    """Return whether a cast such as `model.to(bfloat16)` has rounded a rotary module's frequencies."""
    buffers = module.named_buffers(recurse=False)
    return any("inv_freq" in name and buffer.dtype.itemsize < 4 for name, buffer in buffers)


class Replaced:
    """One attribute of a module with a different value on the instance, until `restore`."""

    def __init__(self, module: nn.Module, name: str, value: object) -> None:
        self.module, self.name, self.value = module, name, value
        self.had = name in vars(module)
        self.before = vars(module).get(name)
        vars(module)[name] = value  # hides a buffer or parameter of that name

    def restore(self) -> None:
        """Restore the instance's own value or the class's; a forward wrapped since then passes calls on."""
        attributes = vars(self.module)
        if attributes.get(self.name) is not self.value:  # a hook of accelerate or another wrapper came or went
            if isinstance(self.value, TablesForward):
                self.value.own = self.before if self.had else type(self.module).forward.__get__(self.module)
        elif self.had:
            attributes[self.name] = self.before
        else:
            del attributes[self.name]


def replace_forward(module: nn.Module, forward: object) -> Replaced:
    """Replace the forward of this instance; if a hook of accelerate wraps it, replace it under the hook."""
    return Replaced(module, _UNDER_HOOK if _UNDER_HOOK in vars(module) else "forward", forward)


class LayerPlan(NamedTuple):
    """The tables of a model under some positions.

    - `tables`: of each rotary module, by layer type. `overrides`: of single layers.
    - `text_only`: positions of several axes must be those of plain text, if single layers have different tables, or
      attention counts the tokens.
    """

    tables: list[Tables]
    overrides: dict[int, LayerTables]
    text_only: bool


def plan_layers(modules: Iterable[Tables], own: ModelRopes, positions: ModelRopes) -> LayerPlan:
    """Plan a model under these positions; raise `RopeError` if that is impossible."""
    _check(own, positions)
    planned, overrides = list[Tables](), dict[int, LayerTables]()

    def wanted(layer: int) -> RopeConfig | None:
        extension = positions.extensions[layer]
        return None if extension is not None and extension.remaps else positions.ropes[layer]

    for own_tables in modules:
        of_module = {}
        for label, tables in own_tables.items():
            layers = [
                layer
                for layer, rope in enumerate(own.ropes)
                if rope is not None and (label is None or len(own_tables) == 1 or own.labels[layer] == label)
            ]
            ropes = [wanted(layer) for layer in layers]
            common = max(dict.fromkeys(ropes), key=ropes.count) if ropes else tables.rope
            of_module[label] = replace(tables, rope=common)
            for layer, rope in zip(layers, ropes, strict=True):
                if rope != common:
                    overrides[layer] = replace(tables, rope=rope)
        planned.append(of_module)
    several = any(rope.num_axes > 1 for rope in own.present_ropes)
    return LayerPlan(planned, overrides, several and bool(overrides or positions.remaps))


def _check(own: ModelRopes, positions: ModelRopes) -> None:
    """Raise `RopeError` for positions that the model's layers do not support."""
    if positions.num_layers != own.num_layers:
        raise RopeError(
            "attach: positions must have one entry for each layer.",
            facts={"layers": own.num_layers, "entries": positions.num_layers},
            cure="Start from the handle's own: method.positions(handle.own, reach).",
        )
    for layer, (before, after, extension, window) in enumerate(
        zip(own.ropes, positions.ropes, positions.extensions, own.sliding_windows, strict=True)
    ):
        remaps = extension is not None and extension.remaps and window is None  # then our attention rotates
        if before is None and (after, extension) != (None, None) and not (after is not None and remaps):
            raise RopeError(
                "attach: a layer without rotation supports neither a rope nor an extension.",
                facts={"layer": layer, "rope": after, "extension": extension},
                cure="Pass None for this layer.",
            )
        rotated_by_us = remaps and before is not None and before.num_axes == 1
        if after is not None and before is not None and _shape(after, rotated_by_us) != _shape(before, rotated_by_us):
            raise RopeError(
                "attach: a new rope must rotate the same pairs as the model's own.",
                facts={"layer": layer, "its own rope": before, "rope": after},
                cure="Change only theta or the scaling.",
            )
        if extension is not None and extension.remaps and (after is None or window is not None):
            raise RopeError(
                "attach: an extension needs a layer with a rope and attention to all earlier tokens.",
                facts={"layer": layer, "rope": after, "sliding_window": window},
                cure="Pass None for this layer.",
            )


def _shape(rope: RopeConfig, rotated_by_us: bool) -> tuple[object, ...]:
    """Return the settings that a rope must share with the model's own; our attention supports any pairing and width."""
    fixed = rope.head_dim, rope.axes, rope.axes_restart
    return fixed if rotated_by_us else (*fixed, rope.interleaved, rope.rotary_dim)
