"""How often `ddp-lint diagnose` is right about logs whose cause is known, beside torchrun's block and a plain grep.

    python benchmarks/diagnose_logs.py LOGS.jsonl [--half even|odd] [--wrong]

The file has one JSON object a line: `log`, `kind`, `subkind`, `culprit_rank`, `culprit_line`, `alt_lines`,
`root_evidence`, `secondary`, `confidence`. A log passes a question as the file's own rules say: the kind is the same;
the rank is the same, where there is one, and none is named where there is none (score: right - wrong); one of the lines
quoted as the root holds a piece of the evidence and none of them is a mere consequence; the line is the same, and no
line of an installed library is blamed where there is none.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from ddp_lint.diagnose.report import as_dict
from ddp_lint.diagnose.session import diagnose

Log = dict[str, Any]


@dataclasses.dataclass
class Answer:
    """What a tool says; None where it says nothing."""

    kind: str | None = None
    subkind: str | None = None
    rank: int | None = None
    line: str | None = None
    path: str = ""
    root: list[str] = dataclasses.field(default_factory=list)


def by_diagnose(log: str) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log")
        path.write_text(log, encoding="utf-8", newline="")
        found = as_dict(diagnose([str(path)], None))
    place = found["place"]
    return Answer(
        found["kind"],
        found["subkind"],
        found["culprit_rank"],
        found["line"],
        place["path"] if place else "",
        found["root"],
    )


def by_torchrun(log: str) -> Answer:
    """torchrun's "Root Cause (first observed failure)": a rank, and the text beside it."""
    block = re.search(r"Root Cause \(first observed failure\):\n(?P<text>(?:.*\n?)*?)(?:=====|\Z)", log)
    if block is None:
        return Answer()
    rank = re.search(r"rank\s*: (\d+)", block["text"])
    root = [line for line in block["text"].splitlines() if re.match(r"\s*(traceback|exitcode)\s*:", line)]
    return Answer(rank=int(rank[1]) if rank else None, root=root)


def by_grep(log: str) -> Answer:
    """The first line with "Error", its rank prefix, and the file and line of the last frame above it."""
    frame, path = None, ""
    for line in log.splitlines():
        if match := re.search(r'File "([^"]+)", line (\d+)', line):
            path, frame = match[1], f"{match[1].rpartition('/')[2]}:{match[2]}"
        if "Error" in line:
            rank = re.match(r"\[rank(\d+)\]", line)
            return Answer(rank=int(rank[1]) if rank else None, root=[line], line=frame, path=path)
    return Answer()


TOOLS: dict[str, Callable[[str], Answer]] = {
    "diagnose": by_diagnose,
    "torchrun's block": by_torchrun,
    "grep Error": by_grep,
}


@dataclasses.dataclass
class Score:
    """Counts of right answers, and of the logs for which the question can be asked."""

    sure: list[bool] = dataclasses.field(default_factory=list)
    unsure: list[bool] = dataclasses.field(default_factory=list)
    subkind: list[bool] = dataclasses.field(default_factory=list)
    ranks: list[str] = dataclasses.field(default_factory=list)
    named_for_none: int = 0
    without_rank: int = 0
    root: list[bool] = dataclasses.field(default_factory=list)
    lines: list[bool] = dataclasses.field(default_factory=list)
    library_lines: int = 0
    benign: list[bool] = dataclasses.field(default_factory=list)

    def add(self, log: Log, answer: Answer) -> list[str]:
        """The questions that were answered wrongly."""
        wrong = []

        def ask(name: str, into: list[bool], right: bool) -> None:
            into.append(right)
            if not right:
                wrong.append(name)

        ask("kind", self.unsure if log["confidence"] == "low" else self.sure, answer.kind == log["kind"])
        if log["subkind"] and log["subkind"] != "unknown":
            ask("subkind", self.subkind, answer.subkind == log["subkind"])
        if log["culprit_rank"] is not None:
            outcome = "none" if answer.rank is None else "right" if answer.rank == log["culprit_rank"] else "wrong"
            self.ranks.append(outcome)
            wrong += [f"rank {outcome}"] * (outcome != "right")
        else:
            self.without_rank += 1
            self.named_for_none += answer.rank is not None
            wrong += ["rank named"] * (answer.rank is not None)
        ask("root", self.root, root_is_right(log, answer.root))
        if log["culprit_line"]:
            ask("line", self.lines, answer.line in [log["culprit_line"], *log["alt_lines"]])
        elif "-packages/" in answer.path:
            self.library_lines += 1
            wrong.append("library line")
        if log["subkind"] in ("benign", "false-positive"):
            ask("manners", self.benign, answer.subkind in ("benign", "false-positive"))
        return wrong

    def text(self) -> str:
        right, false = self.ranks.count("right"), self.ranks.count("wrong")
        score = right - false - self.named_for_none
        return (
            f"kind {share(self.sure)} (high and medium), {share(self.unsure)} (low); sub-kind {share(self.subkind)}\n"
            f"  culprit rank {right} right, {false} wrong, {self.ranks.count('none')} silent of {len(self.ranks)}; "
            f"named for {self.named_for_none} of {self.without_rank} that have none; right - wrong = {score}\n"
            f"  root and consequence {share(self.root)}\n"
            f"  file:line {share(self.lines)}; lines of libraries where there is none: {self.library_lines}"
        )


def root_is_right(log: Log, lines: list[str]) -> bool:
    evidence, consequences = log["root_evidence"], log["secondary"]
    held = any(piece in line for line in lines for piece in evidence)
    spoilt = any(
        piece in line for line in lines for piece in consequences if not any(good in line for good in evidence)
    )
    return held and not spoilt


def share(answers: list[bool]) -> str:
    return f"{sum(answers)}/{len(answers)} ({100 * sum(answers) / len(answers):.0f} %)" if answers else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("--half", choices=["even", "odd"], help="only the lines of the file with an even or odd index")
    parser.add_argument("--wrong", action="store_true", help="say which logs were answered wrongly")
    given = parser.parse_args()
    logs = [json.loads(line) for line in given.logs.read_text(encoding="utf-8").splitlines() if line.strip()]
    if given.half:
        logs = logs[given.half == "odd" :: 2]
    print(f"{len(logs)} logs")
    for name, tool in TOOLS.items():
        score = Score()
        for log in logs:
            wrong = score.add(log, tool(log["log"]))
            if given.wrong and wrong and name == "diagnose":
                print(f"  {log['id']}: {', '.join(wrong)}", file=sys.stderr)
        print(f"{name}: {score.text()}")


if __name__ == "__main__":
    main()
