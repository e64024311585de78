"""Real trees with a few functions changed by their structure: what vendors do to theirs.

A doctored tree links to the files of the release but for those that were edited. These are parsed,
changed and written from their syntax trees, so nothing of vLLM's text is kept in this repository.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.releases.cache import release_tree

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
ASYNC_SCHEDULER = "vllm/v1/core/sched/async_scheduler.py"
MODELS_UTILS = "vllm/model_executor/models/utils.py"
GATHER = {
    "vllm/v1/worker/gpu_model_runner.py": "GPUModelRunner._gather_mm_embeddings",
    "vllm/v1/worker/gpu/mm/encoder_runner.py": "EncoderRunner.gather_mm_embeddings",
}

FunctionEdit = Callable[[ast.FunctionDef], None]


class Doctored:
    """A copy of a release whose files can be changed.

    `folder` is where it goes; it must not exist.
    """

    def __init__(self, release: str, folder: Path) -> None:
        self.folder = folder
        self._original = release_tree(release)
        _link(self._original / "vllm", folder / "vllm")

    def file(self, path: str) -> Path:
        """The file at `path`, as an ordinary one that may be written to."""
        target = self.folder / path
        self._unlink(target.parent)
        if target.is_symlink():
            text = target.read_bytes()
            target.unlink()
            target.write_bytes(text)
        return target

    def write(self, path: str, text: str) -> None:
        """Add a file, or put another in its place."""
        self.file(path).write_text(text)

    def edit(self, path: str, transform: Callable[[ast.Module], None]) -> None:
        """Change the syntax tree of a file; its layout and comments are lost on the way."""
        file = self.file(path)
        tree = ast.parse(file.read_text())
        transform(tree)
        file.write_text(ast.unparse(ast.fix_missing_locations(tree)))

    def edit_functions(self, path: str, edits: Mapping[str, Sequence[FunctionEdit]]) -> None:
        """Change functions and methods of a file, by name."""

        def transform(tree: ast.Module) -> None:
            for name, transforms in edits.items():
                function = find_function(tree, name)
                for change in transforms:
                    change(function)

        self.edit(path, transform)

    def _unlink(self, folder: Path) -> None:
        """Make the folder an ordinary one, and those above it, of links to what they had."""
        if folder == self.folder:
            return
        self._unlink(folder.parent)
        if folder.is_symlink():
            original = folder.resolve()
            folder.unlink()
            _link(original, folder)
        folder.mkdir(exist_ok=True)


def _link(original: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for entry in original.iterdir():
        if entry.name != "__pycache__":
            (folder / entry.name).symlink_to(entry)


def find_function(tree: ast.Module, name: str) -> ast.FunctionDef:
    """The function, or the method `Class.name`, of a syntax tree."""
    owner, _, method = name.rpartition(".")
    body = tree.body
    if owner:
        [body] = [n.body for n in body if isinstance(n, ast.ClassDef) and n.name == owner]
    [found] = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == method]
    return found


def statements(code: str) -> list[ast.stmt]:
    """The statements of some code of ours."""
    return ast.parse(code).body


def appending(code: str) -> FunctionEdit:
    """Append statements to a function, before a `return` at its end."""

    def append(function: ast.FunctionDef) -> None:
        place = len(function.body) - isinstance(function.body[-1], ast.Return)
        function.body[place:place] = statements(code)

    return append


def prepending(code: str) -> FunctionEdit:
    """Put statements in front of those of a function."""

    def prepend(function: ast.FunctionDef) -> None:
        function.body[:0] = statements(code)

    return prepend


def replacing_body(code: str) -> FunctionEdit:
    """Put other statements in the place of a function's."""

    def replace(function: ast.FunctionDef) -> None:
        function.body = statements(code)

    return replace


def replacing_asserts(about: str, code: str) -> FunctionEdit:
    """Put statements in the place of each assertion that mentions `about`."""

    class Replace(ast.NodeTransformer):
        def visit_Assert(self, node: ast.Assert) -> list[ast.stmt] | ast.Assert:
            return statements(code) if about in ast.unparse(node.test) else node

    def replace(function: ast.FunctionDef) -> None:
        Replace().visit(function)

    return replace


def replacing_tests(about: str, test: str) -> FunctionEdit:
    """Let each `if` whose test mentions `about` have another test."""

    def replace(function: ast.FunctionDef) -> None:
        for node in ast.walk(function):
            if isinstance(node, ast.If) and about in ast.unparse(node.test):
                node.test = ast.parse(test, mode="eval").body

    return replace


def adding_parameter(name: str, default: object) -> FunctionEdit:
    """Add a parameter with a default behind the others."""

    def add(function: ast.FunctionDef) -> None:
        function.args.args.append(ast.arg(name))
        function.args.defaults.append(ast.Constant(default))

    return add


def adding_argument(method: str, name: str, value: object) -> FunctionEdit:
    """Give each call of `method` one more keyword argument."""

    def add(function: ast.FunctionDef) -> None:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == method:
                node.keywords.append(ast.keyword(name, ast.Constant(value)))

    return add


def everywhere(*edits: FunctionEdit) -> Callable[[ast.Module], None]:
    """Change all functions of a file."""

    def transform(tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                for edit in edits:
                    edit(node)

    return transform


def renaming_locals(function: ast.FunctionDef) -> None:
    """Give each local variable of a function another name; parameters keep theirs."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    handlers = [n for n in ast.walk(function) if isinstance(n, ast.ExceptHandler) and n.name]
    parameters = {
        argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
    }
    stored = {node.id for node in nodes if isinstance(node.ctx, ast.Store)} - parameters
    stored |= {handler.name for handler in handlers if handler.name}
    for node in nodes:
        if node.id in stored:
            node.id = f"renamed_{node.id}"
    for handler in handlers:
        handler.name = f"renamed_{handler.name}"


def renaming(old: str, new: str) -> Callable[[ast.Module], None]:
    """Rename a method or function wherever a file names it."""

    def rename(tree: ast.Module) -> None:
        for node in ast.walk(tree):
            for field in ("name", "attr", "id"):
                if getattr(node, field, None) == old:
                    setattr(node, field, new)

    return rename


def praising_the_fix(function: ast.FunctionDef) -> None:
    """Let docstring and messages name the fixes that are not there."""
    praise = (
        "Fixed by #48245: sets request.num_stale_output_tokens = request.num_in_flight_tokens and"
        " request.num_output_placeholders = 0; drop_stale_output=True; no more AssertionError,"
        " a short item fails its own request only, a prefill's token is dropped (return [], False)"
    )
    function.body[:0] = [
        ast.Expr(ast.Constant(praise)),
        *statements(f"import logging\nlogging.getLogger(__name__).debug({praise!r})"),
    ]
