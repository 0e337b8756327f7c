"""Serving engines: their one list, the options of their commands that concern the rope, and the reading of a command.

This module does not import torch.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import RopeError

CONVERTER = "llama.cpp's converter"
"""convert_hf_to_gguf.py, which converts a Hugging Face folder to a .gguf file. `applied` treats it as an engine."""
MULTIPLIES_LENGTH = ("linear", "dynamic")
"""The rules for which vLLM and SGLang multiply `max_position_embeddings`, the trained length there, by the factor."""
NOT_MULTIPLIED = "gemma3"
"""A part of the names of model types for which neither multiplies the length."""
ROPE_KEYS = {
    "--rope-scaling": ("rope_type", "rope.scaling.type"),
    "--rope-scale": ("factor", "rope.scaling.factor"),
    "--rope-freq-base": ("rope_theta", "rope.freq_base"),
    "--rope-freq-scale": ("", "rope.scaling.factor"),
    "--yarn-orig-ctx": ("original_max_position_embeddings", "rope.scaling.original_context_length"),
}
"""llama.cpp's flags that replace keys of a .gguf file: the key of `rope_parameters` with this number, and the file's.

The number of --rope-freq-scale is the inverse of the factor.
"""
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "K": 2**10, "M": 2**20, "G": 2**30}  # vLLM's
_SHELL = r"[|;&]+|\d?&?[<>].*"  # what ends a command, and redirections


@dataclass(frozen=True, kw_only=True)
class ServingEngine:
    """An engine, and the options of its command that concern the rope, for `serve-config` and `inspect --command`.

    - `title`: its name in text. `gguf`: whether it loads a .gguf file; the others load a Hugging Face folder.
    - `only_run`: whether its classes differ so much that only what was measured is known.
    - `read`: the version and the function that applies a block, unless a deviation concerns it.
    - `program`: pattern of the word that starts the engine. `model`: the options of its path, besides a first word.
    - `length`: the options of the context's length. `over`: the option of the JSON that is put over the config.
    - `others`: further options, each with a value.
    - `longer`: the variable of the environment that permits more than the config's length.
    - `starts`: the words with which `serve-config` starts it, up to the model.
    - `source`: the files and the version of which the options were read.
    """

    title: str
    gguf: bool = False
    only_run: bool = False
    read: str = ""
    program: str = ""
    starts: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    length: tuple[str, ...] = ()
    over: str = ""
    others: tuple[str, ...] = ()
    longer: str = ""
    source: str = ""

    @property
    def valued(self) -> set[str]:
        """Return the options that are looked at; each has a value."""
        return {*self.model, *self.length, *self.others} | ({self.over} if self.over else set())


_GGUF = "src/llama-context.cpp and src/llama-model.cpp (`get_rope_factors`) in llama-cpp-python 0.3.36"
TABLE = {
    "vllm": ServingEngine(
        title="vLLM",
        read="0.33.0's rotary_embedding/__init__.py (`get_rope`)",
        program=r"(.*/)?vllm|vllm\.entrypoints\..*|vllm/vllm-\S+",
        starts=("vllm", "serve"),
        model=("--model",),
        length=("--max-model-len",),
        over="--hf-overrides",
        longer="VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        source="vLLM 0.32.0's config/model.py (`_apply_dict_overrides`, `_get_and_verify_max_len`)",
    ),
    "sglang": ServingEngine(
        title="SGLang",
        read="0.5.23's rotary_embedding/factory.py (`get_rope`)",
        program=r"(.*/)?sglang|sglang\.launch_server|lmsysorg/sglang\S*",
        starts=("python", "-m", "sglang.launch_server", "--model-path"),
        model=("--model-path", "--model"),
        length=("--context-length",),
        over="--json-model-override-args",
        longer="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
        source="SGLang 0.5.23's utils/hf_transformers/config.py (`get_config`) and common.py (`get_context_length`)",
    ),
    "llama.cpp": ServingEngine(
        title="llama.cpp",
        gguf=True,
        read=_GGUF,
        program=r"(.*[/\\])?llama-(server|cli|completion)(\.exe)?|\S*llama\.cpp:(server|full|light)\S*",
        starts=("llama-server", "-m"),
        model=("--model", "-m"),
        length=("--ctx-size", "-c"),
        others=(
            *ROPE_KEYS, "--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast",
            "--override-kv", "--parallel", "-np",
        ),
        source="llama.cpp's common/arg.cpp, src/llama-context.cpp and server-context.cpp in xllamacpp 2026.10.11549",
    ),
    "ollama": ServingEngine(title="Ollama", gguf=True, read=_GGUF),
    "mlx": ServingEngine(
        title="mlx-lm",
        only_run=True,
        program=r"(.*/)?mlx_lm(\.(server|generate|chat))?",
        starts=("mlx_lm.server", "--model"),
        model=("--model",),
        source="mlx-lm 0.32.2's server.py, generate.py and each model's `ModelArgs`",
    ),
    "onnx": ServingEngine(title="ONNX Runtime GenAI", only_run=True),
    "transformers": ServingEngine(
        title="transformers", read="5.23's modeling_rope_utils.py (`ROPE_INIT_FUNCTIONS`)"
    ),
    CONVERTER: ServingEngine(
        title=CONVERTER, read="conversion/base.py (`TextModel.set_gguf_parameters`) in llama-cpp-python 0.3.36"
    ),
}  # fmt: skip
"""The engines, and the converter of one. mlx-lm has no option for the rope: it reads only the config."""
ENGINES = tuple(name for name in TABLE if name != CONVERTER)
"""The engines that are configured by a config or a .gguf file."""
RUNNERS = (*ENGINES, "python")
"""All ways to run a model: an engine, or a Python program, which can also apply methods in attention (`rw.attach`)."""
FLAGS = {name: one for name, one in TABLE.items() if one.program}
"""The engines whose commands are read."""
ROPE_FLAGS = {"vllm": TABLE["vllm"].over, "sglang": TABLE["sglang"].over, "llama.cpp": ", ".join(ROPE_KEYS)}
"""The flags of each engine that replace the model's own rope, in words."""


