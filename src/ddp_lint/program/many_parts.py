"""Code of which Python's compiler takes time that grows with the square of its size, as code that it takes in no time.

The compiler compares each lambda and comprehension of a function with all others of it, and each keyword of a call, or
of a class, with all others there. For each name that a pattern of `match` binds it moves all that were bound before.
"""

from __future__ import annotations

import ast
import re
from typing import TypeVar

from ddp_lint.source.syntax import walk

N = TypeVar("N", bound=ast.AST)

#: What lambdas and comprehensions begin with, the equals sign of a keyword, and what the cases of `match` begin with.
_INNER, _KEYWORD = re.compile(r"\blambda\b|\bfor\b"), re.compile(r"\w=[^=]")
_CASE = re.compile(r"^[ \t]*case\b", re.M)
#: So many in a file cost the compiler less than parsing does.
_MANY_INNER, _MANY_KEYWORDS, _MANY_PATTERNS = 2_000, 4_000, 1_000
#: So many keywords, or patterns in one pattern, are left together.
_TOGETHER = 8
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_INNER_KINDS = frozenset({ast.Lambda, *_COMPREHENSIONS})


def may_have_many(text: str) -> bool:
    """Whether a text may have more such parts than the compiler should be given."""
    # To count letters takes next to no time, and few files have so many.
    inner = text.count("lambda") + text.count("for") > _MANY_INNER and len(_INNER.findall(text)) > _MANY_INNER
    if inner or (text.count("=") > _MANY_KEYWORDS and len(_KEYWORD.findall(text)) > _MANY_KEYWORDS):
        return True
    return text.count(",") > _MANY_PATTERNS and _CASE.search(text) is not None


def without_many(tree: ast.Module) -> ast.Module:
    """The same tree, changed where it has many: what lambdas and comprehensions use is in tuples instead, a call with
    many keywords is several calls, which a class has as bases, and what a pattern of many parts uses is in the guard of
    its case. It mentions the same names."""
    inner, others = 0, False
    for node in walk(tree):
        kind = node.__class__
        if kind in _INNER_KINDS:
            inner += 1
        elif kind is ast.Call or kind is ast.ClassDef:
            others = others or len(node.keywords) > _MANY_KEYWORDS // _TOGETHER  # type: ignore[attr-defined]
        elif kind is ast.match_case:
            others = True
    if inner <= _MANY_INNER and not others:
        return tree  # its many keywords are those of many calls
    changed: ast.Module = _Parts(many_inner=inner > _MANY_INNER).visit(tree)
    return changed


class _Parts(ast.NodeTransformer):
    def __init__(self, *, many_inner: bool) -> None:
        self._many_inner = many_inner
        #: How many nodes were met that need a function of their own.
        self._own = 0
        #: The names of the keywords that were met, without those that a tuple has by now.
        self._keywords: list[str] = []

    def visit_Yield(self, node: ast.Yield | ast.YieldFrom | ast.Await) -> ast.AST:
        self._own += 1
        return self.generic_visit(node)

    visit_YieldFrom = visit_Await = visit_Yield  # noqa: N815

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        self._keywords += [node.arg] if node.arg is not None else []
        return self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.visit(node.args)
        own, before = self._own, len(self._keywords)
        node.body = self.visit(node.body)
        if not self._many_inner or self._own > own:
            return node
        given = node.args
        names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        names += [arg.arg for arg in (given.vararg, given.kwarg) if arg is not None]
        defaults = [*given.defaults, *(default for default in given.kw_defaults if default is not None)]
        return self._together(node, [node.body, *defaults], names, before)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> ast.AST:
        before = len(self._keywords)
        self.generic_visit(node)
        simple = all(
            isinstance(target, (ast.Name, ast.Tuple, ast.List, ast.Starred))
            for part in node.generators
            for target in walk(part.target)
        )
        if not self._many_inner or not simple or any(part.is_async for part in node.generators):
            return node
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        targets = [n.id for part in node.generators for n in walk(part.target) if isinstance(n, ast.Name)]
        used = [*made, *(e for part in node.generators for e in (part.iter, *part.ifs))]
        return self._together(node, used, targets, before)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

    def _together(self, node: ast.expr, used: list[ast.expr], names: list[str], before: int) -> ast.expr:
        """What is used, and names, in the place of an expression; the names of keywords as well, which count in
        functions alone. `before`: how many of them were met before it."""
        keywords = self._keywords[before:]
        del self._keywords[before:]
        parts = [*used, *(_at(node, ast.Name(name, ast.Load())) for name in (*names, *keywords))]
        return _at(node, ast.Tuple(parts, ast.Load()))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords, calls = _divided(node, node.keywords)
        return _at(node, ast.Tuple([node, *calls], ast.Load())) if calls else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.keywords, calls = _divided(node, node.keywords)
        node.bases += calls
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        self.generic_visit(node)
        parts = [part for part in ast.walk(node.pattern) if isinstance(part, ast.pattern)]
        attributes = [name for part in parts if isinstance(part, ast.MatchClass) for name in part.kwd_attrs]
        if len(parts) <= _MANY_PATTERNS // _TOGETHER:
            return node
        used = [each for part in parts for each in ast.iter_child_nodes(part) if isinstance(each, ast.expr)]
        at = node.pattern
        names: list[ast.expr] = [_at(at, ast.Constant(name)) for name in attributes]
        bound = dict.fromkeys(name for part in parts if (name := _bound_by(part)) is not None)
        guard = [_at(at, ast.Tuple(names, ast.Load())), *used, *([node.guard] if node.guard is not None else [])]
        first = node.body[0]
        targets: list[ast.expr] = [_at(first, ast.Name(name, ast.Store())) for name in bound]
        bind = [_at(first, ast.Assign(targets, _at(first, ast.Constant(None))))] if targets else []
        return ast.match_case(_at(at, ast.MatchAs()), _at(at, ast.Tuple(guard, ast.Load())), [*bind, *node.body])


def _at(place: ast.AST, made: N) -> N:
    """A new node in the place of another one."""
    return ast.copy_location(made, place)


def _divided(node: ast.AST, keywords: list[ast.keyword]) -> tuple[list[ast.keyword], list[ast.Call]]:
    """The first of many keywords, and calls with the others."""
    size = _MANY_KEYWORDS // _TOGETHER
    parts = [keywords[start : start + size] for start in range(size, len(keywords), size)]
    return keywords[:size], [_at(node, ast.Call(_at(node, ast.Name("_", ast.Load())), [], part)) for part in parts]


def _bound_by(pattern: ast.pattern) -> str | None:
    """The name that a pattern itself binds."""
    if isinstance(pattern, ast.MatchMapping):
        return pattern.rest
    return pattern.name if isinstance(pattern, (ast.MatchAs, ast.MatchStar)) else None


__all__ = ["may_have_many", "without_many"]
