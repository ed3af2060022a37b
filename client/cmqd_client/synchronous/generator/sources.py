"""The modules of the asynchronous client, parsed: imports, aliases, definitions and docstrings."""

import ast
from dataclasses import dataclass, field
from pathlib import Path

CLIENT = Path(__file__).parents[2]

NOT_SOURCES = {"__init__.py", "sync.py"}
SYNCHRONOUS = {"synchronous", "generator"}
"""Folders without sources."""


class CannotTurnError(Exception):
    """A definition for which there is no rule; the text names it."""


@dataclass
class Source:
    """A module of the asynchronous client."""

    name: str
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict[str, str])
    """Module by imported name."""
    whole: set[str] = field(default_factory=set[str])
    """Modules that are imported as a whole."""
    aliases: dict[str, tuple[ast.expr, str]] = field(default_factory=dict[str, "tuple[ast.expr, str]"])
    """Type aliases: value and docstring."""
    type_variables: set[str] = field(default_factory=set[str])
    defined: set[str] = field(default_factory=set[str])


def sources() -> dict[str, Source]:
    """Return the modules of the asynchronous client by name."""
    modules = {
        ".".join(path.relative_to(CLIENT.parent).with_suffix("").parts): path
        for path in sorted(CLIENT.rglob("*.py"))
        if path.name not in NOT_SOURCES and path.parent.name not in SYNCHRONOUS
    }
    return {name: read_source(name, path.read_text()) for name, path in modules.items()}


def read_source(name: str, text: str) -> Source:
    """Return a module with its imports and definitions."""
    source = Source(name, ast.parse(text))
    body = source.tree.body
    for position, node in enumerate(body):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                source.imports[alias.asname or alias.name] = node.module or ""
        elif isinstance(node, ast.Import):
            source.whole |= {alias.name for alias in node.names}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            source.defined.add(node.target.id)
            if ast.unparse(node.annotation) == "TypeAlias" and node.value is not None:
                source.aliases[node.target.id] = (unquoted(node.value), attribute_docstring(body, position))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            source.defined.add(node.targets[0].id)
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "TypeVar":
                source.type_variables.add(node.targets[0].id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            source.defined.add(node.name)
    return source


def unquoted(annotation: ast.expr) -> ast.expr:
    """Return an annotation without quotes around it."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def attribute_docstring(body: list[ast.stmt], position: int) -> str:
    """Return the docstring behind an assignment, empty if there is none."""
    if position + 1 < len(body):
        node = body[position + 1]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return node.value.value
    return ""


def names_in(node: ast.AST) -> set[str]:
    """Return the names in an expression, quoted ones included."""
    names: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            names.add(part.id)
    return names


def is_public(name: str) -> bool:
    """True for a name that programs use."""
    return not name.startswith("_")


def is_special(name: str) -> bool:
    """True for a method of a protocol of the language that the base of the twins does not have."""
    return name.startswith("__") and name not in {"__init__", "__repr__"}


def is_generator(node: ast.AST) -> bool:
    """True if a function yields."""
    return any(isinstance(part, ast.Yield) for part in ast.walk(node))


def has_async_methods(node: ast.ClassDef) -> bool:
    """True if a caller of the class awaits something."""
    return any(
        isinstance(part, ast.AsyncFunctionDef) and (is_public(part.name) or part.name.startswith("__a"))
        for part in node.body
    )


def lists_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return statements that make lists of iterables: a generator runs in the thread of its caller."""
    lines: list[str] = []
    for parameter in all_parameters(node.args):
        annotation, name = parameter.annotation, parameter.arg
        sides = [annotation.left, annotation.right] if isinstance(annotation, ast.BinOp) else [annotation]
        if any(isinstance(side, ast.Subscript) and ast.unparse(side.value) == "Iterable" for side in sides):
            # A string stays, because the client refuses a string in place of a list of strings.
            values = (
                f"list({name})" if len(sides) == 1 else f"{name} if isinstance({name}, str | None) else list({name})"
            )
            lines.append(f"{name} = {values}\n")
    return "".join(lines)


def all_parameters(parameters: ast.arguments) -> list[ast.arg]:
    """Return all parameters, in the order of the signature."""
    stars = [parameters.vararg] if parameters.vararg else []
    named = [parameters.kwarg] if parameters.kwarg else []
    return [*parameters.posonlyargs, *parameters.args, *stars, *parameters.kwonlyargs, *named]
