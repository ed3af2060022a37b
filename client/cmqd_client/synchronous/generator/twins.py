"""The text of the synchronous classes, one twin for each asynchronous class."""

import ast
import builtins
import re
import textwrap
from collections.abc import Iterator

from cmqd_client.synchronous.generator.rules import (
    ALIASES,
    BODIES,
    CALLBACKS,
    CONTEXTS,
    DEFAULTS,
    HEAD,
    IMPORTS,
    IN_LOOP,
    INTERNAL,
    ITERATORS,
    LEFT_OUT,
    PORTAL_NAMES,
    RETURNS,
    REWORDED,
)
from cmqd_client.synchronous.generator.sources import (
    CannotTurnError,
    Source,
    all_parameters,
    attribute_docstring,
    has_async_methods,
    is_generator,
    is_public,
    is_special,
    lists_of,
    names_in,
    unquoted,
)

_COLUMNS = 106
"""Of a line of a docstring in a method, between its quotes."""


class Facade:
    """Writes the module; see the rules in the module's docstring."""

    def __init__(self, modules: dict[str, Source]) -> None:
        self.modules = modules
        self.twins: dict[str, Source] = {}
        """Classes with a twin, with their modules."""
        self.classes: list[tuple[Source, ast.ClassDef]] = []
        for source in modules.values():
            for node in source.tree.body:
                if not isinstance(node, ast.ClassDef) or not is_public(node.name) or node.name in INTERNAL:
                    continue
                if has_async_methods(node):
                    self.twins[node.name] = source
                    self.classes.append((source, node))
        self.twin_aliases: dict[str, tuple[ast.expr, str]] = {}
        """Type aliases that name a class with a twin."""
        for source in modules.values():
            for name, (value, docstring) in source.aliases.items():
                if names_in(value) & self.twins.keys() and is_public(name):
                    turned = ast.parse(ALIASES[name], mode="eval").body if name in ALIASES else value
                    self.twin_aliases[name] = (turned, docstring)
        # A class stands behind its base.
        self.classes.sort(key=lambda entry: self.base(entry[1]) is not None)
        self.imported: dict[str, set[str]] = {}
        """Imports of the facade: names by module."""
        self.whole: set[str] = {"builtins"}
        """Modules that the facade imports as a whole."""
        self.type_variables: set[str] = set()
        self.portal_names: set[str] = {"Portal", "Synchronous"}
        """Names of ``portal`` that the facade imports."""

    def text(self) -> str:
        """Return the module, not yet formatted."""
        functions = [part for source in self.modules.values() for part in self.functions(source)]
        classes = [self.class_text(source, node) for source, node in self.classes]
        exported = sorted([*self.twins, "connect"])
        aliases = [
            f'{name}: TypeAlias = "{ast.unparse(value)}"' + (f'\n"""{docstring}"""' if docstring else "")
            for name, (value, docstring) in sorted(self.twin_aliases.items())
        ]
        for name, (value, _) in self.twin_aliases.items():
            self.use(names_in(value), self.alias_source(name))
        if aliases:
            self.imported.setdefault("typing", set()).add("TypeAlias")
        if self.type_variables:
            self.imported.setdefault("typing", set()).add("TypeVar")
        imports = [
            f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self.imported.items())
        ]
        imports += [f"from cmqd_client.synchronous.portal import {', '.join(sorted(self.portal_names))}"]
        variables = [f'{name} = TypeVar("{name}")' for name in sorted(self.type_variables)]
        return (
            HEAD
            + "from __future__ import annotations\n\n"
            + "\n".join([*(f"import {name}" for name in sorted(self.whole)), *imports])
            + f"\n\n__all__ = {exported!r}\n\n"
            + "\n".join([*variables, *aliases])
            + "\n\n\n"
            + "\n\n\n".join([*functions, *classes])
            + "\n"
        )

    def alias_source(self, name: str) -> Source:
        """Return the module with this alias."""
        return next(source for source in self.modules.values() if name in source.aliases)

    def base(self, node: ast.ClassDef) -> ast.expr | None:
        """Return the base of a class that has a twin."""
        return next((base for base in node.bases if self.twin(base) is not None), None)

    # ------------------------------------------------------------------ names

    def use(self, names: set[str], source: Source) -> None:
        """Import names of a module of the client into the facade."""
        for name in sorted(names):
            if name in self.twins or name in self.twin_aliases:
                continue
            if name in source.whole:
                self.whole.add(name)
            elif name in IMPORTS:
                self.imported.setdefault(IMPORTS[name], set()).add(name)
            elif name in source.type_variables:
                self.type_variables.add(name)
            elif name in source.imports:
                self.imported.setdefault(source.imports[name], set()).add(name)
            elif name in source.defined:
                self.imported.setdefault(source.name, set()).add(name)
            elif not hasattr(builtins, name):
                raise CannotTurnError(f"{source.name} uses {name}, which is neither imported nor defined there")

    def twins_in(self, annotation: ast.expr | None) -> list[str]:
        """Return the classes with twins that an annotation names, also through aliases."""
        if annotation is None:
            return []
        names = names_in(annotation)
        for alias in names & self.twin_aliases.keys():
            names |= names_in(self.twin_aliases[alias][0])
        return sorted(names & self.twins.keys())

    def callback_in(self, annotation: ast.expr | None, where: str) -> str | None:
        """Return the name of the callback type in an annotation."""
        names = set[str]() if annotation is None else names_in(annotation)
        for name in sorted(names):
            if name in CALLBACKS:
                return name
            if name == "Callable" or any(
                name in source.aliases and "Callable" in names_in(source.aliases[name][0])
                for source in self.modules.values()
            ):
                raise CannotTurnError(f"{where} takes a callback ({name}); name its thread in CALLBACKS")
        return None

    def annotation(self, node: ast.expr | None, source: Source, shadowed: set[str]) -> str:
        """Return an annotation for the facade."""
        if node is None:
            return "None"
        node = unquoted(node)
        self.use(names_in(node), source)
        text = ast.unparse(node)
        for name in shadowed & names_in(node):
            text = re.sub(rf"(?<![\w.]){name}\b", f"builtins.{name}", text)
        return text

    # ------------------------------------------------------------------ functions and methods

    def functions(self, source: Source) -> Iterator[str]:
        """Yield the functions that return a class with a twin: ``connect``."""
        for node in source.tree.body:
            if isinstance(node, ast.FunctionDef) and is_public(node.name) and node.returns is not None:
                returned = ast.unparse(unquoted(node.returns))
                if returned in self.twins:
                    other = f"{node.name}_asynchronously"
                    self.imported.setdefault(source.name, set()).add(f"{node.name} as {other}")
                    arguments, _ = self.arguments(node, source, node.name)
                    yield (
                        f"def {node.name}({self.signature(node, source, set())}) -> {returned}:\n"
                        + indented(self.docstring(node, f":func:`cmqd_client.{node.name}`"))
                        + f"    return {returned}({other}({arguments}), Portal())"
                    )

    def class_text(self, source: Source, node: ast.ClassDef) -> str:
        """Return the twin of a class."""
        self.imported.setdefault(source.name, set()).add(f"{node.name} as Async{node.name}")
        shadowed = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)} & {
            "dict",
            "list",
            "set",
            "tuple",
            "type",
        }
        parts = [indented(self.docstring(node, f":class:`Async{node.name}`")) + "    __slots__ = ()"]
        for part in node.body:
            if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if part.name == "__init__":
                parts += self.attributes(part, source, node.name, shadowed)
            elif (node.name, part.name) not in LEFT_OUT and (is_public(part.name) or is_special(part.name)):
                parts.append(indented(self.method(part, source, node.name, shadowed)))
        of_types = self.type_parameters(node, source)
        if of_types == "[MessageT]":
            # The parameter is the kind of the messages that the program sees, with a twin of its own.
            self.imported.setdefault("typing", set()).update({"Any", "Generic"})
            return f"class {node.name}(Synchronous[Async{node.name}[Any]], Generic[MessageT]):\n" + "\n\n".join(parts)
        base = self.base(node)
        if base is None:
            return f"class {node.name}(Synchronous[Async{node.name}{of_types}]):\n" + "\n\n".join(parts)
        kind = f"Async{node.name}{ast.unparse(base).removeprefix(str(self.twin(base)))}"
        self.imported.setdefault("typing", set()).add("cast")
        parts.insert(
            1,
            indented(
                f"@property\ndef asynchronous(self) -> {kind}:\n"
                + '    """The object of the asynchronous client; only to be used in its loop."""\n'
                + f'    return cast("{kind}", super().asynchronous)'
            ),
        )
        return f"class {node.name}({ast.unparse(base)}):\n" + "\n\n".join(parts)

    def type_parameters(self, node: ast.ClassDef, source: Source) -> str:
        """Return the type parameters of a class in brackets; empty if the class is not generic."""
        for base in node.bases:
            if isinstance(base, ast.Subscript) and ast.unparse(base.value) == "Generic":
                self.use(names_in(base.slice), source)
                return f"[{ast.unparse(base.slice)}]"
        return ""

    def attributes(
        self, init: ast.FunctionDef | ast.AsyncFunctionDef, source: Source, owner: str, shadowed: set[str]
    ) -> Iterator[str]:
        """Yield a property for each public attribute that ``__init__`` sets."""
        for position, node in enumerate(init.body):
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(node, ast.Assign):
                for assigned in node.targets:
                    if isinstance(assigned, ast.Attribute) and is_public(assigned.attr):
                        raise CannotTurnError(f"{owner}.{assigned.attr} is set without an annotation")
            if isinstance(node, ast.AnnAssign) and isinstance(target, ast.Attribute) and is_public(target.attr):
                docstring = attribute_docstring(init.body, position) or f"The {target.attr.replace('_', ' ')}."
                annotation = unquoted(node.annotation)
                if (owner, target.attr) in RETURNS:
                    annotation = ast.parse(RETURNS[owner, target.attr], mode="eval").body
                result = self.special_body(owner, target.attr, source) or self.result(
                    f"self.asynchronous.{target.attr}", annotation, owner, target.attr
                )
                yield indented(
                    f"@property\ndef {target.attr}(self) -> {self.annotation(annotation, source, shadowed)}:\n"
                    + indented(summary(docstring, f":attr:`Async{owner}.{target.attr}`"))
                    + indented(result)
                )

    def method(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, source: Source, owner: str, shadowed: set[str]
    ) -> str:
        """Return the twin of a method or property."""
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        if set(decorators) - {"property", "overload"}:
            raise CannotTurnError(f"{owner}.{node.name} is decorated with {', '.join(decorators)}")
        name = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}.get(node.name, node.name)
        returns = None if node.returns is None else unquoted(node.returns)
        if (owner, node.name) in RETURNS:
            returns = ast.parse(RETURNS[owner, node.name], mode="eval").body
        lines = "".join(f"@{decorator}\n" for decorator in decorators)
        if "overload" in decorators:
            self.use({"overload"}, source)
        lines += (
            f"def {name}({self.signature(node, source, shadowed)}) -> {self.returned(returns, source, shadowed)}:\n"
        )
        lines += indented(self.docstring(node, f":meth:`Async{owner}.{node.name}`"))
        if "overload" in decorators:
            return lines + "    ..."
        return lines + indented(self.body(node, source, owner, returns, is_property="property" in decorators))

    def body(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        source: Source,
        owner: str,
        returns: ast.expr | None,
        *,
        is_property: bool,
    ) -> str:
        """Return the body of a method."""
        special = self.special_body(owner, node.name, source)
        if special is not None:
            return special
        if is_property:
            return self.result(f"self.asynchronous.{node.name}", returns, owner, node.name)
        arguments, has_callback = self.arguments(node, source, f"{owner}.{node.name}")
        call = f"self.asynchronous.{node.name}({arguments})"
        return lists_of(node) + self.call(
            node, call, returns, owner, has_arguments=bool(arguments), has_callback=has_callback
        )

    def special_body(self, owner: str, name: str, source: Source) -> str | None:
        """Return the body that BODIES has, with its imports."""
        if (owner, name) not in BODIES:
            return None
        body = textwrap.dedent(BODIES[owner, name]).strip()
        names = names_in(ast.parse(body.replace("return ", "")))
        self.portal_names |= names & PORTAL_NAMES
        self.use(names & (source.imports.keys() | IMPORTS.keys()), source)
        return body

    def call(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        call: str,
        returns: ast.expr | None,
        owner: str,
        *,
        has_arguments: bool,
        has_callback: bool,
    ) -> str:
        """Return the statements that make a call, in the loop if it is to be awaited."""
        if isinstance(node, ast.FunctionDef):
            if has_callback:
                raise CannotTurnError(f"{owner}.{node.name} takes a callback and does not wait for it")
            if (owner, node.name) in IN_LOOP:
                call = f"self.portal.run(lambda: {call})"
            return self.result(call, returns, owner, node.name)
        if is_generator(node):
            return self.result(call, returns, owner, node.name)
        if has_callback:
            return self.result(f"self.portal.call_with_callbacks(lambda thread: {call})", returns, owner, node.name)
        function = call.removesuffix("()") if not has_arguments else f"lambda: {call}"
        return self.result(f"self.portal.call({function})", returns, owner, node.name)

    def signature(self, node: ast.FunctionDef | ast.AsyncFunctionDef, source: Source, shadowed: set[str]) -> str:
        """Return the parameters, with types and defaults."""
        parameters = node.args
        for parameter in all_parameters(parameters):
            if parameter.annotation is not None:
                text = self.annotation(parameter.annotation, source, shadowed)
                parameter.annotation = ast.parse(text, mode="eval").body
        for default in [*parameters.defaults, *parameters.kw_defaults]:
            for part in [] if default is None else list(ast.walk(default)):
                if isinstance(part, ast.Name):
                    if part.id in DEFAULTS:
                        part.id = DEFAULTS[part.id]
                        self.portal_names.add(part.id)
                    else:
                        self.use({part.id}, source)
        return ast.unparse(parameters)

    def returned(self, returns: ast.expr | None, source: Source, shadowed: set[str]) -> str:
        """Return the annotation of the result."""
        if isinstance(returns, ast.Subscript) and isinstance(returns.value, ast.Name):
            first = returns.slice.elts[0] if isinstance(returns.slice, ast.Tuple) else returns.slice
            if returns.value.id in ITERATORS:
                self.imported.setdefault("collections.abc", set()).add("Iterator")
                return f"Iterator[{self.annotation(first, source, shadowed)}]"
            if returns.value.id in CONTEXTS:
                self.imported.setdefault("contextlib", set()).add("AbstractContextManager")
                return f"AbstractContextManager[{self.annotation(first, source, shadowed)}, bool | None]"
        return self.annotation(returns, source, shadowed)

    def arguments(self, node: ast.FunctionDef | ast.AsyncFunctionDef, source: Source, where: str) -> tuple[str, bool]:
        """Return the arguments that are passed on, and True if one of them is a function for the waiting thread."""
        parameters = node.args
        passed: list[str] = []
        has_callback = False
        for parameter in all_parameters(parameters):
            if parameter.arg == "self":
                continue
            annotation = None if parameter.annotation is None else unquoted(parameter.annotation)
            callback = self.callback_in(annotation, where)
            value = parameter.arg
            if callback is not None:
                value = CALLBACKS[callback].format(name=value)
                if "thread." in value:
                    has_callback = True
                elif "(" in value:
                    self.portal_names.add(value.partition("(")[0])
            elif twins := self.twins_in(annotation):
                value = self.argument_of_twin(parameter, annotation, twins, is_list=parameter is parameters.vararg)
            if parameter is parameters.vararg:
                passed.append(f"*{value}")
            elif parameter is parameters.kwarg:
                passed.append(f"**{value}")
            elif parameter in parameters.kwonlyargs:
                passed.append(f"{parameter.arg}={value}")
            else:
                passed.append(value)
        return ", ".join(passed), has_callback

    def result(self, value: str, returns: ast.expr | None, owner: str, name: str) -> str:
        """Return the statements that return ``value`` as the caller shall see it."""
        if returns is None or ast.unparse(returns) == "None":
            return value
        if isinstance(returns, ast.Subscript) and isinstance(returns.value, ast.Name):
            first = returns.slice.elts[0] if isinstance(returns.slice, ast.Tuple) else returns.slice
            if returns.value.id in ITERATORS:
                return f"return self.portal.iterate({value}, lambda element: {self.converted('element', first)})"
            if returns.value.id in CONTEXTS:
                return f"return self.portal.context({value}, lambda entered: {self.converted('entered', first)})"
        if ast.unparse(returns) == "Self":
            return f"{value}\nreturn self"
        if not self.twins_in(returns):
            return f"return {value}"
        if self.twin(returns) is not None:
            return f"return {self.converted(value, returns)}"
        if isinstance(returns, ast.Subscript) and ast.unparse(returns.value) == "list":
            twin = self.twin(returns.slice)
            if twin is not None:
                return f"return [{twin}(element, self.portal) for element in {value}]"
        if isinstance(returns, ast.BinOp):
            sides = [side for side in (returns.left, returns.right) if ast.unparse(side) != "None"]
            twin = self.twin(sides[0]) if len(sides) == 1 else None
            if twin is not None:
                return f"result = {value}\nreturn None if result is None else {twin}(result, self.portal)"
        raise CannotTurnError(f"{owner}.{name} returns {ast.unparse(returns)}; there is no rule for this result")

    def twin(self, kind: ast.expr) -> str | None:
        """Return the class with a twin that an annotation is, with or without type parameters."""
        kind = unquoted(kind)
        named = kind.value if isinstance(kind, ast.Subscript) else kind
        return named.id if isinstance(named, ast.Name) and named.id in self.twins else None

    def converted(self, value: str, kind: ast.expr) -> str:
        """Return the twin of a value, or the value."""
        twin = self.twin(kind)
        if twin is not None:
            return f"{twin}({value}, self.portal)"
        if self.twins_in(unquoted(kind)):
            raise CannotTurnError(f"there is no rule for {ast.unparse(kind)}")
        return value

    def argument_of_twin(
        self, parameter: ast.arg, annotation: ast.expr | None, twins: list[str], *, is_list: bool
    ) -> str:
        """Return the asynchronous form of an argument, or of each element of a list."""
        kinds = twins[0] if len(twins) == 1 else f"({', '.join(twins)})"
        name = parameter.arg
        if annotation is not None and self.twin(annotation) is not None:
            return f"[entry.asynchronous for entry in {name}]" if is_list else f"{name}.asynchronous"
        if is_list or isinstance(annotation, ast.Subscript):
            return f"[entry.asynchronous if isinstance(entry, {kinds}) else entry for entry in {name}]"
        return f"{name}.asynchronous if isinstance({name}, {kinds}) else {name}"

    def docstring(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, pointer: str) -> str:
        """Return the docstring of a twin."""
        text = ast.get_docstring(node)
        return "" if text is None else summary(text, pointer)


def summary(text: str, pointer: str) -> str:
    """Return the source of a docstring: the first sentence, and a pointer to the rest if there is more."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    words = re.split(r"(?<=[.!?:]) (?=[A-Z`])", paragraph)[0]
    if " ".join(text.split()) != words:
        words = f"{words.rstrip('.:')}. See {pointer}."
    for word, other in REWORDED:
        words = words.replace(word, other)
    if "\\" in words:
        raise CannotTurnError(f"a docstring with a backslash: {words[:60]!r}")
    lines = textwrap.wrap(words, _COLUMNS, break_on_hyphens=False, break_long_words=False)
    return f'"""{lines[0]}"""\n' if len(lines) == 1 else '"""' + "\n".join(lines) + '\n"""\n'


def indented(text: str) -> str:
    """Return the text, four columns further in."""
    return textwrap.indent(text, "    ")
