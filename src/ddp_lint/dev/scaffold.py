"""The start of a new rule: a rule that works, a fixture that it passes, and a page whose prose is to be filled in."""

from __future__ import annotations

import pathlib
import re
import string

from ddp_lint.rules.registry import all_rules

#: What the scaffold leaves for the author; a test fails as long as a page holds it.
FILL_IN = "FILL IN"

_RULE = string.Template('''\
from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers

_CALLS = frozenset({"$call"})


class $name(Rule):
    """$FILL_IN: one line that says what breaks.

    ## What it does

    Flags calls of `$call`. $FILL_IN: what exactly, in one or two sentences.

    ## Why it breaks

    $FILL_IN: what rank 0 does, what rank 1 does, and where they diverge; under DDP, FSDP1 and FSDP2 where they differ.
    Name the measurement or the source of each claim.

    ## Example

    ```python
    import $module


    def main():
        $module.$function()  # <- $code


    if __name__ == "__main__":
        main()
    ```

    ## Use instead

    ```python
    def main():
        pass  # $FILL_IN: the same program, fixed


    if __name__ == "__main__":
        main()
    ```

    ## When it is silent

    $FILL_IN: the idioms that look alike and are right, each with a case in the fixture.

    ## How to confirm

    `ddp-lint verify train.py --nproc 2`. $FILL_IN: what it observes.

    ## Fix safety

    There is no automatic fix.

    ## References

    - $FILL_IN: documentation, issues, measurements.
    """

    # Which definitions are parsed at all: those with one of these words, in files with one of `file`.
    triggers = Triggers("$function", file=("$root",))
    # What `verify` must observe: see `ORACLES` in verify/oracles. $FILL_IN
    oracles = ("exception",)
    # On by default only once the precision measured on real code carries it (at least 75 % hazard or smell).
    default = False

    def visit_Call(self, node: cst.Call) -> None:
        name = self.module.qualified(node.func)
        if name in _CALLS:
            self.report(
                node,
                f"$FILL_IN: what `{name}` does at run time, on rank 0 and on rank 1",
                help="$FILL_IN: what to write instead",
            )
''')

_FIXTURE = string.Template('''\
"""$code: what is flagged, and what only looks like it."""

import $module
from $module import $function as imported


def flagged():
    $module.$function()  # expect: $code
    imported()  # expect: $code


def near_misses():
    def $function():
        """A function of the project's own that shares the name."""

    $function()
    $module.$function  # not called
''')


class ScaffoldError(Exception):
    """The rule cannot be created; the message is one line that says why."""


def new_rule(root: pathlib.Path, code: str, slug: str, call: str, family: str | None) -> list[pathlib.Path]:
    """Write the rule and its fixture; the files written. `code` is DDPNNN, or DDPNxx for the next free one."""
    code = _free_code(code.upper())
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", slug):
        raise ScaffoldError(f"'{slug}' is no slug: several small words with hyphens, such as load-without-map-location")
    if slug in {rule.slug for rule in all_rules().values()}:
        raise ScaffoldError(f"there is a rule called {slug} already")
    module, _, function = call.rpartition(".")
    if not module:
        raise ScaffoldError(f"'{call}' is no full name of an API, such as torch.distributed.barrier")
    folder = _family(root, code, family)
    words = {
        "code": code,
        "name": "".join(word.capitalize() for word in slug.split("-")),
        "call": call,
        "module": module,
        "function": function,
        "root": module.partition(".")[0],
        "FILL_IN": FILL_IN,
    }
    rule = folder / f"{code.lower()}_{slug.replace('-', '_')}.py"
    fixture = root / "tests" / "fixtures" / folder.name / f"{code}.py"
    for path, template in ((rule, _RULE), (fixture, _FIXTURE)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.substitute(words), encoding="utf-8")
    return [rule, fixture]


def _free_code(code: str) -> str:
    taken = set(all_rules())
    if re.fullmatch(r"DDP\d{3}", code):
        if code in taken:
            raise ScaffoldError(
                f"{code} is taken by {all_rules()[code].slug}; DDP{code[3]}xx stands for the next free one"
            )
        return code
    if not re.fullmatch(r"DDP[1-9]XX", code):
        raise ScaffoldError(f"'{code}' is no code: DDP214, or DDP2xx for the next free one")
    numbers = [int(c[3:]) for c in taken if c[3] == code[3]]
    return f"DDP{max(numbers, default=int(code[3]) * 100) + 1}"


def _family(root: pathlib.Path, code: str, family: str | None) -> pathlib.Path:
    """The folder of the rules of the same hundred; a new one when there is none yet."""
    rules = root / "src" / "ddp_lint" / "rules"
    same = {rule.__module__.split(".")[-2] for c, rule in all_rules().items() if c[3] == code[3]}
    if family is None and len(same) != 1:
        there = f" ({', '.join(sorted(same))})" if same else ""
        raise ScaffoldError(f"say with --family which folder of rules/ it belongs to{there}")
    folder = rules / (family or same.pop())
    if not (folder / "__init__.py").is_file():
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text(f'"""DDP{code[3]}xx: {folder.name}."""\n', encoding="utf-8")
    return folder
