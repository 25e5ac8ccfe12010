"""What each name of a module was imported as: `dist.all_reduce` -> `torch.distributed.all_reduce`."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
from collections.abc import Callable, Container, Iterator

from ddp_lint.source.syntax import statements_in_order


@dataclasses.dataclass(frozen=True)
class ImportTable:
    """Local name to absolute dotted name, from imports anywhere in the file and plain module-level aliases.

    Where a name is bound more than once (``try: import a except ImportError: import b``) the first binding counts:
    it is the one that the author prefers. A definition further down that does not build on what was imported hides it
    from all that runs later: ``class DistributedSampler(Sampler)``.
    """

    names: dict[str, str]
    stars: tuple[str, ...] = ()

    def resolve(self, name: str) -> str | None:
        """The absolute dotted name of a dotted local one, None when its first part was not imported."""
        first, dot, rest = name.partition(".")
        target = self.names.get(first)
        return None if target is None else target + dot + rest

    @property
    def packages(self) -> frozenset[str]:
        """The top-level packages that names come from."""
        return frozenset(target.partition(".")[0] for target in self.names.values())

    def starred(self, name: str) -> tuple[str, ...]:
        """What a name may be that nothing in the file binds, by each ``from module import *``."""
        return tuple(f"{star}.{name}" for star in self.stars if not name.startswith("_"))

    @classmethod
    def of(
        cls, tree: ast.AST, module_name: str, is_package: bool, locate: Callable[[str], str] = lambda name: name
    ) -> ImportTable:
        """`locate` says what the name in an absolute import means where the file lies (`Modules.locate`)."""
        names: dict[str, str] = {}
        stars: list[str] = []
        for node in statements_in_order(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        names.setdefault(alias.asname, locate(alias.name))
                    else:
                        first = alias.name.partition(".")[0]
                        names.setdefault(first, _package_of(locate(alias.name), alias.name))
            elif isinstance(node, ast.ImportFrom):
                base = absolute(node, module_name, is_package)
                for alias in node.names:
                    if alias.name == "*":
                        stars.append(base if node.level else locate(base))
                    else:
                        target = f"{base}.{alias.name}" if base else alias.name
                        names.setdefault(alias.asname or alias.name, target if node.level else locate(target))
        hidden = _hidden(tree)
        table = cls({name: target for name, target in names.items() if name not in hidden}, tuple(stars))
        for node in getattr(tree, "body", ()):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                aliased = table.resolve(dotted_ast(node.value))
                if aliased:
                    table.names.setdefault(node.targets[0].id, aliased)
        return table


def _hidden(tree: ast.AST) -> set[str]:
    """Names that the file imports above any condition, and then gives to a definition of its own."""
    found: set[str] = set()
    imported: set[str] = set()
    for node in getattr(tree, "body", ()):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            imported |= names
            found -= names
        elif isinstance(node, _DEFINITIONS) and node.name in imported:
            above = [*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else ())]
            if not any(isinstance(n, ast.Name) and n.id == node.name for each in above for n in ast.walk(each)):
                found.add(node.name)
    return found - _imported_below(tree) if found else found


def _imported_below(tree: ast.AST) -> set[str]:
    """The names of imports that are not at the top level of a file."""
    top = {id(node) for node in getattr(tree, "body", ())}
    nodes = (n for n in statements_in_order(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) and id(n) not in top)
    return {alias.asname or alias.name.partition(".")[0] for node in nodes for alias in node.names}


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _package_of(located: str, name: str) -> str:
    """What the first part of the imported `name` refers to, where the whole was found as `located`."""
    rest = name.partition(".")[2]
    return located.removesuffix(f".{rest}") if rest else located


def absolute(node: ast.ImportFrom, module_name: str, is_package: bool) -> str:
    """The absolute module that a from-import names; relative ones are taken from `module_name`."""
    module = node.module or ""
    return absolute_target("." * node.level + module, module_name, is_package) if node.level else module


def absolute_target(target: str, module_name: str, is_package: bool) -> str:
    """The absolute name of what a relative import names, with its dots: as `imports_in` gives it."""
    name = target.lstrip(".")
    parts = module_name.split(".") if module_name else []
    kept = max(len(parts) - (len(target) - len(name)) + is_package, 0)
    return ".".join(filter(None, [*parts[:kept], name]))


def dotted_ast(node: ast.AST | None) -> str:
    """`a.b.c` for a chain of names and attributes, else ''."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def is_within(name: str, modules: Container[str]) -> bool:
    """Whether a dotted name is one of these modules, or of something in one of them."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in modules for count in range(1, len(parts) + 1))


def last_part(node: ast.AST | None) -> str:
    """`f` for ``f``, for ``x.f`` and for ``g().f``; '' for any other node."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def of_self(name: str) -> str:
    """`x` for the name ``self.x``, '' for any other: what a method calls an attribute of its own object."""
    owner, _, attribute = name.partition(".")
    return attribute if owner == "self" and "." not in attribute else ""


