"""The options of `ropewalk` and of each command, lengths in tokens, and the command line of a record.

A parameter that is annotated with a dataclass becomes one option for each field, and the function gets the dataclass. A
field's `metadata` may contain:

- "help", "metavar": the option's help, and the name of the value in it.
- "group": the heading under which the help lists the option (default: Options).
- "option": the option's names, if they differ from the field's name with dashes.
- "type": the type on the command line, if the field's own type is wider. A tuple is a repeatable option.
- "unit": "tokens" for a length, which may be written as 8k or 1M.
- "commas": True for a tuple that may also be separated by commas, as in --methods yarn,ntk.

A bool is a flag with the default False.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo, ParameterInfo

from ropewalk.atomic_io import as_path
from ropewalk.errors import RopeError
from ropewalk.rope.values import names_of
from ropewalk.shell import shell_command
from ropewalk.version import __version__

_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_LENGTH = re.compile(r"([+-]?\d+(?:_\d+)*(?:\.\d+)?)([km]?)", re.IGNORECASE)
_METAVARS = {str: "TEXT", int: "INTEGER", float: "FLOAT", Path: "PATH"}  # typer's own names differ between versions
TOKENS: Final = "tokens"
"""Mark of a length in a command's own signature: `target: Annotated[int | None, TOKENS, typer.Option(...)] = None`."""
COMMAS: Final = "commas"
_Read = Callable[[Any], Any]


def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """How far does a checkpoint's context really reach, and what would extend it?"""
    if version:
        typer.echo(f"ropewalk {__version__}")
        raise typer.Exit


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: `function` with an option for each field of its settings.

    The values have the types of `function`'s annotations: lengths are ints, settings are dataclasses. The command
    raises `RopeError` for an invalid value before it calls `function`.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Settings:
    ...     target: int = dataclasses.field(default=512, metadata={"help": "Tokens.", "unit": "tokens"})
    >>> def measure(model: str, settings: Settings) -> None:
    ...     print(model, settings)
    >>> with_options(measure)(model="tiny", target="8k")
    tiny Settings(target=8192)
    """
    hints, options = get_type_hints(function, include_extras=True), list[tuple[inspect.Parameter, _Read]]()
    settings: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    for name, parameter in inspect.signature(function).parameters.items():
        own = _of_fields(settings[name]) if name in settings else [parameter.replace(annotation=hints[name])]
        options += [_option(one) for one in own]
    reads = {parameter.name: read for parameter, read in options}

    def command(**typed: Any) -> None:
        given = {name: reads[name](value) for name, value in typed.items()}
        for name, kind in settings.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
        function(**given)

    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__signature__ = inspect.Signature([parameter for parameter, _ in options])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter, _ in options}
    return command


class Command(TyperCommand):
    """A command with help that lists the options under the headings of their groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the groups of options in their order."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            heading = "Arguments" if parameter.param_type_name == "argument" else None
            heading = heading or getattr(parameter, "rich_help_panel", None) or "Options"
            record = parameter.get_help_record(ctx)
            if record is not None and heading == "Arguments":
                record = record[0].split(" <")[0], record[1]  # newer versions of typer add its type
            if record is not None:
                sections.setdefault(heading, []).append(record)
        arguments = {"Arguments": sections.pop("Arguments")} if "Arguments" in sections else {}
        for heading, rows in {**arguments, **sections}.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def _of_fields(settings: Any) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field of a dataclass."""
    hints = get_type_hints(settings)
    for field in dataclasses.fields(settings):
        about, default = field.metadata, field.default
        kind: Any = about.get("type", hints[field.name])
        names = about.get("option") or ((_named(field.name),) if kind is bool else ())
        info = typer.Option(
            *names, help=about["help"], metavar=about.get("metavar"), rich_help_panel=about.get("group")
        )
        marks = [mark for mark, stated in ((TOKENS, about.get("unit")), (COMMAS, about.get("commas"))) if stated]
        typed = kind | None if default is None else kind
        annotation: Any = Annotated[(typed, info, *marks)]
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(parameter: inspect.Parameter) -> tuple[inspect.Parameter, _Read]:
    """Return the parameter for typer, which gets lengths and paths as text, and the conversion of its value."""
    plain, *marks = get_args(parameter.annotation) if get_origin(parameter.annotation) is Annotated else (Any,)
    info = next((mark for mark in marks if isinstance(mark, ParameterInfo)), None)
    if info is None:  # the context
        return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY), lambda value: value
    kinds = [kind for kind in get_args(plain) if kind is not NoneType] if isinstance(plain, UnionType) else [plain]
    repeated, default = get_origin(kinds[0]) in (list, tuple), parameter.default
    element: Any = get_args(kinds[0])[0] if repeated else kinds[0]
    argument = isinstance(info, ArgumentInfo)
    info.metavar = info.metavar or (
        "TOKENS" if TOKENS in marks else parameter.name.upper() if argument else _METAVARS.get(element)
    )
    names = (info.default, *(info.param_decls or ()))  # typer.Option's first name is its default
    option = next((str(name) for name in names if str(name).startswith("-")), _named(parameter.name))
    convert = read_tokens if TOKENS in marks else as_path if element is Path else None

    def read(value: Any) -> Any:
        """Return what was given, or the default."""
        if COMMAS in marks and value:
            value = names_of(f"ropewalk: {option}", value)
        values = value if repeated else [value]
        if not values or values == [None]:
            return default if repeated else None
        found = tuple(one if convert is None else convert(one, option) for one in values)
        return found if repeated else found[0]

    if convert is not None:
        element, default = str, str(default) if isinstance(default, int | Path) else default
    typed: Any = list[element] if repeated else element
    annotation: Any = Annotated[(typed | None if isinstance(plain, UnionType) else typed, info)]
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation), read


def _named(name: str) -> str:
    """Return a field's name as an option."""
    return f"--{name.replace('_', '-')}"


