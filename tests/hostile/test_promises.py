"""What an untrusted checkout must not be able to do: run code, write outside, give orders to a terminal; and that no
run leaves half a file."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from ddp_lint.config import FORMATS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs what Linux has")

HAZARD = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    dist.barrier()\n"
FIXABLE = "x = 1  # ddp-lint: ignore[DDP101]\n"
EVIL = "import pathlib\npathlib.Path({!r}).write_text(__name__)\n"
#: Modules of the standard library, of our dependencies and our own, and what Python and tools run by themselves.
SHADOWS = (
    "ast.py", "re.py", "json.py", "tokenize.py", "pathlib.py", "dataclasses.py", "typing.py", "sitecustomize.py",
    "usercustomize.py", "conftest.py", "setup.py", "click/__init__.py", "libcst/__init__.py", "tomllib/__init__.py",
    "ddp_lint/__init__.py", "ddp_lint/__main__.py", "encodings/__init__.py", "evil_codec.py",
    "flake8/__init__.py", "pkg/__init__.py", "__init__.py", "__main__.py",
)  # fmt: skip
SCRIPT = pathlib.Path(sys.executable).with_name("ddp-lint")


def run(*args: str, cwd: pathlib.Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`ddp-lint ARGS` as it is installed."""
    return subprocess.run(
        [str(SCRIPT), *args], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )


def tree(folder: pathlib.Path) -> dict[str, tuple[int, bytes | str]]:
    """All that lies in a folder: modes, and contents or targets of links."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, content)
    return found


# ---- nothing of it is run


@pytest.fixture
def evil(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout in which everything that could be run leaves a mark outside."""
    root = tmp_path / "checkout"
    for name in SHADOWS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(EVIL.format(str(tmp_path / "ran")) + HAZARD)
    (root / "coded.py").write_text("# coding: evil_codec\nx = 1\n")
    (root / "x.pth").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    (root / "pyproject.toml").write_text("[tool.ddp-lint]\n[build-system]\nrequires = []\nbuild-backend = 'setup'\n")
    (root / "train.py").write_text("import pkg, conftest\nfrom ast import *\n" + HAZARD)
    return root


@pytest.mark.parametrize("inside", [True, False], ids=["from within", "from outside"])
def test_check_runs_nothing_that_it_reads(evil: pathlib.Path, inside: bool) -> None:
    ran = evil.parent / "ran"
    for args in (["check", "--preview", "--jobs", "2"], ["check", "--fix", "--unsafe-fixes"]):
        result = run(*args, "." if inside else str(evil), cwd=evil if inside else evil.parent)
        assert not ran.exists(), ran.read_text()
        assert "DDP101" in result.stdout
        assert (result.returncode, "Traceback" in result.stderr) == (2, False)  # of coded.py


def test_flake8_runs_nothing_that_it_reads(evil: pathlib.Path) -> None:
    pytest.importorskip("flake8")
    flake8 = SCRIPT.with_name("flake8")
    result = subprocess.run(
        [str(flake8), "--select", "DDP", "train.py"], cwd=evil, capture_output=True, text=True, check=False
    )
    assert "DDP101" in result.stdout
    assert not (evil.parent / "ran").exists()


