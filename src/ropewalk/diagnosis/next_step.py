"""The command that follows from a verdict."""

from __future__ import annotations

import shlex

from ropewalk.diagnosis.verdict import Verdict


def next_step(
    verdict: Verdict,
    model: str,
    target: int,
    *,
    trained_length: int | None = None,
    record: str | None = None,
    library: str = "ropewalk",
) -> str | None:
    """What to type next; None where there is nothing to run.

    - `model`: as a command names it. `trained_length`: where it had to be given.
    - `record`: the doctor's, as a file; method and lengths are taken from it. `library`: what computed the model: a
      method that no config can say goes into a live model of another library by `rw.attach`, in Python.

    >>> next_step(Verdict(action="extend", method="ntk", config={}), "tiny", 1024)
    'ropewalk extend apply tiny --method ntk --target 1024 --out tiny-1024'
    """
    if verdict.action == "undecided":
        return None if verdict.next is None else verdict.next.command
    if verdict.action == "unfit":
        return shlex.join(["ropewalk", "doctor", model, "--text", "FILE"])
    if verdict.action != "extend" or verdict.method is None:
        return None
    if verdict.config is None and library != "ropewalk":
        return attach_call(verdict.method, target, trained_length)
    chosen = ["--method", verdict.method, "--target", str(target)]
    chosen += [] if trained_length is None else ["--trained-length", str(trained_length)]
    if record is not None:
        chosen = ["--from", record]
    native = [] if verdict.config is not None else ["--native"]
    out = f"{model.rstrip('/').removesuffix('.gguf')}-{target}"
    return shlex.join(["ropewalk", "extend", "apply", model, *chosen, *native, "--out", out])


def attach_call(method: str, target: int, trained_length: int | None = None) -> str:
    """The call that puts a live model of transformers under a method.

    >>> attach_call("dca", 1024)
    'rw.attach(model, "dca", target=1024)'
    """
    stated = "" if trained_length is None else f", trained_length={trained_length}"
    return f'rw.attach(model, "{method}", target={target}{stated})'
