"""Methods that no module of a program mentions, so that the program comes to none of them."""

from __future__ import annotations

import re

from ddp_lint.launch.unused import is_plain
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import decorators

#: Decorators after which a method is called as before.
_CONTEXTS = re.compile(r"torch\.(no_grad|inference_mode|enable_grad|autocast|(cuda\.)?amp\.autocast)|staticmethod")
#: Methods that torch, or a package that gets any object, calls by their names.
_CALLED = re.compile(
    r"_(_|apply|load_from|save_to|call_impl|get_name|named_|replicate|slow_|wrapped|register).*"
    r"|(on|configure|extra)_.*|\w+_(step|dataloader|state|dict|begin|end|hook|epoch|lr|embeddings|pretrained)"
    r"|forward|backward|reset_parameters|setup|teardown|step|fit|train|eval|predict|transform|close|collate|process|run"
)
#: What finds a method of any object by a name that the code does not have.
_LOOKS_UP = re.compile(
    r"getattr\(\s*(?!self\s*,)[^,]+,(?!\s*[\"'][\w.]*[\"']\s*[,)])|(?<!\bself\.)__dict__|\bvars\((?!self\))"
    r"|(?<![\w.])(?<!def )(?:eval|exec)\(|methodcaller\("
)
#: The same, of the object itself.
_OWN = re.compile(r"getattr\(\s*self\s*,(?!\s*[\"'][\w.]*[\"']\s*[,)])|\bself\.__dict__|\bvars\(self\)")


def is_unmentioned_at(project: Project, facts: ModuleFacts, line: int, among: frozenset[str]) -> bool:
    """Whether a line is in a method, which no package calls by its name, that the modules of one program (`among`)
    define, and do not mention."""
    owner, method = facts.method_at(line) or (None, None)
    if owner is None or method is None or _CALLED.fullmatch(method.name):
        return False
    if not all(_CONTEXTS.fullmatch(facts.qualified(each)) for each in decorators(method)):
        return False
    whole = f"{facts.name}.{owner.name}"
    if not is_plain(project, whole) or _finds_its_own(project, whole) or _looks_up(project, among):
        return False
    return project.remember(("mentioned", among, method.name), lambda: _is_unmentioned(project, method.name, among))


def _is_unmentioned(project: Project, name: str, among: frozenset[str]) -> bool:
    held = (project.facts_of(path) for path in project.holding(name))
    files = [facts.file for facts in held if facts is not None and facts.name in among]
    return not any(re.search(rf"(?<!\bdef )\b{name}\b", file.code) for file in files)


def _finds_its_own(project: Project, name: str) -> bool:
    """Whether a class, or one that it inherits from, finds what it has by names that it computes."""
    homes = {found[0].name: found[0] for each in project.lineage(name) if (found := project.split(each)) is not None}
    return any(home.file.shows(_OWN) for home in homes.values())


def _looks_up(project: Project, among: frozenset[str]) -> bool:
    """Whether a module of a program finds something of any object by a name that it computes."""

    def found() -> bool:
        held = (project.facts(name) for name in among)
        return any(facts.file.shows(_LOOKS_UP) for facts in held if facts is not None)

    return project.remember(("looks up among", among), found)
