"""`rw.doctor`: the whole run as a library call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.diagnosis.prepare import prepare, with_tokenizer
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.diagnosis.settings import DoctorSettings, TextSource
from ropewalk.progress import Progress


def doctor(
    model: object = "tiny",
    *,
    tokenizer: Any = None,
    target: int | None = None,
    trained_length: int | None = None,
    text: TextSource = None,
    methods: str | Sequence[str] | None = None,
    engine: str | None = None,
    minutes: float | None = None,
    windows: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | None = None,
    state: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
) -> Diagnosis:
    """Measure how far a model's context really reaches, and what would extend it.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, a model of the hub as OWNER/NAME or OWNER/NAME@REVISION, "tiny"; or
      a `Decoder` in Llama's layout, a live model of transformers with its `tokenizer`, or a pair of the two.
      transformers computes the model; `Diagnosis.environment["library"]` contains its version and the model's class.
    - `target`: the desired length in tokens; None: four times the trained length. `trained_length`: in tokens;
      overrides the config and the table of families.
    - `text`: a file or folder, a list of them, or a list of (name, contents); None: passages of books and of code.
    - `methods`: names, or "all", which includes methods in attention; None: yarn, then llama3, ntk and dca until
      one works, as far as the engine runs them. plain and crop are always measured.
    - `engine`: the engine for the model: "vllm", "sglang", "llama.cpp", "ollama", "transformers" or "python". Only
      methods it can run are recommended. None: any engine that uses a config.
    - `minutes`: time limit, after which the run ends with the best answer so far. None: 10 on a CPU;
      no limit elsewhere. `math.inf`: no limit.
    - `windows`: most windows of text to read; None: up to 8, until the answer stands. `seed`: of windows and facts.
    - `dtype`, `device`: for a model that is loaded here. "auto" is bfloat16 if the machine multiplies it faster
      (AVX512-BF16, AMX, CUDA from sm_80), else float32.
    - `state`: the folder in which results are saved as they are computed; None: in the user's cache. `resume`: resume
      the same run; else it starts over.
    - `progress`: None: a bar on a terminal and in a notebook, nothing elsewhere; False: nothing; or an object that
      gets the progress (`ropewalk.progress.Progress`).

    **Returns:** a `Diagnosis`. Losses are in nats per token.
    **Raises:** `RopeError` if something cannot be measured, before any work if possible; `RunInterrupted` (a
    KeyboardInterrupt) on Ctrl-C, after which `resume=True` resumes the run.

    >>> text = [("story", "The old man and the sea. He went out alone in a skiff. " * 400)]
    >>> diagnosis = doctor("tiny", target=512, text=text, methods=["dca"], windows=1)
    >>> list(diagnosis.readings)
    ['plain', 'dca', 'crop']
    """
    given: dict[str, Any] = locals()
    settings = DoctorSettings(**{name: given[name] for name in DoctorSettings.__dataclass_fields__})
    chosen = model if tokenizer is None else with_tokenizer(model, tokenizer)
    return prepare(chosen, settings, progress).measure(progress)
