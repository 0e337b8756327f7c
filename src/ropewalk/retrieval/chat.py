"""The frame of a chat around a text, a question and the beginning of its answer, from a checkpoint's own template."""

from __future__ import annotations

from typing import NamedTuple

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.optional import need
from ropewalk.retrieval.needles import Wording

_TEXT = "The text goes here."


class Frame(NamedTuple):
    """What stands before the text, and between a question and the beginning of its answer; None: no chat.

    >>> from ropewalk.retrieval.needles import NUMBERS
    >>> Frame().question(NUMBERS, "Oslo"), Frame("<user>", "<model>").question(NUMBERS, "Oslo")
    ('The number of Oslo is', 'What is the number of Oslo?<model>The number of Oslo is')
    """

    before: str = ""
    between: str | None = None

    def question(self, wording: Wording, name: str) -> str:
        """The question and the beginning of its answer, as they follow the text."""
        if self.between is None:
            return wording.question(name)
        return f"{wording.ask.format(name=name)}{self.between}{wording.lead.format(name=name)}"


PLAIN = Frame()
"""No chat."""


def chat_frame(tokenizer: Tokenizer) -> Frame:
    """The frame that the tokenizer's chat template puts around one message of the user; run in jinja2's sandbox.

    Raises `RopeError` where there is no template, or it does not hold the message as it is.
    """
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        raise RopeError(
            "retrieval: this model has no chat template.",
            facts={"tokenizer": type(tokenizer).__name__},
            cure="Leave the chat out: the questions are then asked as plain text.",
        )
    sandbox = need("jinja2.sandbox", extra="figures").ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True
    )

    def refuse(message: str) -> None:
        raise need("jinja2", extra="figures").TemplateError(message)

    sandbox.globals["raise_exception"] = refuse
    special = {
        f"{name}_token": "" if token is None else tokenizer.tokenizer.id_to_token(token)
        for name, token in (("bos", tokenizer.bos_id), ("eos", next(iter(tokenizer.eos_ids), None)))
    }
    messages = [{"role": "user", "content": _TEXT}]
    try:
        text = sandbox.from_string(template).render(messages=messages, add_generation_prompt=True, **special)
        before, between = text.split(_TEXT)
    except Exception as error:  # a template may raise anything
        raise RopeError(
            "retrieval: the model's chat template cannot frame a message.",
            facts={"error": f"{type(error).__name__}: {error}"},
            cure="Leave the chat out: the questions are then asked as plain text.",
        ) from error
    return Frame(before, between)
