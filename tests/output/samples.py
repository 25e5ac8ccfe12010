"""Findings of every shape that the formats must be able to show, made by hand, over source made for them."""

from __future__ import annotations

from ddp_lint.findings import Applicability, Confidence, Edit, Finding, Fix, Label, RankTrace, Span
from ddp_lint.output import Run, Sources

TRAIN = """\
import torch.distributed as dist
from helpers import is_main


def save(model, path):
    if is_main():
        state = model.state_dict()

        dist.barrier()
\ttabbed = dist.get_rank() == 0; total = "日本語" + str(tabbed)
    return dist.broadcast(
        state,
        src=0,
        group=None,
        async_op=False,
    )
# form\x0cfeed and \x1b[31mescape
"""
HELPERS = "import os\n\n\ndef is_main():\n    return int(os.environ['RANK']) == 0\n"
LONG = "x = [" + ", ".join(f"value_{n}" for n in range(200)) + "]\n"
SOURCES = {"src/train.py": TRAIN, "src/helpers.py": HELPERS, "long.py": LONG}


def at(line: int, column: int, end_column: int, *, end_line: int = 0, path: str = "src/train.py") -> Span:
    return Span(path, line, column, end_line or line, end_column)


BARRIER = Finding(
    code="DDP101",
    slug="collective-under-rank-condition",
    message="rank 0 waits in barrier() for rank 1, which never calls it",
    span=at(9, 9, 23),
    confidence=Confidence.HIGH,
    labels=(
        Label(at(6, 8, 17), "true on rank 0 alone"),
        Label(at(5, 16, 31, path="src/helpers.py"), "where the rank comes from"),
        Label(at(5, 5, 40, path="src/helpers.py"), "and is compared"),
    ),
    notes=("the process group is the default one", "found without running the code"),
    help="call barrier() on every rank, after the `if`",
    witness=(
        RankTrace("rank 0", (Label(at(6, 8, 17), "`is_main()` is true"), Label(at(9, 9, 23), "waits in barrier()"))),
        RankTrace("rank 1", (Label(at(5, 16, 31, path="src/helpers.py"), "`is_main()` is false"),)),
        RankTrace("other ranks", ()),
    ),
    fix=Fix(
        "dedent the barrier",
        Applicability.UNSAFE,
        (Edit(at(9, 1, 9), "    "),),
    ),
    fingerprint="0" * 31 + "1",
    paths=tuple(Label(at(n, 1, 5), f"DDP101 call {n}") for n in (1, 2, 3, 4)),
)
#: Three marks on one line: tabs, wide characters, overlap.
CROWDED = Finding(
    code="DDP103",
    slug="crowded-line",
    message='a message with % and : and , and <tags> & "quotes"',
    span=at(10, 11, 30),
    confidence=Confidence.MEDIUM,
    labels=(
        Label(at(10, 2, 8), "bound here"),
        Label(at(10, 34, 39), "wide characters follow"),
        Label(at(10, 42, 47), "日本語"),
        Label(at(10, 11, 30), "the span itself"),
        Label(at(10, 11, 15), "part of it"),
    ),
    fingerprint="0" * 31 + "2",
)
MULTILINE = Finding(
    code="DDP105",
    slug="many-lines",
    message="a span of six lines is shown by its ends",
    span=at(11, 12, 6, end_line=16),
    confidence=Confidence.LOW,
    labels=(Label(at(12, 9, 17, end_line=14), "three lines of it"),),
    fix=Fix("write it in one line", Applicability.SAFE, (Edit(at(11, 27, 6, end_line=16), "state, src=0)"),)),
    fingerprint="0" * 31 + "3",
)
CONTROL = Finding(
    code="DDP002",
    slug="control-characters",
    message="control characters do not reach the terminal",
    span=at(17, 1, 12),
    confidence=Confidence.HIGH,
    fix=Fix("nobody applies this", Applicability.DISPLAY, (Edit(at(17, 1, 12), "# no more"),)),
    fingerprint="0" * 31 + "4",
)
CUT = Finding(
    code="DDP201",
    slug="long-line",
    message="a long line is cut around what is marked",
    span=at(1, 1001, 1010, path="long.py"),
    confidence=Confidence.HIGH,
    fingerprint="0" * 31 + "5",
)
GONE = Finding(
    code="DDP202",
    slug="no-source",
    message="the file cannot be read any more",
    span=at(3, 1, 2, path="gone dir/ünïcode.py"),
    confidence=Confidence.HIGH,
    fingerprint="0" * 31 + "6",
)
FINDINGS = [GONE, CUT, BARRIER, CROWDED, MULTILINE, CONTROL]
ERRORS = [("a:b.py", "permission denied"), ("nb.ipynb", "is a notebook")]


def run(*, color: bool = False) -> Run:
    return Run(FINDINGS, ERRORS, Sources(SOURCES), color)
