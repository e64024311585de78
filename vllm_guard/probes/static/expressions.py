"""Carrying out expressions of a syntax tree."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

from vllm_guard.probes.static.errors import Budget, Unsupported
from vllm_guard.probes.static.libraries import BUILTINS, CALLABLE_TYPES
from vllm_guard.probes.static.operators import COMPARE, UNARY, combine, size_of
from vllm_guard.probes.static.values import (
    Function,
    Scope,
    Unresolved,
    get_attribute,
    is_interpreted,
    set_attribute,
)


class Expressions:
    """Evaluates the expressions that the interpreter knows; all others are not supported.

    Args:
        budget: How much may be done.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression."""
        self.budget.spend()
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is None:
            raise Unsupported(f"line {node.lineno}: it uses {type(node).__name__}")
        return method(node, scope)

    def function(self, node: ast.FunctionDef | ast.Lambda, scope: Scope, prefix: str) -> Function:
        """Define a function.

        Args:
            node: Its definition.
            scope: Where it stands.
            prefix: What its qualified name begins with.
        """
        name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
        signature = partial(self._signature, node.args, scope)
        return Function(node, scope, prefix + name, signature, self.run_function)

    def run_function(self, function: Function, arguments: dict[str, Any]) -> Any:
        """Carry out a call whose arguments are bound."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Give ``value`` to a name, an attribute, an item, or several of them."""
        if isinstance(target, ast.Name):
            scope.home(target.id)[target.id] = value
        elif isinstance(target, ast.Attribute):
            set_attribute(self.evaluate(target.value, scope), target.attr, value)
        elif isinstance(target, ast.Subscript):
            self.evaluate(target.value, scope)[self.evaluate(target.slice, scope)] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, list(value), scope)
        else:
            raise Unsupported(f"line {target.lineno}: it assigns to {type(target).__name__}")

    def _unpack(self, targets: list[ast.expr], values: list[Any], scope: Scope) -> None:
        stars = [place for place, item in enumerate(targets) if isinstance(item, ast.Starred)]
        if stars:
            [place] = stars
            end = len(values) - (len(targets) - place - 1)
            if end < place:
                raise ValueError("not enough values to unpack")
            values = [*values[:place], values[place:end], *values[end:]]
        if len(values) != len(targets):
            raise ValueError(f"{len(values)} values to unpack into {len(targets)}")
        for target, value in zip(targets, values, strict=True):
            self.assign(target.value if isinstance(target, ast.Starred) else target, value, scope)

    def _signature(self, arguments: ast.arguments, scope: Scope) -> inspect.Signature:
        kinds = inspect.Parameter
        names = [*arguments.posonlyargs, *arguments.args]
        defaults: list[Any] = [kinds.empty] * (len(names) - len(arguments.defaults))
        defaults += [self.evaluate(node, scope) for node in arguments.defaults]
        parameters = [
            kinds(
                node.arg,
                kinds.POSITIONAL_ONLY
                if place < len(arguments.posonlyargs)
                else kinds.POSITIONAL_OR_KEYWORD,
                default=default,
            )
            for place, (node, default) in enumerate(zip(names, defaults, strict=True))
        ]
        if arguments.vararg:
            parameters.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
        for node, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            default = kinds.empty if value is None else self.evaluate(value, scope)
            parameters.append(kinds(node.arg, kinds.KEYWORD_ONLY, default=default))
        if arguments.kwarg:
            parameters.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
        return inspect.Signature(parameters)

    def _Constant(self, node: ast.Constant, _scope: Scope) -> Any:
        return node.value

    def _Name(self, node: ast.Name, scope: Scope) -> Any:
        found: Scope | None = scope
        while found is not None:
            if node.id in found.names:
                return found.names[node.id]
            found = found.outer
        try:
            return getattr(scope.module, node.id)
        except AttributeError:
            pass
        if node.id not in BUILTINS:
            raise Unsupported(f"line {node.lineno}: it uses the name {node.id}")
        return BUILTINS[node.id]

    def _Attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return get_attribute(self.evaluate(node.value, scope), node.attr)

    def _Subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        if isinstance(value, type) and not hasattr(type(value), "__getitem__"):
            return value  # list[int]
        return value[self.evaluate(node.slice, scope)]

    def _Slice(self, node: ast.Slice, scope: Scope) -> Any:
        parts = (node.lower, node.upper, node.step)
        return slice(*(None if part is None else self.evaluate(part, scope) for part in parts))

    def _BinOp(self, node: ast.BinOp, scope: Scope) -> Any:
        left = self.evaluate(node.left, scope)
        return combine(self.budget, node.op, left, self.evaluate(node.right, scope))

    def _UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Any:
        return UNARY[type(node.op)](self.evaluate(node.operand, scope))

    def _BoolOp(self, node: ast.BoolOp, scope: Scope) -> Any:
        value = None
        for operand in node.values:
            value = self.evaluate(operand, scope)
            if bool(value) is isinstance(node.op, ast.Or):
                break
        return value

    def _Compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.evaluate(node.left, scope)
        result: Any = True
        for kind, operand in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(operand, scope)
            for side in (left, right):
                if isinstance(side, Unresolved) and not isinstance(kind, (ast.Is, ast.IsNot)):
                    raise Unsupported(f"line {node.lineno}: it depends on {side}")
            result = COMPARE[type(kind)](left, right)
            if len(node.ops) == 1 or not result:
                break
            left = right
        return result

    def _IfExp(self, node: ast.IfExp, scope: Scope) -> Any:
        is_true = self.evaluate(node.test, scope)
        return self.evaluate(node.body if is_true else node.orelse, scope)

    def _NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def _Lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return self.function(node, scope, "")

    def _items(self, nodes: list[ast.expr], scope: Scope) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items.extend(self.evaluate(node.value, scope))
            else:
                items.append(self.evaluate(node, scope))
        return items

    def _List(self, node: ast.List, scope: Scope) -> Any:
        return self._items(node.elts, scope)

    def _Tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return tuple(self._items(node.elts, scope))

    def _Set(self, node: ast.Set, scope: Scope) -> Any:
        return set(self._items(node.elts, scope))

    def _Dict(self, node: ast.Dict, scope: Scope) -> Any:
        made: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                made.update(self.evaluate(value, scope))
            else:
                made[self.evaluate(key, scope)] = self.evaluate(value, scope)
        return made

    def _rounds(self, generators: list[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        if not generators:
            yield scope
            return
        first, *rest = generators
        for item in self.evaluate(first.iter, scope):
            self.budget.spend()
            self.assign(first.target, item, scope)
            if all(self.evaluate(condition, scope) for condition in first.ifs):
                yield from self._rounds(rest, scope)

    def _GeneratorExp(
        self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp, scope: Scope
    ) -> Any:
        inner = Scope(scope.module, scope)
        # What := assigns in a comprehension is the function's.
        assigned = (n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        for name in assigned:
            inner.not_local.add(name)
            scope.home(name).setdefault(name, None)
        return (self.evaluate(node.elt, item) for item in self._rounds(node.generators, inner))

    def _ListComp(self, node: ast.ListComp, scope: Scope) -> Any:
        return list(self._GeneratorExp(node, scope))

    def _SetComp(self, node: ast.SetComp, scope: Scope) -> Any:
        return set(self._GeneratorExp(node, scope))

    def _DictComp(self, node: ast.DictComp, scope: Scope) -> Any:
        inner = Scope(scope.module, scope)
        return {
            self.evaluate(node.key, item): self.evaluate(node.value, item)
            for item in self._rounds(node.generators, inner)
        }

    def _JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts = [str(self.evaluate(part, scope)) for part in node.values]
        self.budget.check_size(sum(map(len, parts)))
        return "".join(parts)

    def _FormattedValue(self, node: ast.FormattedValue, scope: Scope) -> Any:
        # Without its format: a width could be anything.
        return str(self.evaluate(node.value, scope))

    def _Call(self, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return self._super(node, scope)
        called = self.evaluate(node.func, scope)
        args = self._items(node.args, scope)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, scope)
            kwargs.update({keyword.arg: value} if keyword.arg else value)
        return self._called(called, args, kwargs)

    def _called(self, called: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(called, type) and called not in CALLABLE_TYPES:
            may_be_made = is_interpreted(called) or issubclass(called, Exception)
            if called is type and len(args) == 1:
                return type(args[0])
            if not may_be_made and not called.__module__.startswith("vllm_guard.probes."):
                raise Unsupported(f"it makes a {called.__name__}")
        receiver = getattr(called, "__self__", None)
        if isinstance(receiver, str) and called.__name__ == "join":
            args = [list(args[0])]
            self.budget.check_size(sum(len(part) + len(receiver) for part in args[0]))
        self.budget.check_size(sum(map(size_of, [receiver, *args])))
        return called(*args, **kwargs)

    def _super(self, node: ast.Call, scope: Scope) -> Any:
        function = scope.function
        outer = function.scope.function if function else None
        while function is not None and function.owner is None and outer is not None:
            function, outer = outer, outer.scope.function
        if node.args or function is None or function.owner is None:
            raise Unsupported(f"line {node.lineno}: it calls super in a way of its own")
        instance = self._Name(
            ast.Name(function.first_argument, ast.Load(), lineno=node.lineno), scope
        )
        return super(function.owner, instance)