@dataclass(frozen=True, kw_only=True)
class EngineCommand:
    """The words of a command that concern the rope.

    - `words`: the options that are looked at and their values, in order. `rest`: the other words.
    - `model`: as given, or None. `environment`: variables that the command sets.
    - `program`: the engine's program if it has several, else the one that `serve-config` starts.
    """

    engine: str
    program: str
    words: tuple[tuple[str, str], ...]
    rest: tuple[str, ...]
    model: str | None
    environment: Mapping[str, str]

    @property
    def flags(self) -> ServingEngine:
        return FLAGS[self.engine]

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the names of the options that are not looked at."""
        return tuple(dict.fromkeys(word.partition("=")[0] for word in self.rest if _is_option(word)))

    def value(self, *names: str) -> str | None:
        """Return the last value of an option."""
        return next((value for name, value in reversed(self.words) if name in names), None)

    def number(self, *names: str) -> float | None:
        """Return the last value of an option as a finite number, a length also whole; raise `RopeError` otherwise."""
        value, vllm = self.value(*names), "--max-model-len" in names
        if value is None or (vllm and value.lower() in ("auto", "-1")):  # what fits into memory
            return None
        unit = _UNITS.get(value[-1:], 1) if vllm else 1
        try:
            number = float(value[:-1] if unit != 1 else value) * unit
        except ValueError:
            number = math.nan
        length = names == self.flags.length
        if not math.isfinite(number) or (length and (number < 0 or not number.is_integer())):
            raise RopeError("inspect: an option needs a number.", facts={names[0]: value}, cure="Correct the command.")
        return number

    def json(self) -> list[dict[str, Any]]:
        """Return the objects that the command puts over the config; raise `RopeError` for anything else."""
        texts = [value for name, value in self.words if name == self.flags.over]
        try:
            found = [{**json.loads(text)} for text in texts]
        except (ValueError, TypeError) as error:
            cure = "Quote it: '{\"rope_parameters\": {...}}'."
            raise RopeError(f"inspect: {self.flags.over} is no JSON.", facts={"JSON": texts}, cure=cure) from error
        return found


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[\d.]+", word)


def read_command(text: str) -> EngineCommand:
    """Return the options of a command line of vLLM, SGLang, llama.cpp or mlx-lm.

    **Raises:** `RopeError` for text that no shell accepts, and for other programs.

    >>> command = read_command("PORT=1 vllm serve folder --max-model-len=8192 --port 80")
    >>> command.engine, command.model, command.words, command.unread
    ('vllm', 'folder', (('--max-model-len', '8192'),), ('--port',))
    """
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        cure = 'Quote it as for a shell: --command "vllm serve DIR ...".'
        raise RopeError("inspect: a shell cannot read this command.", facts={"command": text}, cure=cure) from error
    starts = ((at, name) for at, word in enumerate(words) for name in FLAGS if re.fullmatch(FLAGS[name].program, word))
    at, engine = next(starts, (0, ""))
    if not engine:
        cure = f"Pass a command of {', '.join(FLAGS)}."
        raise RopeError("inspect: the command starts no engine that is known here.", facts={"command": text}, cure=cure)
    settings, starting = [word.partition("=") for word in words[:at]], words[at]
    flags, known, rest = FLAGS[engine], list[tuple[str, str]](), list[str]()
    words = [*itertools.takewhile(lambda word: not re.fullmatch(_SHELL, word), words[at + 1 :])]
    program = starting if engine in ("llama.cpp", "mlx") and ":" not in starting else flags.starts[0]
    if words[:1] and words[0] in ("serve", "server", "generate", "chat"):
        program, words = f"{program}.{words[0]}" if engine == "mlx" else program, words[1:]
    first = words.pop(0) if words and not _is_option(words[0]) else None
    while words:
        word = words.pop(0)
        name, sign, value = word.partition("=")
        name, _, path = name.partition(".") if flags.over and name.startswith(f"{flags.over}.") else (name, "", "")
        name = name.replace("_", "-") if name.startswith("--") else name
        value = value if sign or not words or (name not in flags.valued and _is_option(words[0])) else words.pop(0)
        for key in reversed(path.split(".") if path else ()):  # vLLM's --hf-overrides.rope_parameters.factor 4
            inner: Any = value
            with suppress(ValueError):  # text, if it is no JSON
                inner = json.loads(value)
            value = json.dumps({key: inner})
        if name in flags.valued:
            known.append((name, value))
        else:
            rest += [word] if sign or not value else [word, value]
    model = next((value for name, value in reversed(known) if name in flags.model), first)
    environment = {name: value for name, sign, value in settings if sign and name.isidentifier()}
    return EngineCommand(engine=engine, program=program, words=tuple(known), rest=tuple(rest), model=model,
                         environment=environment)  # fmt: skip
