"""An engine's sources as syntax trees. Nothing is imported: a version needs no environment in which it would run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Tree:
    """The sources below a folder, which holds the engine's package."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._parsed: dict[str, ast.Module] = {}

    def module(self, path: str) -> ast.Module | None:
        """Of a file, by its path below the folder; None if there is none."""
        if path not in self._parsed:
            file = self.root / path
            if not file.is_file():
                return None
            self._parsed[path] = ast.parse(file.read_text(encoding="utf-8"))
        return self._parsed[path]

    def naming(self, folder: str, word: str) -> Iterator[tuple[str, ast.Module]]:
        """Path and module of every file below the folder that has the word in it."""
        for file in sorted((self.root / folder).rglob("*.py")):
            if word in file.read_text(encoding="utf-8", errors="replace"):
                path = file.relative_to(self.root).as_posix()
                module = self.module(path)
                assert module is not None
                yield path, module

    def find(self, dotted: str) -> ast.stmt | None:
        """What a dotted path names: a function, a class, or the statement that assigns a name. What a module has from
        another is looked up there."""
        parts = dotted.split(".")
        for count in range(len(parts) - 1, 0, -1):
            folder = "/".join(parts[:count])
            module = self.module(f"{folder}.py") or self.module(f"{folder}/__init__.py")
            if module is not None:
                found = _within(module, parts[count:])
                whence = [] if found is not None else _imported(module, parts[count])
                elsewhere = (self.find(".".join([name, *parts[count:]])) for name in whence)
                return next((each for each in (found, *elsewhere) if each is not None), None)
        return None

    def lacks(self, dotted: str, *arguments: str) -> str | None:
        """As pcie_allreduce.integrations.seams.lacks, of the sources."""
        found = self.find(dotted)
        if found is None:
            return f"has no {dotted}"
        known = _takes(found)
        gone = [name for name in arguments if name not in known]
        return f"has a {dotted} that takes no {', '.join(gone)}" if gone else None

    def function(self, dotted: str) -> Function | None:
        found = self.find(dotted)
        return found if isinstance(found, Function) else None


def _within(node: ast.Module | ast.ClassDef, names: list[str]) -> ast.stmt | None:
    found = next((child for child in node.body if names[0] in _names(child)), None)
    if len(names) == 1 or found is None:
        return found
    return _within(found, names[1:]) if isinstance(found, ast.ClassDef) else None


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, Function | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def _imported(module: ast.Module, name: str) -> list[str]:
    """The modules from which the name may be imported, by absolute imports, by its name or with all others."""
    imports = (node for node in module.body if isinstance(node, ast.ImportFrom) and not node.level and node.module)
    return [str(node.module) for node in imports if {name, "*"} & {alias.name for alias in node.names}]


def _takes(found: ast.stmt) -> list[str]:
    """By name, what a function takes, or a class where one is made of it: as its `__init__` says, or its fields."""
    if isinstance(found, Function):
        return parameters(found)
    if not isinstance(found, ast.ClassDef):
        return []
    made = _within(found, ["__init__"])
    if isinstance(made, Function):
        return parameters(made)
    return [
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def parameters(function: Function) -> list[str]:
    """By name, as a caller may pass them; self and cls included."""
    arguments = function.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def decorators(function: Function) -> set[str]:
    return {ast.unparse(decorator) for decorator in function.decorator_list}


def calls(node: ast.AST, name: str) -> list[ast.Call]:
    """Calls of what has this last name, `a.b.name(...)` too, in the order of the lines."""
    found = [
        call for call in ast.walk(node) if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == name
    ]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def comes_first(node: ast.AST, first: str, then: str) -> bool:
    """Whether there is a call of `first`, and none of `then` before it."""
    one, other = calls(node, first), calls(node, then)
    return bool(one) and (not other or one[0].lineno < other[0].lineno)


def keyword(call: ast.Call, name: str) -> str | None:
    """The source of a keyword argument, if the call has it."""
    return next((ast.unparse(argument.value) for argument in call.keywords if argument.arg == name), None)


def runs_as_main(module: ast.Module) -> ast.If | None:
    return next(
        (node for node in module.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)),
        None,
    )
