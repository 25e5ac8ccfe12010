"""One cause, one finding: what is told once, and what is not."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from .conftest import Check

HEAD = "import torch\nimport torch.distributed as dist\n\n\n"


def found(check: Check, *args: str) -> list[dict[str, Any]]:
    return list(json.loads(check("--no-cache", "--output-format", "json", *args).stdout)["findings"])


def caller(name: str, callee: str, module: str = "helper") -> str:
    return (
        f"{HEAD}from {module} import {callee}\n\n\ndef {name}(x):\n    if dist.get_rank() == 0:\n        {callee}(x)\n"
    )


def test_one_branch_is_one_finding_whatever_codes_it_has(check: Check, project: pathlib.Path) -> None:
    body = "def f(x, optimizer):\n    if dist.get_rank() == 0:\n        optimizer.step()\n        dist.all_reduce(x)\n"
    (project / "a.py").write_text(f"{HEAD}from torch.nn.parallel import DistributedDataParallel\n\n\n{body}")
    (only,) = found(check)
    assert only["code"] == "DDP101"  # ranks that hang come before replicas that drift apart
    assert [path["message"][:6] for path in only["paths"]] == ["DDP109"]
    assert {f["code"] for f in found(check, "--select", "DDP109")} == {"DDP109"}
    printed = check("--no-cache").stdout
    assert "note: the same cause: a.py:10" in printed
    assert "1 finding in 1 file, 1 checked." in printed


def test_a_helper_that_nobody_calls_but_one_rank_is_the_cause(check: Check, project: pathlib.Path) -> None:
    (project / "helper.py").write_text(f"{HEAD}def save(x):\n    dist.barrier()\n    return x\n")
    for name in "abcde":
        (project / f"{name}.py").write_text(caller(name, "save"))
    (only,) = found(check)
    assert only["path"] == "a.py"
    assert only["message"].startswith("only rank 0 reaches `dist.barrier()` (helper.py:6)")
    assert only["message"].endswith(". 5 call paths")
    assert [path["path"] for path in only["paths"]] == ["b.py", "c.py", "d.py", "e.py"]
    assert "the same cause: b.py:10, c.py:10, d.py:10 and 1 more" in check("--no-cache").stdout
    # Somebody calls it as it should be called: then each of the others is wrong for itself.
    (project / "right.py").write_text(f"{HEAD}from helper import save\n\n\ndef right(x):\n    save(x)\n")
    assert len(found(check)) == 5


def test_a_helper_that_hides_an_implicit_collective_is_the_cause_for_all(check: Check, project: pathlib.Path) -> None:
    helper = "import torch.distributed.checkpoint as dcp\n\n\ndef save(x):\n    dcp.save(x, checkpoint_id='x')\n"
    (project / "helper.py").write_text(helper)
    for name in "ab":
        (project / f"{name}.py").write_text(caller(name, "save"))
    (project / "right.py").write_text("from helper import save\n\n\ndef right(x):\n    save(x)\n")
    (only,) = found(check)
    assert (only["code"], len(only["paths"])) == ("DDP102", 1)


def test_a_comment_excuses_its_own_call_path_alone(check: Check, project: pathlib.Path) -> None:
    (project / "helper.py").write_text(f"{HEAD}def save(x):\n    dist.barrier()\n    return x\n")
    for name in "abc":
        (project / f"{name}.py").write_text(caller(name, "save"))
    text = (project / "a.py").read_text().replace("        save(x)", "        save(x)  # ddp-lint: ignore[DDP101] mine")
    (project / "a.py").write_text(text)
    paths = [f["path"] for f in found(check)]
    assert "a.py" not in paths


def test_what_one_statement_does_twice_is_one_finding(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(
        f"{HEAD}from torch import nn\nfrom torch.nn.parallel import DistributedDataParallel\n\n\n"
        "def wrap(model):\n    rank = dist.get_rank()\n"
        "    return DistributedDataParallel(model, device_ids=[rank], output_device=rank)\n\n\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        ends = x.cumsum(0)\n"
        "        for i in range(1, 9):\n            x = x + ends[i].item() - ends[i - 1].item()\n        return x\n"
    )
    assert [f["code"] for f in found(check)] == ["DDP403", "DDP301"]


def test_reads_between_which_little_is_computed_wait_once(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(
        f"{HEAD}from torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "        loss, kl = x.square().mean(), x.abs().mean()\n"
        "        shown = {'loss': loss.item()}\n"
        "        kept = {'loss': loss.item(), 'kl': kl.detach().item()}\n"
        "        total = loss + kl\n"
        "        if self.training:\n"
        "            kept['total'] = total.item()\n"
        "        total = total + self.penalty(x)\n"
        "        kept['total'] = total.item()\n"
        "        for part in x:\n"
        "            kept['part'] = part.sum().item()\n"
        "        for part in x:\n"
        "            kept['spread'] = (part @ part).sum().item()\n"
        "        return total, shown, kept\n"
    )
    first, second, third = found(check, "--select", "DDP301")
    assert (first["line"], [path["line"] for path in first["paths"]]) == (11, [12, 15])
    # The rounds of the first loop begin where the host has just waited; those of the second compute more.
    assert {second["line"], *(path["line"] for path in second["paths"])} == {17, 19}
    assert (third["line"], third["paths"]) == (21, [])
