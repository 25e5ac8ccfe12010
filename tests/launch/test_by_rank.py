"""Whether the rank takes part in a value, where many calls lead to it."""

import pathlib

import pytest

from ddp_lint.launch import by_rank
from ddp_lint.launch.by_rank import Place, is_by_rank, takes_rank
from ddp_lint.project import Project
from ddp_lint.source.syntax import FunctionNode, walk


def functions(last: str) -> str:
    """Functions that are each called from eight places of the next one, and the last with `last`."""
    below = "".join(f"def f{n + 1}(x):\n" + "".join(f"    f{n}(x + {place})\n" for place in range(8)) for n in range(5))
    return f"import torch.distributed as dist\ndef f0(x):\n    return x\n{below}f5({last})\n"


@pytest.mark.parametrize(("last", "expected"), [("3", False), ("dist.get_rank()", True)])
def test_what_many_callers_give_is_looked_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, last: str, expected: bool
) -> None:
    (tmp_path / "a.py").write_text(functions(last))
    project = Project(tmp_path)
    facts = project.modules.facts_of(tmp_path / "a.py")
    assert facts is not None
    first = next(n for n in walk(facts.tree) if isinstance(n, FunctionNode))
    value = first.body[0].value  # type: ignore[attr-defined]
    looked, real = [], by_rank._says_rank
    monkeypatch.setattr(by_rank, "_says_rank", lambda *given: (looked.append(given), real(*given))[1])
    place = Place(facts, first)
    assert is_by_rank(project, value, place) is expected
    assert takes_rank(project, value, place) is expected
    assert len(looked) < 1000  # 8 ** 5 ways lead there
