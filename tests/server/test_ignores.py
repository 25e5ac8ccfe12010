"""Comments that suppress a finding stand where Python takes them, and suppress it."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.config import Configuration, Overrides
from ddp_lint.engine.runner import check_text
from ddp_lint.fixes import apply_edits
from ddp_lint.server.ignores import ignoring

START = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    "


@pytest.mark.parametrize(
    ("code", "after"),
    [
        ("dist.barrier()\n", "dist.barrier()  # ddp-lint: ignore[DDP101]\n"),
        ("dist.barrier()  # kept\n", "dist.barrier()  # kept  # ddp-lint: ignore[DDP101]\n"),
        (
            "dist.barrier()  # ddp-lint: ignore[DDP401] why\n",
            "dist.barrier()  # ddp-lint: ignore[DDP401, DDP101] why\n",
        ),
        ("dist.barrier(\n    None,\n)\n", "dist.barrier(\n    None,\n)  # ddp-lint: ignore[DDP101]\n"),
        ('dist.barrier("""a\nb""")\n', 'dist.barrier("""a\nb""")  # ddp-lint: ignore[DDP101]\n'),
        ('dist.barrier(); y = """a\nb"""\n', None),
        ("dist.barrier(); \\\ny = 1\n", None),
    ],
)
def test_the_comment_is_written_where_it_suppresses(code: str, after: str | None, tmp_path: pathlib.Path) -> None:
    settings = Configuration(Overrides(select=("DDP101",), isolated=True)).of(tmp_path)
    text = START + code
    (finding,) = check_text(text, tmp_path / "a.py", settings).findings
    edit = ignoring(finding, text.split("\n"))
    assert (edit and apply_edits(text, [edit])) == (after and START + after)
    if edit:
        assert not check_text(apply_edits(text, [edit]), tmp_path / "a.py", settings).findings
