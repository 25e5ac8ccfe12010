"""Notebooks: their cells as one module, findings at cell and line, and fixes that touch nothing else."""

from __future__ import annotations

import ast
import json
import pathlib
from typing import Any

import click.testing
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddp_lint.cli import main
from ddp_lint.divergence.one_process import is_of_one_process
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence
from ddp_lint.rules.registry import all_rules
from ddp_lint.source.file import SourceFile
from ddp_lint.source.notebook import Lines, NotANotebook, Notebook

from .conftest import Check

SAVE = """\
def save(model, path):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
        !ls -l \\
            {path}
        dist.barrier()"""
UNUSED = "x = 1  # noqa: DDP101\n\ny = 'é'"


def notebook(*cells: str | list[str], language: str = "python", indent: int | None = 1) -> str:
    """A notebook with these code cells, between Markdown, with outputs."""
    rows: list[dict[str, Any]] = [{"cell_type": "markdown", "metadata": {}, "source": ["# Title\n", "dist.barrier()"]}]
    for source in cells:
        output = {"output_type": "stream", "name": "stdout", "text": ["x = 1  # noqa: DDP101\n"]}
        cell = {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [output], "source": source}
        rows.append(cell)
    document = {"cells": rows, "metadata": {"language_info": {"name": language}}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(
    ("cell", "module"),
    [
        ("x = 1", "x = 1"),
        ("%matplotlib inline\nx = 1", "pass  # ipython:> %matplotlib inline\nx = 1"),
        ("if x:\n    !ls", "if x:\n    pass  # ipython:>     !ls"),
        ("files = !ls *.py", "files = None  # ipython:> files = !ls *.py"),
        ("a, b = %run x", "a, b = None  # ipython:> a, b = %run x"),
        ("torch.load?\n?torch", "pass  # ipython:> torch.load?\npass  # ipython:> ?torch"),
        ("!a \\\n  b\nx = 1", "pass  # ipython:> !a \\\npass  # ipython:>   b\nx = 1"),
        ("%%bash\nif [ $x ]\n\nfi", "pass  # ipython:> %%bash\npass  # ipython:> if [ $x ]\n\npass  # ipython:> fi"),
        (
            "#@title Page\n\n%%html\n<p>",
            "pass  # ipython:> #@title Page\n\npass  # ipython:> %%html\npass  # ipython:> <p>",
        ),
        ("# a comment\n%%time\nx = 1", "# a comment\npass  # ipython:> %%time\nx = 1"),
        ("%%time\nx = 1", "pass  # ipython:> %%time\nx = 1"),
        ("cd ..\npip install x", "pass  # ipython:> cd ..\npass  # ipython:> pip install x"),
        (
            "x = 1\npython -m torch.distributed.launch a.py",
            "x = 1\npass  # ipython:> python -m torch.distributed.launch a.py",
        ),
        ("python -x", "python -x"),
        ("cat = 1\nrm = cat in [1]\nls -1", "cat = 1\nrm = cat in [1]\nls -1"),
        ("!ls\nx = (1\n  % y)", "pass  # ipython:> !ls\nx = (1\n  % y)"),
        ("!ls\nx = '''\n%d\n'''", "pass  # ipython:> !ls\nx = '''\n%d\n'''"),
        ("x = (1\n%y)", "x = (1\n%y)"),
    ],
)
def test_what_is_not_python_is_skipped_and_found_again(cell: str, module: str) -> None:
    found = Notebook.of(notebook(cell))
    assert found.module == f"# %% code cell 2\n{module}\n"
    ast.parse(found.module)
    assert Lines.of(found.module).text(found.module, 2) == cell
    assert found.with_module(found.module) == found.text


@example([["!\\\n"]])
@given(st.lists(st.lists(st.text("x=1%!?()'\"\\\n\té ", max_size=30), max_size=4)))
def test_any_notebook_comes_back_as_it_was(cells: list[list[str]]) -> None:
    found = Notebook.of(notebook(*cells))
    assert found.with_module(found.module) == found.text
    assert [cell.text for cell in found.cells] == ["".join(cell) for cell in cells]


@pytest.mark.parametrize(
    ("cell", "note", "module"),
    [
        ("\n    x = 1\n\n      \n    if x:\n        y = 2", "4 spaces", "\nx = 1\n\n      \nif x:\n    y = 2"),
        ("\tx = 1\n\t!ls", "1 tabs", "x = 1\npass  # ipython:> !ls"),
        ("  x = 1\n  if x:\n    %cd ..", "2 spaces", "x = 1\nif x:\n  pass  # ipython:>   %cd .."),
        ("  # a\nx = 1", "", "  # a\nx = 1"),
        ("  \n\n", "", "  \n"),
    ],
)
def test_a_cell_that_is_indented_as_a_whole_is_dedented(cell: str, note: str, module: str) -> None:
    found = Notebook.of(notebook(cell))
    assert found.module == f"# %% code cell 2{note and ', indented by '}{note}\n{module}\n"
    assert Lines.of(found.module).text(found.module, 2).rstrip("\n") == cell.rstrip("\n")
    assert found.with_module(found.module) == found.text
    indent = cell.strip("\n").partition("x = 1")[0] if note else ""
    changed = found.with_module(found.module.replace("x = 1", "x = 1\ny = 3"))
    assert changed == notebook(cell.replace("x = 1", f"x = 1\n{indent}y = 3"))


def test_places_in_an_indented_cell(check: Check, project: pathlib.Path) -> None:
    found = []
    for name, indent in (("plain", ""), ("indented", "    ")):
        text = "import torch\nimport torch.distributed as dist", SAVE.replace("\n", f"\n{indent}")
        (project / f"{name}.ipynb").write_text(notebook(text[0], indent + text[1]))
        (one,) = json.loads(check("--output-format", "json", f"{name}.ipynb").stdout)["findings"]
        found.append(one)
        assert f"2 | {indent}    if dist.get_rank() == 0:\n" in check(f"{name}.ipynb").stdout
    plain, indented = found
    assert (indented["line"], indented["cell"]) == (plain["line"], plain["cell"])
    assert indented["column"] == plain["column"] + 4
    assert indented["end_column"] == plain["end_column"] + 4


def test_findings_are_at_cell_and_line(check: Check, project: pathlib.Path) -> None:
    text = notebook("import torch\nimport torch.distributed as dist", SAVE.splitlines(keepends=True))
    (project / "train.ipynb").write_text(text)
    concise = check("--output-format", "concise", "-q").stdout
    assert concise.startswith("train.ipynb:cell 3:6:9: DDP101 ")
    full = check().stdout
    assert " --> train.ipynb:cell 3:6:9\n" in full
    assert "4 |         !ls -l \\\n" in full
    (found,) = json.loads(check("--output-format", "json").stdout)["findings"]
    assert (found["path"], found["cell"], found["line"], found["labels"][0]["line"]) == ("train.ipynb", 3, 6, 2)
    for output_format in ("github", "gitlab", "sarif", "junit"):
        assert "cell 3" in check("--output-format", output_format).stdout
    assert (
        check("--stdin-filename", "train.ipynb", "-", "-q", "--output-format", "concise", input=text).stdout == concise
    )
    cached = check_paths([project / "train.ipynb"], _settings(project), cache_dir=project / "cache")
    again = check_paths([project / "train.ipynb"], _settings(project), cache_dir=project / "cache")
    assert (again.findings, again.statistics.cached) == (cached.findings, 1)


@pytest.mark.parametrize(
    ("cell", "alone"),
    [
        ("from losses import total\n\ntotal(model(next(loader)))", True),
        ("from accelerate import notebook_launcher\n\nnotebook_launcher(train)", False),
        ("import torch.distributed as dist", False),
        ("# distributed under the License is distributed on an as-is basis\ntotal(model(next(loader)))", True),
    ],
)
def test_a_notebook_that_starts_no_ranks_is_one_process(cell: str, alone: bool, project: pathlib.Path) -> None:
    path = project / "tried.ipynb"
    path.write_text(notebook(cell))
    assert is_of_one_process(SourceFile.read(path, "tried.ipynb")) is alone


_NORMS = "def norms(model, batches):\n    for batch in batches:\n        model(batch).sum().backward()\n"
_NORMS += "        print([p.grad.norm().item() for p in model.parameters()])\n"


@pytest.mark.parametrize(("more", "confidence"), [("", "low"), ("optimizer.step()", "medium")])
def test_a_notebook_that_steps_no_optimizer_has_no_steps(
    more: str, confidence: str, check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("confidence", "ceiling"):  # whatever class the readings give the rule
        monkeypatch.setattr(all_rules()["DDP304"], name, Confidence.MEDIUM)
    (project / "a.ipynb").write_text(notebook("import torch\n\n" + _NORMS, f"norms(net, loader)\n{more}"))
    run = check("--preview", "--select", "DDP304", "--output-format", "json", "a.ipynb")
    assert [f["confidence"] for f in json.loads(run.stdout)["findings"]] == [confidence]


@pytest.mark.parametrize("indent", [1, 4, None])
@pytest.mark.parametrize("as_list", [True, False])
def test_fix_changes_the_lines_that_it_mends_and_nothing_else(
    indent: int | None,
    as_list: bool,
    check: Check,
    project: pathlib.Path,
) -> None:
    path = project / "train.ipynb"
    text = notebook("%time\nz = 1", UNUSED.splitlines(keepends=True) if as_list else UNUSED, indent=indent)
    path.write_bytes(text.replace("\n", "\r\n").encode())
    result = check("--fix")
    assert "1 finding fixed" in result.stdout
    fixed = _fixed_once(text)  # the same words in an output stay
    assert path.read_bytes() == fixed.replace("\n", "\r\n").encode()
    assert check("--fix", "--stdin-filename", "train.ipynb", "-", input=text).stdout == fixed


def _fixed_once(text: str) -> str:
    """The text without the comment in the source of the last cell."""
    before, _, source = text.rpartition('"source"')
    return before + '"source"' + source.replace("  # noqa: DDP101", "")


def test_a_cell_that_does_not_parse_is_told_with_its_place(check: Check, project: pathlib.Path) -> None:
    (project / "train.ipynb").write_text(notebook("import torch", "torch.load(\n"))
    assert "train.ipynb:cell 3:1:" in check("--output-format", "concise").stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [("{}", "list of cells"), ("[", "not a notebook: "), ('{"cells": [{"cell_type": "code"}]}', "a cell is not")],
)
def test_what_is_no_notebook_is_2_with_a_reason(text: str, why: str, check: Check, project: pathlib.Path) -> None:
    (project / "a.ipynb").write_text(text)
    (project / "b.py").write_text("x = 1  # noqa: DDP101\n")
    for arguments in ([], ["--fix"]):
        result = check(*arguments)
        assert result.exit_code == 2
        assert "a.ipynb" in result.stderr
        assert why in result.stderr
    assert (project / "b.py").read_text() == "x = 1\n"
    assert check("--fix", "--stdin-filename", "a.ipynb", "-", input=text).exit_code == 2
    with pytest.raises(NotANotebook, match=why):
        Notebook.of(text)


@pytest.mark.parametrize(("language", "fails"), [("python", True), ("plaintext", False), ("shellscript", False)])
def test_a_cell_in_another_language_is_skipped(language: str, fails: bool, check: Check, project: pathlib.Path) -> None:
    document = json.loads(notebook("import torch", "docker run -d image"))
    document["cells"][2]["metadata"] = {"vscode": {"languageId": language}}
    (project / "a.ipynb").write_text(json.dumps(document))
    assert ("DDP000" in check("a.ipynb").stdout) is fails


def test_notebooks_in_other_languages_hold_nothing_to_check(check: Check, project: pathlib.Path) -> None:
    (project / "a.ipynb").write_text(notebook("x <- 1", language="R"))
    assert check().exit_code == 0


def _settings(project: pathlib.Path) -> Any:
    from ddp_lint.config import Configuration

    return Configuration().of(project)


def test_the_reasons_of_silence_leave_notebooks_out(project: pathlib.Path) -> None:
    (project / "a.ipynb").write_text(notebook("import torch.distributed as dist\ndist.barrier()"))
    run = click.testing.CliRunner().invoke(main, ["check", "-v", "a.ipynb"])
    assert run.exit_code == 0
    assert click.testing.CliRunner().invoke(main, ["check", "--why", "a.ipynb:1"]).exit_code == 2
