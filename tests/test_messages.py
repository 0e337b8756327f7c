"""Error wording: every RopeError in the package states its rule, and a cure."""

from __future__ import annotations

import ast
import pickle
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import torch

import ropewalk
from ropewalk.errors import NoRotation, RopeError, describe

PACKAGE = Path(ropewalk.__file__).parent


@pytest.fixture(scope="module")
def nodes() -> list[tuple[str, ast.AST]]:
    """Every call, `raise` and class in the package, with its place."""
    return [
        (f"{path.relative_to(PACKAGE)}:{node.lineno}", node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call | ast.Raise | ast.ClassDef)
    ]


def test_every_error_has_a_cure(nodes):
    """A user who meets an error is told what to do."""
    errors = [(place, node) for place, node in nodes if name_of_call(node) == "RopeError"]
    assert len(errors) > 50
    assert [place for place, call in errors if not {"cure"} & {k.arg for k in call.keywords}] == []


def name_of_call(node: ast.AST | None) -> str | None:
    """The name that is called, if the node is a call of a plain name."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def test_no_bare_exceptions(nodes):
    """Users meet RopeError only: nothing raises a plain built-in error at them (`assert` is for our own mistakes)."""
    plain = {"ValueError", "TypeError", "RuntimeError", "KeyError", "Exception", "NotImplementedError"}
    raised = [(place, node.exc) for place, node in nodes if isinstance(node, ast.Raise)]
    assert [place for place, error in raised if name_of_call(error) in plain] == []


def test_no_two_classes_share_a_name(nodes):
    """A reader who searches for a class finds one."""
    names = Counter(node.name for _, node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_extra_that_an_error_names_exists(nodes):
    """The command in the message of a missing package installs something."""
    calls = [node for _, node in nodes if name_of_call(node) in ("need", "install_command")]
    named = {
        value.value
        for call in calls
        for value in [*call.args[name_of_call(call) == "need" :], *(keyword.value for keyword in call.keywords)]
        if isinstance(value, ast.Constant)
    }
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert {"cli", "doctor", "figures"} <= named <= set(project["optional-dependencies"])


def test_rule_facts_and_cure():
    """The message is the rule, one fact a line, aligned, then the cure."""
    error = RopeError("f: no.", facts={"x": torch.zeros(2, dtype=torch.bfloat16), "long_name": "a"}, cure="Do this.")
    assert str(error) == "f: no.\n  x          bfloat16[2]\n  long_name  'a'\nDo this."
    assert (error.rule, error.where, error.reason, error.cure) == ("f: no.", "f", "no", "Do this.")
    with pytest.raises(ValueError, match="f: no"):
        raise error


def test_errors_survive_the_way_from_another_process():
    """A worker's error says the same where it arrives; tensors are not sent along."""
    error = NoRotation("f: no.", facts={"x": torch.zeros(10_000), "name": "a"}, cure="Do this.")
    sent = pickle.dumps(error)
    assert len(sent) < 1000
    arrived = pickle.loads(pickle.dumps(pickle.loads(sent)))
    assert type(arrived) is NoRotation
    assert str(arrived) == str(error)
    assert (arrived.rule, arrived.cure) == (error.rule, error.cure)


def test_what_a_fact_says():
    """It never fills the screen, and a dtype is named as torch users know it."""
    assert len(describe(list(range(10_000)))) < 250
    assert describe(torch.float16) == "float16"
    assert describe(torch.zeros(1, device="meta")) == "float32[1] meta"
