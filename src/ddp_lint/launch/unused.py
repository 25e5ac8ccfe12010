"""Definitions that nothing in a project uses: what happens in them happens in no run of its programs."""

from __future__ import annotations

import ast
import bisect
import collections
import itertools
import pathlib
import posixpath
import re
from collections.abc import Sequence

from ddp_lint.launch.reached.index import PLAIN, TELLING
from ddp_lint.launch.reached.names import BY_SETTINGS, SETTINGS_WORDS, adds
from ddp_lint.launch.reached.walk import is_never_imported, is_never_reached_from_programs
from ddp_lint.launch.search import homes, importers, words_of_imports
from ddp_lint.launch.skipped import is_skipped
from ddp_lint.launch.texts import called_in_texts, calls_of_notebooks, is_installed, may_be_entry_point, named_in_texts
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in, statements_of
from ddp_lint.project.parts import kept_by_node
from ddp_lint.project.uses import uses
from ddp_lint.source.imports import dotted_ast, is_within
from ddp_lint.source.syntax import FunctionNode, blocks_at, decorators, function_at, main_guards, walk
from ddp_lint.source.torch_versions import arm_left

#: Files that hold a name which are looked at; one that more files hold counts as used.
_FILES = 25
#: Files that hold it as a word only which are read for whether they may mean it.
_WORD_FILES = 200
#: How code finds a definition by a name that it has as a string.
_BY_NAME = ("getattr(", "__dict__", "globals(", "eval(", "sys.modules")
#: Calls that import a module of any name, and what finds any name in it, in the same file or in one that gets it.
_IMPORTS = ("import_module(", "__import__(")
_ANY_NAME = re.compile(r"getattr\(\s*[^,]+,(?!\s*[\"'])|__dict__|\bvars\(|\breturn [\w.]*(import_module|__import__)\(")
_COMPUTED_IMPORT = re.compile(r"(?<!\w)(?:import_module|__import__)\((?!\s*[\"'][\w.]+[\"']\s*[,)])")
#: Of those the names that are no more than part of what some text has: ``getattr(module, f"{name}Loss")``.
_COMPOSED_NAME = re.compile(r"getattr\(\s*[^,]+,\s*(?:f[\"']|[^,()\n]*[(+%])")
_GETS = re.compile(r"getattr\(\s*(\w+)")
_LOOKED_UP = re.compile(rf"{_GETS.pattern}|(\w+)\.__dict__")
#: Where a file takes what it has by a name, and does not only ask for it (``globals()[name]``, alone on its line) or
#: delete it.
TAKES_GLOBALS = r"(?m:^(?![^\S\n]*(?:del )?globals\(\)\[\w+\][^\S\n]*$)[^\n]*?\bglobals\(\))"
#: What an object has, as in ``eval('self.decoder_' + n)``, is no definition of the file.
_OF_ITSELF = re.compile(rf"{TAKES_GLOBALS}\s*[\[.]|sys\.modules\[__name__\]|\bFire\(\s*\)")
_EVALUATES = re.compile(r"(?<![\w.])eval\((?!\s*[fr]?[\"']self\.)")
#: The test of a file for whether it is the program.
_GUARD = re.compile(r"__name__ == ['\"]__main__['\"]")
#: Calls that set up the process, and do nothing that a program is there for.
_SETS_UP = re.compile(
    r"torch\.(?:manual_seed|set_\w+|use_deterministic_algorithms|cuda\.manual_seed(?:_all)?)|(?:numpy\.)?random\.seed"
    r"|warnings\.\w+|logging\.\w+|matplotlib\.use|sys\.(?:setrecursionlimit|path\.\w+)"
)
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Decorators after which a method is called as before.
_CONTEXTS = re.compile(r"torch\.(no_grad|inference_mode|enable_grad|autocast|(cuda\.)?amp\.autocast)|staticmethod")


