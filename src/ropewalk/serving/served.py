"""A checkpoint to serve: its ropes and lengths, without its weights."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.attachment.layers import attends, attention_keys, fields_under
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.gguf import PERMUTED
from ropewalk.checkpoints.sources import is_hub_name
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.methods import Reach, is_unsettled, main_rope, settled_by_length
from ropewalk.rope.config import RopeConfig, ropes_by_block
from ropewalk.rope.extensions import Positions
from ropewalk.rope.hugging_face import NESTED, text_part
from ropewalk.rope.rope_parameters import window_of_layer_type
from ropewalk.serving.engines import NOT_WRITTEN, Case, why_not


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """A checkpoint's ropes, without its weights.

    - `rope`: the one with the longest reach. `own`: rope and window of each layer type or block. `labels`: their names,
      (None,) if all layers are alike.
    - `fields`: of the language model's config, with an empty block for each rope. `parts`: the keys of config.json that
      lead to these fields.
    - `trained`: the trained length in tokens. `stated_length`: the checkpoint's own value, or None.
    - `arch`: of a .gguf file; None for a folder. `model_type`: of the language model.
    - `given`: the model as passed. `name`: its name for an engine. `path`: its location.
    - `branches`: whether blocks have the names of a layer's branches, not of layer types (DeepSeek-V4).
    """

    given: str
    name: str
    rope: RopeConfig
    own: Positions
    labels: tuple[str | None, ...]
    fields: Mapping[str, Any]
    parts: tuple[str, ...]
    trained: int
    stated_length: int | None
    arch: str | None
    path: Path
    model_type: str
    branches: bool

    @classmethod
    def open(
        cls, model: str | os.PathLike[str], trained_length: int | None, opened: Checkpoint | None = None
    ) -> Served:
        opened = opened or Checkpoint.open(model)
        content, path = opened.config, opened.path
        assert path is not None
        ropes, nested = ropes_by_block(content)
        whole = Positions(tuple(ropes.values()), (None,) * len(ropes), (None,) * len(ropes))
        stated = main_rope(whole.ropes)
        ropes = dict(zip(ropes, settled_by_length(whole, trained_length).ropes, strict=True))
        rope = main_rope(tuple(ropes.values()))
        if rope is None:
            raise RopeError(
                "serve-config: this model has no rotary embedding, so there is no rope to set.",
                facts={"model": str(model)},
                cure="Start the engine with the unchanged model.",
            )
        trained = trained_length or rope.trained_length
        if trained is None:
            raise RopeError(
                "serve-config: the config does not contain the trained length.",
                facts={"rope": rope},
                cure="Pass --trained-length TOKENS.",
            )
        fields = text_part(content)
        model_type = str(fields.get("model_type", ""))
        family = FAMILIES.get(family_name(model_type) or "")
        types = fields.get("layer_types") or (() if family is None else family.layer_types)
        labels = tuple(ropes if nested or not types else dict.fromkeys(types))
        fixed = family is not None and family.fixed
        # Phi-3's class requires the fraction in a new block, also if it is 1.0
        kept = {} if family is None or family.partial is None or family.mla else {"partial_rotary_factor": 1.0}
        kept |= attention_keys(fields.get("rope_parameters") or {})
        named = Path(model).exists() or is_hub_name(str(model))
        return cls(
            given=str(model),
            name=str(model) if named else str(path),
            rope=rope,
            own=Positions(
                tuple(ropes[one] if one in ropes else ropes.get(None) if attends(one) else None for one in labels),
                (None,) * len(labels),
                tuple(window_of_layer_type(fields, label) for label in labels),
            ),
            labels=labels,
            fields={
                **{key: value for key, value in fields.items() if key != "rope_scaling"},
                "rope_parameters": None if fixed else dict.fromkeys(map(str, labels), kept) if nested else kept,
            },
            # Qwen2-VL's published files are flat, but its class nests them
            parts=_parts(content) or (("text_config",) if f"{model_type}_text" in FAMILIES else ()),
            trained=trained,
            stated_length=None if stated is None or is_unsettled(stated) else stated.trained_length,
            arch=opened.arch,
            path=path,
            model_type=model_type,
            branches=family is not None and bool(family.block_of),
        )

    @property
    def nested(self) -> bool:
        """Return whether each layer type has its own block."""
        return any(isinstance(block, Mapping) for block in (self.fields["rope_parameters"] or {}).values())

    @property
    def is_scaled(self) -> bool:
        """Return whether any layer's rope has a scaling that was not used in training."""
        return any(rope.as_trained() != rope for rope in self.own.present_ropes)

    @property
    def gguf_arch(self) -> str | None:
        """Return llama.cpp's architecture of this model; the family's own name if ropewalk copies no file of it."""
        if self.arch is not None:
            return self.arch
        arch = {"mistral": "llama", "ministral": "llama"}.get(self.model_type, self.model_type)
        windowed = any(window is not None for window in self.own.sliding_windows)  # those files have none
        return arch if arch in PERMUTED and not windowed else f"{self.model_type}{NOT_WRITTEN}"

    def why_not(self, engine: str | None, method: str, reach: Reach) -> str | None:
        """Return the reason why an engine cannot run a method as measured; None if it can."""
        blocks = None if engine == "python" else self.under(method, reach)
        if isinstance(blocks, str):
            return blocks
        return why_not(engine, method, blocks and blocks[0], arch=self.gguf_arch, model_type=self.model_type,
                       interleaved=self.rope.interleaved)  # fmt: skip

    def case(self, block: Mapping[str, Any], length: int, *, changed: bool, command: str = "") -> Case:
        """Return the case of a block at a length in tokens; `changed`: it differs from the checkpoint's own."""
        converted = self.arch is None and not (changed and self.gguf_arch in PERMUTED)
        return Case(block=block, model_type=self.model_type, arch=self.gguf_arch, converted=converted, extends=changed,
                    length=length, interleaved=self.rope.interleaved, command=command,
                    flat=changed or "rope_theta" in self.fields)  # fmt: skip

    def writes_file(self, method: str, reach: Reach) -> bool:
        """Return whether ropewalk copies this .gguf file under a method."""
        return self.arch in PERMUTED and self.why_not("llama.cpp", method, reach) is None

    def under(self, method: str, reach: Reach, length: int | None = None) -> tuple[dict[str, Any], int] | str:
        """Return the block under a method, or one for each layer type, and the length to state; else the reason."""
        fields = fields_under(self.fields, self.labels, self.own, method, reach, length)
        return fields if isinstance(fields, str) else (fields["rope_parameters"], fields["max_position_embeddings"])


def _parts(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys that lead to the language model's part of a config."""
    part = next((key for key in NESTED if isinstance(content.get(key), Mapping)), None)
    return () if part is None else (part, *_parts(content[part]))
