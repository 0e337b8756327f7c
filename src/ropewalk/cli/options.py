"""The options of `ropewalk` and of each command, lengths in tokens, and the command line of a record.

The options of a command are derived from the settings dataclasses of its function. A parameter that is annotated with a
dataclass becomes one option for each field, and the function gets the dataclass. A field's `metadata` may contain:

- "help": the option's help.
- "type": the type on the command line, if the field's own type is wider.
- "unit": "tokens" for a length, which may be written as 8k or 1M.
- "commas": True for a tuple that may also be separated by commas, as in --methods yarn,ntk.
- "option": the option's name or names, if they differ from the field's name with dashes.
- "metavar": the name of the value in the help.
- "command_line": False for a field without an option.
- "group": the heading under which the help lists the option (default: Options). An option in a function's own
  signature names it as `typer.Option(rich_help_panel="Output")`.

A tuple is a repeatable option. A bool with the default False is a flag, and one with True has a --no- form. A `Literal`
is checked, and the help lists its choices.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo, OptionInfo

from ropewalk.atomic_io import as_path
from ropewalk.errors import RopeError
from ropewalk.rope.values import names_of
from ropewalk.version import __version__

TOKENS: Final = "tokens"
"""Mark of a length in a command's own signature: `target: Annotated[int | None, TOKENS, typer.Option(...)] = None`."""
_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_LENGTH = re.compile(r"([+-]?\d+(?:_\d+)*(?:\.\d+)?)([km]?)", re.IGNORECASE)


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

    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     target: int = dataclasses.field(default=512, metadata={"help": "Tokens.", "unit": "tokens"})
    >>> def measure(model: str, settings: Settings) -> None:
    ...     print(model, settings)
    >>> with_options(measure)(model="tiny", target="8k")
    tiny Settings(target=8192)
    """
    hints = get_type_hints(function, include_extras=True)
    options: dict[str, _Option] = {}
    groups: dict[str, _SettingsGroup] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        group = _settings_group(hints[name])
        if group is not None:
            groups[name] = group
        new = {name: _of_parameter(parameter, hints[name])} if group is None else group.options
        assert not options.keys() & new.keys(), f"{function.__name__}: two options have one name"
        options |= new

    def command(**typed: Any) -> None:
        values = {name: options[name].read(value) for name, value in typed.items()}
        own = {name: value for name, value in values.items() if name in hints and name not in groups}
        function(**own, **{name: group.read(typed, values) for name, group in groups.items()})

    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__signature__ = inspect.Signature([option.parameter(name) for name, option in options.items()])  # type: ignore[attr-defined]
    command.__annotations__ = {name: option.annotation for name, option in options.items()}
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
            if record is not None:
                sections.setdefault(heading, []).append(record)
        arguments = {"Arguments": sections.pop("Arguments")} if "Arguments" in sections else {}
        for heading, rows in {**arguments, **sections}.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


@dataclass(frozen=True, kw_only=True)
class _Option:
    """One parameter as typer gets it, and the conversion of its value."""

    annotation: Any
    default: Any
    read: Callable[[Any], Any]

    def parameter(self, name: str) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=self.annotation)


@dataclass(frozen=True, kw_only=True)
class _SettingsGroup:
    """The options of one dataclass."""

    settings: type
    options: dict[str, _Option]

    def read(self, typed: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        """Return the dataclass from the values `typed`, which `values` has converted to the fields' types."""
        return self.settings(**{name: values[name] for name in self.options if name in typed})


def _settings_group(hint: Any) -> _SettingsGroup | None:
    """Return the options of an annotation that is a dataclass; None for any other annotation."""
    if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return None
    hints = get_type_hints(hint)
    options = {
        field.name: _of_field(field, hints[field.name])
        for field in dataclasses.fields(hint)
        if field.init and field.metadata.get("command_line", True)
    }
    return _SettingsGroup(settings=hint, options=options)


