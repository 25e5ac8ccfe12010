"""Programs that hang only at 4, 8, 16 or 64 ranks, and programs that do not: told apart without communication."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

pytest.importorskip("torch")

from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.verify import dry_run
from ddp_lint.verify.dry_run.simulate import stuck
from ddp_lint.verify.options import Options, UsageError, Watch, ranks_of
from ddp_lint.verify.results import Evidence, Examined, Judged, Verdict
from ddp_lint.verify.target import resolve
from ddp_lint.verify.trace import Collective, MadeUp, Start

from ..traces import run

TARGETS = sorted(pathlib.Path(__file__).parent.glob("targets/*.py"))


def _options(path: pathlib.Path) -> tuple[Options, bool]:
    """The size of the job, the ranks to run, and whether it hangs, as the program's first line says."""
    world, ranks, end = path.read_text().splitlines()[0].removeprefix("# dry: ").split()
    size = int(world.removeprefix("world="))
    return Options(world=size, ranks=ranks_of(ranks.removeprefix("ranks="), size)), end == "hang"


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Examined]:
    """All programs in one process: torch is imported once."""
    folder = tmp_path_factory.mktemp("dry")
    specs = []
    for path in TARGETS:
        options = dataclasses.replace(_options(path)[0], timeout=10.0)
        specs.append(dry_run.specification(resolve(str(path), options), options, Watch(), folder / path.stem))
    dry_run.zygote(specs, folder)
    return {path.name: dry_run.examine(spec, 0.0, "") for path, spec in zip(TARGETS, specs, strict=True)}


@pytest.mark.launch
@pytest.mark.parametrize("path", TARGETS, ids=lambda path: path.stem)
def test_a_hang_is_told_by_its_line_and_nothing_else_is_one(path: pathlib.Path, examined: dict[str, Examined]) -> None:
    found = examined[path.name]
    hangs = _options(path)[1]
    assert found.run.outcome == ("hang" if hangs else "completed"), found.run.message
    if hangs:
        lines = path.read_text().splitlines()
        line = next(number for number, text in enumerate(lines, 1) if text.endswith("# hang"))
        discovered = dry_run.discover(found, [])
        places = {one.line for discovery in discovered for one in discovery.evidence}
        places |= {
            call.site.line for one in found.mismatches for call in one.calls.values() if call is not None and call.site
        }
        assert line in places, found.run.message


def test_ranks() -> None:
    assert ranks_of("0,1,8-10,63", 64) == (0, 1, 8, 9, 10, 63)
    assert ranks_of(None, 64) == (0, 1, 32, 62, 63)
    assert ranks_of("all", 4) == (0, 1, 2, 3)
    for text, message in (("64", "has ranks 0 to 63"), ("a", "'a' is not a rank"), ("", "has ranks")):
        with pytest.raises(UsageError, match=message):
            ranks_of(text, 64)


def test_a_model_is_no_target_of_a_dry_run(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("from torch import nn\nclass Net(nn.Module):\n    def forward(self, x): return x\n")
    options = Options(world=8, ranks=(0,))
    with pytest.raises(UsageError, match="takes a training script"):
        dry_run.run(resolve(str(path), options), options, Watch(), lambda _: None)


FINDING = Finding("DDP101", "slug", "message", Span("t.py", 1, 1, 1, 2), Confidence.HIGH)


@pytest.mark.parametrize(
    ("verdict", "oracles", "kind", "made_up", "world", "expected", "says"),
    [
        (Verdict.REFUTED, ("sequence",), "lines", False, 2, Verdict.REFUTED, "it ran"),
        (Verdict.REFUTED, ("sequence", "stall"), "lines", False, 8, Verdict.REFUTED, "as far as ranks 0, 1 can tell"),
        (Verdict.REFUTED, ("sequence", "parameter"), "lines", False, 2, Verdict.INCONCLUSIVE, "sends nothing"),
        (Verdict.REFUTED, ("sequence",), "lines", True, 2, Verdict.INCONCLUSIVE, "values that it would have received"),
        (Verdict.CONFIRMED, ("sequence",), "sequence", True, 2, Verdict.CONFIRMED, "it ran"),
        (Verdict.CONFIRMED, ("parameter",), "parameter", False, 2, Verdict.INCONCLUSIVE, "sends nothing"),
    ],
)
def test_what_a_run_without_communication_can_say(
    verdict: Verdict, oracles: tuple[str, ...], kind: str, made_up: bool, world: int, expected: Verdict, says: str
) -> None:
    events = [Start(rank=0, world=world), *([MadeUp(op="item")] if made_up else [])]
    judged = Judged(FINDING, verdict, "it ran", (Evidence("script", 0, kind, "seen"),))
    (found,) = dry_run.limited([judged], run(events, events, wrap="script"), {"DDP101": oracles})
    assert found.verdict is expected and says in found.reason


def wait(
    rank: int, op: str, peer: int | None = None, *, ranks: tuple[int, ...] = (0, 1, 2), later: bool = False
) -> Collective:
    group = ",".join(map(str, ranks))
    return Collective(op=op, group=group, ranks=ranks, peer=peer, asynchronous=later)


def test_who_waits_for_whom() -> None:
    """Messages meet by peer, collectives by group; what is asynchronous waits for nobody, who was not run answers."""
    ring = {r: [wait(r, "send", (r + 1) % 3), wait(r, "recv", (r - 1) % 3)] for r in range(3)}
    assert [(one.rank, one.missing) for one in stuck(ring, frozenset())] == [(0, (1,)), (1, (2,)), (2, (0,))]
    assert not stuck({r: [wait(r, "send", (r + 1) % 3, later=True), ring[r][1]] for r in range(3)}, frozenset())
    assert not stuck({0: ring[0]}, frozenset()), "ranks that were not run answer"
    late = {0: [wait(0, "recv", 1, later=True)], 1: []}
    assert [one.rank for one in stuck(late, frozenset())] == [0], "nobody sends what is awaited"
    assert not stuck(late, frozenset({1})), "what a rank does after its trace was cut off is not known"
    groups = {0: [wait(0, "barrier", ranks=(0, 1)), wait(0, "barrier", ranks=(0, 1, 2))],
              1: [wait(1, "barrier"), wait(1, "barrier", ranks=(0, 1))], 2: [wait(2, "barrier")]}  # fmt: skip
    assert {one.rank for one in stuck(groups, frozenset())} == {0, 1, 2}
