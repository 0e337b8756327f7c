"""The ropes and the length that a command of an engine gives, and its settings without effect."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ropewalk.audit.findings import SEVERITIES, Finding
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.errors import RopeError
from ropewalk.methods import main_rope
from ropewalk.rope.hugging_face import text_part
from ropewalk.rope.values import is_number
from ropewalk.serving.command import EngineCommand, read_command
from ropewalk.serving.engines import FLAGS, Case, applied, blocks_of
from ropewalk.serving.overrides import READERS, config_length, fault
from ropewalk.serving.serve import serve_config
from ropewalk.serving.served import spelling_of
from ropewalk.shell import shell_command

_METHODS = {"yarn": "yarn", "linear": "pi", "dynamic": "dynamic", "llama3": "llama3"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
    """What an engine makes of a command.

    - `before`, `model`: the checkpoint as it is, and as the engine reads it.
    - `length`: tokens that it serves; None if it does not start, infinite without a limit.
    - `findings`: settings without effect, and other faults. `line`: commands that do what was meant, or ().
    """

    command: EngineCommand
    before: Checkpoint
    model: Checkpoint
    length: float | None
    findings: tuple[Finding, ...]
    line: tuple[str, ...]


def started(text: str, model: str | None = None) -> Started:
    """Return what an engine makes of a command line; it is not run.

    **Arguments:** `text`: the command. `model`: a local path or name of its model, if the command's own is not one.
    **Raises:** `RopeError` as `read_command` and `Checkpoint.open` do.
    """
    command = read_command(text)
    given = model or command.model
    if given is None:
        cure = "Pass it first: ropewalk inspect MODEL --command ..."
        raise RopeError("inspect: the command names no model.", facts={"command": text}, cure=cure)
    before = Checkpoint.open(given)
    found, length, faults = READERS[command.engine](command, before)
    own = main_rope(before.ropes.ropes)
    trained = None if own is None else own.trained_length
    findings = [*_foreign(command), *faults, *_differences(command.engine, before, found)]
    length = None if {"stops", "unknown-option"} & {one.code for one in findings} else length
    line: tuple[str, ...] = ()
    if own is not None and trained is not None:
        findings += [] if length is None else _lengths(found, length, trained, own.theta)
        try:
            line = _right(command, given, trained) if any(one.severity != "note" for one in findings) else ()
        except RopeError as error:
            findings.append(fault("refused", error.rule, error.cure, "note"))
    findings.sort(key=lambda one: SEVERITIES.index(one.severity))
    return Started(command=command, before=before, model=found, length=length, findings=tuple(findings), line=line)


def served_words(model: Checkpoint, done: Started | None) -> str:
    """Return the length that engines serve, in words."""
    if done is not None:
        no_limit = "no limit" if done.length == math.inf else ""
        return "the engine does not start" if done.length is None else no_limit or f"{done.length:,.0f}"
    lengths = {} if model.arch else {name: config_length(name, model.config) for name in ("vllm", "sglang")}
    shown = {value: [name for name in lengths if lengths[name] == value] for value in lengths.values() if value}
    return "; ".join(f"{value:,} ({', '.join(names)})" for value, names in shown.items())


def _foreign(command: EngineCommand) -> Iterator[Finding]:
    """Yield options for the rope or the length that the engine does not have."""
    lengths, over = {name for flags in FLAGS.values() for name in flags.length}, command.flags.over
    for name in command.unread:
        if re.search("rope|yarn", name) or (name.startswith("--") and name.replace("_", "-") in lengths):
            since = " since 0.11.1 (vllm-project/vllm#28006)" if command.engine == "vllm" else ""
            told = f"`{name}` is no option of {command.engine}{since}, which does not start with it."
            yield fault("unknown-option", told, f"Use {over}." if over else "Change the model's config.")


def _wanted(command: EngineCommand) -> tuple[str | None, float | None, float | None]:
    """Return the rule and the factor that a command asks for, and the length in tokens."""
    length = command.number(*command.flags.length)
    if command.engine == "llama.cpp":
        shrunk = command.number("--rope-freq-scale")
        factor = 1 / shrunk if shrunk else command.number("--rope-scale")
        return command.value("--rope-scaling") or ("linear" if factor else None), factor, length
    removed = list[Any]()
    for word in command.rest:  # of an option that the engine no longer has
        with suppress(ValueError):
            removed.append(json.loads(word))
    for block in _objects([*command.json(), *removed]):
        kind, factor = block.get("rope_type", block.get("type")), block.get("factor")
        if isinstance(kind, str) and kind in _METHODS:
            return kind, factor if is_number(factor) else None, length
    return None, None, length


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object of a JSON value."""
    if isinstance(value, Mapping):
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _objects(inner)