def test_pre_commit_runs_nothing_that_it_reads(evil: pathlib.Path) -> None:
    """The hooks' own commands under the real pre-commit, which runs them in the checkout."""
    pytest.importorskip("pre_commit")
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load((pathlib.Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())
    ours = [{**hook, "language": "system", "entry": f"{SCRIPT.parent}/{hook['entry']}"} for hook in hooks]
    for hook in ours:
        hook.pop("additional_dependencies")
    (evil / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": ours}]}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"PRE_COMMIT_HOME": str(evil.parent / "home"), "HOME": str(evil.parent)}
    for command in (["git", "init", "-q"], ["git", "add", "-A"]):
        subprocess.run(command, cwd=evil, env=environment, check=True)
    result = subprocess.run(
        [str(SCRIPT.with_name("pre-commit")), "run", "--all-files"],
        cwd=evil, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "DDP101" in result.stdout, result
    assert not (evil.parent / "ran").exists(), (evil.parent / "ran").read_text()


@pytest.mark.parametrize("how", ["of its own", "a folder of it is a repository"])
def test_what_has_changed_runs_nothing_of_the_checkout(tmp_path: pathlib.Path, how: str) -> None:
    """Git asks a program what has changed, and runs hooks, where the configuration of the repository says so."""
    bare = how != "of its own"
    root, ran = tmp_path / "checkout", tmp_path / "ran"
    subprocess.run(["git", "init", "-q", *["--bare"] * bare, str(root)], check=True)
    config = root / ("config" if bare else ".git/config")
    place = "\tbare = false\n\tworktree = .\n" if bare else ""
    ours = f"{place}\tfsmonitor = touch {ran}; false\n\thooksPath = {root}/hooks\n"
    config.write_text(f"[core]\n\trepositoryformatversion = 0\n{ours}")
    (root / "hooks").mkdir(exist_ok=True)
    (root / "hooks" / "post-index-change").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (root / "hooks" / "post-index-change").chmod(0o755)
    (root / "a.py").write_text(HAZARD)
    environment = {"GIT_CONFIG_GLOBAL": os.devnull}
    if not bare:  # staged, with times that git has to look behind
        safe = ["-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]
        subprocess.run(["git", *safe, "add", "a.py"], cwd=root, check=True)
        os.utime(root / "a.py", (1, 1))
    for option in ("--since=HEAD", "--staged"):
        result = run("check", option, cwd=root, env=environment)
        assert not ran.exists()
        assert (result.returncode, "Traceback" in result.stderr) == (2 if bare else int("since" in option), False), (
            result
        )


#: By what of its configuration a repository would have git run `touch RAN`, and the exit status of a check since HEAD.
PROGRAMS = {
    "a filter": ('[filter "x"]\n\tclean = touch RAN; cat\n\trequired = true\n', 1),
    "a filter that is a process": ('[filter "x"]\n\tprocess = touch RAN\n', 1),
    "a filter of an odd name": ('[filter "x=y.z"]\n\tclean = touch RAN; cat\n', 1),
    "a filter of an included file": ("[include]\n\tpath = more\n", 1),
    "what shows a difference": ('[diff "x"]\n\tcommand = touch RAN\n\ttextconv = touch RAN; cat\n', 1),
    "what shows any difference": ("[diff]\n\texternal = touch RAN\n[core]\n\tpager = touch RAN\n", 1),
    "how to fetch what is missing": (
        '[core]\n\trepositoryformatversion = 1\n\tsshCommand = touch RAN\n[extensions]\n\tpartialClone = origin\n'
        '[remote "origin"]\n\tpromisor = true\n\turl = ssh://nowhere/x\n[protocol]\n\tallow = always\n', 2,
    ),
    "a server that is a program": (
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n"
        '[remote "origin"]\n\tpromisor = true\n\turl = ext::touch RAN\n[protocol "ext"]\n\tallow = always\n', 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("verb", ["check", "verify"])
@pytest.mark.parametrize("how", PROGRAMS)
def test_git_runs_no_program_of_the_checkout(tmp_path: pathlib.Path, how: str, verb: str) -> None:
    from ddp_lint.changes import since

    root, ran = tmp_path / "checkout", tmp_path / "ran"
    root.mkdir()
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "a")):
        (root / "a.py").write_text("x = 1\n")
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=root, check=True)
    config, status = PROGRAMS[how]
    with (root / ".git/config").open("a") as file:
        file.write(config.replace("RAN", str(ran)))
    (root / ".git/more").write_text(f'[filter "x"]\n\tclean = touch {ran}; cat\n')
    names = ["x", "x=y.z"]
    (root / ".gitattributes").write_text(
        "".join(f"*.py filter={name} diff={name}\n" for name in names[how.count("odd") :][:1])
    )
    (root / "a.py").write_text(HAZARD)
    blob = subprocess.run(
        ["git", "rev-parse", "HEAD:a.py"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    if status == 2:
        (root / ".git/objects" / blob[:2] / blob.strip()[2:]).unlink()
    if verb == "check":
        result = run("check", "--since=HEAD", cwd=root, env={"GIT_CONFIG_COUNT": "0"})
        assert (result.returncode, "Traceback" in result.stderr) == (status, False), result
        assert "a partial clone" in result.stderr or status == 1
    elif status == 1:
        assert root / "a.py" in since("HEAD", root).lines
    assert not ran.exists()


# ---- nothing outside is written


def test_fixes_stay_within_the_project(tmp_path: pathlib.Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
        (folder / "a.py").write_text(FIXABLE)
    (root / "pyproject.toml").write_text("")
    (root / "link.py").symlink_to(outside / "a.py")
    (root / "folder").symlink_to(outside)
    (root / "own.py").symlink_to("a.py")
    before = tree(outside)
    result = run("check", "--fix", "link.py", "folder/a.py", "folder", cwd=root)
    assert (result.returncode, tree(outside)) == (2, before)
    assert "link.py: cannot be fixed: it links to" in result.stderr
    assert run("check", "--fix", "own.py", cwd=root).returncode == 0
    assert ((root / "own.py").is_symlink(), (root / "a.py").read_text()) == (True, "x = 1\n")


def test_reports_stay_within_the_checkout(tmp_path: pathlib.Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
    (root / "pyproject.toml").write_text("")
    (root / "a.py").write_text(HAZARD)
    (outside / "own.txt").write_text("own")
    (root / "report.txt").symlink_to(outside / "own.txt")
    (root / "new.txt").symlink_to(outside / "new.txt")
    (root / "folder").symlink_to(outside)
    (root / "inside.txt").symlink_to("a.txt")
    before = tree(outside)
    for args in (["check"], ["rule", "--all"], ["diagnose", "a.py"]):
        for name in ("report.txt", "new.txt", "folder/own.txt", "folder/new.txt"):
            result = run(*args, "-o", name, cwd=root)
            assert (result.returncode, tree(outside)) == (2, before), (args, name, result)
            assert "lies outside of" in result.stderr or "no such option" in result.stderr.lower()
    assert run("check", "-o", "inside.txt", cwd=root).returncode == 1
    assert "DDP101" in (root / "a.txt").read_text()
    run("check", "-o", str(outside / "own.txt"), cwd=root)  # by its own name: that is the user's own choice
    assert "DDP101" in (outside / "own.txt").read_text()


def test_a_report_is_written_as_a_whole(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "a.py").write_text(HAZARD * 200)
    report = tmp_path / "report.txt"
    report.write_text("old")
    report.chmod(0o600)

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    command = [str(SCRIPT), "check", "--no-cache", "-o", "report.txt"]
    result = subprocess.run(command, cwd=tmp_path, preexec_fn=no_room, capture_output=True, text=True, check=False)
    assert (result.returncode, report.read_text()) == (2, "old"), result
    assert run("check", "-o", "report.txt", cwd=tmp_path).returncode == 1
    assert (stat.S_IMODE(report.stat().st_mode), "DDP101" in report.read_text()) == (0o600, True)
    assert sorted(path.name for path in tmp_path.glob(".ddp-lint-*")) == []
    assert run("check", "-o", os.devnull, cwd=tmp_path).returncode == 1
    assert not pathlib.Path(os.devnull).is_file()
    said = run("check", "-q", "-o", "/dev/stdout", cwd=tmp_path)
    assert "DDP101" in said.stdout


@pytest.mark.parametrize("target", ["outside", "outside/new"])
def test_the_cache_follows_no_link(tmp_path: pathlib.Path, target: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    for n in range(12):
        (outside / f"0.1.0-{n:020x}").mkdir(parents=True)
    (root / "pyproject.toml").write_text("")
    (root / "a.py").write_text(HAZARD)
    (root / ".ddp_lint_cache").symlink_to(tmp_path / target)
    before = tree(outside)
    assert run("check", cwd=root).returncode == 1
    assert tree(outside) == before


def test_old_caches_go_and_nothing_else_does(tmp_path: pathlib.Path) -> None:
    cache = tmp_path / ".ddp_lint_cache"
    for n in range(12):
        (cache / f"0.1.0-{n:020x}").mkdir(parents=True)
        (cache / f"work-{n}").mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "a.py").write_text(HAZARD)
    run("check", cwd=tmp_path)
    assert len(list(cache.glob("work-*"))) == 12
    assert len(list(cache.glob("0.1.0-*"))) == 8


def test_a_planted_cache_makes_no_report_quote_other_files(tmp_path: pathlib.Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret.py"
    root.mkdir()
    secret.write_text("password = 'secret'\n")
    (root / "pyproject.toml").write_text("")
    (root / "a.py").write_text(HAZARD)
    run("check", cwd=root)
    kept_files = (root / ".ddp_lint_cache").glob("*-*/*.json")
    snapshot, shard = sorted(kept_files, key=lambda path: path.name != "project.json")
    kept = shard.read_text()
    assert '"a.py"' in kept
    for evil in (str(secret), "../secret.py", "/dev/zero"):
        shard.write_text(kept.replace('["a.py", 4', f'["{evil}", 1').replace('["a.py", 3', f'["{evil}", 1'))
        result = run("check", cwd=root)
        assert (result.returncode, "password" in result.stdout) == (1, False)
        assert "a.py:4:5" in result.stdout
    for broken in ("[" * 100_000, "{}", '{"questions": 1}', kept.replace(", 4,", f", {10**30},"), kept[:-20], "\0"):
        shard.write_text(broken)
        snapshot.write_text(broken)
        assert "a.py:4:5" in run("check", cwd=root).stdout


# ---- files stay what they are


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o444])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_modes_and_line_ends_stay(tmp_path: pathlib.Path, mode: int, end: str) -> None:
    from ddp_lint.fixes import Text

    path = tmp_path / "a.py"
    path.write_bytes(f"\ufeff# é{end}x = 1{end}".encode())
    path.chmod(mode)
    text = Text.read(path)
    text.write(text.content.replace("1", "2"), tmp_path)
    assert path.read_bytes() == f"\ufeff# é{end}x = 2{end}".encode()
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [p.name for p in tmp_path.iterdir()] == ["a.py"]


def test_a_full_disk_leaves_the_old_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    text = FIXABLE + "# padding\n" * 2000
    (tmp_path / "a.py").write_text(text)

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    result = subprocess.run(
        [str(SCRIPT), "check", "--fix"], cwd=tmp_path, preexec_fn=no_room, capture_output=True, text=True, check=False
    )
    assert (result.returncode, (tmp_path / "a.py").read_text()) == (2, text)
    assert "a.py: cannot be fixed: File too large" in result.stderr
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".ddp-lint-*"))


@pytest.fixture
def full(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A project on a disk that has no room left."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root alone")
    try:
        (disk / "pyproject.toml").write_text("")
        (disk / "a.py").write_text(FIXABLE + HAZARD)
        with contextlib.suppress(OSError), (disk / "rest").open("wb", buffering=0) as rest:
            while True:
                rest.write(b"x" * 512)
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_on_a_full_disk_files_stay_and_the_run_says_why(full: pathlib.Path) -> None:
    before = tree(full)
    found = run("check", "--isolated", cwd=full)
    assert (found.returncode, "DDP101" in found.stdout) == (1, True)  # without a cache
    for args in (["--fix"], ["--add-ignore"], ["--write-baseline", "--baseline", "b.json"], ["-o", "report.txt"]):
        result = run("check", "--isolated", *args, cwd=full)
        assert (result.returncode, "Traceback" in result.stderr) == (2, False), (args, result)
        assert "No space left" in result.stderr or "no space left" in result.stderr, (args, result)
    left = tree(full)
    assert {name: left[name] for name in before} == before
    assert not [name for name in left if name.endswith(".tmp")]


def test_an_output_that_takes_no_more_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.py").write_text(HAZARD)
    with pathlib.Path("/dev/full").open("w") as nowhere:
        result = subprocess.run(
            [str(SCRIPT), "check", "--isolated"], cwd=tmp_path, stdout=nowhere, stderr=subprocess.PIPE, check=False
        )
    assert (result.returncode, b"no space left" in result.stderr, b"Traceback" in result.stderr) == (2, True, False)


def test_a_killed_run_leaves_each_file_old_or_new_and_the_next_cleans_up(tmp_path: pathlib.Path) -> None:
    """Few kills here; `benchmarks/kills.py` does hundreds."""
    (tmp_path / "pyproject.toml").write_text("")
    new = "x = 1\n" + "# padding\n" * 2000
    names = [tmp_path / f"f{n}.py" for n in range(20)]
    chance = random.Random(0)
    for _ in range(4):
        for path in names:
            path.write_text(new.replace("x = 1\n", FIXABLE))
        process = subprocess.Popen([str(SCRIPT), "check", "--fix", "-q"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.2, 1.5))
        process.kill()
        process.wait()
        assert {path.read_text() for path in names} <= {new, new.replace("x = 1\n", FIXABLE)}
    (tmp_path / ".ddp-lint-999999999-00.tmp").write_text("left by one that is gone")
    names[0].write_text(new.replace("x = 1\n", FIXABLE))  # a run that has nothing to fix looks for nothing
    assert run("check", "--fix", "-q", cwd=tmp_path).returncode == 0
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith(".tmp")]


def test_a_link_that_waits_for_a_temporary_file_is_not_followed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import secrets

    from ddp_lint import files

    monkeypatch.setattr(secrets, "token_hex", lambda n: "guessed")
    (tmp_path / f".ddp-lint-{os.getpid()}-guessed.tmp").symlink_to(tmp_path / "outside")
    with pytest.raises(FileExistsError):
        files.write(tmp_path / "a.py", b"x")
    assert not (tmp_path / "outside").exists()


# ---- two runs at once, and poor surroundings


def test_runs_at_once_share_a_cache(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    for n in range(30):
        (tmp_path / f"f{n}.py").write_text(HAZARD)
    command = [str(SCRIPT), "check", "--output-format", "concise", "-q"]
    runs = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = {process.communicate()[0] for process in runs}
    assert len(told) == 1
    assert told.pop().count("DDP101") == 30
    shards = list((tmp_path / ".ddp_lint_cache").glob("*-*/*"))
    assert shards and all(json.loads(line) for shard in shards for line in shard.read_text().splitlines())


def test_a_checkout_that_cannot_be_written(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "a.py").write_text(HAZARD)
    (tmp_path / ".ddp_lint_cache").write_text("no folder")
    assert run("check", cwd=tmp_path).returncode == 1


def test_no_home(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.py").write_text(HAZARD)
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME", "USER")}
    for home in ({}, {"HOME": ""}, {"HOME": "/nonexistent"}, {"HOME": "relative"}):
        result = subprocess.run(
            [str(SCRIPT), "check"],
            cwd=tmp_path,
            env=environment | home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (result.returncode, result.stderr) == (1, "")


def test_a_working_directory_that_is_gone(tmp_path: pathlib.Path) -> None:
    here, file = tmp_path / "gone", tmp_path / "a.py"
    file.write_text(HAZARD)
    script = f"mkdir -p {here} && cd {here} && rmdir {here} && exec {SCRIPT} check {{}}"
    for args in (str(file), ".", ""):
        result = subprocess.run(["sh", "-c", script.format(args)], capture_output=True, text=True, check=False)
        assert (result.returncode, "Traceback" in result.stderr) == (2, False)
        assert "error: the working directory does not exist any more" in result.stderr


@pytest.mark.parametrize("verb", ["check", "diagnose"])
def test_standard_input_that_is_closed(tmp_path: pathlib.Path, verb: str) -> None:
    result = subprocess.run(
        ["sh", "-c", f"exec {SCRIPT} {verb} - <&-"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)
    assert result.stderr.startswith("error: standard input") and "it is closed" in result.stderr


def test_standard_input_without_an_end(tmp_path: pathlib.Path) -> None:
    with pathlib.Path("/dev/zero").open("rb") as endless:
        result = subprocess.run(
            [str(SCRIPT), "check", "-"], cwd=tmp_path, stdin=endless, capture_output=True, text=True, check=False
        )
    assert (result.returncode, result.stderr) == (2, "error: standard input cannot be read: it is larger than 16 MiB\n")


HELPS = [
    [], ["check"], ["verify"], ["diagnose"], ["rule"], ["server"], ["config"], ["completion"], ["dev"], ["dev", "docs"],
]  # fmt: skip


@pytest.mark.parametrize("args", [["--version"], ["completion", "bash"], *([*verbs, "--help"] for verbs in HELPS)])
def test_standard_output_that_takes_nothing(args: list[str]) -> None:
    for output, status in (("/dev/full", 2), ("&-", 0)):
        command = f"exec {SCRIPT} {' '.join(args)} >{output}"
        result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        said = "error: cannot write to standard output: no space left on device\n" if status else ""
        assert (result.returncode, result.stderr) == (status, said)


def test_standard_error_that_takes_nothing() -> None:
    for args in (["nope"], ["check", "--nope"], ["check", "nope.py"], ["diagnose", "nope.log"]):
        result = subprocess.run(["sh", "-c", f"exec {SCRIPT} {' '.join(args)} 2>/dev/full"], check=False)
        assert result.returncode == 2


def test_few_file_descriptors(tmp_path: pathlib.Path) -> None:
    for n in range(60):
        (tmp_path / f"d{n}").mkdir()
        (tmp_path / f"d{n}" / "a.py").write_text(HAZARD)
    result = subprocess.run(
        ["sh", "-c", f"ulimit -n 32; exec {SCRIPT} check --jobs 2 --output-format concise"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout.count("DDP101"), result.stderr) == (1, 60, "")


@pytest.mark.parametrize("output_format", FORMATS)
def test_locale_c(tmp_path: pathlib.Path, output_format: str) -> None:
    (tmp_path / "é日.py").write_text(HAZARD.replace("dist.barrier()", "dist.barrier()  # é日\U0001f600"))
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    result = run("check", "--output-format", output_format, cwd=tmp_path, env=environment)
    assert (result.returncode, result.stderr) == (1, "")


# ---- what is printed


def test_comments_stay_within_the_project(tmp_path: pathlib.Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
        (folder / "a.py").write_text(HAZARD)
    (root / "pyproject.toml").write_text("")
    (root / "link.py").symlink_to(outside / "a.py")
    (root / "folder").symlink_to(outside)
    before = tree(outside)
    run("check", "--add-ignore", "link.py", "folder/a.py", "folder", "a.py", cwd=root)
    assert tree(outside) == before
    assert "ddp-lint: ignore[DDP101]" in (root / "a.py").read_text()


ESCAPES = "\x1b]0;evil\x07\x1b[31m\x9b31m\u202e##[add-mask]x"


@pytest.mark.parametrize("output_format", FORMATS)
def test_names_and_source_inject_nothing(tmp_path: pathlib.Path, output_format: str) -> None:
    name = f"::error file=x::{ESCAPES}<script>&\n::warning::y\r.py"
    name = name.replace("/", "")
    (tmp_path / "pyproject.toml").write_text("")
    text = HAZARD.replace("== 0", f"== int('{ESCAPES} <b>')").replace("dist.barrier()", f"dist.barrier()  # {ESCAPES}")
    (tmp_path / name).write_text(text + f"if x:  # noqa: DDP999 {ESCAPES}\n    pass\n")
    (tmp_path / f"bad{ESCAPES}.py").write_bytes(b"\xff")
    result = run("check", "--select", "ALL", "--output-format", output_format, "-v", cwd=tmp_path)
    assert result.returncode == 2
    for said in (result.stdout, result.stderr):
        unseen = {c for c in said if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"}
        assert not unseen
        commands = [line for line in said.splitlines() if line.lstrip().startswith("::") or "##[" in line]
        ours = [line for line in commands if line.startswith(("::error file=", "::warning file="))]
        assert commands == ours
    if output_format in ("json", "sarif", "gitlab"):
        assert "evil" in json.dumps(json.loads(result.stdout))
    if output_format == "junit":
        ET.fromstring(result.stdout)
    if output_format == "github":
        assert len(result.stdout.splitlines()) == len([line for line in result.stdout.splitlines() if "::" in line[:9]])


def test_a_patch_injects_no_workflow_command(tmp_path: pathlib.Path) -> None:
    """Where a service reads it, a patch whose context would be a command is changed; else it is what git applies."""
    text = f'T = """\n::error::x\n\t::w::y ##[error]z ##vso[x]\n"""\n{FIXABLE}'
    (tmp_path / "a.py").write_text(text)
    plain = run("check", "--diff", cwd=tmp_path, env={"GITHUB_ACTIONS": "", "TF_BUILD": ""}).stdout
    assert " ::error::x\n" in plain
    for name in ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION"):
        said = run("check", "--diff", cwd=tmp_path, env={name: "true"}).stdout
        assert "-x = 1  # ddp-lint: ignore[DDP101]\n+x = 1\n" in said
        assert not [
            line for line in said.splitlines() if line.lstrip().startswith("::") or "##[" in line or "##vso[" in line
        ]
        run("check", "--diff", "-o", "fix.patch", cwd=tmp_path, env={name: "true"})
        assert (tmp_path / "fix.patch").read_text() == plain


def test_wrong_usage_injects_nothing(tmp_path: pathlib.Path) -> None:
    for args in (
        ["check", "--source\n::error::x"],
        ["\n::error::x"],
        ["diagnose", "--source", "x\n::error::y\x1b[31m"],
    ):
        said = run(*args, cwd=tmp_path).stderr
        assert not [line for line in said.splitlines() if line.lstrip().startswith("::")]
        assert not {c for c in said if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"}


def test_lists_of_files_and_settings_inject_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / f"{ESCAPES}.py").write_text("")
    (tmp_path / "ddp-lint.toml").write_text('extend-exclude = ["\\u001b[31m"]')
    for option in ("--show-files", "--show-settings"):
        said = run("check", option, cwd=tmp_path).stdout
        assert not {c for c in said if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"}


def test_why_injects_nothing(tmp_path: pathlib.Path) -> None:
    text = HAZARD.replace("== 0", f"== int('{ESCAPES}')").replace("barrier()", f"barrier()  # {ESCAPES}")
    (tmp_path / "a.py").write_text(text)
    said = run("check", "--why", "a.py:4", cwd=tmp_path).stdout
    assert "barrier" in said
    assert not {c for c in said if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"}


@pytest.mark.parametrize("output_format", ["full", "json", "sarif", "html"])
def test_a_report_of_verify_injects_nothing(tmp_path: pathlib.Path, output_format: str) -> None:
    from ddp_lint.output import Sources
    from ddp_lint.verify.report import render
    from ddp_lint.verify.results import Discovery, Evidence, Verification

    evil = f"{ESCAPES}</script><script>alert(1)</script>"
    path = tmp_path / "a.py"
    path.write_text(f"x = '{evil}'\n")
    seen = Evidence("ddp", 0, evil, evil, str(path), 1)
    found = Discovery(evil, evil, cause=evil, fix=evil, evidence=(seen,))
    about = dict.fromkeys(("torch", "device", "backend", "nproc"), 2) | {"wraps": ["ddp"]}
    said = render(Verification(evil, about, (), (found,), (), {}, evil), output_format, color=False, sources=Sources())
    assert "evil" in said
    assert not {c for c in said if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"}
    assert output_format != "html" or "<script" not in said
    if output_format in ("json", "sarif"):
        json.loads(said)


def test_verify_says_that_it_runs_the_target() -> None:
    said = run("verify", "--help", cwd=pathlib.Path("/")).stdout
    assert "Run TARGET under torchrun" in said


@pytest.fixture(autouse=True)
def _tidy(tmp_path: pathlib.Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_folders_of_killed_verify_runs_are_removed_by_the_next(tmp_path: pathlib.Path) -> None:
    from ddp_lint.lifetime import remove_left_behind

    gone, alive, other = (tmp_path / f"ddp-lint-{name}" for name in ("999999999-ab", f"{os.getpid()}-ab", "kept"))
    for folder in (gone, alive, other):
        (folder / "tmp").mkdir(parents=True)
    (tmp_path / "ddp-lint-999999998-ab").symlink_to(other)
    remove_left_behind(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([alive.name, other.name, "ddp-lint-999999998-ab"])