#: What a program without a ``__main__`` guard has at its top: ``args = parse_args()``.
_READS_OPTIONS = re.compile(r"^\w[\w, ]*= *[\w.]*parse_(?:known_)?args\w*\(", re.MULTILINE)
#: Names in brackets end at the next bracket of any kind: one that is never closed is not looked for to the end.
_FROM = re.compile(r"[ \t]*from\s+([.\w]+)\s+import\s+(\([^()#]*(?:#[^\n]*\n[^()#]*)*\)|[^\n#\\]*(?:\\\n[^\n#\\]*)*)")
_IMPORT = re.compile(r"[ \t]*import\s+([^\n#]*)")
_COMMENT = re.compile(r"#[^\n]*")


def is_script(text: str) -> bool:
    """Whether a file is started itself, so that it finds the modules beside it: by its ``__main__`` guard, or by the
    options that it reads at its top."""
    return "__main__" in text or ("parse_" in text and _READS_OPTIONS.search(text) is not None)


#: Where a file puts folders on the path of modules.
_PUTS_ON_PATH = re.compile(r"^[^#\n]*\bsys\.path\.(?:append|insert|extend)\(", re.MULTILINE)
#: A line about folders, and the folders in it. One that begins at the root of all files is of one machine.
_OF_FOLDERS = re.compile(r"^[^#\n]*(?:path|dir|root|folder|parent|__file__)[^\n]*", re.MULTILINE | re.IGNORECASE)
_FOLDER = re.compile(r"""["']((?:[\w.-]+/)*[\w.-]+)/?["']""")
#: Folders of one file that are looked at.
_FOLDERS = 16


def folders_put_on_path(text: str) -> tuple[str, ...]:
    """Below which folders a file has its modules looked for, as ``sys.path.append("lib")`` does: the names of folders
    in its lines about folders, "" for one around the file. Empty where it does not change the path."""
    if "sys.path." not in text or not _PUTS_ON_PATH.search(text):
        return ()
    found = {"": None}
    for line in _OF_FOLDERS.findall(text):
        named = ["/".join(part for part in name.split("/") if part.strip(".")) for name in _FOLDER.findall(line)]
        found |= dict.fromkeys((*named, "/".join(filter(None, named))))
    return tuple(itertools.islice(found, _FOLDERS))


def imports_in(text: str) -> Iterator[tuple[str, str]]:
    """What is imported anywhere in a text, as dotted names (relative with its dots), with the names that it gets, ''
    for its first part. Imports that only look like some (in a docstring) are among them."""
    for found in _statements_in(text):
        if found.re is _FROM:
            yield from _imported_from(*found.groups())
        else:
            yield from _named(found[1])


def _statements_in(text: str) -> Iterator[re.Match[str]]:
    """Matches of `_FROM` and `_IMPORT` at starts of lines. The word is searched for first: to look at each line takes
    ten times as long."""
    line = 0  # where a line begins: all before it was looked at
    while (place := text.find("import", line)) >= 0:
        line = max(line, text.rfind("\n", line, place) + 1)
        found = _FROM.match(text, line) or _IMPORT.match(text, line)
        if found is not None:
            yield found
        line = text.find("\n", found.end() if found is not None else place) + 1
        if not line:
            return


def _imported_from(base: str, names: str) -> Iterator[tuple[str, str]]:
    inside = base if base.endswith(".") else f"{base}."
    for name, alias in _named(_COMMENT.sub("", names).replace("\\", " ").strip("()")):
        yield inside + name, alias or name


def _named(names: str) -> Iterator[tuple[str, str]]:
    """Each of ``a, b as c`` with its other name."""
    for part in names.split(","):
        name, _, alias = part.strip().partition(" as ")
        if name:
            yield name.strip(), alias.strip()