def _right(command: EngineCommand, model: str, trained: int) -> tuple[str, ...]:
    """Return the plan of `serve-config` for what a command asks, with its other options; () if there is none."""
    rule, factor, length = _wanted(command)
    target = math.ceil(max((factor or 1) * trained, length or 0))
    extends = target > trained and (not length or length > trained)
    if not extends and rule is None and command.engine != "mlx":
        return ()
    served = int(length) if length and trained < length < target else None
    method = _METHODS.get(rule or "", "yarn") if extends else "as-is"
    plan = serve_config(model, command.engine, method=method, target=target if extends else None, length=served)
    wrong = {name for name in command.unread if re.search("rope|yarn", name)}
    other = [word for at, word in enumerate(command.rest) if not {word, *command.rest[at - 1 : at]} & wrong]
    start = f"{shell_command(command.program)}{plan.steps[-1].removeprefix(command.flags.starts[0])}"
    return *plan.steps[:-1], f"{start} {shell_command(*other)}".rstrip()


def _differences(engine: str, before: Checkpoint, found: Checkpoint) -> Iterator[Finding]:
    """Yield what the engine's classes do with the block that results."""
    text, rope = text_part(found.config), main_rope(found.ropes.ropes)
    block = text.get("rope_parameters") or {}
    blocks = [block] if "rope_type" in block else [one for one in block.values() if isinstance(one, Mapping)]
    if found.arch or not block or rope is None or not all("rope_type" in one for one in blocks):
        return
    changed = found.ropes != before.ropes
    case = Case(block=block, model_type=str(text.get("model_type", "")), extends=changed, override=changed,
                scaled=blocks_of(block)[0]["rope_type"] != "default", interleaved=rope.interleaved,
                spelling=spelling_of(text_part(before.config)))  # fmt: skip
    answer = applied(engine, case)
    if answer.state == "lost":
        yield fault("not-applied", f"The block is not applied: {answer.reason}.", f"It was {answer.source}.")
    if answer.state == "unknown":
        yield fault("not-run", f"{answer.reason}.".capitalize(), "Run ropewalk verify with --engine.", "warning")
    for one in answer.caveats:
        if one.effect == "differs":
            yield fault("engine", one.text, f"It was {one.evidence}.", "warning" if one.before is None else "note")


def _lengths(found: Checkpoint, length: float, trained: int, theta: float) -> Iterator[Finding]:
    """Yield a factor without a length, a length without a scaling or a new theta, and a wrong original length."""
    rope = main_rope(found.ropes.ropes)
    if rope is None or math.isinf(length):
        return
    scaling = rope.scaling if rope.as_trained() != rope else None
    reach = None if scaling is None else scaling.target_length(rope.original_length or trained)
    serves = f"The engine serves {length:,.0f} tokens"
    if scaling is not None and length <= trained:
        far = f"reaches {reach:,} and " if reach else ""
        told = f"{serves}, no more than without the {scaling.rope_type} scaling, which {far}changes every text."
        yield fault("factor-without-length", told, "State the length too, or remove the scaling.", "warning")
    elif reach is not None and length > reach:
        told = f"{serves}, and the scaling reaches {reach:,}."
        yield fault("beyond-scaling", told, "Raise the factor, or serve less.")
    elif scaling is None and length > trained and rope.theta == theta:
        told = f"{serves} with a rope that was trained to {trained:,}."
        yield fault("beyond-trained", told, "Scale the rope, or serve less.")
    original = None if scaling is None else scaling.original_length
    if original not in (None, trained):
        told = f"`original_max_position_embeddings` is {original:,}; the model was trained to {trained:,} tokens."
        yield fault("original-length", told, "State the trained length: the ramp follows from it.", "warning")
