"""By which launcher, and with how many processes, the scripts of a project start its programs."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence
from ddp_lint.launch.started import launched, place_of, started_alone, started_on_one_node
from ddp_lint.project import Project

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
FIXTURE = FIXTURES / "devices/DDP401_started_alone"
OTHER = "torchrun --nproc_per_node=8 train.py\n"


def how(root: pathlib.Path, files: dict[str, str], program: str = "tools/x.py") -> str:
    for name, text in {"tools/x.py": "", "train.py": "", "train.sh": OTHER, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return started_alone(Project(root), program)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node 1 tools/x.py",
        "torchrun --nproc-per-node=1 --nnodes=1 -m tools.x --lr 1",
        "python -m torch.distributed.launch --nproc_per_node 1 --master_port $PORT tools/x.py",
        "python3 -m torch.distributed.run --nproc_per_node=1 ./tools/x.py",
        "deepspeed --num_gpus 1 tools/x.py --deepspeed ds.json",
        "deepspeed --include=localhost:7 --master_port=29577 \\\n  tools/x.py",
        "deepspeed --include localhost:7 tools/x.py",
        "accelerate launch --num_processes 1 tools/x.py",
        "torchx run -s local_cwd dist.ddp -j 1x1 --gpu 1 --script tools/x.py -- --lr 1",
        'N=1\ntorchrun --nproc_per_node "$N" tools/x.py',
        'ARGS=(\n  --nproc_per_node 1\n  --nnodes 1\n)\ntorchrun "${ARGS[@]}" \\\n  tools/x.py',
        "cd tools && torchrun --nproc_per_node 1 x.py",
        "cd tools\ntorchrun --nproc_per_node 1 x.py",
        "torchrun --nproc_per_node 1 $ROOT/tools/x.py",
        'torchrun --nproc_per_node 1 "$(dirname "$0")"/x.py',
        'torchrun --nproc_per_node 1 $(cd "$(dirname "$0")" && pwd)/x.py',
        "torchrun --nproc_per_node 1 `dirname $0`/x.py",
        'HERE=$(cd "$(dirname "$0")" && pwd)\ntorchrun --nproc_per_node 1 $HERE/x.py',
        "torchrun --nproc_per_node 1 $ROOT/tools/$KIND/x.py",
    ],
)
def test_one_process(tmp_path: pathlib.Path, command: str) -> None:
    assert how(tmp_path, {"run.sh": f"#!/bin/bash\n{command}\n"}) == "one"


@pytest.mark.parametrize(
    "command",
    [
        "torchrun tools/x.py --nproc_per_node 1",
        "torchrun --nproc_per_node 2 tools/x.py",
        "torchrun --nproc_per_node 1 --nnodes 2 tools/x.py",
        "torchrun --nproc_per_node 1 $EXTRA tools/x.py",
        "torchrun --nproc_per_node 1 $(cat options) tools/x.py",
        "torchrun --nproc_per_node gpu tools/x.py",
        "srun torchrun --nproc_per_node 1 tools/x.py",
        "mpirun -np 4 python tools/x.py",
        "python tools/x.py --local_rank 0",
        "python tools/x.py &",
        "deepspeed tools/x.py",
        "deepspeed --num_gpus 1 --hostfile hosts tools/x.py",
        "deepspeed --include=localhost:0,1 tools/x.py",
        "deepspeed --include=localhost tools/x.py",
        "deepspeed --include=localhost:$GPUS tools/x.py",
        "deepspeed --include=first:0@second:0 tools/x.py",
        "deepspeed --hostfile hosts --include=localhost:0 tools/x.py",
        "accelerate launch --config_file a.yaml --num_processes 1 tools/x.py",
        "composer -n 8 tools/x.py",
        "torchx run -s local_cwd dist.ddp -j 1x2 --script tools/x.py",
        "N=1\nif [ $BIG ]; then\n  N=8\nfi\ntorchrun --nproc_per_node $N tools/x.py",
        "for N in 1 8; do\ntorchrun --nproc_per_node $N tools/x.py\ndone",
        "N=${N:-1}\ntorchrun --nproc_per_node $N tools/x.py",
        "# torchrun --nproc_per_node 1 tools/x.py",
        "torchrun --nproc_per_node 1 tools/x.py\n# torchrun --nproc_per_node 8 tools/x.py",
        "torchrun --nproc_per_node 1 tools/x.py\ntorchrun --nproc_per_node 8 $SCRIPT",
    ],
)
def test_not_one_process(tmp_path: pathlib.Path, command: str) -> None:
    assert how(tmp_path, {"run.sh": f"#!/bin/bash\n{command}\n"}) == ""


def test_python_alone(tmp_path: pathlib.Path) -> None:
    assert how(tmp_path, {"run.sh": "CUDA_VISIBLE_DEVICES=0 python -u tools/x.py --lr 1\n"}) == "plain"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "```\n$ torchrun --nproc_per_node 8 tools/x.py\n```\n"),
        ("job.yaml", "command:\n  - torchrun\n  - --nproc_per_node=8\n  - tools/x.py\n"),
        ("Dockerfile", 'CMD ["torchrun", "--nproc_per_node=8", "tools/x.py"]\n'),
        ("start.py", 'import os\n\nos.system("torchrun --nproc_per_node 8 tools/x.py")\n'),
        ("tools/x.py", '"""torchrun --nproc_per_node 8 x.py"""\n'),
    ],
)
def test_other_texts_can_only_say_that_there_are_several(tmp_path: pathlib.Path, name: str, text: str) -> None:
    one = {"run.sh": "torchrun --nproc_per_node 1 tools/x.py\n"}
    assert how(tmp_path, one) == "one"
    assert how(tmp_path, {**one, name: text}) == ""
    (tmp_path / "run.sh").unlink()
    assert how(tmp_path, {name: text.replace("8", "1")}) == ""


def test_without_a_program_of_several_nothing_is_said(tmp_path: pathlib.Path) -> None:
    """The one number that a script has may be an example."""
    assert how(tmp_path, {"train.sh": "", "run.sh": "torchrun --nproc_per_node 1 tools/x.py\n"}) == ""


def test_two_programs_of_one_name(tmp_path: pathlib.Path) -> None:
    """A script means the program beside it."""
    files = {"a/x.py": "", "b/x.py": "", "a/run.sh": "torchrun --nproc_per_node 1 x.py\n"}
    files["b/run.sh"] = files["a/run.sh"].replace("1", "8")
    assert [how(tmp_path, files, f"{folder}/x.py") for folder in ("a", "b", "tools")] == ["one", "", ""]
    moved = {"b/run.sh": "cd $1\ntorchrun --nproc_per_node 8 x.py\n"}
    assert how(tmp_path, moved, "a/x.py") == ""


def by(root: pathlib.Path, files: dict[str, str], module: str = "tools.x") -> dict[str, str]:
    """The launcher and the place of the command that starts a program, by how it passes the local rank."""
    for name, text in {"tools/x.py": "", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    project = Project(root)
    facts = project.modules.facts(module)
    assert facts is not None
    found = {how: launched(project, facts, how) for how in ("argument", "environment")}
    return {how: f"{launch.start.launcher} {place_of(project, launch)}" for how, launch in found.items() if launch}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc_per_node 8 tools/x.py", {"environment": "torchrun run.sh:2"}),
        ("python -m torch.distributed.run --nproc_per_node 8 -m tools.x", {"environment": "torchrun run.sh:2"}),
        ("python -m torch.distributed.launch x.py", {"argument": "torch.distributed.launch run.sh:2"}),
        ("python -m torch.distributed.launch -m tools.x", {"argument": "torch.distributed.launch run.sh:2"}),
        (
            "python -m torch.distributed.launch --use-env tools/x.py",
            {"environment": "torch.distributed.launch run.sh:2"},
        ),
        (
            "python -m torch.distributed.launch tools/x.py --use_env",
            {"argument": "torch.distributed.launch run.sh:2"},
        ),
        ('A=(\n  --nnodes 1\n)\n\ntorchrun \\\n  "${A[@]}" \\\n  tools/x.py', {"environment": "torchrun run.sh:6"}),
        ("# torchrun tools/x.py\necho\ntorchrun tools/x.py", {"environment": "torchrun run.sh:4"}),
        ("deepspeed tools/x.py", {}),
        ("accelerate launch tools/x.py", {}),
        ("python tools/x.py", {}),
        ("torchrun tools/y.py", {}),
        ("torchrun $SCRIPT", {}),
    ],
)
def test_launcher(tmp_path: pathlib.Path, command: str, expected: dict[str, str]) -> None:
    assert by(tmp_path, {"run.sh": f"#!/bin/bash\n{command}\n"}) == expected


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("README", "Train with `torchrun tools/x.py --amp`.\n", 1),
        ("docs/use.md", "# Use\n\n```\n$ torchrun tools/x.py\n```\n", 4),
        ("list.md", "- torchrun train.py\n- torchrun tools/x.py\n", 2),
        ("job.yaml", "command:\n  - torchrun\n  - --nproc_per_node=8\n  - tools/x.py\nnext:\n  - x\n", 1),
        ("tools/x.py", '"""\ntorchrun --nproc_per_node 8 x.py\n"""\n', 2),
    ],
)
def test_launcher_in_other_texts(tmp_path: pathlib.Path, name: str, text: str, line: int) -> None:
    assert by(tmp_path, {name: text}) == {"environment": f"torchrun {name}:{line}"}


def test_launcher_of_a_program_that_imports_the_file(tmp_path: pathlib.Path) -> None:
    program = "from tools.x import parse\n\nif __name__ == '__main__':\n    parse()\n"
    files = {"run.sh": "torchrun main.py\n", "main.py": program}
    assert by(tmp_path, files) == {"environment": "torchrun run.sh:1"}
    assert by(tmp_path, {"tools/x.py": "if __name__ == '__main__':\n    parse()\n"}) == {}


def test_launcher_of_programs_of_one_name(tmp_path: pathlib.Path) -> None:
    """A command means the program beside its script, or the ones in the folder that it has."""
    files = {"other/x.py": "", "tools/run.sh": "torchrun $(dirname $0)/x.py\n"}
    assert by(tmp_path, files) == {"environment": "torchrun tools/run.sh:1"}
    assert by(tmp_path, files, "other.x") == {}
    assert by(tmp_path, {"tools/run.sh": "cd $1\ntorchrun tools/x.py\n"}) == {"environment": "torchrun tools/run.sh:2"}
    assert by(tmp_path, {"tools/run.sh": "", "run.sh": "cd $1\ntorchrun x.py\n"}) == {}


def check(root: pathlib.Path, code: str = "DDP401") -> tuple[list[str], int]:
    settings = Settings(root, frozenset({code}))
    report = check_paths(sorted(root.rglob("*.py")), settings, cache_dir=root / ".ddp_lint_cache")
    return sorted(pathlib.Path(f.span.path).name for f in report.findings), report.statistics.cached


def test_a_kept_result_depends_on_how_scripts_start_programs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And on no more of the scripts."""
    root = tmp_path / "project"
    shutil.copytree(FIXTURE, root)
    monkeypatch.chdir(root)
    (root / "pyproject.toml").touch()
    first, _ = check(root)
    files = len(list(root.rglob("*.py")))
    assert "finish.py" not in first and check(root) == (first, files)
    script = root / "one.sh"
    script.write_text(script.read_text().replace("set -e", "set -eu"))
    assert check(root) == (first, files)
    script.write_text(script.read_text().replace("--nproc_per_node=1", "--nproc_per_node=4"))
    assert check(root)[0] == sorted([*first, "finish.py"])
    script.unlink()
    without = sorted([*first, "finish.py", "prepare.py", "reading.py"])
    assert check(root)[0] == without
    (root / "two.sh").write_text("torchrun --nproc_per_node 1 finish.py\n")
    assert check(root)[0] == [name for name in without if name != "finish.py"]


