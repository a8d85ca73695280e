"""Code structure rules: sizes, module docstrings, names, exceptions, clocks, leases.

As in `tests/shape_rules.py`, each rule maps one parsed file to its violations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.shape_rules import (
    FORBIDDEN_WORDS,
    MARKER,
    MAX_FILE_LINES,
    MAX_FUNCTION_LINES,
    Rule,
    Source,
    dotted,
    environment,
    functions,
    globals_rule,
    imported_modules,
    layer_order,
    no_torch,
    own_state,
    process_switches,
    quiet,
    typed,
)


def size(source: Source) -> Iterator[str]:
    """A file has at most 400 lines, a function 60."""
    lines = len(source.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"1: {lines} lines, at most {MAX_FILE_LINES}"
    for function in functions(source.tree):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield f"{function.lineno}: {function.name} has {length} lines, at most {MAX_FUNCTION_LINES}"


def head(source: Source) -> Iterator[str]:
    """Every module docstring has two sentences or more; one in tests and in `__init__`."""
    is_package_file = source.path.name in ("__init__.py", "__main__.py")
    if is_package_file and not source.in_package:
        return
    wanted = 1 if is_package_file or source.path.parts[0] == "tests" else 2
    docstring = ast.get_docstring(source.tree) or ""
    sentences = len(re.findall(r"[^\s.!?][.!?](?=\s|$)", docstring))
    if sentences < wanted:
        yield f"1: the module docstring has {sentences} sentence(s), at least {wanted}"
    elif is_package_file and len(docstring.split()) < 4:
        yield f"1: the module docstring is too short: {docstring!r}"


def names(source: Source) -> Iterator[str]:
    """No file or folder `utils`, no class `Manager` or `Helper`."""
    for part in source.path.parts:
        if part.removesuffix(".py") in FORBIDDEN_WORDS:
            yield f"1: {part} does not describe its contents"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and re.search(r"Manager|Helper|Utils?$", node.name):
            yield f"{node.lineno}: class {node.name}"


def exceptions(source: Source) -> Iterator[str]:
    """No exception is swallowed: no bare `except`, no empty handler; a broad one raises or is marked."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in ("contextlib.suppress", "suppress"):
            broad = [kind for kind in node.args if dotted(kind) in ("Exception", "BaseException")]
            yield from (f"{kind.lineno}: suppress({dotted(kind)})" for kind in broad)
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        if node.type is None:
            yield f"{node.lineno}: bare except"
        elif any(dotted(kind) in ("Exception", "BaseException") for kind in caught if kind is not None):
            raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            if not raises and MARKER not in source.line(node.lineno):
                yield f"{node.lineno}: broad except without a raise or a reason ({MARKER} reason)"
        empty = all(isinstance(inner, ast.Pass) or _is_ellipsis(inner) for inner in node.body)
        if empty and MARKER not in source.line(node.lineno):
            yield f"{node.lineno}: the exception is swallowed"


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def stubs(source: Source) -> Iterator[str]:
    """The package contains no stubs: no `NotImplementedError`, no TODO comments."""
    if not source.in_package:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield f"{node.lineno}: NotImplementedError"
    for number, line in enumerate(source.text.splitlines(), start=1):
        if re.search(r"#.*\b(TODO|FIXME|XXX|HACK)\b", line):
            yield f"{number}: {line.strip()}"


def clock(source: Source) -> Iterator[str]:
    """The scheduler and the session read no clock: time is an argument."""
    if source.layer != "session" and source.path.as_posix() != "legato/engine/scheduler.py":
        return
    for line, module in imported_modules(source, ast.walk(source.tree)):
        if module.split(".")[0] in ("time", "datetime"):
            yield f"{line}: {module} is imported here"


def lease_makers(source: Source) -> Iterator[str]:
    """Only a pool creates its leases, and no private name is imported from another file."""
    if not source.in_package:
        return
    makers = {"KVLease": "legato/engine/kv_cache.py", "CodecLease": "legato/engine/codec_state.py"}
    for node in ast.walk(source.tree):
        maker = makers.get(dotted(node.func).split(".")[-1]) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and maker and source.path.as_posix() != maker:
            yield f"{node.lineno}: {dotted(node.func)} is created outside {maker}"
    for line, module in imported_modules(source, ast.walk(source.tree)):
        last = module.split(".")[-1]
        if module.startswith("legato.") and last.startswith("_") and not last.startswith("__"):
            yield f"{line}: {module} is private to its file"


RULES: tuple[Rule, ...] = (
    layer_order,
    no_torch,
    environment,
    own_state,
    globals_rule,
    quiet,
    process_switches,
    typed,
    size,
    head,
    names,
    exceptions,
    stubs,
    clock,
    lease_makers,
)
