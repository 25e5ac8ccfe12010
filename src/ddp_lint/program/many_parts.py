"""Code of which Python's compiler takes time that grows with the square of its size, as code that it takes in no time.

The compiler compares each lambda and comprehension of a function with all others of it, and each keyword of a call with
all others of the call.
"""

from __future__ import annotations

import ast
import re

#: What lambdas and comprehensions begin with, and the equals sign of a keyword.
_INNER, _KEYWORD = re.compile(r"\blambda\b|\bfor\b"), re.compile(r"\w=[^=]")
#: So many in a file cost the compiler less than parsing does.
_MANY_INNER, _MANY_KEYWORDS = 2_000, 4_000
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_OWN = (ast.Yield, ast.YieldFrom, ast.Await)


def may_have_many(text: str) -> bool:
    """Whether a text may have more such parts than the compiler should be given."""
    return len(_INNER.findall(text)) > _MANY_INNER or len(_KEYWORD.findall(text)) > _MANY_KEYWORDS


def without_many(tree: ast.Module) -> ast.Module:
    """The same tree, changed where it has many: what lambdas and comprehensions use is in tuples instead, and a call
    with many keywords is several calls. It mentions the same names."""
    inner = sum(isinstance(node, (ast.Lambda, *_COMPREHENSIONS)) for node in ast.walk(tree))
    changed: ast.Module = _Parts(many_inner=inner > _MANY_INNER).visit(tree)
    return ast.fix_missing_locations(changed)


class _Parts(ast.NodeTransformer):
    def __init__(self, *, many_inner: bool) -> None:
        self._many_inner = many_inner

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        if not self._many_inner or any(isinstance(below, _OWN) for below in ast.walk(node.body)):
            return node
        given = node.args
        names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        names += [arg.arg for arg in (given.vararg, given.kwarg) if arg is not None]
        defaults = [*given.defaults, *(default for default in given.kw_defaults if default is not None)]
        return _together(node, [node.body, *defaults], names)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> ast.AST:
        self.generic_visit(node)
        simple = all(
            isinstance(target, (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.expr_context))
            for part in node.generators
            for target in ast.walk(part.target)
        )
        if not self._many_inner or not simple or any(part.is_async for part in node.generators):
            return node
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        targets = [n.id for part in node.generators for n in ast.walk(part.target) if isinstance(n, ast.Name)]
        return _together(node, [*made, *(e for part in node.generators for e in (part.iter, *part.ifs))], targets)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if len(node.keywords) <= _MANY_KEYWORDS // 8:
            return node
        size = _MANY_KEYWORDS // 8
        parts = [node.keywords[start : start + size] for start in range(0, len(node.keywords), size)]
        calls = [ast.Call(ast.Name("_", ast.Load()), [], part) for part in parts[1:]]
        node.keywords = parts[0]
        return ast.copy_location(ast.Tuple([node, *calls], ast.Load()), node)


def _together(node: ast.expr, used: list[ast.expr], names: list[str]) -> ast.expr:
    """What is used, and names, in the place of an expression; the names of keywords as well, which count in functions
    alone."""
    keywords = [k.arg for each in used for k in ast.walk(each) if isinstance(k, ast.keyword) and k.arg is not None]
    parts = [*used, *(ast.Name(name, ast.Load()) for name in (*names, *keywords))]
    return ast.copy_location(ast.Tuple(parts, ast.Load()), node)


__all__ = ["may_have_many", "without_many"]
