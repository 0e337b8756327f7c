"""Engines of the matrix: each opens a checkpoint, and returns its answers to a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engines.models import CONTEXT, SPELLINGS, TRAINED, Case

from ropewalk.checkpoints.gguf_copy import copy_gguf, gguf_rope
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.errors import RopeError
from ropewalk.methods import Reach, main_rope
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.tokenizer import TextTokenizer
from ropewalk.verification.adapters import StartedEngine, llama_cpp_server
from ropewalk.verification.engine import NoAnswer
from tests.checkpoints.gguf_files import ARCHITECTURES, write_foreign

ENVIRONMENTS = Path(__file__).resolve().parents[2] / "build" / "engines"
Rows = dict[int, dict[int, float]]
"""Log-probabilities by token, by the number of tokens before the answer."""
LENGTHS = (8, 40, 72, 100, 127, 128, 129, 136, 160, 200, 256, 320, 384, 400)


class Skipped(Exception):
    """An engine that is not installed, or a checkpoint that has no form for it."""


class Runner:
    """An engine in a process of its own, from its environment of `make engines`."""

    def __init__(self, name: str) -> None:
        self.name, self.version = name, ""
        self.python = ENVIRONMENTS / name / "bin" / "python"
        if not self.python.is_file():
            raise Skipped(f"no environment; run make engines ENGINES={name}")
        self.engine: StartedEngine | None = None

    def takes(self, case: Case) -> bool:
        """Return whether the engine reads this spelling."""
        return True

    @contextmanager
    def opened(self, case: Case, model: Any) -> Iterator[Any]:
        """Open a checkpoint, if need be in a new process."""
        for fresh in (False, True):
            if self.engine is None or fresh:
                self.close()
                self.engine = StartedEngine(self.name, self.python)
            try:
                self.engine.load(case.folder, CONTEXT)
                self.version = self.engine.version or self.version
                break
            except RopeError:
                if fresh or self.name != "vllm":
                    raise
        yield self.engine

    def rows(self, engine: Any, ids: Sequence[int], new: int) -> tuple[Rows, list[int]]:
        """Return the answers after each token of the prompt and after `new` generated ones, and these."""
        rows, tokens = engine.rows(ids, new, every=True)
        last = len(ids) + new
        return dict(zip(range(last - len(rows) + 1, last + 1), rows, strict=True)), tokens

    def close(self) -> None:
        """End the process."""
        if self.engine is not None:
            self.engine.close()
        self.engine = None


class LlamaCpp(Runner):
    """llama.cpp's server, with a GGUF file whose rope ropewalk writes."""

    def __init__(self, name: str) -> None:
        self.name, self.engine = name, None
        try:
            self.version = version("xllamacpp")
        except ImportError as error:
            raise Skipped("no package xllamacpp") from error

    def takes(self, case: Case) -> bool:
        written = ARCHITECTURES.keys() - {"gpt_oss"}  # its experts are stored in 4 bits
        return case.spelling == SPELLINGS[0] and case.family in written

    @contextmanager
    def opened(self, case: Case, model: Any) -> Iterator[Any]:
        arch = ARCHITECTURES[case.family]
        file = write_foreign(model, case.folder / "plain.gguf")
        rope = main_rope(ModelRopes.from_hf(model.config).ropes)
        if rope is not None and rope.scaling is not None:
            found = gguf_rope(rope, arch, case.block.split(",")[0], Reach(TRAINED, CONTEXT))
            if isinstance(found, str):
                raise Skipped(found)
            copy_gguf(GGUFFile(file), case.folder / "model.gguf", found)
            file = case.folder / "model.gguf"
        kinds = import_module("xllamacpp")  # else keys and values are rounded to 16 bits
        kind, off = kinds.ggml_type.GGML_TYPE_F32, kinds.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        exact = {"cache_type_k": kind, "cache_type_v": kind, "flash_attn_type": off}
        with llama_cpp_server(file, TextTokenizer.bytes(), context=CONTEXT, threads=1, options=exact) as engine:
            yield engine

    def rows(self, engine: Any, ids: Sequence[int], new: int) -> tuple[Rows, list[int]]:
        rows, tokens = Rows(), list[int]()
        for length in [one for one in LENGTHS if one <= len(ids)]:
            with suppress(NoAnswer):
                rows[length] = dict(engine.generate(ids[:length], 1)[0].top)
        with suppress(NoAnswer):
            for count, step in enumerate(engine.generate(ids, new)):
                rows[len(ids) + count] = dict(step.top)
                tokens.append(-1 if step.token is None else step.token)
        return rows, tokens


ENGINES = {"mlx": Runner, "llama.cpp": LlamaCpp, "onnx": Runner, "vllm": Runner}
