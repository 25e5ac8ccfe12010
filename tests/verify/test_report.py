"""The reports: the contract of the JSON, SARIF by the official schema, and the page in a real browser."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
from html.parser import HTMLParser

import jsonschema
import pytest

from ddp_lint.findings import Confidence, Finding, Label, Span
from ddp_lint.output import Sources
from ddp_lint.verify.report import FORMATS, render
from ddp_lint.verify.report.lanes import table
from ddp_lint.verify.report.plot import drifts
from ddp_lint.verify.results import Discovery, Evidence, Judged, Verdict, Verification
from ddp_lint.verify.trace import Event, Fingerprint, Frame, Hashes

from .traces import call, run

SCHEMA = pathlib.Path(__file__).parents[1] / "output/sarif-2.1.0.schema.json"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SOURCE = """\
import torch.distributed as dist


def train(model, loader, rank):
    for batch in loader:
        loss = model(batch).mean()
        if rank == 0 and loss < 1e3 & (1 << 2):
            dist.all_reduce(loss)  # <b>log</b>
        dist.barrier()
"""


@pytest.fixture
def verification(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Verification:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    at = str(path.resolve())
    both = [call(6, path=at), call(9, "barrier", path=at)] * 40
    parted = run([*both, call(8, path=at)], [*both, call(9, "barrier", path=at)], outcome="hang", how=["stalled"] * 2)
    finding = Finding(
        "DDP101", "collective-under-rank-condition", "rank 0 waits <here>", Span("train.py", 8, 13, 8, 34),
        Confidence.HIGH, labels=(Label(Span("train.py", 7, 12, 7, 21), "only rank 0"),), help="call it on every rank",
        fingerprint="1a2b",
    )  # fmt: skip
    message = str(parted.mismatches[0])
    evidence = (Evidence("ddp", 0, "sequence", message, "train.py", 8), Evidence("ddp", None, "lines", "ran once"))
    return Verification(
        "train.py",
        {"torch": "2.13.0", "device": "cpu", "backend": "gloo", "nproc": 2, "wraps": ["ddp", "fsdp2"]},
        (
            Judged(finding, Verdict.REFUTED, "the line ran twice"),
            Judged(finding, Verdict.CONFIRMED, message, evidence),
            Judged(finding, Verdict.NOT_REACHED, "`rank == 0` was false"),
            Judged(finding, Verdict.INCONCLUSIVE, "CUDA only"),
        ),
        (
            Discovery(
                "reference", "a differs by 0.5", evidence=(Evidence("fsdp2", 1, "reference", "a", "train.py", 6),)
            ),
        ),
        (parted, run(both, both, wrap="fsdp2"), run(*(_drifting(rank, at) for rank in (0, 1)), wrap="ddp")),
    )


def _drifting(rank: int, path: str) -> list[Event]:
    """Two parameters over four steps: `a` drifts from the second on, `b` stays."""
    return [
        Hashes(
            what="parameters", when="after_step", wrap="ddp", step=step, frames=(Frame(path, 9, "train"),),
            digests={"a": f"{step}{rank if step > 1 else 0}", "b": str(step)},
            sketches={"a": (3.0 * rank * step, -4.0 * rank * step), "b": (2.0,)},
        )
        for step in range(1, 5)
    ]  # fmt: skip


def test_a_drift_starts_where_the_values_first_differ(verification: Verification) -> None:
    (found,) = drifts(verification.runs[2])
    assert (found.name, found.start, found.points) == ("a", 2, ((1, 0.0), (2, 10.0), (3, 15.0), (4, 20.0)))
    assert found.site is not None and found.site.line == 9
    assert drifts(verification.runs[1]) == []


def test_a_drift_starts_at_the_fingerprint_that_tells_of_it_first() -> None:
    """Tensors are compared at some steps only; what the page says is what the discovery says."""

    def seen(rank: int) -> list[Event]:
        place = (Frame("/p/train.py", 9, "train"),)
        marks = [
            Fingerprint(wrap="ddp", step=step, digest=f"{step}{rank if step > 2 else 0}", frames=place)
            for step in range(1, 9)
        ]
        first, *_, last = _drifting(rank, "/p/train.py")
        return [first, *marks[:4], last, *marks[4:]]

    (found,) = drifts(run(seen(0), seen(1), wrap="ddp"))
    assert (found.start, [step for step, _ in found.points]) == (3, [1, 4])


def test_repeated_rows_are_told_once(verification: Verification) -> None:
    text = render(verification, "html", Sources())
    table = text[text.index('<table class="lanes">') :]
    assert table[: table.index("</table>")].count("<tr") < 12, "80 rows that alternate are two and a line"
    assert "the same 2 calls 39 more times" in text


def test_no_row_gets_lost(verification: Verification, tmp_path: pathlib.Path) -> None:
    """Rows without a pattern stand before, between and after those that repeat."""
    lines = [11, 12, 13, *[20, 21] * 6, 14, 15, *[22] * 9, 16]
    calls = [call(line, path=str(tmp_path / "train.py")) for line in lines]
    text = table(run(calls, calls))
    assert [int(line) for line in re.findall(r":(\d+)</span>", text)][::2] == [11, 12, 13, 20, 21, 14, 15, 22, 16]


def test_the_condition_at_which_ranks_part_is_shown(verification: Verification) -> None:
    text = render(verification, "html", Sources())
    branch = text[text.index("Where the ranks diverge") :]
    assert "decides whether line 8 runs" in branch[: branch.index("</article>")]


def test_json_is_the_contract(verification: Verification) -> None:
    document = json.loads(render(verification, "json", Sources()))
    assert list(document) == ["version", "target", "environment", "findings", "discovered", "not_run", "lacks", "runs"]
    assert document["environment"] == {
        "torch": "2.13.0", "device": "cpu", "backend": "gloo", "nproc": 2, "wraps": ["ddp", "fsdp2"]
    }  # fmt: skip
    finding = document["findings"][1]
    assert {"code", "slug", "message", "path", "line", "column", "fingerprint", "labels", "fix"} <= set(finding)
    assert finding["verdict"] == "confirmed"
    assert set(finding["evidence"][0]) == {"wrap", "rank", "kind", "message", "path", "line"}
    assert (document["discovered"][0]["path"], document["discovered"][0]["line"]) == ("train.py", 6)
    assert set(document["runs"][0]) >= {"wrap", "outcome", "seconds", "ranks"}
    assert set(document["runs"][0]["ranks"][0]) >= {"rank", "exit", "signal", "last"}


def test_sarif_is_valid_and_carries_the_verdict(verification: Verification) -> None:
    log = json.loads(render(verification, "sarif", Sources()))
    jsonschema.Draft4Validator(json.loads(SCHEMA.read_text())).validate(log)
    results = log["runs"][0]["results"]
    assert [r["properties"]["verdict"] for r in results] == [
        "refuted", "confirmed", "not reached", "inconclusive", "discovered"
    ]  # fmt: skip
    assert [(r["kind"], r["level"]) for r in results[:2]] == [("pass", "none"), ("fail", "error")]


def test_full_shows_source_verdict_evidence_and_the_runs(verification: Verification) -> None:
    text = render(verification, "full", Sources())
    assert "dist.all_reduce(loss)" in text and "^^^^^" in text
    assert "confirmed: order: rank 0 calls all_reduce [4] (line 8), rank 1 calls barrier (line 9)" in text
    assert re.search(r"^ddp +hang +1\.0 +order: rank 0", text, re.MULTILINE)
    assert re.search(r"^fsdp2 +completed +1\.0 +none$", text, re.MULTILINE)
    assert "1 confirmed, 1 refuted, 1 not reached, 1 inconclusive, 1 discovered; 2 ranks on gloo" in text


@pytest.mark.parametrize("output_format", FORMATS)
def test_an_empty_verification_can_be_told(output_format: str) -> None:
    empty = Verification("train.py", {"torch": "", "device": "cpu", "backend": "gloo", "nproc": 2, "wraps": []})
    assert render(empty, output_format, Sources())


def test_exit_codes(verification: Verification) -> None:
    assert verification.exit_code == 1
    clean = run([call(1)], [call(1)])
    assert Verification("t", {}, (), (), (clean,)).exit_code == 0
    assert Verification("t", {}, (), (), (run([call(1)], [call(1)], outcome="hang"),)).exit_code == 1
    skewed = run([call(1)], [call(1)], outcome="hang", stimuli=("short",))
    assert Verification("t", {}, (), (), (clean, skewed)).exit_code == 0


class _Page(HTMLParser):
    """The text of a page, its tags that never close, and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {value}" for name, value in attrs if name in ("src", "href", "srcset") and value]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_and_fetches_nothing(verification: Verification) -> None:
    text = render(verification, "html", Sources())
    page = _Page()
    page.feed(text)
    assert page.open == [] and page.fetched == []
    assert "url(" not in text and "@import" not in text and "<script" not in text
    assert "# <b>log</b>" in page.text and "rank 0 waits <here>" in page.text
    assert "the lanes diverge here: order" in page.text