def _of_parameter(parameter: inspect.Parameter, hint: Any) -> _Option:
    """Return the option of a parameter that is no dataclass; a length, marked by TOKENS, is text for typer."""
    plain, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    tokens, infos = TOKENS in marks, [mark for mark in marks if mark != TOKENS]
    kind, _ = _without_none(plain)
    for info in infos:
        value_name = _metavar(get_args(kind)[0] if get_origin(kind) in (list, tuple) else kind, tokens)
        info.metavar = info.metavar or (parameter.name.upper() if isinstance(info, ArgumentInfo) else value_name)
    repeated = get_origin(kind) is list
    element = get_args(kind)[0] if repeated else kind
    if not tokens and element is not Path:
        return _Option(annotation=hint, default=parameter.default, read=lambda value: value)
    names = next((info.param_decls for info in infos if isinstance(info, OptionInfo) and info.param_decls), ())
    option = names[0] if names else _named(parameter.name)
    text: Any = list[str] if repeated else str

    def read(value: Any) -> Any:
        if value is None:
            return None
        return (
            [_read(one, element, tokens, option) for one in value]
            if repeated
            else _read(value, element, tokens, option)
        )

    return _Option(
        annotation=_annotated(text | None if parameter.default is None else text, *infos),
        default=_typed(parameter.default, str),
        read=read,
    )


def _of_field(field: dataclasses.Field[Any], hint: Any) -> _Option:
    """Return the option of one field: type and default for typer, and the conversions."""
    kind, optional = _without_none(field.metadata.get("type", hint))
    repeated = get_origin(kind) is tuple
    element = get_args(kind)[0] if repeated else kind
    names = field.metadata.get("option", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    default = _default(field)
    is_flag = kind is bool and default is False
    if is_flag and not names:
        names = (_named(field.name),)
    shown = names[0] if names else _named(field.name)
    commas, tokens = bool(field.metadata.get("commas")), field.metadata.get("unit") == "tokens"
    typed: Any = str if tokens or commas or element is Path or get_origin(element) is Literal else element
    help_text, metavar = field.metadata.get("help"), field.metadata.get("metavar")
    panel = field.metadata.get("group")
    info = typer.Option(*names, help=help_text, metavar=metavar or _metavar(element, tokens), rich_help_panel=panel)

    def read_one(value: Any) -> Any:
        return _read(value, element, tokens, shown)

    def read(value: Any) -> Any:
        if value is None or not repeated:
            return default if value is None else read_one(value)
        words = names_of(f"ropewalk: {shown}", value) if commas else list(value)
        return tuple(map(read_one, words)) if words else default

    required = default is inspect.Parameter.empty
    annotation = list[typed] if repeated else typed
    if not required and (repeated or optional):
        annotation = annotation | None
    return _Option(annotation=_annotated(annotation, info), default=_typed(default, typed), read=read)


def _typed(default: Any, typed: type) -> Any:
    """Return a default for typer: text if the type is text; None for an empty tuple."""
    if isinstance(default, tuple):
        return [_typed(item, typed) for item in default] or None
    return str(default) if typed is str and isinstance(default, int | Path) else default


def _read(value: Any, element: Any, tokens: bool, option: str) -> Any:
    """Return one value, converted to its field's type."""
    if tokens:
        return read_tokens(value, option)
    if get_origin(element) is Literal:
        choices = get_args(element)
        if value not in choices:
            raise RopeError(
                f"ropewalk: {option} has an unknown value.",
                facts={"given": value},
                cure=f"Choose from {', '.join(choices)}.",
            )
        return value
    if element is Path:
        return as_path(value, option)
    if isinstance(value, str) and element in (int, float):
        try:
            return element(value)
        except ValueError as error:
            raise RopeError(
                f"ropewalk: {option} must be {'a whole number' if element is int else 'a number'}.",
                facts={"given": value},
                cure="Separate several values by commas.",
            ) from error
    return value


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default; `inspect.Parameter.empty` if it is required."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return inspect.Parameter.empty if field.default_factory is dataclasses.MISSING else field.default_factory()


def _metavar(element: Any, tokens: bool) -> str | None:
    """Return the name of a value in the help; typer's own names differ between versions."""
    if tokens:
        return "TOKENS"
    if get_origin(element) is Literal:
        return f"[{'|'.join(get_args(element))}]"
    return {str: "TEXT", int: "INTEGER", float: "FLOAT", Path: "PATH"}.get(element)


def _annotated(hint: Any, *marks: Any) -> Any:
    return Annotated[(hint, *marks)] if marks else hint


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type without None, and whether it contained None."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    assert len(kinds) == 1, f"an option has one type, or one type and None: {hint}"
    return kinds[0], len(kinds) < len(get_args(hint))


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
    return shlex.join(words)


def _shown(value: Any) -> str:
    """Return a value as text; a path as its last part."""
    text = str(value)
    with suppress(OSError):  # too long for a path
        return Path(text).resolve().name if Path(text).exists() else text
    return text
