"""The configuration of an engine that serves a model under a method: commands, files, caveats, the method's cost."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json
from ropewalk.checkpoints.export import HubRope, hub_rope
from ropewalk.checkpoints.gguf import read_gguf_config
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.sources import find, is_hub_name
from ropewalk.errors import RopeError
from ropewalk.extend.engines import ENGINES, MULTIPLIES_LENGTH, NOT_MULTIPLIED, READS_GGUF, Caveat, caveats_of
from ropewalk.extend.job import GIVEN
from ropewalk.families import FAMILIES, family_name
from ropewalk.methods import (
    ConfigForm,
    Reach,
    is_unsettled,
    main_rope,
    method_named,
    rope_parameters,
    settle,
    settled_by_length,
)
from ropewalk.models.config import Positions
from ropewalk.report.record import method_of, read_record, understood
from ropewalk.rope.config import RopeConfig, ropes_by_block
from ropewalk.rope.layer_types import window_of_layer_type
from ropewalk.statistics import Interval, over_windows, signed

LONGER = "longer.gguf"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """A method's cost and gain by the position in the text, from a doctor's record.

    - `factor`, `target`: of the record.
    - `within`: its loss minus plain's within the trained length in nats per token; `within_interval`: over windows
      (None: one window).
    - `pays_from`: the first position in tokens from which its mean loss is below plain's in every block, or None.
    """

    method: str
    factor: float
    target: int
    within: float
    within_interval: Interval
    pays_from: int | None

    @property
    def sentence(self) -> str:
        """Return the cost and the gain as a sentence."""
        within = f"within the trained length {signed(self.within, self.within_interval)} nats per token"
        pays = "its loss is nowhere below plain's."
        if self.pays_from is not None:
            pays = (
                f"by the mean it pays from {self.pays_from:,} tokens on. Send shorter prompts to the model as it was."
            )
        return f"{self.method} {self.factor:g}: {within}; {pays}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The commands and files that make an engine serve a model.

    - `length`: tokens of its context. `block`: the `rope_parameters` that it must apply, or a block for each layer type
      of a model with several ropes.
    - `steps`: shell commands, in order. `file`: a file to write first (its name and its content), or None.
    - `caveats`: what the engine is known to ignore. `costs`: from the doctor's records.
    """

    engine: str
    model: str
    method: str
    length: int
    block: Mapping[str, Any]
    steps: tuple[str, ...]
    file: tuple[str, str] | None
    caveats: tuple[Caveat, ...]
    costs: tuple[Cost, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        caveats = [{name: getattr(one, name) for name in ("text", "versions", "source")} for one in self.caveats]
        file = None if self.file is None else {"name": self.file[0], "content": self.file[1]}
        costs = [{**dataclasses.asdict(cost), "sentence": cost.sentence} for cost in self.costs]
        own = {name: getattr(self, name) for name in ("engine", "model", "method", "length", "block", "steps")}
        return {"kind": "serve-config", **own, "file": file, "caveats": caveats, "costs": costs}


def serve_config(
    model: str | os.PathLike[str],
    engine: str,
    *,
    method: str | None = None,
    target: int | None = None,
    factor: float | None = None,
    trained_length: int | None = None,
    records: Sequence[str | os.PathLike[str] | Mapping[str, Any]] = (),
) -> ServeConfig:
    """Return the commands, flags and files that make an engine serve a model under a method, and its caveats.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, OWNER/NAME of the hub, or "tiny"; its weights are not loaded.
    - `engine`: one of `ropewalk.extend.engines.ENGINES`.
    - `method`: its name. None: that of the first record, or "as-is" without records.
    - `target`: tokens; None: `factor` times the trained length, the record's target, or four times the trained length.
    - `trained_length`: tokens, if the config does not contain it.
    - `records`: of `ropewalk doctor --json`; several, measured to several targets, give the cost by factor.

    **Returns:** a `ServeConfig`.
    **Raises:** `RopeError` for a method that the engine cannot apply; the message contains the nearest that it can.

    >>> serve_config("tiny", "ollama", method="yarn", target=1024).file
    ('Modelfile', 'FROM ./longer.gguf\\nPARAMETER num_ctx 1024\\n')
    """
    if engine not in ENGINES:
        raise RopeError(
            "serve-config: unknown engine.", facts={"engine": engine}, cure=f"Choose from {', '.join(ENGINES)}."
        )
    documents = [dict(one) if isinstance(one, Mapping) else read_record(Path(one)) for one in records]
    if documents and method is None:
        method = _recommended(documents[0])
    source = _Served.open(model, trained_length)
    if target is None and factor is not None:
        target = math.ceil(source.trained * factor)
    elif target is None and documents:
        target = int(documents[0]["target"])
    chosen = method or "as-is"
    if not method_named(chosen).extends and target is not None:
        raise RopeError(
            f"serve-config: `{chosen}` does not extend, and the target would be ignored.",
            facts={"method": chosen, "target": target},
            cure="Name a method: --method yarn; or leave --target out.",
        )
    if method_named(chosen).extends and is_unsettled(source.rope):
        raise RopeError(
            "serve-config: it is unknown whether this model was trained with the scaling in its config.",
            facts={"scaling": source.rope.scaling, "method": chosen},
            cure="Pass --trained-length TOKENS; or leave --method out to serve it unchanged.",
        )
    if source.branches and method_named(chosen).extends:
        raise RopeError(
            "serve-config: this model's blocks belong to branches of its layers; how engines apply them is unknown.",
            facts={"model": source.name, "blocks": sorted(source.ropes)},
            cure="Write a folder: ropewalk extend apply MODEL --method ... --out DIR; transformers loads it.",
        )
    trained = source.trained
    reach = Reach(trained, trained if not method_named(chosen).extends else target or 4 * trained)
    hub, blocks = source.under(chosen, reach)
    length = hub.max_position_embeddings
    steps, file = _steps(engine, source, hub, blocks, chosen, reach)
    rule = str(hub.parameters["rope_type"])
    scaled = method_named(chosen).extends or rule != "default"
    kind = {"composite": source.composite, "several": blocks is not None, "windows": source.windows_share}
    return ServeConfig(
        engine=engine,
        model=str(model),
        method=chosen,
        length=length,
        block=hub.parameters if blocks is None else blocks,
        steps=steps,
        file=file,
        caveats=tuple(caveats_of(engine, hub.parameters, rule, scaled=scaled, **kind)),
        costs=tuple(cost for document in documents if (cost := cost_of(document, chosen)) is not None),
    )


def cost_of(document: Mapping[str, Any], method: str) -> Cost | None:
    """Return a method's cost from a doctor's record; None if the method was not measured."""
    with understood(document):
        entry, plain = method_of(document, method), method_of(document, "plain")
        if entry is not None and entry.get("same_as"):
            entry = method_of(document, entry["same_as"])
        if entry is None or plain is None:
            return None
        rows = zip(entry["loss_by_window_and_block"], plain["loss_by_window_and_block"], strict=True)
        by_block = list(zip(*[[a - b for a, b in zip(x, y, strict=True)] for x, y in rows], strict=True))
        trained, blocks = int(document["trained_length"]), document["blocks"]
        inside = [number for number, (_, end) in enumerate(blocks) if end <= trained]
        windows = [[column[window] for column in by_block] for window in range(len(by_block[0]))]
        within, interval = over_windows([sum(row[n] for n in inside) / len(inside) for row in windows])
        pays = None
        for (start, _), column in zip(reversed(blocks), reversed(by_block), strict=True):
            if sum(column) / len(column) >= 0:
                break
            pays = int(start)
        target = int(document["target"])
        return Cost(method=method, factor=target / trained, target=target, within=within, within_interval=interval,
                    pays_from=pays)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Served:
    """A checkpoint's ropes, without its weights.

    - `rope`: the one that reaches furthest. `ropes`: by layer type, if the config has a block for each; else empty.
    - `windows`: tokens that layers of each type see, None for all. `arch`: of a .gguf file; None for a folder.
    - `branches`: whether blocks are named for branches of a layer, not for layer types (DeepSeek-V4).
    """

    name: str
    rope: RopeConfig
    ropes: Mapping[str, RopeConfig]
    windows: Mapping[str | None, int | None]
    trained: int
    arch: str | None
    composite: bool
    model_type: str
    branches: bool

    @classmethod
    def open(cls, model: str | os.PathLike[str], trained_length: int | None) -> _Served:
        path, arch, composite, model_type = find(model, weights=False), None, False, ""
        ropes: dict[str | None, RopeConfig | None] = {}
        windows: dict[str | None, int | None] = {}
        nested = False
        if path.is_file() and path.suffix != ".json":
            ropes = {None: next(rope for rope in read_gguf_config(path).ropes if rope is not None)}
            arch = str(GGUFFile(path).metadata["general.architecture"])
        else:
            content = read_json(path if path.is_file() else path / "config.json")
            ropes, nested = ropes_by_block(content)
            text = content.get("text_config")
            composite = isinstance(text, Mapping)
            inner = {**content, **text} if isinstance(text, Mapping) else content
            model_type = str(content.get("model_type", ""))
            windows = {label: window_of_layer_type(inner, label) for label in inner.get("layer_types") or ropes}
        if trained_length is not None:
            ropes = {label: None if rope is None else _settled(rope, trained_length) for label, rope in ropes.items()}
        rope = main_rope(tuple(ropes.values()))
        assert rope is not None, "a config without a rope was refused"
        named = Path(model).exists() or is_hub_name(str(model))
        trained = trained_length or rope.trained_length
        if trained is None:
            raise RopeError(
                "serve-config: the config does not contain the trained length.",
                facts={"rope": rope},
                cure="Pass --trained-length TOKENS.",
            )
        family = FAMILIES.get(family_name(model_type) or "")
        of_types = {str(label): one for label, one in ropes.items() if one is not None} if nested else {}
        return cls(
            name=str(model) if named else str(path),
            rope=rope,
            ropes=of_types,
            windows=windows,
            trained=trained,
            arch=arch,
            composite=composite,
            model_type=model_type,
            branches=family is not None and bool(family.block_of),
        )

    @property
    def windows_share(self) -> bool:
        """Return whether layers with a short window share a block with others, so that an engine scales them too."""
        return not self.ropes and any(window is not None and window <= self.trained for window in self.windows.values())

    def under(self, method: str, reach: Reach) -> tuple[HubRope, dict[str, Any] | None]:
        """Return the furthest-reaching rope under a method, and the block of each layer type, or None."""
        if not self.ropes:
            return hub_rope((method_named(method).rope(self.rope, reach),), method, reach), None
        labels, ropes = tuple(self.ropes), tuple(self.ropes.values())
        own = Positions(ropes, (None,) * len(labels), tuple(self.windows.get(label) for label in labels))
        extended = method_named(method).positions(own, reach).ropes
        main = hub_rope((main_rope(extended),), method, reach)
        blocks = rope_parameters(
            ConfigForm(names=labels, ropes=self.ropes),
            ropes,
            extended,
            lambda rope: hub_rope((rope,), method, reach).parameters,
        )
        return main, blocks


def _settled(rope: RopeConfig, trained_length: int) -> RopeConfig:
    """Return the rope; a trained length settles a scaling that the config leaves open."""
    answer = settled_by_length(rope, trained_length) if is_unsettled(rope) else None
    return rope if answer is None else settle(rope, answer, GIVEN)


def _recommended(document: Mapping[str, Any]) -> str:
    """Return the method that a record recommends."""
    verdict = document.get("verdict") or {}
    if verdict.get("action") != "extend":
        raise RopeError(
            "serve-config: the doctor does not recommend extending this model.",
            facts={"action": verdict.get("action"), "verdict": verdict.get("sentence")},
            cure="To extend it anyway, name a method: --method yarn.",
        )
    return str(verdict["method"])


def _steps(
    engine: str, source: _Served, hub: HubRope, blocks: dict[str, Any] | None, method: str, reach: Reach
) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """Return the commands, and the file that one of them uses."""
    changed, length = method != "as-is", hub.max_position_embeddings
    model = shlex.quote(source.name)
    if engine not in READS_GGUF and source.arch is not None:
        raise RopeError(
            f"serve-config: {engine} takes a Hugging Face folder, and this is a .gguf file.",
            facts={"model": source.name},
            cure="Pass the folder; or write one: ropewalk extend apply FILE.gguf --out DIR.",
        )
    if engine in READS_GGUF and blocks is not None and source.arch is None:
        raise RopeError(
            f"serve-config: {engine} takes a .gguf file, and ropewalk writes none with several ropes.",
            facts={"model": source.name, "layer types": sorted(blocks)},
            cure="Write a folder (ropewalk extend apply), convert it by llama.cpp's convert_hf_to_gguf.py, and check "
            "the server (ropewalk verify).",
        )
    if engine == "vllm":
        overrides = f" --hf-overrides {_quoted(_override(source, hub, blocks, 'rope_parameters'))}" if changed else ""
        return (f"vllm serve {model} --max-model-len {length}{overrides}",), None
    if engine == "sglang":
        if changed and source.composite:
            folder = (_apply(model, method, reach, "longer"), f"{_SGLANG} longer --context-length {length}")
            return folder, None
        key = "rope_scaling" if blocks is None else "rope_parameters"
        overrides = f" --json-model-override-args {_quoted(_override(source, hub, blocks, key))}" if changed else ""
        return (f"{_SGLANG} {model} --context-length {length}{overrides}",), None
    if engine == "transformers":
        return (), ("serve.py", _script(source, hub, blocks) if changed else _PLAIN_SCRIPT.format(model=source.name))
    flags = _llama_flags(source, hub) if changed and engine == "llama.cpp" and source.arch is not None else None
    if flags is not None:
        return (f"llama-server -m {model} --ctx-size {length}{flags}",), None
    writes = changed or source.arch is None
    file = LONGER if writes else source.name
    steps = (_apply(model, method, reach, LONGER),) if writes else ()
    if engine == "llama.cpp":
        return (*steps, f"llama-server -m {shlex.quote(file)} --ctx-size {length}"), None
    place = file if file.startswith(("/", ".")) else f"./{file}"
    lines = f"FROM {place}\nPARAMETER num_ctx {length}\n"
    return (*steps, "ollama create longer -f Modelfile"), ("Modelfile", lines)


_SGLANG = "python -m sglang.launch_server --model-path"
_PLAIN_SCRIPT = """from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("{model}")
"""


def _apply(model: str, method: str, reach: Reach, out: str) -> str:
    target = f" --target {reach.target}" if reach.extends else ""
    return f"ropewalk extend apply {model}{target} --method {method} --out {out}"


def _override(source: _Served, hub: HubRope, blocks: dict[str, Any] | None, key: str) -> dict[str, Any]:
    """Return the keys that override the config: the whole block with theta, since it replaces the config's own."""
    keys: dict[str, Any] = {key: dict(hub.parameters) if blocks is None else blocks}
    if hub.parameters["rope_type"] not in MULTIPLIES_LENGTH or NOT_MULTIPLIED in source.model_type:
        keys["max_position_embeddings"] = hub.max_position_embeddings
    return {"text_config": keys} if source.composite else keys


def _quoted(content: Any) -> str:
    return shlex.quote(json.dumps(content))


def _script(source: _Served, hub: HubRope, blocks: dict[str, Any] | None) -> str:
    """Return a script for transformers that changes the config before it builds the model."""
    config = "config.get_text_config()" if source.composite else "config"
    return (
        "from transformers import AutoConfig, AutoModelForCausalLM\n\n"
        f'config = AutoConfig.from_pretrained("{source.name}")\n'
        f"{config}.rope_parameters = {dict(hub.parameters) if blocks is None else blocks!r}\n"
        f"{config}.max_position_embeddings = {hub.max_position_embeddings}\n"
        f'model = AutoModelForCausalLM.from_pretrained("{source.name}", config=config)\n'
    )


def _llama_flags(source: _Served, hub: HubRope) -> str | None:
    """Return llama-server's YaRN flags for a file without scaling; None if only keys can express the rope."""
    block = hub.parameters
    plain = {"rope_type", "rope_theta", "factor", "original_max_position_embeddings"}
    if source.rope.scaling is not None or block["rope_type"] != "yarn" or not block.keys() <= plain:
        return None
    original = block["original_max_position_embeddings"]
    return f" --rope-scaling yarn --rope-scale {block['factor']:.10g} --yarn-orig-ctx {original}"
