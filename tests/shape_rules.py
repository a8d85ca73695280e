"""Code structure rules: layers, state, process-wide settings, types. Each rule maps one source file to its violations.

A rule gets the path and the parsed text of one file; nothing is imported. `tests/test_shape.py` runs every rule on the
repository and on seeded violations.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

LAYERS = tuple(
    "errors types html_report config text audio kernels models weights backends "
    "engine speech api session server cluster client verify bench cli".split()
)
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MARKER = "# boundary:"
"""Comment that permits a broad `except` at an error boundary; the reason follows it."""

FORBIDDEN_WORDS = ("utils", "util", "helpers", "misc", "common")
PROCESS_SWITCHES = frozenset(
    """
    logging.basicConfig logging.disable logging.captureWarnings logging.config.dictConfig
    warnings.filterwarnings warnings.simplefilter
    torch.set_num_threads torch.set_num_interop_threads torch.set_default_dtype
    torch.set_default_device torch.set_float32_matmul_precision torch.use_deterministic_algorithms
    torch.set_flush_denormal torch.manual_seed torch.cuda.manual_seed_all
    random.seed np.random.seed numpy.random.seed locale.setlocale signal.signal os.chdir
    """.split()
)


@dataclass(frozen=True)
class Source:
    """One Python file: its path in the repository, its text, and its syntax tree."""

    path: PurePosixPath
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> Source:
        return cls(PurePosixPath(path), text, ast.parse(text, filename=path))

    @property
    def layer(self) -> str | None:
        """The layer of a file in the package; None for other files and for `legato/__init__.py` and `__main__.py`."""
        parts = self.path.parts
        if len(parts) < 2 or parts[0] != "legato" or (self.path.name.startswith("__") and len(parts) == 2):
            return None
        return parts[1].removesuffix(".py")

    @property
    def in_package(self) -> bool:
        return self.path.parts[0] == "legato"

    def line(self, number: int) -> str:
        return self.text.splitlines()[number - 1]


Rule = Callable[[Source], Iterator[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def dotted(node: ast.expr) -> str:
    """`a.b.c` for names and attributes, "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def imported_modules(source: Source, nodes: Iterator[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of each import; `from a import b` yields `a.b`; relative imports are resolved."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = source.path.parent.parts
            head = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*head, node.module) if node.module else head)
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)


def run_on_import(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes executed at import: without function bodies and `if TYPE_CHECKING` blocks."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING"):
            stack.extend(node.orelse)
            continue
        stack.extend(ast.iter_child_nodes(node))


def layer_order(source: Source) -> Iterator[str]:
    """A layer imports only itself and earlier layers; type-only imports count, too."""
    if source.layer is None:
        return
    if source.layer not in LAYERS:
        yield f"1: {source.layer} is not a layer; the layers are {', '.join(LAYERS)}"
        return
    for line, module in imported_modules(source, ast.walk(source.tree)):
        parts = module.split(".")
        if parts[0] != "legato" or len(parts) < 2 or parts[1].startswith("__"):
            continue
        if parts[1] not in LAYERS:
            yield f"{line}: {module} is not in a layer"
        elif LAYERS.index(parts[1]) > LAYERS.index(source.layer):
            yield f"{line}: {source.layer} imports {module}, a later layer"


def no_torch(source: Source) -> Iterator[str]:
    """Text, config, types, sessions and the scheduler never import torch; the CLI and the package import it lazily."""
    never = {"errors", "types", "html_report", "config", "text", "session"}
    path = source.path.as_posix()
    if source.layer in never or path == "legato/engine/scheduler.py":
        nodes = ast.walk(source.tree)
    elif source.layer == "cli" or path in ("legato/__init__.py", "legato/__main__.py"):
        nodes = run_on_import(source.tree)
    else:
        return
    for line, module in imported_modules(source, nodes):
        if module.split(".")[0] in ("torch", "torchaudio"):
            yield f"{line}: {module} is imported here"


def environment(source: Source) -> Iterator[str]:
    """Environment variables are read only in `config/`."""
    if not source.in_package or source.layer == "config":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.getenv", "os.environb", "os.putenv"):
            yield f"{node.lineno}: {dotted(node)} outside config/"
    for line, module in imported_modules(source, ast.walk(source.tree)):
        if module in ("os.environ", "os.getenv", "os.environb"):
            yield f"{line}: {module} outside config/"


def own_state(source: Source) -> Iterator[str]:
    """Modules hold only weights: after `__init__`, no module in `models/` assigns to `self` or changes its tensors."""
    if source.layer != "models":
        return
    for cls in (node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)):
        methods = [node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        bases = [dotted(base) for base in cls.bases]
        is_module = any(base.endswith("Module") or base.startswith(("nn.", "torch.nn.")) for base in bases)
        if not is_module and not any(method.name == "forward" for method in methods):
            continue
        for method in methods:
            if method.name != "__init__":
                yield from _changes_of_self(cls.name, method)


def _changes_of_self(class_name: str, method: Function) -> Iterator[str]:
    where = f"{class_name}.{method.name}"
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            root: ast.expr = node
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if dotted(root) == "self":
                yield f"{node.lineno}: {where} assigns to self"
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in ("setattr", "delattr", "object.__setattr__") and node.args and dotted(node.args[0]) == "self":
                yield f"{node.lineno}: {where} calls {name} on self"
            last = name.split(".")[-1]
            if name.startswith("self.") and last.endswith("_") and not last.startswith("_"):
                yield f"{node.lineno}: {where} changes a tensor of self in place: {name}"
            if name in ("self.register_buffer", "self.register_parameter", "self.add_module"):
                yield f"{node.lineno}: {where} calls {name}"


def globals_rule(source: Source) -> Iterator[str]:
    """No `global` statements in the package: state that outlives a call has an owner."""
    if not source.in_package:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Global):
            yield f"{node.lineno}: global {', '.join(node.names)}"


def quiet(source: Source) -> Iterator[str]:
    """Only the CLI uses the terminal."""
    if not source.in_package or source.layer == "cli" or source.path.name == "__main__.py":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in ("print", "breakpoint", "input"):
            yield f"{node.lineno}: {dotted(node.func)}()"
        if isinstance(node, ast.Attribute) and dotted(node) in ("sys.stdout", "sys.stderr", "sys.stdin"):
            yield f"{node.lineno}: {dotted(node)}"


def process_switches(source: Source) -> Iterator[str]:
    """The library neither configures logging nor changes process-wide settings; the CLI does, once."""
    if not source.in_package or source.layer == "cli":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name in PROCESS_SWITCHES or last in ("addHandler", "setLevel"):
                yield f"{node.lineno}: {name or last}()"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = dotted(node)
            if name.startswith(("torch.backends.", "sys.", "os.")):
                yield f"{node.lineno}: {name} is set"


def typed(source: Source) -> Iterator[str]:
    """In `models`, `engine` and `session` arguments are named and typed: no `**kwargs`, no `Any`, no bare `dict`."""
    if source.layer not in ("models", "engine", "session"):
        return
    for function in functions(source.tree):
        if function.args.kwarg is not None:
            yield f"{function.lineno}: {function.name} takes **{function.args.kwarg.arg}"
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for annotation in (function.returns, *(argument.annotation for argument in arguments)):
            if annotation is not None and dotted(annotation) in ("dict", "list", "object"):
                yield f"{annotation.lineno}: {function.name} has a bare {dotted(annotation)}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name | ast.Attribute) and dotted(node) in ("Any", "typing.Any"):
            yield f"{node.lineno}: Any"
