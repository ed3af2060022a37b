"""No rule of a machine of ``tests/model`` hides a rule of its bases."""

import ast
from collections.abc import Iterator
from pathlib import Path


def is_rule(item: ast.stmt) -> bool:
    return isinstance(item, ast.FunctionDef) and any(
        isinstance(each, ast.Call) and ast.unparse(each.func) == "rule" for each in item.decorator_list
    )


def test_no_rule_hides_a_rule_of_a_base() -> None:
    classes = {
        item.name: item
        for file in (Path(__file__).parent / "model").glob("*.py")
        for item in ast.parse(file.read_text()).body
        if isinstance(item, ast.ClassDef)
    }

    def bases(name: str) -> Iterator[ast.ClassDef]:
        for base in (ast.unparse(each) for each in classes[name].bases):
            if base in classes:
                yield classes[base]
                yield from bases(base)

    hidden = {
        f"{name}.{item.name} hides {base.name}.{item.name}"
        for name, machine in classes.items()
        for item in machine.body
        if isinstance(item, ast.FunctionDef)
        for base in bases(name)
        if any(is_rule(each) and isinstance(each, ast.FunctionDef) and each.name == item.name for each in base.body)
    }

    assert len(classes) > 15
    assert hidden == set()