def is_unused(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether nothing in the project uses the function or class that a line of a file is in, so that no program comes
    by it, or what runs tests skips it."""
    definition = next((block for block in blocks_at(facts.tree, line) if isinstance(block, _DEFINED)), None)
    if definition is None:
        return False
    if _is_replaced(facts, definition) or is_left_file(project, facts) or _is_left_inside(facts, line):
        return True
    if is_skipped(facts, line) or _is_called_no_more(project, facts, line):
        return True
    return _is_left(project, facts, definition.name, frozenset())


def _is_called_no_more(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether the only calls of the function that a line is in are in comments: the work has switched them off. That
    tells as much of a package that is installed as of a program: its own author calls the function no more."""
    function = function_at(facts.tree, line)
    name = function.name if function is not None else ""
    if function is None or len(name) < TELLING or function.decorator_list or name not in _called_in_comments(facts):
        return False
    owner = next(
        (block for block in facts.tree.body if isinstance(block, ast.ClassDef) and function in block.body), None
    )
    if not (is_plain(project, f"{facts.name}.{owner.name}") if owner is not None else function in facts.tree.body):
        return False
    path = project.modules.find(facts.name)
    if any(each != path for each in project.contents.holding(name)):
        return False
    return len(re.findall(rf"\b{name}\b", facts.file.code)) == 1  # its definition


def _called_in_comments(facts: ModuleFacts) -> frozenset[str]:
    """The functions that lines call which are comments: ``# self.summarize()``."""
    return frozenset(_CALL_IN_COMMENT.findall(facts.file.text))


#: A line of code that was made a comment, which calls a function.
_CALL_IN_COMMENT = re.compile(r"^[ \t]*#[ \t]*(?:[\w.]+ = )?(?:self\.|[\w.]+\.)?(\w+)\(.*\)[ \t]*$", re.MULTILINE)


def _is_left_inside(facts: ModuleFacts, line: int) -> bool:
    """Whether a line is in a function that another one has inside, and does not mention anywhere."""
    around = [block for block in blocks_at(facts.tree, line) if isinstance(block, _DEFINED)]
    return any(
        isinstance(outer, FunctionNode) and inner in _left_inside(outer) for outer, inner in itertools.pairwise(around)
    )


@kept_by_node(64)
def _left_inside(function: FunctionNode) -> frozenset[ast.AST]:
    """The functions inside another one whose names it has nowhere else, and does not find by their names either."""
    inner: dict[str, list[ast.AST]] = collections.defaultdict(list)
    mentioned: set[str] = set()
    for node in walk(function):
        if isinstance(node, FunctionNode) and node is not function and not node.decorator_list:
            inner[node.name].append(node)
        elif isinstance(node, ast.Name):
            mentioned.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            mentioned.update(node.names)
        elif isinstance(node, ast.ClassDef):
            mentioned.update(each.name for each in node.body if isinstance(each, FunctionNode))
    if mentioned & {"locals", "eval", "exec", "vars"}:
        return frozenset()
    return frozenset(node for name, nodes in inner.items() if name not in mentioned for node in nodes)


@kept_by_node(64)
def _defined_in(tree: ast.Module) -> dict[str, list[tuple[int, FunctionNode | ast.ClassDef]]]:
    """The definitions at the top level of a file, with their places, by name."""
    found = collections.defaultdict[str, list[tuple[int, FunctionNode | ast.ClassDef]]](list)
    for place, node in enumerate(tree.body):
        if isinstance(node, _DEFINED):
            found[node.name].append((place, node))
    return found


def _is_replaced(facts: ModuleFacts, definition: FunctionNode | ast.ClassDef) -> bool:
    """Whether a later definition takes the name of one before anything uses it: ``def train(): ..`` twice in a file."""
    named, body = _defined_in(facts.tree).get(definition.name, []), facts.tree.body
    place = next((i for i, node in named if node is definition), None)
    if place is None or named[-1][0] == place or definition.decorator_list:
        return False
    after, last = named[-1]
    between = body[place + 1 : after]
    # What runs between the two may come by a function above that uses the first.
    runs = any(not isinstance(each, (*_DEFINED, ast.Import, ast.ImportFrom)) for each in between)
    users = (*between, *last.decorator_list, *(body[:place] if runs else ()))
    return not any(isinstance(n, ast.Name) and n.id == definition.name for each in users for n in walk(each))


def is_left_file(project: Project, facts: ModuleFacts) -> bool:
    """Whether nothing imports a file or mentions its name, and it does nothing by itself, where files beside it are
    imported: an old copy, or one that the work has left behind. A package that is installed has modules for others to
    import."""

    def found() -> bool:
        stem = facts.name.rpartition(".")[2]
        path = project.modules.find(facts.name)
        if path is None or path.suffix != ".py" or path.stem != stem or facts.source.is_test:
            return False
        if facts.file.holds("__main__") or not _only_sets_up(facts) or len(stem) < TELLING:
            return False
        if is_never_imported(project, facts) and _is_in_no_text(project, facts, stem):
            return True
        if any(_may_name(project, other, stem) for other in project.contents.holding(stem) if other != path):
            return False
        if named_in_texts(project, stem) or is_installed(project, facts):
            return False
        return _is_copied_beside(project, facts) or _is_left_beside(project, facts)

    return project.remember(("left file", facts.name), found)


def _is_in_no_text(project: Project, facts: ModuleFacts, stem: str) -> bool:
    """Whether no text of the project has the name of a file, and none and no notebook gets hold of what it defines. Of
    a package that is installed, others may import any module."""
    if named_in_texts(project, stem) or is_installed(project, facts):
        return False
    noted = calls_of_notebooks(project)
    return noted is not None and not any(
        name in noted or called_in_texts(project, name) for name in (stem, *facts.definitions)
    )


def _may_name(project: Project, path: pathlib.Path, stem: str) -> bool:
    """Whether the code of a file may name a module by its last name: in an import, in a string, as a part of what it
    imports, or as a name that it does not bind itself. Not ``trainer = Trainer()``, nor what a comment has:
    ``# from models.first_draft import *``."""
    facts = project.modules.facts_of(path)
    if facts is None:
        return True
    if re.search(rf"\b{re.escape(stem)}\b", facts.file.code) is None:
        return False
    key = ("may name", stem)
    found: bool = project.remember(key, lambda: _has_name(project, facts, path, stem), facts.kept)
    return found


def _has_name(project: Project, facts: ModuleFacts, path: pathlib.Path, stem: str) -> bool:
    if stem in words_of_imports(project, path):
        return True
    word, read, bound = re.compile(rf"\b{re.escape(stem)}\b"), False, False
    for node in walk(facts.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and word.search(node.value):
            return True
        if isinstance(node, ast.Attribute) and node.attr == stem:
            root = dotted_ast(node).partition(".")[0]
            if root and facts.imports.resolve(root) is not None:
                return True
        read |= isinstance(node, ast.Name) and node.id == stem
        bound |= isinstance(node, ast.arg) and node.arg == stem
        bound |= isinstance(node, ast.Name) and node.id == stem and not isinstance(node.ctx, ast.Load)
    return read and not bound


def _is_copied_beside(project: Project, facts: ModuleFacts) -> bool:
    """Whether the project imports another module of a file's folder that has a class of the same name."""
    package, folder = facts.name.rpartition(".")[0], posixpath.dirname(facts.source.inside)
    classes = {name for name, node in facts.definitions.items() if isinstance(node, ast.ClassDef)}
    found = dict.fromkeys(path for name in sorted(classes)[:_FILES] for path in project.contents.holding(name))
    for path in list(found)[:_FILES]:
        other = project.modules.facts_of(path) if posixpath.dirname(project.paths.inside(path)) == folder else None
        if other is None or other.name == facts.name or other.name.rpartition(".")[0] != package:
            continue
        stem = other.name.rpartition(".")[2]
        users = importers(project, other.name, holding=(stem,)) if not classes.isdisjoint(other.definitions) else ()
        if any(not user.source.is_test for user in users):
            return True
    return False


def _is_left_beside(project: Project, facts: ModuleFacts) -> bool:
    """Whether programs of the project import another module of a file's folder, and none imports modules by names that
    it computes."""
    folder = posixpath.dirname(facts.source.inside)
    if (
        not folder
        or any(map(project.contents.holding, ("pkgutil", "iter_modules", "exec(")))
        or _computes_imports(project)
    ):
        return False
    beside = (path for path in project.contents.named("*.py") if posixpath.dirname(path) == folder)
    for path in sorted(beside)[:_FILES]:
        other = project.modules.facts_of(pathlib.Path(project.paths.absolute(path)))
        if other is None or other.name == facts.name or other.source.is_test:
            continue
        users = importers(project, other.name, holding=(other.name.rpartition(".")[2],))
        if any((user.file.holds("__main__") or does_something(user)) and not user.source.is_test for user in users):
            return True
    return False


def _computes_imports(project: Project) -> bool:
    """Whether code of the project imports modules by names that it does not have as they are: ``import_module(name)``,
    but not ``__import__("os")``."""

    def found() -> bool:
        paths = dict.fromkeys(path for word in _IMPORTS for path in project.contents.holding(word))
        return any(_COMPUTED_IMPORT.search(project.contents.text(path) or "") for path in paths)

    return project.remember(("computes imports",), found)


def is_unused_at(
    project: Project, facts: ModuleFacts, line: int, among: frozenset[str] | None = None, program: str = ""
) -> bool:
    """Whether nothing in the project uses the function or class at the top of a file that a line is in; nothing in the
    modules `among`, where given: those of one program. Where the module that is started is given, too (`program`),
    what others do only where they are started themselves is no use of theirs."""
    name = _mentions(project, facts).around(line)
    return bool(name) and _is_left(project, facts, name, frozenset(), among, program)


def is_given_away(facts: ModuleFacts, definition: FunctionNode | ast.ClassDef) -> bool:
    """Whether a decorator gets a definition that may keep it, as a registry does: ``@torch.no_grad()`` does not."""
    return not all(_CONTEXTS.fullmatch(facts.qualified(each) or dotted_ast(each)) for each in decorators(definition))


def is_plain(project: Project, name: str) -> bool:
    """Whether a class and all that it inherits from are of the project, or call no methods by their names."""
    return all(each in PLAIN or project.meanings.split(each) for each in project.classes.lineage(name))


def _is_left(
    project: Project,
    facts: ModuleFacts,
    name: str,
    above: frozenset[tuple[str, str]],
    among: frozenset[str] | None = None,
    program: str = "",
) -> bool:
    """Whether nothing but unused definitions mentions one; `above`: those that are being looked at."""
    definition = facts.definitions.get(name)
    if definition is None or is_given_away(facts, definition):
        return False
    if name.startswith("main") and program in ("", facts.name) and not _is_never_started(project, facts, name):
        return False
    if not is_in_use(project, facts) and (among is None or not does_something(facts)):
        return False
    if among is None:
        by_text = is_installed(project, facts) or bool(_how_it_looks_up(project))
    else:
        by_text = _computes_names(project, among)
    paths = files_mentioning(project, facts, name, by_text=by_text)
    if len(paths) > _FILES or (not above and is_found_by_name(project, facts, name, among)):
        return False
    above |= {(facts.name, name)}
    for path in paths:
        user = project.modules.facts_of(path)
        if user is None or not _may_use(user, facts, among):
            continue
        if among is None and _is_offered(project, facts, name, user):
            return False
        imported = program not in ("", user.name)
        lines = lines_mentioning(project, user, name, definition, by_text=by_text, imported=imported)
        for place in {_mentions(project, user).around(line) for line in lines}:
            if (user.name, place) in above:
                continue
            if not place or not _is_left(project, user, place, above, among, program):
                return False
    return True


def _may_use(user: ModuleFacts, facts: ModuleFacts, among: frozenset[str] | None) -> bool:
    """Whether it counts that a file uses what another has: no test does; a program may be called ``pred_test.py``."""
    return (among is None or user.name in among) and (not user.source.is_test or user.name == facts.name)


def _is_never_started(project: Project, facts: ModuleFacts, name: str) -> bool:
    """Whether a `main` is no program: the file says what it does where it is started, and installing the project makes
    no command of it."""
    return bool(_mentions(project, facts).started) and not may_be_entry_point(project, name)


def files_mentioning(project: Project, facts: ModuleFacts, name: str, *, by_text: bool) -> Sequence[pathlib.Path]:
    """The files that hold the name of a definition and may mean it, as not all do where it is a word: its own, what
    imports it or a package that passes it on, and what has the string where that counts."""
    paths = project.contents.holding(name)
    if len(paths) > _WORD_FILES or (len(paths) <= _FILES and is_installed(project, facts)):
        return paths
    words = {home.rpartition(".")[2] for home in homes(project, facts.name)}
    as_string = re.compile(rf"[\"'](?:[\w.]*\.)?{name}[\"']")

    def may_mean(path: pathlib.Path) -> bool:
        if project.paths.inside(path) == facts.source.inside or not words.isdisjoint(words_of_imports(project, path)):
            return True
        return by_text and as_string.search(project.contents.text(path) or "") is not None

    return [path for path in paths if may_mean(path)]


def is_in_use(project: Project, facts: ModuleFacts) -> bool:
    """Whether the file is a program, or another file imports it: of a file that stands alone the users are not seen."""

    def found() -> bool:
        if main_guards(facts.tree):
            return True
        users = importers(project, facts.name, holding=(facts.name.rpartition(".")[2],)) if facts.name else ()
        return any(not user.source.is_test for user in users)

    return project.remember(("in use", facts.name), found)


def does_something(facts: ModuleFacts) -> bool:
    """Whether a file calls something where it is run or imported, as scripts do that have no test of their name."""
    calls = (isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) for n in facts.tree.body)
    return any(calls) or any(isinstance(n, ast.For) for n in facts.tree.body)


def _only_sets_up(facts: ModuleFacts) -> bool:
    """Whether all that a file calls where it is imported are settings of the process, which files of classes have at
    their top as well (``torch.manual_seed(10)``), or add something to a list."""
    called = [n.value for n in facts.tree.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    loops = any(isinstance(n, ast.For) for n in facts.tree.body)
    return not loops and all(adds(each) or _SETS_UP.fullmatch(facts.qualified(each.func)) for each in called)


def _finds_its_own(facts: ModuleFacts) -> bool:
    """Whether a file finds what it has by names that it computes. One that has a function `eval` calls that."""
    return facts.file.shows(_OF_ITSELF) or ("eval" not in facts.definitions and facts.file.shows(_EVALUATES))


def _computes_names(project: Project, among: frozenset[str]) -> bool:
    """Whether a module of a program looks something up by a name that it computes. In other programs a string is only
    text, even if a function has that name: ``def sample(experiment="run")``."""

    def found() -> bool:
        held = (project.modules.facts(name) for name in among)
        return any(f.file.shows(_ANY_NAME) or _finds_its_own(f) for f in held if f is not None)

    return project.remember(("computes names", among), found)


def lines_mentioning(
    project: Project,
    facts: ModuleFacts,
    name: str,
    definition: ast.AST,
    *,
    by_text: bool = True,
    imported: bool = False,
) -> set[int]:
    """The lines on which a file mentions a definition, also as a string where that counts (`by_text`). A list of what a
    module offers mentions what it does not use, nor does a module that is `imported` do what its ``if __name__ ==
    "__main__":`` holds, or what no program comes to, or no torch that is in use; and ``logging.enable`` is not the
    ``enable`` of another module."""
    known = _mentions(project, facts)
    names = {name, *known.aliases.get(name, ())}
    found = (use.node for each in names for use in uses(facts, each) if not is_variable(use.node, use.around))
    lines = {node.lineno for node in found if not _is_another(project, facts, node, definition)}
    lines |= known.strings.get(name, set()) if by_text else set()
    idle = [*known.offers, *known.outdated, *(known.started if imported else ())]
    lines = {line for line in lines if not any(line in each for each in idle)}
    return {line for line in lines if not is_never_reached_from_programs(project, facts, line)}


def is_variable(node: ast.Name | ast.Attribute, around: FunctionNode | None) -> bool:
    """Whether a name is that of a variable of the function around, which assigns it: ``run = wandb.init()`` in a file
    with a function `run`. Its defaults and decorators are evaluated outside."""
    if not isinstance(node, ast.Name) or around is None or node.lineno < around.body[0].lineno:
        return False
    declared = (n.names for n in statements_of(around) if isinstance(n, (ast.Global, ast.Nonlocal)))
    return bool(assigned_in(around, node.id)) and not any(node.id in each for each in declared)


def _is_another(project: Project, facts: ModuleFacts, node: ast.Name | ast.Attribute, definition: ast.AST) -> bool:
    """Whether a name is what an object has, as in ``model.train()``, or leads to another definition of the project: the
    file's own, what it imports, or what a module has."""
    if not isinstance(node, ast.Attribute):
        own = facts.definitions.get(node.id)
        if facts.imports.resolve(node.id) is None:
            return own is not None and own is not definition
        # Of two imports by one name, either may be what it means.
        imported = project.meanings.definition(project.meanings.of(facts, node)) if own is None else None
        once = _mentions(project, facts).imported[node.id] == 1
        return once and imported is not None and imported[1] is not definition
    root = dotted_ast(node).partition(".")[0]
    if root and facts.imports.resolve(root) is None and not any(map(facts.file.holds, _IMPORTS)):
        return True
    meaning = project.meanings.of(facts, node)
    found = project.meanings.definition(meaning)
    return is_foreign(project, meaning) if found is None else found[1] is not definition


def is_foreign(project: Project, meaning: str) -> bool:
    """Whether a name leads to another package: ``torch.load`` is no function `load` of the project."""
    first = meaning.partition(".")[0]
    return bool(first) and project.modules.find(first) is None and project.meanings.split(meaning) is None


def _mentions(project: Project, facts: ModuleFacts) -> _Mentions:
    found: _Mentions = project.remember(("mentions",), lambda: _Mentions(facts), facts.kept)
    return found


class _Mentions:
    """What a file imports under another name, its strings, and the lines of its definitions, and of what does not count
    as a use."""

    def __init__(self, facts: ModuleFacts) -> None:
        #: By the last part of a name: what the file calls it, and the lines that hold it as a string.
        self.aliases = collections.defaultdict[str, set[str]](set)
        self.strings = collections.defaultdict[str, set[int]](set)
        for local, of in facts.imports.names.items():
            self.aliases[of.rpartition(".")[2]].add(local)
        #: How often the file imports something by a name.
        self.imported = collections.Counter[str]()
        #: What no torch that is in use comes by.
        self.outdated = list[range]()
        for node in walk(facts.tree):
            if isinstance(node, ast.If):
                self.outdated += map(_lines_of, arm_left(node))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.strings[node.value.rpartition(".")[2]].add(node.lineno)
            for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
                self.imported[alias.asname or alias.name] += 1
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                # The table of names has the first of two imports by one name.
                self.aliases[alias.name].add(alias.asname or alias.name)
        assigned = (n for n in facts.tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
        # ``__all__ = {"Head": Head}`` is a table from which other code takes a class by its name.
        lists = (n for n in assigned if not isinstance(n.value, ast.Dict))
        self.offers = list(map(_lines_of, lists))
        guards = (n for n in facts.tree.body if isinstance(n, ast.If) and _GUARD.fullmatch(ast.unparse(n.test)))
        self.started = [_lines_of(statement) for guard in guards for statement in guard.body]
        self._definitions = sorted(facts.definitions.values(), key=lambda definition: definition.lineno)
        self._firsts = [definition.lineno for definition in self._definitions]

    def around(self, line: int) -> str:
        """The definition that a line is in, "" outside of any."""
        place = bisect.bisect_right(self._firsts, line) - 1
        found = self._definitions[place] if place >= 0 else None
        return found.name if found is not None and line <= (found.end_lineno or found.lineno) else ""


def _lines_of(statement: ast.stmt) -> range:
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _is_offered(project: Project, facts: ModuleFacts, name: str, user: ModuleFacts) -> bool:
    """Whether the package itself passes a definition on to whoever uses the project as a library."""
    if "." in user.name or user.source.place.rpartition("/")[2] != "__init__.py":
        return False
    whole = f"{facts.name}.{name}"
    targets = (*user.imports.names.values(), *(f"{star}.{name}" for star in user.imports.stars))
    return any(project.meanings.canonical(target) == whole for target in targets)


def is_found_by_name(project: Project, facts: ModuleFacts, name: str, among: frozenset[str] | None) -> bool:
    """Whether code of the project may find a definition of a file by a name that the settings give. In one program
    only where it looks for it in this file."""
    looking_up = _looking_up(project, facts)
    if among is not None:
        return not looking_up.isdisjoint(among) or _finds_its_own(facts)
    if looking_up or _finds_its_own(facts):
        return True
    how = _how_it_looks_up(project)
    # What looks in any module gets the name from somewhere: a string of the code counts as a mention. Who has installed
    # the project gives it names that are not seen.
    return how == "composed" or (how == "given" and (is_installed(project, facts) or named_in_texts(project, name)))


def may_be_called_by_text(project: Project, facts: ModuleFacts, name: str) -> bool:
    """Whether a text of the project may name a function at the top of a file for something to call it: a text that
    calls or imports it, or one that has its name where code finds functions by names."""
    if not named_in_texts(project, name):
        return False
    return called_in_texts(project, name) or is_found_by_name(project, facts, name, None)


def _how_it_looks_up(project: Project) -> str:
    return project.remember(("looks up",), lambda: _looks_up(project))


def _looks_up(project: Project) -> str:
    """Whether code of the project looks in modules of any name for what has a name that is "given" to it, or one that
    it makes up, "composed"; '' for none."""
    importing = [project.contents.text(path) or "" for word in _IMPORTS for path in project.contents.holding(word)]
    settings = (project.contents.text(path) or "" for word in SETTINGS_WORDS for path in project.contents.holding(word))
    if any(map(_COMPOSED_NAME.search, importing)):
        return "composed"
    return "given" if any(map(BY_SETTINGS.search, settings)) or any(map(_ANY_NAME.search, importing)) else ""


def _looking_up(project: Project, facts: ModuleFacts) -> frozenset[str]:
    """The names of the files that take something from the module of a file, or from a package around it, by a computed
    name."""

    def found() -> frozenset[str]:
        users = importers(project, facts.name, holding=_BY_NAME)
        return frozenset(user.name for user in users if is_within(facts.name, _looked_up_by(project, user)))

    return project.remember(("looking up", facts.name), found)


def _looked_up(text: str) -> list[tuple[str, str]]:
    # The name in front of an attribute is searched for at each letter of a text.
    return _LOOKED_UP.findall(text) if ".__dict__" in text else [(name, "") for name in _GETS.findall(text)]


def _looked_up_by(project: Project, user: ModuleFacts) -> frozenset[str]:
    """The modules from which a file takes something by a computed name."""

    def found() -> frozenset[str]:
        names = {first or second for first, second in _looked_up(user.file.text)}
        return frozenset(module for name in names if (module := user.imports.resolve(name)))

    return project.remember(("looked up by",), found, user.kept)
