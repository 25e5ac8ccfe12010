"""Names of the project's own that its configuration lists, on every way that a run reads them."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from .conftest import Check

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

CODE = """\
import mylib
import torch.distributed as dist


def f(x):
    if my_place() == 0:
        dist.barrier()
    if dist.get_rank() == 0:
        mylib.sync_all(x)
"""
RANKS = 'rank-expressions = ["my_place"]\n'
COLLECTIVES = 'collectives = ["mylib.sync_all"]\n'


def table(*keys: str) -> str:
    return "[tool.ddp-lint]\n" + "".join(keys)


def lines(check: Check, *args: str) -> list[tuple[str, int, str]]:
    found = json.loads(check("--output-format", "json", *args).stdout)["findings"]
    return [(f["path"], f["line"], f["code"]) for f in found]


def test_each_change_of_the_names_is_a_new_question_to_the_cache(check: Check, project: pathlib.Path) -> None:
    (project / "m.py").write_text(CODE)
    ranks, collectives = ("m.py", 7, "DDP101"), ("m.py", 9, "DDP101")
    for keys, expected in (
        ((), []),
        ((RANKS,), [ranks]),
        ((RANKS, COLLECTIVES), [ranks, collectives]),
        ((COLLECTIVES,), [collectives]),
        ((), []),
    ):
        (project / "pyproject.toml").write_text(table(*keys))
        assert lines(check) == expected
        assert lines(check) == expected
    assert (project / ".ddp_lint_cache").is_dir()


def test_a_change_of_what_passes_the_name_on_is_one_too(check: Check, project: pathlib.Path) -> None:
    (project / "pyproject.toml").write_text(table('collectives = ["pkg.sync_all"]\n'))
    (project / "pkg").mkdir()
    (project / "pkg" / "core.py").write_text("def sync_all(x):\n    return x.ask()\n")
    (project / "pkg" / "__init__.py").write_text("from .core import sync_all\n")
    code = CODE.replace("mylib.", "").replace("my_place() == 0", "not x")
    (project / "m.py").write_text(code.replace("import mylib", "from pkg.core import sync_all"))
    assert lines(check) == [("m.py", 9, "DDP101")]
    (project / "pkg" / "__init__.py").write_text("from .other import sync_all\n")
    assert lines(check) == []


def test_each_part_of_a_run_has_the_names_of_its_own_configuration(check: Check, project: pathlib.Path) -> None:
    for name, keys in (("a", (RANKS,)), ("b", (COLLECTIVES,)), ("c", ())):
        (project / name).mkdir()
        (project / name / "ddp-lint.toml").write_text("".join(keys))
        for number in range(3):
            (project / name / f"m{number}.py").write_text(CODE)
    expected = [(f"{name}/m{number}.py", line, "DDP101") for name, line in (("a", 7), ("b", 9)) for number in range(3)]
    assert lines(check, "--no-cache") == expected
    assert lines(check, "--no-cache", "--jobs", "2") == expected
    assert lines(check, "--no-cache", "--isolated") == []
    assert lines(check, "--no-cache", "--config", "b/ddp-lint.toml", "c/m0.py") == [("c/m0.py", 9, "DDP101")]


def test_flake8_reads_them(project: pathlib.Path) -> None:
    pytest.importorskip("flake8")
    from .test_flake8 import flake8, rows

    (project / "pyproject.toml").write_text(table(RANKS, COLLECTIVES))
    (project / "m.py").write_text(CODE)
    assert [row[:2] for row in rows(flake8("m.py"))] == [("m.py", 7), ("m.py", 9)]


def test_standard_input_and_why_know_them(check: Check, project: pathlib.Path) -> None:
    (project / "pyproject.toml").write_text(table(RANKS, COLLECTIVES))
    (project / "m.py").write_text(CODE)
    assert check("-", input=CODE).stdout.count("DDP101") == 2
    assert "`mylib.sync_all`" in check("--why", "m.py:9").stdout
    assert "my_place() == 0" in check("--why", "m.py:7").stdout


@pytest.mark.parametrize("name", ["a b", "cfg['rank']", "rank == 0", "f(x)", "", ".rank", "a..b", "2fast"])
def test_what_is_no_name_is_wrong(check: Check, project: pathlib.Path, name: str) -> None:
    (project / "pyproject.toml").write_text(table(RANKS, f"collectives = [{json.dumps(name)}]\n"))
    result = check()
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: pyproject.toml:3: 'collectives' must be a list of dotted names, not [{name!r}]; "
        'write collectives = ["myproject.dist.sync_all"]\n'
    )


def test_the_documented_example_prints_what_the_page_says(check: Check, project: pathlib.Path) -> None:
    page = DOCUMENT.read_text(encoding="utf-8").partition("**Names of your project.**")[2]
    blocks = dict(re.findall(r"```(toml|python|text)\n(.*?)```", page.partition("**Errors**")[0], re.S))
    (project / "pyproject.toml").write_text(blocks["toml"])
    (project / "train.py").write_text(blocks["python"])
    assert check("-q", "--output-format", "concise").stdout == blocks["text"]


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("cfg.local_place", "cfg.local_place == 0"),
        ("host_index", "host_index() > 0"),
        ("is_leader", "is_leader()"),
        ("on_local_leader", "on_local_leader"),
    ],
)
def test_what_the_name_of_a_rank_expression_says(check: Check, project: pathlib.Path, name: str, test: str) -> None:
    (project / "pyproject.toml").write_text(table(f'rank-expressions = ["{name}"]\n'))
    (project / "m.py").write_text(CODE.replace("my_place() == 0", test))
    (finding,) = json.loads(check("--output-format", "json").stdout)["findings"]
    ranks = [trace["rank"] for trace in finding["witness"]]
    assert (
        ranks
        == {
            "cfg.local_place": ["rank 0", "rank 1"],
            "host_index": ["rank 8", "rank 0"],
            "is_leader": ["rank 0", "rank 1"],
            "on_local_leader": ["rank 0", "rank 1"],
        }[name]
    )
