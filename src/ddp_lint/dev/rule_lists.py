"""The rules by symptom, by complaint and by API: on pages of their own, and at the end of each rule's page."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from keyword import iskeyword

from ddp_lint.knowledge.schema import parsed
from ddp_lint.rules.page import Page
from ddp_lint.rules.registry import all_rules, declared

#: Triggers that are words of the language or of a protocol, and no API.
_API = re.compile(r"[A-Za-z_]\w{3,}")


@dataclasses.dataclass(frozen=True)
class Symptom:
    """What a user sees, words that one would search for, and the rules that may find the cause."""

    seen: str
    words: str
    codes: tuple[str, ...]


def symptoms(root: pathlib.Path) -> list[Symptom]:
    rows = parsed(root / "docs" / "symptoms.toml")["symptom"]
    return [Symptom(row["seen"], row["words"], tuple(row["codes"])) for row in rows]


@dataclasses.dataclass(frozen=True)
class Complaint:
    """A complaint of users, what PyTorch prints ('': nothing), and the rule whose Example is the minimal sample."""

    seen: str
    error: str
    code: str


def complaints(root: pathlib.Path) -> list[Complaint]:
    rows = parsed(root / "docs" / "complaints.toml")["complaint"]
    return [Complaint(**row) for row in rows]


def complaints_page(known: list[Complaint]) -> str:
    """Each complaint with its sample, the finding of the marked line, and the proof."""
    head = (
        "# Common complaints\n\n"
        "The most common complaints about training on several GPUs, each with the smallest program that shows it.\n"
        "`ddp-lint check` finds the marked line by default. In the tests of this project `ddp-lint verify` confirms\n"
        "it on two ranks and refutes the remedy; those marked with *GPU* need two GPUs.\n"
    )
    return head + "".join(_complaint(number, one) for number, one in enumerate(known, 1))


def _complaint(number: int, one: Complaint) -> str:
    rule = all_rules()[one.code]
    gpu = " *GPU*" if rule.needs_cuda else ""
    printed = f"\n`{one.error}`\n" if one.error else ""
    return (
        f"\n## {number}. {one.seen}\n{printed}\n[{one.code}](rules/{one.code}.md) {rule.slug}{gpu}: {rule.summary}\n\n"
        f"```python\n{Page.of(rule).example}```\n"
    )


def apis(code: str) -> list[str]:
    """The names that a rule looks for."""
    names = {word for word in declared()[code].triggers.words if _API.fullmatch(word) and not iskeyword(word)}
    return sorted(names, key=lambda name: (name.lower(), name))


def section(code: str, known: list[Symptom]) -> str:
    """The end of a rule's page."""
    seen = "".join(f"- {symptom.seen} ({symptom.words})\n" for symptom in known if code in symptom.codes)
    names = ", ".join(f"`{name}`" for name in apis(code))
    parts = [f"## Symptoms\n\n{seen}"] if seen else []
    parts += [f"## Names that it checks\n\n{names}\n"] if names else []
    return "".join(f"\n{part}" for part in parts)


def symptoms_page(known: list[Symptom]) -> str:
    parts = [f"## {symptom.seen}\n\n*{symptom.words}*\n\n{_rules(symptom.codes)}" for symptom in known]
    return "# Rules by symptom\n\nWhat you see, and the rules that may find the cause.\n\n" + "\n".join(parts)


def apis_page() -> str:
    rules: dict[str, list[str]] = {}
    for code in declared():
        for name in apis(code):
            rules.setdefault(name, []).append(code)
    rows = "".join(
        f"| `{name}` | {', '.join(f'[{code}](rules/{code}.md)' for code in codes)} |\n"
        for name, codes in sorted(rules.items(), key=lambda item: (item[0].lower(), item[0]))
    )
    return f"# Rules by API\n\nThe names that the rules check.\n\n| Name | Rules |\n| --- | --- |\n{rows}"


def _rules(codes: tuple[str, ...]) -> str:
    slugs = {code: rule.slug for code, rule in declared().items()}
    return "".join(f"- [{code}](rules/{code}.md) {slugs[code]}\n" for code in codes)