def read_tokens(text: str, option: str = "length") -> int:
    """Return the number of tokens in `text`: k is 1,024, M is 1,048,576.

    Raises `RopeError`, which contains `option`, for any other text, and for fractions of a token.

    >>> [read_tokens(text) for text in ("8192", "8_192", "8k", "1.5k", "128K", "1M")]
    [8192, 8192, 8192, 1536, 131072, 1048576]
    """
    match = _LENGTH.fullmatch(text.strip())
    if match is not None and len(text) < 100:  # Python converts no text of thousands of digits
        whole, _, decimals = match[1].replace("_", "").partition(".")
        tokens, part = divmod(int(whole + decimals) * _UNITS[match[2].lower()], int("1" + "0" * len(decimals)))
        if not part:
            return tokens
    raise RopeError(
        f"ropewalk: {option} must be a whole number of tokens.",
        facts={"given": text},
        cure="Write 8192, 8_192, 8k (k is 1,024) or 1M (1,048,576).",
    )


def command_line(
    context: typer.Context, *, leave_out: Container[str] = (), changed: Mapping[str, Any] | None = None
) -> str:
    """Return the command and its given options as text for a shell.

    A path is shortened to its last part, so a record contains no private folders. `leave_out` contains parameters that
    do not change results. With `changed`, the values of some parameters, the command can be run: paths are complete.
    """
    new, shown = changed or {}, _shown if changed is None else str
    words = ["ropewalk", *context.command_path.removeprefix("ropewalk").split()]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in leave_out or (name not in new and (source is None or source.name != "COMMANDLINE")):
            continue
        values = new.get(name, context.params[name])
        option = parameter.opts[0] if parameter.param_type_name == "option" else None
        if isinstance(values, bool):
            words.append(option or str(values)) if values else words.append(parameter.secondary_opts[0])
            continue
        for value in values if isinstance(values, list | tuple) else [values]:
            words += [*([option] if option else []), shown(value)]
    return shell_command(*words)


def _shown(value: Any) -> str:
    """Return a value as text; a path as its last part."""
    text = str(value)
    with suppress(OSError):  # too long for a path
        return Path(text).resolve().name if Path(text).exists() else text
    return text