def test_a_kept_result_depends_on_the_launcher(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And on the line of a command only where a finding names it."""
    root = tmp_path / "project"
    shutil.copytree(FIXTURES / "launch/DDP811_launched", root)
    monkeypatch.chdir(root)
    first, _ = check(root, "DDP811")
    files = len(list(root.rglob("*.py")))
    assert first == ["options.py", "train.py"] and check(root, "DDP811") == (first, files)
    script = root / "tools/dist_train.sh"
    script.write_text(script.read_text().replace("GPUS=$1", "\nGPUS=$1"))
    assert check(root, "DDP811") == (first, files - 1)
    (root / "README.md").write_text((root / "README.md").read_text().replace("--nproc", "--use_env --nproc"))
    assert check(root, "DDP811")[0] == ["train.py"]
    script.write_text(script.read_text().replace("# python", "python"))
    assert check(root, "DDP811")[0] == ["old.py", "train.py"]
    script.unlink()
    assert check(root, "DDP811")[0] == []
    (root / "two.sh").write_text("python -m torch.distributed.launch tools/deep.py\n")
    assert check(root, "DDP811")[0] == ["deep.py"]


def on_one(root: pathlib.Path, files: dict[str, str], module: str = "tools.x") -> bool:
    for name, text in {"tools/x.py": "", "tools/helper.py": "", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    project = Project(root)
    facts = project.modules.facts(module)
    assert facts is not None
    return started_on_one_node(project, facts)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node 8 tools/x.py",
        "torchrun --standalone --nproc_per_node=gpu -m tools.x",
        "torchrun --nnodes 1:1 --nproc_per_node 8 tools/x.py",
        "deepspeed --include=localhost:0,1 tools/x.py",
        "python tools/x.py --gpus 4",
        "#SBATCH --nodes=1\nsrun python tools/x.py",
        "#SBATCH -N 1\ntorchrun --nproc_per_node 8 tools/x.py",
        "accelerate launch --config_file one.yaml tools/x.py",
        "# torchrun --nproc_per_node 8 tools/x.py",
        "torchrun --nproc_per_node 8 train.py",  # another program of the project, and nothing starts this one
    ],
)
def test_on_one_node(tmp_path: pathlib.Path, command: str) -> None:
    (tmp_path / "one.yaml").write_text("num_machines: 1\nnum_processes: 8\n")
    assert on_one(tmp_path, {"run.sh": f"#!/bin/bash\n{command}\n"})


@pytest.mark.parametrize(
    "command",
    [
        "",
        "torchrun --nnodes 2 --nproc_per_node 8 tools/x.py",
        "torchrun --nnodes $NODES --nproc_per_node 8 tools/x.py",
        "NODES=1\ntorchrun --nnodes $NODES --nproc_per_node 8 tools/x.py",
        "torchrun $OPTIONS tools/x.py",
        "torchrun --nproc_per_node 8 tools/x.py\n# torchrun --nnodes 2 --nproc_per_node 8 tools/x.py",
        "#SBATCH --nodes=2\nsrun torchrun --nproc_per_node 8 tools/x.py",
        "srun python tools/x.py",
        "mpirun -np 16 python tools/x.py",
        "python tools/x.py --rank 0 --world-size 2",
        "deepspeed --hostfile hosts tools/x.py",
        "accelerate launch --config_file two.yaml tools/x.py",
        "accelerate launch --config_file lost.yaml tools/x.py",
        "torchrun --nproc_per_node 8 train.py\ntorchrun --nnodes 4 --nproc_per_node 8 other.py",
    ],
)
def test_on_several_nodes_or_not_known(tmp_path: pathlib.Path, command: str) -> None:
    (tmp_path / "two.yaml").write_text("num_machines: 2\n")
    assert not on_one(tmp_path, {"run.sh": f"#!/bin/bash\n{command}\n"})


def test_a_program_that_counts_its_nodes_is_for_several(tmp_path: pathlib.Path) -> None:
    run = {"run.sh": "torchrun --nproc_per_node 8 tools/x.py\n"}
    assert on_one(tmp_path, {**run, "tools/x.py": "nodes = graph.num_nodes()\n"})
    assert not on_one(tmp_path, {**run, "tools/x.py": 'parser.add_argument("--nnodes")\n'})
    assert not on_one(tmp_path, {**run, "tools/x.py": "device = rank % torch.cuda.device_count()\n"})


def test_a_helper_is_on_the_nodes_of_its_programs(tmp_path: pathlib.Path) -> None:
    run = {"run.sh": "torchrun --nproc_per_node 8 tools/x.py\n", "tools/y.py": ""}
    uses = 'import tools.helper\n\nif __name__ == "__main__":\n    pass\n'
    assert on_one(tmp_path, {**run, "tools/x.py": uses}, "tools.helper")
    more = {"tools/y.py": uses, "more.sh": "torchrun --nnodes 2 --nproc_per_node 8 tools/y.py\n"}
    assert not on_one(tmp_path, more, "tools.helper")


TRAINS = """import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

if __name__ == "__main__":
    dist.init_process_group("nccl")
    loader = DataLoader(data, sampler=DistributedSampler(data))
    for epoch in range(9):
        for batch in loader:
            step(batch)
"""


@pytest.mark.parametrize(
    ("command", "doubtful"),
    [
        ("torchrun --nproc_per_node 1 tools/x.py", True),
        ("torchrun --nproc_per_node 1 \\\n  train.py --lr 1\n  # tools/x.py --lr 2", True),
        ("torchrun --nproc_per_node 8 \\\n  train.py --lr 1\n  # tools/x.py --lr 2", False),
        ("torchrun --nproc_per_node 1 train.py\n\n# tools/x.py does the rest", False),
        ("torchrun --nproc_per_node 1 train.py\n# python tools/x.py", False),
        ("torchrun --nproc_per_node 8 tools/x.py", False),
        ("torchrun --nproc_per_node 1 tools/x.py\ntorchrun --nproc_per_node 8 tools/x.py", False),
        ("torchrun --nproc_per_node $GPUS tools/x.py", False),
        ("python tools/x.py", False),
        ("", False),
    ],
)
def test_a_program_that_is_only_shown_with_one_process(tmp_path: pathlib.Path, command: str, doubtful: bool) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/x.py").write_text(TRAINS)
    (tmp_path / "run.sh").write_text(f"{command}\n")
    (finding,) = check_paths([tmp_path / "tools/x.py"], Settings(tmp_path, frozenset({"DDP701"}))).findings
    assert (finding.confidence is Confidence.LOW) is doubtful


@pytest.mark.parametrize(("gpus", "doubtful"), [("0", True), ("0,1", False)])
def test_a_program_that_leaves_itself_one_gpu(tmp_path: pathlib.Path, gpus: str, doubtful: bool) -> None:
    (tmp_path / "x.py").write_text(f'import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = "{gpus}"\n{TRAINS}')
    (finding,) = check_paths([tmp_path / "x.py"], Settings(tmp_path, frozenset({"DDP701"}))).findings
    assert (finding.confidence is Confidence.LOW) is doubtful