_MEASURE = """
<script>
  const rows = [...document.querySelectorAll(".lanes tr.part")].map(row =>
    [...row.cells].slice(1).map(cell => [cell.getBoundingClientRect().top, cell.getBoundingClientRect().left]));
  const badges = [...document.querySelectorAll(".card .badge")].map(b => getComputedStyle(b).color);
  const wide = document.documentElement.scrollWidth - innerWidth;
  const curve = document.querySelector(".drift polyline");
  const drift = curve && {stroke: getComputedStyle(curve).stroke, wide: curve.getBoundingClientRect().width,
                          marks: document.querySelectorAll(".drift .start").length};
  const paper = getComputedStyle(document.body).backgroundColor;
  document.body.setAttribute("data-seen",
    JSON.stringify({rows, badges: [...new Set(badges)].length, wide, drift, paper,
                    sources: document.querySelectorAll(".card .code mark").length}));
</script>
"""


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (420, "dark")])
def test_the_page_in_a_browser(verification: Verification, tmp_path: pathlib.Path, width: int, scheme: str) -> None:
    """Lanes stand side by side, verdicts differ in colour, a drift is drawn, nothing overflows, also on a telephone."""
    if BROWSER is None:
        pytest.skip("no headless browser is installed (apt-get install chromium)")
    file = tmp_path / "page.html"
    file.write_text(render(verification, "html", Sources()).replace("</body>", _MEASURE + "</body>"))
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900",
        f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
        f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'data-seen="([^"]*)"', dom)
    assert found, dom[-500:]
    seen = json.loads(found[1].replace("&quot;", '"'))
    ((zero, one),) = seen["rows"]
    assert zero[0] == one[0] and zero[1] < one[1]
    assert seen["badges"] >= 4
    assert seen["wide"] <= 0
    assert seen["drift"]["marks"] == 1 and seen["drift"]["wide"] > 100 and seen["drift"]["stroke"].startswith("rgb")
    assert (sum(map(int, re.findall(r"\d+", seen["paper"])[:3])) > 384) == (scheme == "light")
    assert seen["sources"] > 4
