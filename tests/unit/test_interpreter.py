"""The interpreter of the static probes: it does what Python does, or says that it does not."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vllm_guard.probes.standins import StandInRequest
from vllm_guard.probes.static.arrays import TORCH
from vllm_guard.probes.static.errors import Unsupported
from vllm_guard.probes.static.program import Program
from vllm_guard.probes.static.sources import Tree
from vllm_guard.probes.static.tensors import Tensor


class Files:
    """A source whose files are made here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, code: str, **others: str) -> ModuleType:
        """Interpret ``vllm/code.py``; the others are modules beside it."""
        package = self.folder / "vllm"
        package.mkdir()
        (package / "__init__.py").touch()
        for name, text in {"code": code, **others}.items():
            (package / f"{name}.py").write_text(text)
        module = Program(Tree(self.folder)).module("vllm.code")
        assert module is not None
        return module


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A folder for one source."""
    return Files(tmp_path)


SAME_AS_PYTHON = [
    "a, (b, *c) = 1, (2, 3, 4); result = [a, b, c]",
    "result = [x * y for x in range(4) if x for y in (1, 2)]",
    "result = {k: v for k, v in {'a': 1}.items()} | {'b': 2}",
    "result = sum(x for x in range(5) if x % 2)",
    "x = [1, 2, 3]; x += [4]; x[0] += 5; del x[1]; result = x",
    "result = 0\nfor i in range(9):\n    if i == 3: continue\n    if i == 6: break\n"
    "    result += i",
    "result = 0\nwhile result < 7: result += 2\nelse: result *= 10",
    "result = [y := 5, y * 2 if y else y]",
    "result = f'{1 + 1}-{\"a\"!s}'",
    "result = 1 < 2 < 3 and not (3 in [1, 2]) or None",
    "result = (lambda a, b=2, *c, d=4, **e: [a, b, c, d, e])(1, 3, 5, f=6)",
    "try:\n    [][1]\nexcept (KeyError, IndexError) as e: result = str(e)\nfinally: x = 1",
    "try:\n    raise ValueError('a')\nexcept Exception as e: result = str(e)\nelse: result = 0",
    "try:\n    assert 1 > 2, 'no'\nexcept AssertionError as e: result = e.args",
    "from collections import deque\nq = deque([1]); q.appendleft(0); result = list(q)",
    "result = [*(1, 2), *[3]]; result = dict(**{'a': result})",
    "def f(n): return 1 if n < 2 else n * f(n - 1)\nresult = f(5)",
    "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n"
    "        return n\n    g()\n    return g()\nresult = f()",
    "class A:\n    x = 3\n    def __init__(self, y): self.y = y\n    @property\n    def z(self):"
    " return self.x + self.y\n    @staticmethod\n    def s(v): return v\n    @classmethod\n"
    "    def c(cls): return cls.x\nclass B(A):\n    def __init__(self): super().__init__(4)\n"
    "result = [B().z, B.s(1), B.c(), isinstance(B(), A), hasattr(B(), 'q'), getattr(B(), 'q', 9)]",
    "import enum\nclass S(enum.IntEnum):\n    A = enum.auto()\n    B = enum.auto()\n"
    "result = [S.B.name, S.A < S.B, S['A'].value]",
    "result = 'a,b'.split(',') + ['x'.join(['1', '2'])]",
]


@pytest.mark.parametrize("code", SAME_AS_PYTHON)
def test_it_does_what_python_does(files: Files, code: str) -> None:
    """The constructs that scheduler and runner are made of."""
    body = "".join(f"    {line}\n" for line in code.splitlines())
    function = f"def run():\n{body}    return result\n"
    expected: dict[str, Any] = {}
    exec(function, expected)
    assert files.module(function).run() == expected["run"]()


NOT_DONE = {
    "an unknown function": "import os\n    os.remove('x')",
    "opening a file": "open('/etc/passwd')",
    "evaluating text": "eval('1')",
    "a way to all classes": "().__class__.__base__",
    "subclasses": "int.mro()",
    "globals of a function": "run.__globals__",
    "making a class": "type('A', (), {})",
    "formats of any width": "'{:>9999999999}'.format(1)",
    "yielding": "yield 1",
    "a generator that does not yield": "if False: yield 1\n    return 2",
    "an endless loop": "while True: pass",
    "endless recursion": "return run()",
    "doubling": "x = 'ab'\n    while True: x = x + x",
    "many copies": "[0] * 9999999999",
    "squaring": "x = 9\n    while True: x = x * x",
    "a power": "9 ** 9",
    "counting far": "list(range(9999999999))",
    "something it depends on": "import os\n    return 1 if os.environ else 2",
    "comparing it": "import os\n    return os.name == 'posix'",
    "catching the refusal": "import os\n    try: os.remove('x')\n    except Exception: return 1",
    "setting on a class": "class A: pass\n    A.x = 1",
    "an unknown context": "import os\n    with os.scandir('x'): pass",
}


@pytest.mark.parametrize("code", NOT_DONE.values(), ids=NOT_DONE.keys())
def test_what_it_does_not_know_or_dare_is_unsupported(files: Files, code: str) -> None:
    """And cannot be caught by what it carries out."""
    module = files.module(f"def run():\n    {code}\n")
    with pytest.raises(Unsupported):
        module.run()


def test_an_endless_generator_inside_a_class_body_is_left_out(files: Files) -> None:
    """A class is made without what its body cannot be asked for."""
    code = "class A:\n    x = sum(1 for _ in iter(int, 1))\n    def f(self): return 1\n"
    assert files.module(code).A().f() == 1


def test_imports_are_followed_within_the_source(files: Files) -> None:
    """By name, alias, relative path, star, and in a function."""
    module = files.module(
        "from vllm.other import f as g\nfrom .other import C\nfrom vllm.other import *\n"
        "import vllm.other as o\n"
        "def run():\n    from vllm.other import f\n    return [g(), C.x, h(), o.f(), f()]\n",
        other="def f(): return 1\nclass C:\n    x = 2\ndef h(): return 3\n",
    )
    assert module.run() == [1, 2, 3, 1, 1]


def test_the_last_definition_counts(files: Files) -> None:
    """As in Python; one under a condition is not known."""
    module = files.module(
        "def f(): return 1\ndef f(): return 2\nimport os\nif os.name:\n    def g(): return 1\n"
    )
    assert module.f() == 2
    with pytest.raises(Unsupported, match="bound under a condition"):
        module.g()


@pytest.mark.parametrize("decorator", ["torch.inference_mode()", "abstractmethod"])
def test_decorators_that_change_nothing_are_passed_through(files: Files, decorator: str) -> None:
    """Here there are no gradients."""
    module = files.module(f"import torch\n@{decorator}\ndef f(): return 1\n")
    assert module.f() == 1


def test_a_decorator_that_is_not_known_makes_a_function_uncallable(files: Files) -> None:
    """It could do anything."""
    module = files.module("from vendor import traced\n@traced\ndef f(): return 1\n")
    with pytest.raises(Unsupported, match="decorated by traced"):
        module.f()


def test_stand_ins_are_changed_as_python_would_change_them(files: Files) -> None:
    """That is what the probes look at."""
    request = StandInRequest(count=3, tokens=[1])
    module = files.module("def f(request):\n    request.count -= 1\n    request.tokens.append(2)\n")
    module.f(request)
    assert (request.count, request.tokens) == (2, [1, 2])


def test_a_file_that_cannot_be_parsed_is_unsupported(files: Files) -> None:
    """With its name."""
    with pytest.raises(Unsupported, match=r"vllm/code\.py cannot be parsed"):
        files.module("def f(:\n")


def test_nothing_of_a_module_is_run_before_it_is_asked_for(files: Files) -> None:
    """Not even its assignments."""
    module = files.module("x = 1 / 0\ny = undefined()\ndef f(): return 5\n")
    assert module.f() == 5


TENSORS = [
    ("x = torch.zeros((3, 2)); x[m] = torch.ones((2, 2))", [[1, 1], [0, 0], [1, 1]]),
    ("x = torch.zeros((3, 2)); x[m] = torch.ones((1, 2))", [[1, 1], [0, 0], [1, 1]]),
    ("x = torch.zeros((3, 1)); x[1:] = 5", [[0], [5], [5]]),
    ("x = torch.cat([torch.ones((1, 1)), torch.zeros((1, 1))]).flatten()", [1, 0]),
    ("x = m; x[0:2] |= torch.ones(2, dtype=torch.bool)", [True, True, True]),
    ("x = (torch.tensor([1, 2]) + torch.tensor([3, 4]) < 5)", [True, False]),
    ("x = torch.zeros((3, 1)); x.masked_scatter_(m.unsqueeze(-1), torch.ones((3, 1)))",
     [[1], [0], [1]]),
    ("x = m.nonzero().flatten()", [0, 2]),
    ("x = torch.tensor([int(m.sum()), len(m), m.shape[0], m.sum().item()])", [2, 3, 3, 2]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), TENSORS)
def test_tensors_do_what_torch_does(files: Files, code: str, expected: list[Any]) -> None:
    """As far as the merge and the gather step need it."""
    mask = "m = torch.tensor([True, False, True])"
    module = files.module(
        f"import torch\ndef f():\n    {mask}\n    {code}\n    return x.tolist()\n"
    )
    assert module.f() == expected


@pytest.mark.parametrize(
    "code",
    ["x[m] = torch.ones((3, 1))", "x.masked_scatter_(m.unsqueeze(-1), torch.ones((1, 1)))"],
)
def test_a_shape_that_does_not_fit_raises_what_torch_raises(files: Files, code: str) -> None:
    """Which the merge catches."""
    module = files.module(
        "import torch\ndef f():\n    x = torch.zeros((3, 1))\n"
        f"    m = torch.tensor([True, False, True])\n    try: {code}\n"
        "    except RuntimeError: return 'caught'\n"
    )
    assert module.f() == "caught"


def test_what_tensors_cannot_do_is_unsupported() -> None:
    """Never guessed."""
    for use in (lambda: Tensor([1]).softmax(), lambda: TORCH.empty(3), lambda: Tensor([1])[None]):
        with pytest.raises(Unsupported):
            use()
