"""The kinds of hostile and odd input, and what each must give: a new kind is one line of `KINDS`.

Beside every input lies `good.py`, whose finding has to come whatever the input does, but where the configuration of all
is wrong.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import pathlib
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

Make = Callable[[pathlib.Path], object]
Content = str | bytes | Make

GOOD = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    dist.barrier()\n"
FOUND, FAILED = 1, 2
HEAD = "import torch\nimport torch.distributed as dist\nfrom torch import nn\n"
RANK = "if dist.get_rank() == 0:\n    dist.barrier()\n"


@dataclasses.dataclass(frozen=True)
class Kind:
    """An input: files by name (text, bytes, or what makes them), the exit status, and what is said of it."""

    name: str
    files: Mapping[str, Content]
    status: int = FOUND
    says: str = "good.py:4:5: DDP101"
    args: tuple[str, ...] = (".",)
    #: `good.py` is told of too; not where the configuration is wrong, or where it is left out.
    others: bool = True
    verb: str = "check"
    stdin: bytes = b""


#: Values in front of sends that are cheap to write and dear to compute.
GROWING = {
    "the sum of a long range": "    n = sum(range(10 ** 12))",
    "a loop over a longer one": "    for i in range(10 ** 30):\n        n = i",
    "a text of a width": "    n = '%*d' % (2_000_000_000, 1)",
    "a text that doubles": "    n = 'a'\n" + "    n = n + n\n" * 60,
    "a list that doubles": "    n = [1]\n" + "    n += n\n" * 60,
    "lists in lists": "    n = [t]\n" + "    n = [n, n]\n" * 60 + "    t = n == []",
    "a list in itself": "    n = [1]\n    n.append(n)\n    t = n == []",
    "lists in lists, for what nobody knows": "    n = [t]\n" + "    n = [n, n]\n" * 60 + "    read(n)",
    "lists in lists, looked for": "    n, m = [t], [t]\n"
    + "    n = [n, n]\n    m = [m, m]\n" * 60
    + "    [n].index(m)",
    "a list of a long range": "    n = [1]\n    n.extend(range(10 ** 9))",
    "comprehensions in comprehensions": "    n = [[[[0 for a in range(250)] for b in range(250)] for c in range(250)] for d in range(250)]",
    "functions that call others ten times": "    f0 = lambda: 1\n"
    + "".join(f"    f{i} = lambda: {' + '.join([f'f{i - 1}()'] * 10)}\n" for i in range(1, 12))
    + "    n = f11()",
    "an unknown that doubles": "    n = read()\n" + "    n = n + n\n" * 60,
}


#: Functions that call the next one twice with something else, of which each keeps the last eight.
DOUBLING = (
    "def g(x): return x\ndef h(x): return x + 1\n"
    + "".join(
        f"def f{n}(x, p0, p1, p2, p3, p4, p5, p6, p7):\n"
        f"    f{n + 1}(x, p1, p2, p3, p4, p5, p6, p7, {{0}})\n    f{n + 1}(x, p1, p2, p3, p4, p5, p6, p7, {{1}})\n"
        for n in range(40)
    )
    + "def f40(x, p0, p1, p2, p3, p4, p5, p6, p7):\n    if p0(x) and p1(x): return p2(x)\n    dist.all_reduce(x)\n"
)


def source(name: str, text: str | bytes, says: str = "", status: int = FOUND) -> Kind:
    """One Python file."""
    return Kind(name, {"a.py": text}, status, says)


def settings(name: str, text: str | bytes, says: str) -> Kind:
    """A configuration that is wrong."""
    return Kind(name, {"ddp-lint.toml": text}, FAILED, says, others=False)


def named(name: str, make: Content, says: str) -> Kind:
    """What is no file, or cannot be read, given by name."""
    return Kind(name, {"a.py": make}, FAILED, says, ("a.py", "good.py"))


def passed_by(name: str, make: Make, path: str = "a.py") -> Kind:
    """What is no file, met in a folder."""
    return Kind(name, {path: make})


def patterns(name: str, *lines: str) -> tuple[Kind, Kind]:
    """Patterns that would take for ever, in .gitignore and in the configuration."""
    listed = ", ".join(f"'{line}'" for line in lines)
    deep = {"a" * 200 + ".py": HEAD, "/".join(["a"] * 60) + "/b.py": HEAD}
    return (
        Kind(f"gitignore: {name}", {".gitignore": "\n".join(lines), **deep}),
        Kind(f"configuration: {name}", {"ddp-lint.toml": f"extend-exclude = [{listed}]", **deep}),
    )


def generators(effect: str) -> str:
    """Generators that hand on each other and themselves: written out they have no end."""
    return f"""{HEAD}class Printer:
    def format(self, x, level):
        if level:
            yield from self.first(x, level)
        yield from self.second(x, level + 1)

    def first(self, x, level):
        for item in x:
            yield from self.second(item, level)
            yield from self.third(item, level + 1)
            yield from self.format(item, level)

    def second(self, x, level):
        for item in x.values():
            yield from self.third(item, level)
            yield from self.first(item, level + 1)
            yield from self.format(item, level)

    def third(self, x, level):
        for item in x:
            yield from self.format(item, level)
            yield from self.first(item, 1)
            yield from self.second(item, 2)
            {effect}
"""


def written_by(test: str) -> str:
    """A file that one rank writes, by a test, and all read."""
    return f"""{HEAD}dist.init_process_group()


def keep(path):
    if {test}:
        torch.save({{}}, path)
    torch.load(path)


keep("a.pt")
"""


def deep(header: str, depth: int = 95) -> str:
    """Blocks in each other, around a collective; `$` is the depth."""
    blocks = "".join(" " * n + header.replace("$", str(n)) + "\n" for n in range(depth))
    return f"{HEAD}{blocks}{' ' * depth}dist.barrier()\n"


def repeated(start: str, step: str, times: int = 90) -> str:
    """A constant that a statement makes anew from itself, and a collective under it."""
    return f"{HEAD}x = {start}\n" + f"{step}\n" * times + f"if x: dist.barrier()\n{RANK}"


def matched(pattern: str) -> str:
    return f"{HEAD}match x:\n    case {pattern}:\n        dist.barrier()\n{RANK}"


def folder(path: pathlib.Path) -> None:
    path.mkdir()


def link(target: str) -> Make:
    return lambda path: path.symlink_to(target)


def unix_socket(path: pathlib.Path) -> None:
    here = pathlib.Path.cwd()
    os.chdir(path.parent)  # its whole path may be too long for a socket
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(path.name)
    os.chdir(here)


def sparse(size: int) -> Make:
    def make(path: pathlib.Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return make


def nested_folders(depth: int, name: str = "d") -> Make:
    """Folders of one name below each other, each with a file in it; their path may be longer than any may be."""

    def make(path: pathlib.Path) -> None:
        path.mkdir()
        at = os.open(path, os.O_RDONLY)
        for _ in range(depth):
            os.close(os.open("b.py", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=at))
            os.mkdir(name, dir_fd=at)
            below = os.open(name, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        os.close(at)

    return make


def committed(*names: str, config: str = "") -> Make:
    """A repository of git, with these files in it."""

    def make(path: pathlib.Path) -> None:
        at, me = path.parent, ("-c", "user.name=a", "-c", "user.email=a@b")
        for command in (("init", "-q"), *((("add", *names), ("commit", "-q", "-m", "a")) if names else ())):
            subprocess.run(("git", *me, *command), cwd=at, check=True)
        with (path / "config").open("a") as file:
            file.write(config)

    return make


def cells(output: object, *sources: str) -> str:
    """A notebook of these cells, each with this output."""
    code = ({"cell_type": "code", "source": source, "outputs": [output]} for source in sources)
    return json.dumps({"cells": list(code), "metadata": {"language_info": {"name": "python"}}, "nbformat": 4})


def tried(depth: int) -> str:
    """Tries in each other that communicate and return in each of their parts."""
    opened = "".join(
        f"{'  ' * (2 * n + 1)}try:\n{'  ' * (2 * n + 2)}if dist.get_rank() == {n}: return dist.barrier()\n"
        f"{'  ' * (2 * n + 2)}if x:\n" for n in range(depth)
    )  # fmt: skip
    closed = "".join(
        f"{'  ' * (2 * n + 1)}except ValueError: return dist.all_reduce(x)\n{'  ' * (2 * n + 1)}else: dist.barrier()\n"
        f"{'  ' * (2 * n + 1)}finally: dist.barrier()\n" for n in reversed(range(depth))
    )  # fmt: skip
    return f"def f(x):\n{opened}{'  ' * (2 * depth + 1)}dist.barrier()\n{closed}"


def gone(path: pathlib.Path) -> None:
    path.unlink()


def accepted(name: str, text: Content, says: str = "b.json is not a baseline") -> Kind:
    """A baseline that is none."""
    return Kind(f"baseline: {name}", {"b.json": text}, FAILED, says, (".", "--baseline", "b.json"), others=False)


def changing(path: pathlib.Path) -> None:
    """The file beside it is written again and again meanwhile, and is never whole for long."""
    code = (
        "import sys, time\nend = time.time() + 3\nwhile time.time() < end:\n"
        "    for text in ('def f(:', sys.argv[2], '', 'x' * 10**6):\n        open(sys.argv[1], 'w').write(text)\n"
    )
    subprocess.Popen([sys.executable, "-c", code, str(path.parent / "a.py"), HEAD + RANK], stderr=subprocess.DEVNULL)


def turning(path: pathlib.Path) -> None:
    """A link beside it leads to a folder, to another one, to nothing and to itself by turns."""
    code = (
        "import os, sys, time\nend = time.time() + 3\nwhile time.time() < end:\n"
        "    for to in ('../p', '../q', '../nowhere', 'link'):\n"
        "        os.symlink(to, sys.argv[1] + '~')\n        os.replace(sys.argv[1] + '~', sys.argv[1])\n"
    )
    subprocess.Popen([sys.executable, "-c", code, str(path.parent / "link")], stderr=subprocess.DEVNULL)


class Harmful:
    """What a pickle of it would run."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (98,)


def twice(depth: int) -> object:
    """Lists of twice the same list: some hundred bytes in a pickle, and for ever to print."""
    found: object = []
    for _ in range(depth):
        found = [found, found]
    return found


def in_itself() -> object:
    found: list[object] = []
    found.append(found)
    return found


def recorded(entry: Mapping[str, object] = MappingProxyType({}), **content: object) -> dict[str, object]:
    """A dump of the Flight Recorder of one call."""
    call = {
        "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "state": "scheduled", "process_group": ("0", "default"),
        "input_sizes": [[4]], "output_sizes": [[4]], "frames": [{"name": "f", "filename": "/x/t.py", "line": 3}],
    }  # fmt: skip
    return {
        "rank": 0,
        "entries": [{**call, **entry}],
        "pg_config": {"0": {"ranks": "[0, 1]"}},
        "version": "2.9",
        **content,
    }


def dumped(name: str, content: object, says: str, status: int = FAILED) -> Kind:
    """A dump that is none: bytes as they are, JSON as text, anything else as a pickle."""
    data = content if isinstance(content, bytes | str) else pickle.dumps(content)
    return Kind(f"dump: {name}", {"fr/rank_0": data}, status, says, ("fr", "--no-source"), verb="diagnose")


def logged(name: str, text: Content, says: str = "", status: int = 0, *args: str, path: str = "a.log") -> Kind:
    return Kind(f"log: {name}", {path: text}, status, says, (*args, path.partition("/")[0]), verb="diagnose")


def raised(text: str, path: str = "/x/train.py", line: str = "3") -> str:
    """A traceback as a log has it."""
    return f'Traceback (most recent call last):\n  File "{path}", line {line}, in main\n    f()\nRuntimeError: {text}\n'


def message(content: object, length: int | None = None, header: str = "Content-Length: {}\r\n\r\n") -> bytes:
    """A message to the language server."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return header.format(len(body) if length is None else length).encode() + body


def request(method: str, number: int | None = None, **params: object) -> bytes:
    asked = {} if number is None else {"id": number}
    return message({"jsonrpc": "2.0", "method": method, "params": params, **asked})


OPENED = request(
    "textDocument/didOpen", textDocument={"uri": "file:///x/a.py", "languageId": "python", "version": 1, "text": GOOD}
)


def sent(name: str, *messages: bytes) -> Kind:
    """Messages to the language server, which must still answer afterwards."""
    first = request("initialize", 1, processId=None, rootUri=None, capabilities={}) + request("initialized")
    data = b"".join((first, *messages, OPENED, request("shutdown", 999), request("exit")))
    return Kind(f"server: {name}", {}, 0, '"id": 999', (), verb="server", stdin=data)


def changed(uri: str = "file:///x/a.py", **change: object) -> bytes:
    return request("textDocument/didChange", textDocument={"uri": uri, "version": 2}, contentChanges=[change])


def place(line: object, character: object) -> dict[str, object]:
    return {"start": {"line": line, "character": character}, "end": {"line": line, "character": character}}


def many(count: int, text: str) -> Make:
    def make(path: pathlib.Path) -> None:
        path.mkdir()
        for n in range(count):
            (path / f"m{n}.py").write_text(text.replace("$0", str(n)).replace("$1", str((n + 1) % count)))

    return make


DIAMONDS = "class A0(nn.Module):\n    pass\n" + "".join(
    f"class B{n}(A{n}):\n    pass\nclass C{n}(A{n}):\n    pass\nclass A{n + 1}(B{n}, C{n}):\n    def forward(self, x):\n"
    "        return x.sum().item()\n"
    for n in range(40)
)
WRAPPED = (
    HEAD + "from torch.nn.parallel import DistributedDataParallel as DDP\ndef train(net, x):\n    model = DDP(net)\n"
)
#: How lines of logs begin.
TIMES = (
    "2026-W48-4T{0}:61:61,99 ERROR x\n", "1732617600.{0}456789 E x\n", "@4000000065a0b0c0000000{0} x\n", "[T+00:{0}] x\n",
    "Thu Nov 26 11:{0}:17 UTC 2026 x\n", "11/26/26 1:{0} PM - x\n", "\u0661\u0662:{0} x\n", "-0001-01-01T00:00:{0}Z x\n",
    "2026-11-26T11:{0}:00.999999999999+99:99 x\n", "I1126 24:{0}:60.000000 1 a.cc:1] x\n", "{0}{0}{0}{0}{0}{0}{0}{0}{0} x\n",
)  # fmt: skip
#: Text that looks like the header of a patch, once a patch adds it.
PATCH = 'x = """\n++ b/good.py\n"""\n'
ODD = os.fsdecode(b"\xff.py")
SETTINGS = """[diff]
    noprefix = true
    mnemonicPrefix = true
    external = false
    interHunkContext = 99
    submodule = log
    renames = copies
[color]
    ui = always
"""
DEEP, LARGE, DECODED = "nested too deeply", "too much data", "cannot be decoded"

KINDS: tuple[Kind, ...] = (
    # ---- patterns
    *patterns("stars between letters", "*a" * 120 + "b"),
    *patterns("stars between folders", "**/" * 60 + "b"),
    *patterns("folders and stars by turns", "/".join(["**", "*a*"] * 40)),
    *patterns("question marks and stars", "?*" * 120 + "z"),
    *patterns("classes and stars", "[!b]*" * 100),
    *patterns("three stars", "***" * 50 + "/***/" + "a***" * 50),
    *patterns("only stars", "*" * 5000 + "x"),
    *patterns("long literal", "a" * 100_000),
    Kind("gitignore: ten thousand patterns", {".gitignore": "".join(f"*a*{n}*b\n" for n in range(10_000))}),
    Kind("gitignore: never closed", {".gitignore": "[a\n!\n\\\n[[:x:]]\n[z-a]\n"}),
    Kind("gitignore: NUL and odd bytes", {".gitignore": b"\0\xff\xfe*\x80\n\x1b[31m\n"}),
    Kind("gitignore: larger than any", {".gitignore": sparse(2**30)}),
    Kind("gitignore: a folder", {".gitignore": folder}),
    Kind("gitignore: a named pipe", {".gitignore": os.mkfifo}),
    Kind("gitignore: a link to a device", {".gitignore": link("/dev/zero")}),
    Kind("git folder: a named pipe for exclude", {".git/info/exclude": os.mkfifo}),
    # ---- what is no file
    named("named: a named pipe", os.mkfifo, "a.py: it is a named pipe, not a file"),
    named("named: a device", link("/dev/zero"), "a.py: it is a device, not a file"),
    named("named: the terminal", link("/dev/tty"), "error: a.py: "),
    named("named: a socket", unix_socket, "error: a.py: "),
    named("named: a broken link", link("nowhere.py"), "error: a.py: no such file"),
    named("named: a link to itself", link("a.py"), "error: a.py: too many levels"),
    named("named: a terabyte", sparse(2**40), "larger than 16 MiB"),
    passed_by("folder: a named pipe", os.mkfifo),
    passed_by("folder: a socket", unix_socket),
    passed_by("folder: a link to a device", link("/dev/zero")),
    passed_by("folder: a link to itself", link("a.py")),
    passed_by("folder: a link to the folder", link(".")),
    passed_by("folder: a folder that is called a file", folder),
    passed_by("folder: a pipe for a shell script", os.mkfifo, "run.sh"),
    Kind("imported: a named pipe", {"b.py": os.mkfifo, "a.py": "from b import f\n" + HEAD + RANK + "f()\n"}),
    Kind("imported: a device", {"b.py": link("/dev/zero"), "a.py": "import b\n" + HEAD + "b.f()\n" + RANK}),
    Kind("imported: a folder", {"b.py": folder, "a.py": "import b\n" + HEAD + "b.f()\n" + RANK}),
    Kind("configuration: a named pipe", {"pyproject.toml": os.mkfifo, "ddp-lint.toml": os.mkfifo}),
    Kind("cache: a named pipe", {".ddp_lint_cache": os.mkfifo}),
    Kind("cache: a file", {".ddp_lint_cache": "x"}),
    Kind("cache: a link out of it", {".ddp_lint_cache": link("/")}),
    Kind("cache: a link to itself", {".ddp_lint_cache": link(".ddp_lint_cache")}),
    # ---- bytes
    source("codec: punycode", "# coding: punycode\nx = 1\n", DECODED, FAILED),
    source("codec: a name without end", "# coding: " + "a" * 100_000 + "\nx = 1\n", "a…", FAILED),
    source("codec: punycode of no ASCII", b"# coding: punycode\nx = '\xff-\xe9'\n", DECODED, FAILED),
    source("codec: idna", b"# coding: idna\nx = '\xff" + b"." * 300, DECODED, FAILED),
    source("codec: undefined", "# coding: undefined\nx = 1\n", DECODED, FAILED),
    source("codec: rot13", "# coding: rot13\nvzcbeg gbepu\n", DECODED, FAILED),
    source("codec: hex", "# coding: hex\n00\n", DECODED, FAILED),
    source("codec: zip", "# coding: zip\n00\n", DECODED, FAILED),
    source("codec: base64", "# coding: base64\n00\n", DECODED, FAILED),
    source("codec: unicode_escape", "# coding: unicode_escape\nx = '\\U99999999'\n", DECODED, FAILED),
    source("codec: raw_unicode_escape", "# coding: raw_unicode_escape\nx = '\\uZZZZ'\n", DECODED, FAILED),
    source("codec: utf-7", "# coding: utf-7\nx = '+AAA'\n"),
    source("codec: utf-16", "# coding: utf-16\nx = 1\n", DECODED, FAILED),
    source("codec: mbcs", "# coding: mbcs\nx = 1\n", DECODED, FAILED),
    source("codec: nobody's", "# coding: nobodys\nx = 1\n", DECODED, FAILED),
    source("codec: a path", "# coding: ../../evil\nx = 1\n", DECODED, FAILED),
    source("codec: a module", "# coding: evil_codec\nx = 1\n", DECODED, FAILED),
    source("codec: very long name", f"# coding: {'a' * 100_000}\nx = 1\n", DECODED, FAILED),
    source("codec: against its mark", b"\xef\xbb\xbf# coding: latin-1\nx = 1\n", DECODED, FAILED),
    source("bytes: NUL", b"x = 1\0\n", "NUL bytes", FAILED),
    source("bytes: UTF-16", "import torch\n".encode("utf-16"), "NUL bytes", FAILED),
    source("bytes: not UTF-8", b"x = '\xff'\n", DECODED, FAILED),
    source("bytes: surrogates in UTF-8", b"x = '\xed\xa0\x80'\n", DECODED, FAILED),
    source("bytes: cut off in a character", b"x = '\xe2\x82", DECODED, FAILED),
    source("bytes: random", bytes(n * 7 % 255 + 1 for n in range(5000)), DECODED, FAILED),
    source("bytes: an archive", b"PK\x03\x04" + bytes(100), "NUL bytes", FAILED),
    source("bytes: only a mark", b"\xef\xbb\xbf"),
    source("bytes: form feeds", HEAD + "\x0c\x0b\x1c" * 3),
    source("bytes: carriage returns", (HEAD + RANK).replace("\n", "\r"), "a.py:5:5: DDP101"),
    source("bytes: line separators", HEAD + f"x = '\u2028\u2029\x85'\n{RANK}", "a.py:6:5: DDP101"),
    source("bytes: backspaces in a comment", HEAD + f"# \b\b\x1b[2J\n{RANK}", "a.py:6:5: DDP101"),
    source("bytes: right to left", HEAD + f"x = '\u202e\u2066'  # \u202e\n{RANK}", "a.py:6:5: DDP101"),
    source("bytes: CR, LF and both in one file", (HEAD.replace("\n", "\r\n") + RANK.replace("\n", "\r")).encode(), "a.py:5:5: DDP101"),
    source("bytes: a mark twice", b"\xef\xbb\xbf" * 2 + (HEAD + RANK).encode(), "a.py:5:5: DDP101"),
    source("bytes: the end of a file of DOS", HEAD + RANK + "\x1a", "DDP000"),
    source("bytes: a comment behind a line separator", HEAD + "x = '\u2028'  # ddp-lint: ignore[DDP101]\n" + RANK, "a.py:4:10: DDP002"),
    source("codec: shift_jis, named on the second line", b"#!/bin/sh\n# vim: set fileencoding=shift_jis :\nx = '\x83\x5c'\n" + (HEAD + RANK).encode(), "a.py:8:5: DDP101"),
    source("codec: on the third line", b"\n\n# coding: latin-1\nx = '\xe9'\n", DECODED, FAILED),
    source("codec: iso2022_jp", b"# coding: iso2022_jp\nx = '\x1b$B$\"\x1b(B'\n" + (HEAD + RANK).encode(), "a.py:7:5: DDP101"),
    source("codec: gb18030", "# coding: gb18030\nx = '\u4e2d\U0001f600'\n".encode("gb18030") + (HEAD + RANK).encode(), "a.py:7:5: DDP101"),
    source("codec: EBCDIC", "# coding: cp037\nx = 1\n", "DDP000"),
    source("codec: charmap", b"# coding: charmap\nx = '\xe9'\n"),
    # ---- too deep
    source("deep: brackets", f"{HEAD}x = {'(' * 5000}{')' * 5000}\n{RANK}", "DDP000"),
    source("deep: brackets never closed", f"{HEAD}x = {'[' * 5000}\n{RANK}", "DDP000"),
    source("deep: a megabyte of brackets", f"{HEAD}x = {'[' * 1_000_000}\n", LARGE),
    source("deep: minus", f"{HEAD}x = {'-' * 20_000}1\n{RANK}", DEEP),
    source("deep: not", f"{HEAD}x = {'not ' * 20_000}1\n{RANK}", DEEP),
    source("deep: attributes", f"{HEAD}x = torch{'.a' * 20_000}\n{RANK}", DEEP),
    source("deep: calls", f"{HEAD}x = torch{'()' * 20_000}\n{RANK}", DEEP),
    source("deep: subscripts", f"{HEAD}x = torch{'[0]' * 20_000}\n{RANK}", DEEP),
    source("deep: sums", f"{HEAD}x = {'1 + ' * 20_000}1\n{RANK}", DEEP),
    source("deep: powers", f"{HEAD}x = {'1 ** ' * 5000}1\n{RANK}", DEEP),
    source("deep: a condition of 3,000 terms", f"{HEAD}if {'x and ' * 3000}y:\n    dist.barrier()\n{RANK}", DEEP),
    source(
        "deep: a condition over many lines",
        HEAD + "def f(x):\n    if (\n" + "  x[1] > 0 and\n" * 2000 + "  x): pass\n" + RANK,
        DEEP,
    ),
    source("deep: 400 terms", f"{HEAD}def f(x):\n    if {'x > 0 and ' * 400}x:\n        dist.barrier()\n"),
    source("deep: 400 terms of or", f"{HEAD}def f(x):\n    while {'x.item() or ' * 400}x:\n        dist.barrier()\n"),
    source("deep: 400 sums", f"{HEAD}class N(nn.Module):\n  def forward(self, x):\n    return {'x + ' * 400}x\n"),
    source("deep: 400 calls", f"{HEAD}def f(x):\n    y = x{'.sum()' * 400}\n    dist.all_reduce(y)\n"),
    source("deep: 90 calls in each other", f"{HEAD}def f(x):\n    y = {'torch.log(' * 90}x{')' * 90}\n"),
    source("deep: lambdas", f"{HEAD}x = {'lambda: ' * 5000}1\n{RANK}", "DDP000"),
    source("deep: conditional expressions", f"{HEAD}x = {'1 if x else ' * 3000}1\n{RANK}", DEEP),
    source("deep: comprehensions", f"{HEAD}x = [{' '.join(f'for x{n} in y' for n in range(3000))}]\n", "DDP000"),
    source("deep: a comprehension of 3,000", f"{HEAD}x = [y {'for a in b ' * 3000}]\n{RANK}"),
    source("deep: elif", HEAD + "if 1: pass\n" + "elif 1: pass\n" * 3000 + RANK, DEEP),
    source("deep: indents", HEAD + "".join(" " * n + "if 1:\n" for n in range(300)) + " " * 300 + "pass\n", "DDP000"),
    source("deep: functions", HEAD + "".join(" " * n + f"def f{n}():\n" for n in range(90)) + " " * 90 + "dist.barrier()\n"),
    source("deep: classes", HEAD + "".join(" " * n + f"class C{n}(nn.Module):\n" for n in range(90)) + " " * 90 + "x = 1\n"),
    source("deep: strings side by side", HEAD + "x = (\n" + "'a'\n" * 5000 + f")\n{RANK}"),
    source("deep: f-strings", HEAD + "x = " + 'f"{' * 300 + "1" + '}"' * 300 + "\n", "DDP000"),
    source("deep: decorators", HEAD + "@torch.no_grad()\n" * 3000 + "def f(): pass\n" + RANK, ":3006:5: DDP101"),
    source("deep: starred", f"{HEAD}x = {'*' * 3000}y\n", "DDP000"),
    source("deep: await", f"{HEAD}async def f():\n    {'await ' * 3000}x\n", "DDP000"),
    source("deep: walrus", f"{HEAD}x = {'(y := ' * 190}1{')' * 190}\n{RANK}", "DDP101"),
    source("deep: types", f"{HEAD}x: {'list[' * 190}int{']' * 190} = 1\n{RANK}", "DDP101"),
    source("deep: quoted types", f"{HEAD}def f(x: '{'list[' * 3000}'): x.item()\n{RANK}", "DDP101"),
    source("deep: matches", HEAD + f"match x:\n    case {'(' * 5000}1{')' * 5000}: pass\n", "DDP000"),
    source("deep: patterns in lists", matched("[" * 60 + "y" + "]" * 60), DEEP),
    source("deep: patterns in mappings", matched("{'}': " * 40 + "y" + "}" * 40), DEEP),
    source("deep: patterns in classes", matched("A(b=" * 60 + "y" + ")" * 60), DEEP),
    source("deep: patterns in brackets", matched("(" * 60 + "y" + ")" * 60), DEEP),
    source("deep: patterns beside each other", matched(f"[{('[' * 12 + 'y' + ']' * 12 + ', ') * 500}]"), DEEP),
    source("deep: patterns around strings", matched('["""\ncase )""", ' * 60 + "y" + "]" * 60), DEEP),
    source("deep: patterns of new syntax", f"type X[T = int] = T\n{matched('[' * 60 + 'y' + ']' * 60)}", "DDP000"),
    source("deep: patterns over many lines", matched("[\n" * 60 + "y" + "]" * 60), DEEP),
    source("deep: a guard", matched(f"y if {'(' * 90}dist.get_rank() == 0{')' * 90}"), "good.py"),
    source("deep: whiles", deep("while x > $:") + RANK),
    source("deep: with statements", deep("with a$ as b$:") + RANK),
    source("deep: matches in each other", HEAD + "".join(f"{' ' * 2 * n}match x:\n{' ' * 2 * n} case {n}:\n" for n in range(48)) + " " * 96 + "dist.barrier()\n" + RANK),
    source("deep: finally in each other", deep("try:", 19) + "".join(f"{' ' * n}finally:\n{' ' * n} dist.barrier()\n" for n in reversed(range(19))) + RANK),
    source("deep: else of loops in each other", HEAD + "def f(xs, x):\n" + "".join(f"{' ' * n}for i in xs:\n" for n in range(1, 19)) + " " * 19 + "if x: break\n" + "".join(f"{' ' * n}else:\n{' ' * n} dist.all_reduce(x)\n" for n in reversed(range(1, 19))) + RANK),
    source("deep: patterns", f"{HEAD}match x:\n    case {' | '.join('12345')}{' | 1' * 3000}: pass\n{RANK}"),
    Kind(
        "deep: what is fixed beside it", {"a.py": f"x = 1  # ddp-lint: ignore[DDP101]\ny = {'-' * 20_000}1\n"},
        says="1 finding fixed", args=(".", "--fix"),
    ),
    # ---- statements of every sort
    source("match: a thousand cases", HEAD + "def f(x):\n  match x:\n" + "".join(f"    case [{n}, *_]: dist.all_reduce(x)\n" for n in range(1000)) + RANK, "a.py:1007:5: DDP101"),
    source("match: a mapping of thousands", matched("{" + ", ".join(f"'{n}': a{n}" for n in range(3000)) + ", **r}"), "a.py:8:5: DDP101"),
    source("match: guards by rank", HEAD + "def f(x):\n  match x:\n" + "".join(f"    case {n} if dist.get_rank() == {n}: dist.barrier()\n" for n in range(300)) + RANK, "a.py:307:5: DDP101"),
    Kind(
        "syntax: of Python 3.12", {"a.py": f"{HEAD}class A[T]:\n    pass\n{RANK}"}, args=(".", "-v"),
        says="no collective of it was analysed" if sys.version_info < (3, 12) else "a.py:7:5: DDP101",
    ),
    source("syntax: Python 2", "print 'x'\nexec 'y'\nraise E, 'z'\n`x`\n0777\nur'x'\n", "DDP000"),
    source("syntax: tabs and spaces", HEAD + "if 1:\n\tx\n        y\n" + RANK, "DDP000"),
    source("syntax: a dedent to nowhere", HEAD + "if 1:\n        x\n    y\n" + RANK, "DDP000"),
    source("syntax: a backslash at the end", HEAD + RANK + "x = 1 \\", "a.py"),
    source("syntax: statements out of place", HEAD + RANK + "return 1\nyield 2\nbreak\ncontinue\nnonlocal q\n", "a.py:5:5: DDP101"),
    source("syntax: del and walrus by turns", HEAD + "def f(x):\n" + "  del x\n  (x := dist.get_rank())\n  if x == 0: dist.barrier()\n" * 100 + RANK, "a.py:306:5: DDP101"),
    *(
        source(f"syntax: {name}", f"{HEAD}{text}\n{RANK}", "DDP")
        for name, text in {
            "f-strings of Python 3.12": 'x = f"{"a" + f"{1}"}"', "types of Python 3.12": "type X[*T, **P] = int",
            "defaults of types": "class A[T = int]: pass", "templates": 't"{dist.get_rank()}"',
            "except without brackets": "try: pass\nexcept A, B: dist.barrier()",
            "groups of exceptions": "def f(x):\n" + "  try: dist.barrier()\n  except* E as e: dist.all_reduce(e)\n" * 300,
            "coroutines": "async def f(x):\n" + "  async for a in x:\n    async with a as b, b as c: yield dist.barrier()\n" * 200,
            "a class of its own metaclass": "class M(type(M)): pass\nclass A(metaclass=A): pass\nclass B(*[B], **{}): pass",
            "decorators of every form": "@f\ndef f(): dist.barrier()\n@(lambda g: g)\n@f()()()\n@f[0].x\ndef g(): pass",
            "defaults of itself": "def f(a=lambda: f(), b=[f]): return f(f, b=f)\nf(*f, **f)",
            "numbers that do not exist": "x = (1 << -1) + 1 % 0 + 0 ** -1 + 1 // 0 + 1j ** 1e308j\nif x: dist.barrier()",
            "texts that have no end": "x = 'a'.center(10 ** 10).zfill(10 ** 10)\ny = 'a'.join(['b'] * 10 ** 9)\n"
            "z = 'a'.replace('', 'x' * 10 ** 8)\nif x or y or z or f'{1:>999999999}': dist.barrier()",
        }.items()
    ),
    # ---- chains
    source("chain: lambdas that call each other", HEAD + "f0 = lambda: dist.barrier()\n" + "".join(f"f{n + 1} = lambda: f{n}()\n" for n in range(1000)) + RANK, "a.py:1006:5: DDP101"),
    source("chain: partials", HEAD + "import functools\np0 = dist.barrier\n" + "".join(f"p{n + 1} = functools.partial(p{n})\n" for n in range(1000)) + RANK, "a.py:1007:5: DDP101"),
    source("chain: one decorator many times", HEAD + "def d(f):\n  def w(*a): return f(*a)\n  return w\n" + "@d\n" * 400 + "def g(): dist.barrier()\nif dist.get_rank() == 0: g()\n" + RANK, ":5: DDP101"),
    source("chain: properties", HEAD + "class N(nn.Module):\n" + "".join(f"  @property\n  def p{n + 1}(self): return self.p{n}\n" for n in range(500)) + "  def forward(self, x):\n    if self.p500 == 0: dist.barrier()\n" + RANK, ":5: DDP101"),
    source("chain: super", HEAD + "class C0:\n  def f(self): dist.barrier()\n" + "".join(f"class C{n + 1}(C{n}):\n  def f(self): super().f()\n" for n in range(300)) + RANK, "a.py:607:5: DDP101"),
    source("chain: managers of contexts", HEAD + "import contextlib\n" + "".join(f"@contextlib.contextmanager\ndef c{n + 1}():\n  with c{n}(): yield\n" for n in range(300)) + RANK, "a.py:906:5: DDP101"),
    source("chain: generators", HEAD + "def g0():\n  dist.barrier()\n  yield\n" + "".join(f"def g{n + 1}():\n  yield from g{n}()\n" for n in range(300)) + RANK, "a.py:608:5: DDP101"),
    source("chain: recursion that doubles", HEAD + "def f(n, x):\n  if n == 0: dist.all_reduce(x)\n  f(n - 1, x)\n  return f(f(n - 1, x), f(n - 2, x))\nif dist.get_rank() == 0: f(100, x)\n" + RANK, "a.py:10:5: DDP101"),
    source("chain: ten that call each other", HEAD + "".join(f"def f{n}(a, b, c):\n" + "".join(f"  if a > {m}: f{m}(b, c, a + 1)\n" for m in range(10)) + "  dist.all_reduce(a)\n" for n in range(10)) + "f0(1, dist.get_rank(), 2)\n" + RANK, "a.py:126:5: DDP101"),
    source("chain: tuples that double", HEAD + "def f(x):\n  a = (x, x)\n" + "  a = (a, a)\n" * 300 + "  if a: dist.barrier()\n" + RANK, "a.py:308:5: DDP101"),
    source("chain: dictionaries that double", HEAD + "def f(x):\n  d0 = {'a': x}\n" + "".join(f"  d{n + 1} = {{'a': d{n}, 'b': d{n}}}\n" for n in range(60)) + "  if d60['a']['b']: dist.barrier()\n" + RANK, "a.py:68:5: DDP101"),
    source("chain: lists that double", HEAD + "x = [dist.get_rank()]\n" + "x = x + x\n" * 60 + "if x[0]: dist.barrier()\n" + RANK, "a.py:67:5: DDP101"),
    source("chain: a text that doubles", repeated("'a'", "x = x + x"), "a.py:97:5: DDP101"),
    source("chain: a text that doubles in place", repeated("'a'", "x += x"), "a.py:97:5: DDP101"),
    source("chain: a number that is squared", repeated("3", "x = x * x"), "a.py:97:5: DDP101"),
    source("chain: a number that is squared in place", repeated("3", "x *= x"), "a.py:97:5: DDP101"),
    source("chain: a format in place", repeated("'%90000000000d'", "x %= 1"), "a.py:97:5: DDP101"),
    source("chain: constants in each other", repeated("(1,)", "x = (x, x)", 60), "a.py:67:5: DDP101"),
    source("chain: methods beside a write in place", HEAD + "class N(nn.Module):\n  def forward(self, x, y):\n    x.add_(1)\n    return x" + ".m(y)" * 60 + "\n" + RANK, "a.py:9:5: DDP101"),
    source("chain: flags of flags", HEAD + "def f(p, q):\n" + "  p = p and q\n  q = q or p\n" * 40 + "  if q: dist.barrier()\n" + RANK, "a.py:87:5: DDP101"),
    source("chain: pairs of pairs", HEAD + "def f(x, p, q):\n  x.add_(1)\n" + "  p, q = (q, p), (p, q)\n" * 40 + "  for v in p: dist.all_reduce(v)\n" + RANK, "a.py:48:5: DDP101"),
    source("chain: names that are set to each other", HEAD + "def f(p, q):\n" + "  (p, q), r = (q, p), q\n  p = r\n" * 60 + "  p.step()\n  p.share_memory_()\n  dist.init_process_group(rank=p)\n" + RANK, "a.py:129:5: DDP101"),
    source("chain: walrus in the name of a file", f"{HEAD}def main(x, y):\n  dist.init_process_group()\n  y = x\n  open({''.join(f'(w{n} := ' for n in range(150))}y{')' * 150}, 'w')\n{RANK}", "DDP101"),
    source("chain: loops in loops", HEAD + "def f(x, ddp, opt):\n  ddp = nn.parallel.DistributedDataParallel(ddp)\n  ddp(x).backward()\n  ddp(x).backward()\n" + "".join(f"  {' ' * n}for v{n} in x:\n" for n in range(28)) + " " * 31 + "ddp(x)\n" + RANK, "a.py:38:5: DDP101"),
    # ---- too large
    source("large: a text that is repeated", repeated("'a' * 90000000000", "x"), "a.py:97:5: DDP101"),
    source("large: a tuple that is repeated", repeated("90000000000 * (0, 1)", "x"), "a.py:97:5: DDP101"),
    source("large: a range", f"{HEAD}for i in range(99999999999999999999): dist.barrier()\n{RANK}", "a.py:6:5: DDP101"),
    source("large: a range to a float", f"{HEAD}for i in range(int(1e308)): dist.barrier()\n{RANK}", "a.py:6:5: DDP101"),
    source("large: a literal of 5 MB", f"{HEAD}x = [{'1, ' * 1_700_000}]\n{RANK}", LARGE),
    source("large: names of 2 MB", f"{HEAD}x = [{'torch,' * 300_000}]\n{RANK}"),
    source("large: brackets of 5 MB", f"{HEAD}x = [{'[],' * 1_700_000}]\n{RANK}", LARGE),
    source("large: a line of imports", f"{HEAD}x = '{'import ' * 1_400_000}'\n{RANK}", "a.py:6:5: DDP101"),
    source("large: a line of wrappers", f"{HEAD}x = '{'DataParallel ' * 700_000}'\n{RANK}", "a.py:6:5: DDP101"),
    Kind(
        "large: imports that never end",
        {"a.py": "from x import (\n" * 100_000, "b.py": "from a import barrier, rank\nif rank == 0:\n    barrier()\n"},
    ),
    source("large: a megabyte of statements", HEAD + "dist\n" * 200_000),
    source("large: a string of 10 MB", f"{HEAD}x = '{'a1+/' * 2_500_000}'\n{RANK}"),
    source("large: a comment of 10 MB", f"{HEAD}# {'dist.barrier() ' * 700_000}\n{RANK}"),
    source("large: a line of a megabyte", f"{HEAD}x = [{'1, ' * 350_000}]\n{RANK}", "a.py:6:5: DDP101"),
    source("large: a number of 100,000 digits", f"{HEAD}x = {'9' * 100_000}\n{RANK}", "DDP000"),
    source("large: a hexadecimal number", f"{HEAD}x = 0x{'f' * 100_000}\n{RANK}", "a.py:6:5: DDP101"),
    source("large: an exponent", f"{HEAD}x = 1e999999999\ny = 10 ** 10 ** 10\n{RANK}", "a.py:7:5: DDP101"),
    source("large: a shift", f"{HEAD}for i in range(1 << 10 ** 9):\n    dist.barrier()\nx = 'a' * 10 ** 12\n{RANK}", "DDP101"),
    source("large: a name of a megabyte", f"{HEAD}{'a' * 1_000_000} = 1\n{RANK}", "a.py:6:5: DDP101"),
    source("large: blank lines", HEAD + "\n" * 2_000_000 + RANK, "a.py:2000005:5: DDP101"),
    source("large: spaces", HEAD + " " * 5_000_000 + "\n" + RANK, "a.py:6:5: DDP101"),
    source("syntax: a backslash before an empty line", "import os\nimport torch\nx = torch.load('a') \\\n\ny = 1\nif x:\n    pass\n\n\ndef f():\n    try:\n        g()\n    finally:\n        os._exit(0)\n", "DDP501"),
    source("large: a backslash a line", HEAD + "x = 1 + \\\n" * 400 + "1\n" + RANK, ":5: DDP101"),
    source("large: semicolons", HEAD + "x=1;" * 20_000 + "\n" + RANK, "a.py:6:5: DDP101"),
    source("large: 17 MB", HEAD + "#" * (17 * 2**20), "larger than 16 MiB", FAILED),
    # ---- costs with the square
    source("many: forwards in a row", WRAPPED + "    y = model(x)\n" * 1500 + "    y.sum().backward()\n"),
    source("many: assignments in a chain", HEAD + "def f(x0):\n" + "".join(f"    x{n + 1} = x{n}\n" for n in range(2000))),
    source("many: noqa", HEAD + "x = 1  # noqa: DDP101\n" * 3000, "a.py:4:8: DDP002"),
    source("many: comments that ignore", HEAD + "x = 1  # ddp-lint: ignore[DDP101]\n" * 3000, "a.py:4:8: DDP002"),
    source("many: comments above one statement", HEAD + "# ddp-lint: ignore[DDP101]\n" * 1000 + RANK, "DDP002"),
    source("many: codes in a comment", HEAD + f"x = 1  # noqa: {', '.join(f'DDP{n}' for n in range(100, 2000))}\n", "DDP002"),
    source("many: marks in a comment", HEAD + f"x = 1  {'# noqa ' * 3000}\n{RANK}", "a.py:6:5: DDP101"),
    source("many: findings", HEAD + RANK * 400, "a.py:5:5: DDP101"),
    source("many: calls in reverse", HEAD + "".join(f"def f{n + 1}():\n    f{n}()\n" for n in reversed(range(1000))) + RANK),
    source("many: calls in a ring", HEAD + "".join(f"def f{n}():\n    f{(n + 1) % 300}()\n" for n in range(300)) + RANK + "f0()\n"),
    *(
        source(f"many: calls that double by what they pass: {given[0]}", HEAD + DOUBLING.format(*given) + RANK, "DDP101")
        for given in (("g", "h"), ("(p0, g)", "(p1, h)"), ("dist.get_rank() == 0", "dist.get_rank() > 1"))
    ),
    source("many: calls that double", HEAD + "".join(f"def f{n + 1}():\n    f{n}()\n    f{n}()\n" for n in range(60)) + "def f0():\n    dist.barrier()\nif dist.get_rank() == 0:\n    f60()\n", "DDP101"),
    source("many: branches that double", HEAD + "def f(c, x):\n" + "".join(f"    if c[{n}]:\n        dist.all_reduce(x)\n" for n in range(400)) + RANK),
    source("many: diamonds of classes", HEAD + DIAMONDS + RANK, "DDP101"),
    source("many: classes in a ring", HEAD + "class A(B): pass\nclass B(A):\n  def forward(self, x): return x.item()\n" + RANK, "DDP101"),
    source("many: a class that inherits from itself", HEAD + "class A(A): pass\n" + RANK, "DDP101"),
    source("many: names for each other", HEAD + "a = b\nb = a\nif a == 0:\n    dist.barrier()\n" + RANK, "DDP101"),
    source("many: keys of a dictionary", HEAD + "D = {" + "".join(f"'k{n}': torch,\n" for n in range(5000)) + "}\n" + RANK, "DDP101"),
    source("many: parameters", HEAD + f"def f({', '.join(f'p{n}=1' for n in range(3000))}): dist.barrier()\n" + RANK, "DDP101"),
    source("many: targets", HEAD + f"{'x = ' * 2000}1\n" + RANK, "DDP101"),
    source("many: loops in each other", HEAD + "".join(" " * n + f"for i{n} in x:\n" for n in range(19)) + " " * 19 + "dist.barrier()\n"),
    source("many: try in each other", HEAD + "".join(" " * n + "try:\n" for n in range(19)) + " " * 19 + "dist.barrier()\n" + "".join(" " * n + "except E: dist.barrier()\n" for n in reversed(range(19)))),
    source("many: with in each other", HEAD + "".join(" " * n + "with torch.no_grad():\n" for n in range(19)) + " " * 19 + "dist.barrier()\n"),
    source("many: imports of oneself", "from a import *\nfrom a import x as y\nimport a\n" + HEAD + RANK, "DDP101"),
    source("many: globals", HEAD + "def f():\n    global " + ", ".join(f"g{n}" for n in range(3000)) + "\n    dist.barrier()\n" + RANK),
    source("many: functions of a module", HEAD + "".join(f"def f{n}(): pass\n" for n in range(25_000)) + RANK, "DDP101"),
    source("many: lambdas", HEAD + "".join(f"f{n} = lambda x: f{n - 1}(x)\n" for n in range(8000)) + RANK, "DDP101"),
    source("many: returns through finally", HEAD + "def f(x):\n" + "  try:\n    return dist.barrier()\n  except E: pass\n  finally: x = 1\n" * 800 + RANK, "DDP101"),
    source("many: parameters in a docstring", HEAD + 'def f(x):\n  """\n' + "  x : Optional[a.B]\n" * 20_000 + '  """\n' + RANK, "DDP101"),
    # ---- standard input, formats, and arguments
    Kind("stdin: NUL", {}, FAILED, "stdin.py: the file has NUL bytes", ("-",), others=False, stdin=b"x = 1\0\n"),
    Kind("stdin: no UTF-8", {}, FAILED, "stdin.py: the file cannot be decoded", ("-",), others=False, stdin=b"x = '\xff'\n"),
    Kind("stdin: nothing", {}, 0, "", ("-",), others=False),
    Kind("stdin: a mark, and returns", {}, FOUND, "4:5: DDP101", ("-",), others=False, stdin=b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()),
    Kind("stdin: of a name over two lines", {}, FOUND, "4:5: DDP101", ("-", "--stdin-filename", "\x1b[31m\n::error::x.py"), others=False, stdin=GOOD.encode()),
    Kind("stdin: of a folder's name", {"d": folder}, FOUND, "4:5: DDP101", ("-", "--stdin-filename", "d"), others=False, stdin=GOOD.encode()),
    Kind("stdin: 17 MB", {}, FAILED, "16 MiB", ("-",), others=False, stdin=b"#" * (17 << 20)),
    Kind("stdin: fixed, though it is none", {}, FOUND, "def (", ("-", "--fix"), others=False, stdin=b"def (\n"),
    Kind("stdin: a notebook that is none", {}, FAILED, "notebook", ("-", "--stdin-filename", "a.ipynb"), others=False, stdin=b"[[[["),
    *(
        Kind(f"format: {format}", {"\x1b]0;<b>&\a\n::error::x.py": HEAD + "if dist.get_rank() == '\x1b[31m<script>':\n    dist.barrier()\n"}, args=(".", "--output-format", format), says="DDP101", others=False)
        for format in ("json", "junit", "gitlab", "full")
    ),
    Kind("settings: 3,000 patterns of files", {"ddp-lint.toml": "[per-file-ignores]\n" + "".join(f'"**/m{n}*/**/x*.py" = ["DDP101"]\n' for n in range(3000))}),
    Kind("settings: two of them", {"ddp-lint.toml": "", "pyproject.toml": "[tool.ddp-lint]\nselect = 5\n"}),
    Kind("settings: of the folder above", {"d/a.py": HEAD + RANK, "d/pyproject.toml": "[tool.ddp-lint]\nselect = ['DDP999']\n"}, FAILED, "DDP999"),
    Kind("comments: on a line that is continued", {"a.py": HEAD + "if dist.get_rank() == 0: \\\n    dist.barrier()  # noqa: DDP101\n"}),
    Kind("jobs: more than there are", {}, args=(".", "--jobs", "9" * 40)),
    Kind("since: an option", {}, FAILED, "git fails: not a git repository", (".", "--since", "--output=x"), others=False),
    Kind("why: a line of many digits", {}, FAILED, "good.py has no line 999", ("--why", "good.py:" + "9" * 5000), others=False),
    # ---- many files
    Kind("files: folders in each other", {"d": nested_folders(250)}),
    Kind("files: folders deeper than can be followed", {"d": nested_folders(300)}, FAILED, "it is nested too deeply"),
    Kind("files: folders deeper than a path is long", {"d": nested_folders(50, "d" * 99)}, FAILED, "file name too long"),
    Kind("files: that import each other in a ring", {"d": many(200, f"from d.m$1 import f as g\n{HEAD}def f():\n    g()\n{RANK}")}),
    Kind("files: that pass on each other's names", {"d": many(100, f"from d.m$1 import *\n{HEAD}x()\n{RANK}")}),
    Kind("files: a name that is long", {"a" * 250 + ".py": HEAD + RANK}, FOUND, "aaa.py:5:5: DDP101"),
    Kind("files: a name of control characters", {"\x1b[31m\a\b\x7f\x9b.py": HEAD + RANK}, FOUND, "[31m"),
    Kind("files: a name over two lines", {"x\n::error::y\r.py": HEAD + RANK}, FOUND, "5:5: DDP101"),
    Kind("files: a name of no UTF-8", {os.fsdecode(b"\xff\xfe.py"): HEAD + RANK}, FOUND, "\\udcff\\udcfe.py:5:5"),
    Kind("files: a name like an option", {"--fix.py": HEAD + RANK}, FOUND, "--fix.py:5:5: DDP101"),
    Kind("files: a name like a pattern", {"[*].py": HEAD + RANK}, FOUND, "[*].py:5:5: DDP101"),
    Kind("files: a name from right to left", {"\u202egpj.py": HEAD + RANK}, FOUND, ":5:5: DDP101"),
    Kind("files: a name with dots", {"a.b.c/...py": HEAD + RANK}, FOUND, "...py:5:5: DDP101"),
    Kind("files: links in a ring", {"d/x.py": HEAD + RANK, "d/e": link("../f"), "f": link("d")}, says="d/x.py:5:5: DDP101"),
    Kind("files: a chain of links", {**{f"l{n}.py": link(f"l{n + 1}.py") for n in range(50)}, "l50.py": HEAD + RANK}),
    passed_by("files: a link to a process's memory", link("/proc/self/mem")),
    passed_by("files: a link to the messages of the kernel", link("/proc/kmsg")),
    passed_by("files: a link to standard input", link("/proc/self/fd/0")),
    Kind("files: of one name but for its case", {"A.py": HEAD + RANK, "a.py": HEAD + RANK}, says="A.py:5:5: DDP101"),
    Kind("files: imported over 3,000 levels", {"a.py": f"from {'.' * 3000} import x\nimport {'.'.join('a' * 9999)}\n{HEAD}{RANK}"}, says="a.py:7:5: DDP101"),
    Kind("files: a repository within itself", {".git": "gitdir: " + "../" * 5000 + ".git\n"}),
    Kind("files: named with a NUL", {}, FAILED, "null", ("a\0b.py", "good.py")),
    Kind("files: a name of nothing", {}, FAILED, "error: ", ("", "good.py")),
    # ---- names
    source("names: of a class, with escapes", HEAD + "x = '\x1b]0;evil\a'\n" + RANK.replace("0", "'\x1b[31m'"), ""),
    source("names: composed and not", HEAD + "e\u0301 = dist.get_rank()\nif \u00e9 == 0:\n    dist.barrier()\n", "a.py:6:5: DDP101"),
    source("names: as wide as two", HEAD + "if dist.\uff47\uff45\uff54_rank() == 0:\n    dist.barrier()\n", "a.py:5:5: DDP101"),
    source("names: like our own", HEAD + "class Module: pass\nclass torch: pass\ndef print(): dist.barrier()\n" + RANK),
    source("names: of other alphabets", HEAD + "def 𝒻(𝓍): dist.barrier()\n𝒻(1)\nª = 1\n" + RANK, "DDP101"),
    # ---- configuration
    settings("settings: nested lists", f"exclude = {'[' * 5000}{']' * 5000}", "nested too deeply"),
    settings("settings: nested tables", f"x = {'{a = ' * 3000}1{'}' * 3000}", "nested too deeply"),
    settings("settings: a key of many parts", f"{'a.' * 50_000}a = 1", "too many parts"),
    settings("settings: a key of some parts", f"exclude{'.a' * 90} = 1", "ddp-lint.toml:1: 'exclude' must be"),
    settings("settings: a table of many parts", f"[{'a.' * 50_000}a]", "too many parts"),
    settings("settings: larger than any", b"#" * (2 * 2**20), "larger than 1 MiB"),
    settings("settings: a string of a megabyte", f"exclude = '{'a' * 1_000_000}'", "ddp-lint.toml:1: 'exclude' must be"),
    settings("settings: no UTF-8", b"exclude = '\xff'", "ddp-lint.toml: cannot be read"),
    settings("settings: NUL", b"exclude = '\0'", "ddp-lint.toml: not valid TOML"),
    settings("settings: an escape in a key", '"\\u001b[31m" = 1', "unknown key"),
    settings("settings: a bad pattern", "exclude = [\n'a', 'b\\']", "ddp-lint.toml:1: in 'exclude': the pattern"),
    settings("settings: a pattern never closed", "\nextend-exclude = ['[a']", "ddp-lint.toml:2: in 'extend-exclude'"),
    settings("settings: a bad pattern of files", "[per-file-ignores]\n'!' = ['DDP1']", "ddp-lint.toml:1: in 'per-file-ignores'"),
    settings("settings: a number of many digits", f"select = {'9' * 10_000}", "ddp-lint.toml"),
    settings("settings: a rule of a megabyte", f"select = ['{'x' * 500_000}']", "no rule is called"),
    settings("settings: UTF-16", "select = []".encode("utf-16"), "ddp-lint.toml"),
    settings("settings: a date", "select = 1979-05-27", "ddp-lint.toml:1: 'select' must be"),
    settings("settings: no name", "'' = 1", "ddp-lint.toml"),
    Kind("settings: 100,000 rules", {"ddp-lint.toml": "select = [" + "'DDP101'," * 100_000 + "]"}),
    Kind("settings: a configuration in every folder", {f"{'d/' * n}ddp-lint.toml": "" for n in range(1, 100)}),
    Kind("settings: thousands of own names", {"ddp-lint.toml": f"rank-expressions = [{', '.join(f'{chr(34)}a.b{n}.rank{chr(34)}' for n in range(3000))}]", "a.py": HEAD + "if x.rank == 0: dist.barrier()\n" * 50}),
    Kind("settings: thousands of files to ignore", {"ddp-lint.toml": "[per-file-ignores]\n" + "".join(f"'*a*{n}*' = ['DDP1']\n" for n in range(3000))}),
    Kind("settings: a bad pattern on the command line", {}, FAILED, "matches nothing", ("--exclude", "[a", "."), others=False),
    settings("settings: a file name with NUL", 'baseline = "\\u0000"', "'baseline' must be the name of a file"),
    Kind("settings: named, without an end", {}, FAILED, "larger than 1 MiB", (".", "--config", "/dev/zero"), others=False),
    # ---- baselines
    accepted("nested", "[" * 200_000),
    accepted("a list", "[]"),
    accepted("rows that are none", '{"version": 1, "findings": [1, null]}'),
    accepted("not UTF-8", b"\xff\xfe{\0"),
    accepted("a number of many digits", f'{{"version": {"9" * 5000}}}'),
    accepted("a named pipe", os.mkfifo, "b.json cannot be read: it is a named pipe"),
    accepted("without an end", link("/dev/zero"), "b.json cannot be read: it is a device"),
    accepted("larger than any", sparse(2**30), "b.json cannot be read: it is larger than 64 mib"),
    Kind(
        "baseline: names that no file can have", {"b.json": json.dumps({"version": 1, "findings": [
            {"path": path, "code": "DDP101", "fingerprint": "x", "message": "\x1b[31m"}
            for path in ("a/" * 5000, "\0", "\ud800", "")
        ]})}, args=(".", "--baseline", "b.json"),
    ),
    Kind(
        "baseline: written outside, by a name", {"ddp-lint.toml": "baseline = '../b.json'"}, FAILED, "lies outside of",
        (".", "--write-baseline"), others=False,
    ),
    Kind(
        "baseline: written outside, by a link",
        {"d/.git": folder, "d/out": link("../.."), "d/ddp-lint.toml": "baseline = 'out/b.json'", "d/a.py": HEAD + RANK},
        FAILED, "lies outside of", ("d", "--write-baseline"), others=False,
    ),
    # ---- git
    Kind(
        "git: a header of a patch in the text", {"a.py": "x = 1\n", ".git": committed("a.py"), "./a.py": PATCH + HEAD + RANK},
        says="a.py:8:5: DDP101", args=(".", "--since", "HEAD"),
    ),
    Kind("git: no repository", {}, FAILED, "git fails", (".", "--since", "HEAD"), others=False),
    Kind("git: a repository without anything", {".git": folder}, FAILED, "git fails", (".", "--since", "HEAD"), others=False),
    Kind("git: before the first commit", {".git": committed()}, args=(".", "--since", "HEAD")),
    Kind("git: a file that became a link to itself", {"a.py": "x = 1\n", ".git": committed("a.py"), "./a.py": gone, "././a.py": link("a.py")}, args=(".", "--since", "HEAD")),
    Kind("git: a file that became a named pipe", {"a.py": "x = 1\n", ".git": committed("a.py"), "./a.py": gone, "././a.py": os.mkfifo}, FAILED, "git fails: error: a.py: unsupported", (".", "--since", "HEAD"), others=False),
    Kind("git: a name over two lines", {"x\ny\".py": "", ".git": committed("."), "./x\ny\".py": HEAD + RANK, "good.py": GOOD + "\n"}, says="y\".py:5:5: DDP101", args=(".", "--since", "HEAD"), others=False),
    Kind("git: a name of no UTF-8", {ODD: "", ".git": committed("."), f"./{ODD}": HEAD + RANK}, says="\\udcff.py:5:5: DDP101", args=(".", "--since", "HEAD"), others=False),
    Kind("git: odd settings", {"a.py": "x = 1\n", ".git": committed("a.py", config=SETTINGS), "./a.py": HEAD + RANK}, says="a.py:5:5: DDP101", args=(".", "--since", "HEAD")),
    # ---- other than Python
    Kind("shell: never closed", {"run.sh": "#!/bin/bash\necho '$(`\"" + "(" * 5000}),
    Kind("shell: long lines", {"run.sh": "#!/bin/bash\n" + "export A=1 " * 50_000 + "\n"}),
    Kind("shell: backslashes", {"run.sh": "#!/bin/bash\nexport NCCL_DEBUG=INFO " + "\\\n" * 20_000 + "\n"}),
    Kind("shell: quotes", {"run.sh": "#!/bin/bash\nNCCL_DEBUG=" + "'\"" * 20_000 + " torchrun x\n"}),
    Kind("yaml: aliases that multiply", {"job.yaml": "a: &a [x,x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)},*{chr(97 + n)}]\n" for n in range(24))}),
    Kind("yaml: nested", {"job.yaml": "env: " + "[" * 20_000}),
    Kind("yaml: UTF-16", {"job.yaml": "env:\n  NCCL_ASYNC_ERROR_HANDLIN: 1\n".encode("utf-16")}, says="job.yaml:2:3: DDP802"),
    Kind("yaml: half of UTF-16", {"job.yaml": "env: x\n".encode("utf-16")[:-1]}, FAILED, "job.yaml"),
    Kind("yaml: indents", {"job.yaml": "".join(" " * n + "env:\n" for n in range(1000))}),
    Kind("Dockerfile: continued for ever", {"Dockerfile": "FROM x\nENV NCCL_DEBUG=INFO \\\n" * 5000}),
    Kind("tests: continued by a backslash", {"a.py": written_by("not dist.is_initialized() \\\n or dist.get_rank() == 0")}, says="a.py:11:5: DDP810", args=(".", "--preview")),
    Kind("tests: with a comment inside", {"a.py": written_by("not (dist.is_initialized()  # (always\n and dist.get_rank() > 0)")}, says="a.py:11:5: DDP810", args=(".", "--preview")),
    source("generators: of each other", generators("yield item")),
    Kind(
        "generators: that communicate", {"a.py": generators("dist.all_reduce(item)")}, says="every rank runs this",
        args=(".", "-v"),
    ),
    Kind("notebook: named", {"a.ipynb": "{}"}, FAILED, "a notebook", ("a.ipynb", "good.py")),
    Kind("notebook: nested", {"a.ipynb": "[" * 100_000}, FAILED, "a.ipynb: not a notebook: it is nested too deeply"),
    Kind("notebook: cells that are nested", {"a.ipynb": f'{{"cells": {"[" * 50_000}{"]" * 50_000}}}'}, FAILED, "nested too deeply"),
    Kind("notebook: cells that are none", {"a.ipynb": '{"cells": [null, 1, {"cell_type": "code"}, {"cell_type": "code", "source": {}}]}'}, FAILED, "error: a.ipynb: "),
    Kind("notebook: a huge output", {"a.ipynb": cells({"data": "A" * 5_000_000}, "x = 1", GOOD)}, FOUND, "a.ipynb:cell 2:4:5: DDP101"),
    Kind("notebook: magics in odd places", {"a.ipynb": cells({}, "%%\n%\n!\n??\nx = !", "def f():\n    %time\n    !ls $(\n", "!a \\\n" * 2000, GOOD)}, FOUND, "a.ipynb:cell 4:4:5: DDP101"),
    Kind("notebook: a mark", {"a.ipynb": b"\xef\xbb\xbf" + cells({}, GOOD).encode()}, says="a.ipynb:cell 1:4:5: DDP101"),
    Kind("notebook: UTF-16", {"a.ipynb": cells({}, GOOD).encode("utf-16")}, FAILED, "a.ipynb"),
    Kind("notebook: empty", {"a.ipynb": ""}),
    Kind("notebook: not downloaded", {"a.ipynb": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"}, FAILED, "a.ipynb: a Git LFS pointer"),
    Kind("notebook: a number without end", {"a.ipynb": "1e999"}, FAILED, "a.ipynb: not a notebook"),
    Kind("notebook: of another format", {"a.ipynb": '{"worksheets": [{"cells": []}], "nbformat": 3}'}, FAILED, "not a notebook of format 4"),
    Kind("notebook: keys twice, and no numbers", {"a.ipynb": '{"x": NaN, "cells": [], ' + cells({}, GOOD)[1:]}, says="a.ipynb:cell 1:4:5: DDP101"),
    Kind("notebook: magics of every form", {"a.ipynb": cells({}, "if 1:\n    %time x\n    !ls {x}\n    y = %sx ls\n    ?x\n    x??\n" + GOOD)}, says="a.ipynb:cell 1:10:5: DDP101"),
    Kind("notebook: a named pipe", {"a.ipynb": os.mkfifo}),
    Kind("notebook: half a character", {"a.ipynb": cells({}, "x = '\ud800\x1b[31m'")}, FOUND),
    # ---- dumps and logs
    dumped("that runs something", recorded(version=Harmful()), "which is not plain data: rejected"),
    dumped("of an extension", b"\x80\x02\x82\x01.", "a damaged pickle"),
    dumped("of an object elsewhere", b"\x80\x02Pabc\n.", "objects outside of the file: rejected"),
    dumped("of 64 GB by an index", b"\x80\x04Nr\xff\xff\xff\x7f.", "a damaged pickle (MemoryError)"),
    dumped("of a length without end", b"\x80\x04\x8d" + b"\xff" * 8 + b"x.", "rank_0"),
    dumped("lists in lists", b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".", "not a dump"),
    *(
        dumped(f"the same twice, as {name}", recorded({name: twice(60)}), "parts of it are in each other")
        for name in ("state", "profiling_name", "process_group", "input_sizes", "frames", "collective_seq_id")
    ),
    dumped("the same twice, as the version", recorded(version=twice(60)), "parts of it are in each other"),
    dumped("a list in itself", recorded(entries=in_itself()), "parts of it are in each other"),
    dumped("an infinite number", recorded({"collective_seq_id": float("inf")}), "OverflowError"),
    dumped("a number of many digits", recorded({"collective_seq_id": 10**4000}), "DIVERGENCE", 0),
    dumped("ranks that are nested", recorded(pg_config={"0": {"ranks": "[" * 100_000}}), "RecursionError"),
    dumped("ranks that are infinite", recorded(pg_config={"0": {"ranks": "[1e999]"}}), "OverflowError"),
    dumped("entries that are none", recorded(entries=[None, 1]), "not a supported dump"),
    dumped("names with commands", recorded({"profiling_name": "nccl:\x1b[31m\n::error::x##[error]", "process_group": ("0", "\n::x")}), "rank 0 waits in x##❲error]", 0),
    dumped("nested JSON", '{"entries": ' + "[" * 100_000, "damaged JSON"),
    logged("workflow commands", "::error::x\n [rank0]: ::add-mask::y\n" + raised("\r::error::z ##[error] ##vso[x]"), "ROOT"),
    logged("workflow commands, all events", raised("\r::error::z", "\x1b[31m\r::error::.py"), "ROOT", 0, "-v"),
    logged("workflow commands, JSON", raised("\r  ::error::z ##[error]\x9b31m\u202e"), "u005berror", 0, "--output-format=json"),
    logged("workflow commands, HTML", raised("\r  ::error::z ##[error]\x9b31m</pre><script>"), "&lt;script", 0, "--output-format=html"),
    logged("a line of many digits", raised("x", line="9" * 5000), "ROOT"),
    logged("other digits", raised("[rank²]: x", line="²") + "[rank٣]: x\n"),
    logged("50,000 frames", raised("x").replace("    f()\n", '    f()\n  File "a.py", line 1, in f\n' * 50_000), "ROOT"),
    logged("a line of 50 MB", b"x" * 50_000_000, "", 1),
    logged("NUL", b"\0" * 2_000_000, "", 1),
    logged("a place that no file can have", raised("x", "/" + "a" * 5000 + "/" + "b" * 5000 + ".py"), "ROOT"),
    Kind("log: a name that no file can have", {}, FAILED, "no such file or folder", ("a" * 5000,), others=False, verb="diagnose"),
    Kind("verify: a name that no file can have", {}, FAILED, "no module of that name", ("a" * 5000,), others=False, verb="verify"),
    Kind("check: a name that no file can have", {}, FAILED, "file name too long", ("a" * 5000,), others=False),
    Kind("--why: a name that no file can have", {}, FAILED, "no such file", ("--why", "a" * 5000 + ":1"), others=False),
    logged("ranks in a watchdog's words, 6,000", "".join(f"[rank{n}]:[E101 ProcessGroupNCCL.cpp:616] [Rank {n}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n" for n in range(6000)), "waits in ALLREDUCE"),
    logged("returns", b"a\r" * 500_000, "", 1),
    logged("half of UTF-16", raised("x").encode("utf-16")[:-1], "ROOT"),
    logged("300 MB in a few bytes", gzip.compress(b"\0" * 300_000_000), "", 1),
    logged("200 MB without a line", lambda path: path.write_bytes(b"ab" * 10**8), "", 1),
    logged("200 MB of nothing", sparse(2 * 10**8), "", 1),
    logged("dates that do not exist", "9999-99-99T99:99:99Z [rank" + "9" * 20 + "]: RuntimeError: x\n" + raised("y"), "ROOT"),
    logged("colours without end", "\x1b]0;" * 300_000 + raised("x"), ""),
    logged("progress in one line", "\r".join(f"{n}%|###| {n}/100" for n in range(100_000)) + "\n" + raised("x"), "ROOT"),
    Kind("log: an archive that is cut off", {"a.log.gz": gzip.compress(raised("x").encode() * 1000)[:-20]}, FAILED, "the compressed file is damaged", ("a.log.gz",), verb="diagnose"),
    Kind("log: a device", {"a.log": link("/dev/zero")}, FAILED, "a.log", ("a.log",), verb="diagnose"),
    logged("a folder with a pipe", os.mkfifo, "contains no log", FAILED, path="logs/p"),
    logged("error.json, nested", '{"message": ' * 50_000, "", 1, path="0/error.json"),
    logged("error.json, of digits", f'{{"message": {"9" * 6000}}}', "", 1, path="0/error.json"),
    Kind("log: source that is a named pipe", {"a.py": os.mkfifo, "a.log": raised("x", "a.py")}, 0, "ROOT", ("a.log",), verb="diagnose"),
    Kind("log: source that is too large", {"a.py": f"x = [{'1, ' * 1_700_000}]\n", "a.log": raised("x", "a.py")}, 0, "ROOT", ("a.log",), verb="diagnose"),
    Kind("log: a name over two lines", {"d/\x1b[31m\n::error::x": raised("x")}, 0, "ROOT", ("d",), verb="diagnose"),
    # ---- constants that are too large or do not exist
    *(
        source(f"constant: {text}", f"{HEAD}x = {text}\nif x: dist.barrier()\n{RANK}", "a.py:7:5: DDP101")
        for text in (
            "~(1 << 10 ** 7)", "10 ** -10 ** 9", "pow(10, 10 ** 9)", "[0] * 10 ** 11", "int('9' * 10 ** 6)", "range(10 ** 30)[5]",
            "len(range(10 ** 30))", "max(range(10 ** 12))", "list(range(10 ** 12))", "str(10 ** 5000)", "'{:{}}'.format(1, 10 ** 10)",
            "b'a' * 10 ** 11", "float('9' * 400) - float('inf')", "int(float('inf'))", "int(float('nan'))", "divmod(1, 0)", "chr(10 ** 10)",
            "(-1) ** 0.5", "1 << 10 ** 20", "'a'.ljust(10 ** 20)", "(1, 2)[10 ** 100]", "'abc'[::0]", "'%s' % ()", "'%d' % 'a'",
            "'{0.__class__}{9}'.format(1)", "'\\ud800' + '\\udc00'", "hash([])", "{[]: 1}", "{**1, **[]}", "[*1, *None]", "() < 1", "None + 1",
            "True + '1'", "-'a'", "1 @ 2", "1 if () else 2 if [] else 0 ** -1", "0x" + "f" * 5000, "0b" + "1" * 100_000, "1_0" * 1,
            "not not not 10 ** 400 * 1e308", "1e308 * 10 ** 400", "round(1e400)", "int('٣')", "'ß'.upper() * 10 ** 12",
        )
    ),
    # ---- comments of ours
    source("comments: never closed", f"{HEAD}x = 1  # ddp-lint: ignore[{'[' * 50_000}\n{RANK}"),
    source("comments: of 100,000 codes", f"{HEAD}x = 1  # ddp-lint: ignore[{'DDP101,' * 100_000}]\n{RANK}"),
    source("comments: of other digits", f"{HEAD}x = 1  # ddp-lint: ignore[DDP١٠١]\n{RANK}"),
    source("comments: of types, nested", f"{HEAD}x = 1  # type: {'List[' * 3000}int\n{RANK}", "a.py:6:5: DDP101"),
    # ---- names that something else has
    Kind("shadows: torch of the project", {"torch/__init__.py": "def x(): pass\n", "torch/distributed.py": "def barrier(): pass\n"}, 0, "Nothing found", others=False),
    Kind("shadows: a module and a package", {"a.py": f"import a.a.a.a\n{HEAD}{RANK}", "a/__init__.py": "from a import *\nfrom . import a\n"}, says="a.py:6:5: DDP101"),
    Kind("shadows: an __init__ that is a folder", {"a/__init__.py/b.py": HEAD, "a/c.py": f"from a import b\n{HEAD}{RANK}"}, says="c.py:6:5: DDP101"),
    Kind("shadows: an __init__ that is a link to itself", {"a/__init__.py": link("__init__.py"), "a/c.py": f"from a import b\n{HEAD}{RANK}"}, says="c.py:6:5: DDP101"),
    Kind("shadows: names of nothing", {".py": HEAD + RANK, "..py": HEAD + RANK, " .py": HEAD + RANK}),
    Kind("shadows: __all__ of itself", {"a.py": f"from b import *\n__all__ = __all__ + [x for x in __all__]\n{HEAD}{RANK}", "b.py": "from a import *\n__all__ = [*__all__, 1, None]\n__all__ += __all__\n"}, says="a.py:7:5: DDP101"),
    # ---- settings, once more
    Kind("settings: a mark before them", {"pyproject.toml": b"\xef\xbb\xbf[tool.ddp-lint]\n"}),
    Kind("settings: no table", {"pyproject.toml": "[tool]\nddp-lint = 5\n"}, FAILED, "pyproject.toml", others=False),
    Kind("settings: tool is no table", {"pyproject.toml": "tool = 'x'\n"}),
    Kind("settings: a folder", {"pyproject.toml": folder}),
    Kind("settings: a link to itself", {"pyproject.toml": link("pyproject.toml")}),
    settings("settings: infinite", "cache = inf", "ddp-lint.toml:1"),
    # ---- folders of git and of the cache
    Kind("git folder: a link to itself", {".git": link(".git")}),
    Kind("git folder: a device", {".git": link("/dev/zero")}),
    Kind("git folder: exclude is a folder", {".git/info/exclude": folder}),
    Kind("gitignore: in each folder, against each other", {f"{'d/' * n}.gitignore": "*\n!*/\n!*.py\n" * 50 for n in range(60)}),
    Kind("cache: its tag is a named pipe", {".ddp_lint_cache/CACHEDIR.TAG": os.mkfifo, ".ddp_lint_cache/.gitignore": os.mkfifo}),
    # ---- launch files, once more
    Kind("shell: documents that never end", {"run.sh": "#!/bin/bash\n" + "cat <<EOF <<'X' <<-\"Y\"\n" * 3000}),
    Kind("shell: NUL and UTF-16", {"run.sh": "#!/bin/bash\ntorchrun a.py\n".encode("utf-16") + b"\0" * 9999}, FAILED, "run.sh: the file has NUL bytes"),
    Kind("shell: substitutions in each other", {"run.sh": "#!/bin/bash\ntorchrun " + "$(" * 20_000 + "${" * 20_000}),
    Kind("shell: 3 MB in one line", {"run.sh": "#!/bin/bash\n" + "torchrun --nproc-per-node 2 a.py; " * 100_000}),
    Kind("yaml: tags that make objects", {"job.yaml": "env: !!python/object/apply:os.system ['exit 1']\n? !!map {a: b}\n: *x\n"}),
    Kind("yaml: in itself", {"job.yaml": "a: &a [*a, {<<: *a}]\nenv: *a\n" * 2000}),
    Kind("yaml: a line of 2 MB", {"job.yaml": "env: {" + "NCCL_DEBUG: INFO, " * 100_000 + "}\n"}),
    Kind("yaml: blocks without an end", {"job.yaml": "run: |+9\n" + "".join(f"{' ' * (n % 50)}torchrun a.py\n" for n in range(20_000))}),
    Kind("Dockerfile: documents", {"Dockerfile": "FROM x\nRUN <<A <<B <<C\n" + "ENV NCCL_DEBUG=INFO\n" * 5000}),
    Kind("notebook: thousands of lines in a cell", {"a.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": ["x = 1\n"] * 50_000, "outputs": []}], "metadata": {}, "nbformat": 4})}),
    Kind("notebook: of another language", {"a.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": GOOD, "outputs": []}], "metadata": {"language_info": {"name": "R" * 10**6}}, "nbformat": 4})}),
    # ---- dumps and logs, once more
    dumped("empty", b"", "UNKNOWN", 1),
    dumped("cut off", pickle.dumps(recorded())[:-40], "pickle data was truncated"),
    dumped("ranks that are none", recorded(pg_config={"0": {"ranks": "[-5, 0, 0, 1e3, null]"}}), "rank_0"),
    dumped("a set of groups", recorded(pg_config={1, 2}), "rank_0"),
    dumped("groups that are a list", recorded(pg_config=[1, "x", None]), "rank_0"),
    dumped("frames that are text", recorded({"frames": "x" * 10_000}), "rank_0"),
    dumped("sizes that are no numbers", recorded({"input_sizes": [["a", None, {}]]}), "rank_0"),
    dumped("a number less than nothing", recorded({"collective_seq_id": -(2**70)}), "DIVERGENCE", 0),
    dumped("a version that is a number", recorded(version=10**300), "DIVERGENCE", 0),
    dumped("JSON with keys twice and no numbers", '{"version": "2.9", "version": NaN, "entries": [{"state": Infinity}]}', "UNKNOWN", 1),
    logged("ranks of many digits", "".join(f"[rank{'9' * n}]: RuntimeError: x\n" for n in range(1, 900)), "ROOT"),
    logged("tasks without an end", "srun: error: n: tasks 0-99999999,5-1,-: Killed\n", "KILLED"),
    logged("signals that do not exist", "died with <Signals.SIGEVIL: 99>.\nexitcode: -999999999999999999 (pid: 9)\n" + raised("x"), "ROOT"),
    logged("dates of the year 0", "0000-00-00 99:99:99,999 E0000 99:99:99.9 ERROR RuntimeError: x\n" + raised("x"), "ROOT"),
    logged("a world of many digits", f"world_size={'9' * 4000}\n" + raised("x"), "ROOT"),
    logged("boxes without an end", "╭──── Traceback (most recent call last) ────\n" + "│ /x/a.py:3 in f │\n" * 20_000 + raised("x"), "ROOT"),
    logged("blocks of torchrun without an end", "  time      : x\n  rank      : 3 (local_rank: 3)\n" * 20_000 + raised("x"), "ROOT"),
    logged("causes of causes", (raised("x") + "\nDuring handling of the above exception, another exception occurred:\n\n") * 3000, "ROOT"),
    logged("gzip in gzip", gzip.compress(gzip.compress(raised("x").encode())), "", 1, path="a.log.gz"),
    logged("a folder of 3,000 empty files", many(3000, ""), "", 1, path="logs"),
    # ---- the language server
    sent("a header of no length", message({}, header="Foo: {}\r\n\r\n")),
    *(
        sent(f"a length of {name}", message({"jsonrpc": "2.0", "method": "x"}, header=f"Content-Length: {length}\r\n\r\n"))
        for name, length in (("text", "x"), ("less than nothing", -5), ("other digits", "²"), ("many digits", "9" * 5000),
                             ("a petabyte", 10**15), ("half of it", 5), ("nothing", 0))
    ),
    sent("no header", b"\0\xff\xfe" * 1000 + b"\r\n"),
    sent("another protocol", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    sent("a line of 5 MB", b"x" * 5_000_000),
    *(
        sent(name, message(body))
        for name, body in {
            "no UTF-8": b'{"jsonrpc":"2.0","method":"\xff"}', "no JSON": b"{{{", "null": b"null", "a batch": b'[{"jsonrpc":"2.0"}]',
            "nested": b"[" * 100_000, "no number": b'{"jsonrpc":"2.0","id":NaN,"method":"x"}', "an id of digits":
            b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"x"}', "half a character": b'{"jsonrpc":"2.0","method":"\\ud800"}',
            "a method that is a number": b'{"jsonrpc":"2.0","method":5}', "parameters that are a list":
            b'{"jsonrpc":"2.0","id":6,"method":"textDocument/hover","params":[]}', "an answer to nothing":
            b'{"jsonrpc":"2.0","id":77,"result":{}}', "an error and a result": b'{"jsonrpc":"2.0","id":6,"result":1,"error":2}',
        }.items()
    ),
    sent("unknown methods", request("no/such", 5), request("no/such"), request("$/x")),
    sent("initialised twice", request("initialize", 2, capabilities={})),
    sent("a change of what is not open", changed("file:///nope.py", text="x")),
    sent("closed, and closed again", *[request("textDocument/didClose", textDocument={"uri": "file:///nope.py"})] * 2),
    *(
        sent(f"a place {name}", OPENED, changed(range=place(*at), text="y"), request(
            "textDocument/codeAction", 8, textDocument={"uri": "file:///x/a.py"}, range=place(*at), context={"diagnostics": []}))
        for name, at in {"beyond the text": (10**6, 5), "beyond all": (10**30, 1), "before it": (-1, -1), "between": (1.5, 0),
                         "in words": ("x", 0)}.items()
    ),
    *(
        sent(f"a document called {uri!r}", request(
            "textDocument/didOpen", textDocument={"uri": uri, "languageId": "python", "version": 1, "text": GOOD}))
        for uri in ("", "file:", "file:///%00.py", "file:///a%ff.py", f"file:///{'a/' * 3000}x.py", "\x1b[31m", "file:///dev/zero", 5)
    ),
    sent("2,000 changes", OPENED, *[changed(range=place(0, 0), text="#")] * 2000),
    sent("halves of a character", OPENED, changed(range=place(0, 1), text="\ud83d"), changed(range=place(0, 1), text="\ude00")),
    sent("changes that are none", OPENED, changed(), changed(range=None, text=None), changed(text=5), request(
        "textDocument/didChange", textDocument={"uri": "file:///x/a.py", "version": 2}, contentChanges={"text": "x"})),
    sent("settings that are none", request("workspace/didChangeConfiguration", settings=[1, 2]), request(
        "workspace/didChangeConfiguration", settings={"ddp-lint": {"select": 5, "args": ["--fix"]}})),
    sent("folders that are none", request("workspace/didChangeWorkspaceFolders", event={"added": [{"uri": 5}], "removed": None})),
    sent("watched files that are none", request("workspace/didChangeWatchedFiles", changes=[{"uri": "file:///x", "type": 99}, 5])),
    sent("a command that is none", request("workspace/executeCommand", 8, command=None)),
    sent("actions of odd kinds", OPENED, request("textDocument/codeAction", 8, textDocument={"uri": "file:///x/a.py"},
        range=place(3, 0), context={"diagnostics": [{}, {"code": {}, "range": 5}], "only": [5, None]})),
    sent("ids of all sorts", *(message({"jsonrpc": "2.0", "id": number, "method": "no/such"}) for number in (1.5, "x" * 9999, True, None, [], {}))),
    sent("a type of content", message({"jsonrpc": "2.0", "method": "x"}, header="Content-Length: {}\r\nContent-Type: a/b; charset=utf-16\r\n\r\n")),
    sent("a notebook without its cells", request("notebookDocument/didOpen", notebookDocument={
        "uri": "file:///n.ipynb", "notebookType": "jupyter-notebook", "version": 1, "cells": [{"kind": 2, "document": "/dev/zero"}]},
        cellTextDocuments=[])),
    # ---- what pull requests of strangers hold, once more
    source("names: of mathematical letters", f"{HEAD}if 𝐝𝐢𝐬𝐭.get_rank() == 0:\n    𝐝𝐢𝐬𝐭.barrier()\n", "a.py:5:5: DDP101"),
    source("names: of ligatures", f"{HEAD}ﬁrst = dist.get_rank() == 0\nif first:\n    dist.barrier()\n", "a.py:6:5: DDP101"),
    source("names: of 20,000 letters that are composed", f"{HEAD}{'ﬃ' * 20_000} = 1\n{RANK}", "a.py:6:5: DDP101"),
    source("names: in escapes of Unicode", f"{HEAD}x = '\\N{{LATIN SMALL LETTER A}}' * 3, '\\N{{nothing}}'\n{RANK}"),
    source("syntax: thousands of type parameters", f"{HEAD}def f[{', '.join(f'T{n}: (int, str)' for n in range(3000))}](x): dist.barrier()\n{RANK}"),
    source("syntax: thousands of type aliases", f"{HEAD}{''.join(f'type A{n}[T] = A{n + 1}[T] | list[T]{chr(10)}' for n in range(3000))}{RANK}"),
    source("syntax: strings in f-strings of their own quotes", HEAD + "x = " + 'f"{' * 60 + "1" + '}"' * 60 + f"\n{RANK}"),
    source("syntax: f-strings over lines with comments", f"{HEAD}x = f'{{  # a }}'\n  1 + {{dist.get_rank():{{x}}}}\n}}'\n" * 300 + RANK),
    source("syntax: hundreds of templates", f"{HEAD}x = t'{{dist.get_rank()!r:{{x}}}}'\n" * 500 + RANK),
    source("syntax: thousands of groups of exceptions", f"{HEAD}try: dist.barrier()\n{''.join(f'except* E{n}: dist.barrier(){chr(10)}' for n in range(1500))}{RANK}"),
    source("comments: of types, by thousands", HEAD + "def f(x):\n    # type: (int) -> None\n    pass\nx = 1  # type: ignore[a, b]\n" * 4000 + RANK, "DDP101"),
    source("comments: of types that are none", HEAD + "for x in y:  # type: (]\n    pass  # type: \0x\n".replace("\0", "\x7f") * 2000 + RANK, "DDP101"),
    source("many: decorators", HEAD + "".join(f"@d{n}(dist.get_rank())\n" for n in range(4000)) + f"def f(): dist.barrier()\n{RANK}", "DDP101"),
    source("many: decorators of a class", HEAD + "@d\n@dist.barrier\n" * 3000 + f"class A(nn.Module): pass\n{RANK}", "DDP101"),
    source("many: classes of calls", HEAD + "".join(f"class A{n}(make(A{n - 1})(dist.get_rank())[0], metaclass=m(A{n - 1})): pass\n" for n in range(1, 2000)) + RANK, "DDP101"),
    source("many: classes made by calls", HEAD + "A0 = nn.Module\n" + "".join(f"A{n} = type('A{n}', (A{n - 1}, *A{n - 1}.__bases__), {{'forward': lambda s, x: dist.barrier()}})\n" for n in range(1, 2000)) + RANK, "DDP101"),
    source("many: imports under conditions", HEAD + "".join(f"if x > {n}:\n    import a{n} as m\nelse:\n    from b{n} import *\n" for n in range(3000)) + RANK, "DDP101"),
    source("many: imports that fall back", HEAD + "".join(f"{' ' * n}try:\n{' ' * n} import a{n} as m\n{' ' * n}except ImportError:\n" for n in range(90)) + f"{' ' * 90}m = dist\n{RANK}", "DDP101"),
    source("many: handlers of one try", f"{HEAD}try:\n    dist.barrier()\n" + "".join(f"except (E{n}, F{n}) as e:\n    dist.barrier()\n" for n in range(2000)) + RANK, "DDP101"),
    source("many: comparisons in a chain", f"{HEAD}if {' < '.join(f'x{n}' for n in range(5000))}: dist.barrier()\n{RANK}", "DDP101"),
    source("many: names that are global", HEAD + f"def f():\n    global {', '.join(f'x{n}' for n in range(20_000))}\n    x0 = dist.get_rank()\n{RANK}", "DDP101"),
    source("many: asserts by rank", HEAD + "def f(x):\n" + "    assert dist.get_rank() == 0 or x, f'{dist.get_rank()}'\n" * 2000 + f"    dist.barrier()\n{RANK}", "DDP101"),
    source("many: targets in each other", f"{HEAD}{'(a, *b, ' * 80}c{')' * 80} = dist.get_rank()\n" + f"{RANK}", "DDP101"),
    source("many: overloads", HEAD + "from typing import overload\n" + "@overload\ndef f(x: int) -> int: ...\n" * 3000 + f"def f(x): dist.barrier()\nf(1)\n{RANK}", "DDP101"),
    source("many: loops with else and break", HEAD + "def f(x):\n" + "    for i in x:\n        if i: break\n    else:\n        dist.barrier()\n" * 800, ""),
    source("many: nonlocal names of functions in each other", HEAD + "".join(f"{' ' * n}def f{n}(x{n}):\n" + (f"{' ' * n} nonlocal x{n - 1}\n" if n else "") for n in range(19)) + f"{' ' * 19}dist.barrier()\n{RANK}", "DDP101"),
    source("many: yields", HEAD + "def f(x):\n" + "    x = yield from (yield x)\n" * 3000 + f"    dist.barrier()\n{RANK}", "DDP101"),
    source("many: settings of the environment", "import os\n" + HEAD + "os.environ.update({" + ", ".join(f"'NCCL_{n}': os.environ.get('NCCL_{n}', '1')" for n in range(5000)) + f"}})\n{RANK}", "DDP101"),
    Kind("files: stars in a circle", {"p": many(150, "from m$1 import *\nfrom .m$1 import *\n" + HEAD + RANK)}),
    Kind("files: a package that is linked into itself", {"p/__init__.py": "from .p.p import a\n", "p/a.py": f"from .p.p.p.p import a\nfrom . import *\n{HEAD}{RANK}", "p/p": link(".")}, says="p/a.py:7:5: DDP101"),
    Kind("files: of nothing, with odd names", dict.fromkeys(("$(id).py", "%s%n.py", "{}.py", ";.py", "-.py", "~.py", "CON.py", "a b.py", "'.py", "`.py", "\\.py", "é.py", "é.py", "a.PY", "a.pyi", "*.py", "[.py", "#.py", "a:1:1.py", "\u202e.py", "\ufeff.py", "\u200b.py"), "")),
    Kind("files: stubs", {"a.pyi": f"{HEAD}{RANK}", "b.py": f"from a import *\n{HEAD}{RANK}"}, says="b.py:6:5: DDP101"),
    Kind("files: a stub that is named", {"a.pyi": f"{HEAD}{RANK}"}, says="a.pyi", args=("a.pyi", "good.py")),
    Kind("files: that change all the time", {"p/a.py": HEAD + RANK, "p/change": changing}),
    Kind("yaml: a hundred thousand documents", {"job.yaml": "---\nenv:\n  NCCL_DEBUG: INFO\n...\n" * 100_000}),
    Kind("yaml: merges of thousands", {"job.yaml": "".join(f"a{n}: &a{n}\n  <<: [*a{max(n - 1, 0)}, *a{n // 2}]\n" for n in range(5000))}),
    Kind("yaml: a key of a megabyte", {"job.yaml": f"? {'k' * 10**6}\n: v\n{'- ' * 20_000}x\n"}),
    Kind("shell: conditions in each other", {"run.sh": "#!/bin/bash\n" + "if [ $RANK = 0 ]; then\n" * 5000 + "torchrun a.py\n" + "fi\n" * 5000}),
    Kind("shell: settings of sbatch", {"run.sh": "#!/bin/bash\n" + "".join(f"#SBATCH --ntasks-per-node={n} --gres=gpu:{n}\n" for n in range(20_000)) + "srun python a.py\n"}),
    Kind("shell: variables of variables", {"run.sh": "#!/bin/bash\n" + "".join(f"V{n + 1}=\"$V{n} ${{V{n}:-$V{n}}}\"\n" for n in range(3000)) + "torchrun $V3000 a.py\n"}),
    Kind("shell: of DOS", {"run.sh": "#!/bin/bash\r\n" + "export NCCL_DEBUG=INFO ^\r\ntorchrun \\\r\n a.py\r\n" * 5000}),
    settings("settings: 50,000 tables in a list", "[[a]]\n" * 50_000, "ddp-lint.toml"),
    settings("settings: tables of dotted names", "".join(f"[a{'.b' * n}]\n" for n in range(300)), "ddp-lint.toml"),
    settings("settings: a string over a million lines", "a = '''" + "\n" * 10**6, "ddp-lint.toml"),
    settings("settings: names composed and not", '"é" = 1\n"é" = 2\n', "ddp-lint.toml"),
    logged("compressed nothing of 200 MB", gzip.compress(b"\0" * 200 * 2**20), "UNKNOWN", 1, path="a.log.gz"),
    logged("bars of progress", "\r".join(f"\x1b[2K\x1b[{n}G{n}%|####|" for n in range(200_000)) + "\n" + raised("x")),
    logged("of a hundred thousand ranks", "".join(f"[rank{n}]: {raised('x')}" for n in range(20_000))),
    logged("tracebacks in each other", "Traceback (most recent call last):\n" * 50_000 + raised("x")),
    logged("lines of JSON, nested", ('{"message": ' * 500 + '"x"' + "}" * 500 + "\n") * 200 + raised("x")),
    sent("a thousand documents", *(request("textDocument/didOpen", textDocument={"uri": f"file:///x/b{n}.py", "languageId": "python", "version": 1, "text": GOOD}) for n in range(300))),
    sent("a text of 17 MB", request("textDocument/didOpen", textDocument={"uri": "file:///x/b.py", "languageId": "python", "version": 1, "text": "x = 1\n" * 3_000_000})),
    # ---- what asks itself: classes, modules and names that lead back
    source("itself: operators of a class", HEAD + "class A:\n  def __bool__(self): return bool(self) or len(self)\n  def __len__(self): return self and 1\n  def __iter__(self): return iter(self)\n  def __getattr__(self, n): return getattr(self, n)\n  def __call__(self, *a): return self(*a)\n  def __eq__(self, o): return o == self\n  def __getitem__(self, i): return self[i]\n  def __enter__(self): return self.__enter__()\na = A()\nwith a as b:\n  for x in a[0].b():\n    if a == b: dist.barrier()\n" + RANK, "a.py:18:5: DDP101"),
    source("itself: a descriptor", HEAD + "class D:\n  def __get__(self, o, t): return o.d.e\n  def __set__(self, o, v): o.d = v\nclass A(nn.Module):\n  d = D()\n  def forward(self, x):\n    self.d = self.d.d\n    if self.d.d.d: dist.barrier()\nA().d.d\n" + RANK, "a.py:14:5: DDP101"),
    source("itself: metaclasses and hooks of classes", HEAD + "class M(type):\n  def __call__(cls, *a): return cls(*a)\n  def __getattr__(cls, n): return getattr(cls, n)\n  def __new__(m, *a): return M(*a)\n  def __prepare__(*a): return M.__prepare__(*a)\nclass A(metaclass=M):\n  def __init_subclass__(cls): super().__init_subclass__(); cls()\n  def __class_getitem__(cls, i): return cls[i]\nclass B(A, A[B], metaclass=A): pass\nif B[0]().x.y(): dist.barrier()\n" + RANK, "a.py:15:5: DDP101"),
    source("itself: a partial, a map and a reduction", HEAD + "import functools\np = functools.partial(p, p)\nq = map(q, map(p, q))\nr = functools.reduce(r, [r, p], q)\nif p() or r(q): dist.barrier()\n" + RANK, "a.py:10:5: DDP101"),
    source("itself: types that are quoted", HEAD + "from typing import *\nA = NewType('A', 'B')\nB = TypeVar('B', bound='A | B')\nclass P(Protocol['P']):\n  p: 'P.p'\ndef f(x: 'A', y: 'Annotated[f, x]' = None) -> 'f': return f(x.p.p, y)\nif f(f).p: dist.barrier()\n" + RANK, "a.py:12:5: DDP101"),
    Kind("itself: classes that inherit in a ring of files", {**{f"m{n}.py": f"{HEAD}from m{(n + 1) % 40} import C{(n + 1) % 40}\nclass C{n}(C{(n + 1) % 40}, nn.Module):\n  def forward(self, x):\n    super().forward(x)\n    if self.rank == {n}: dist.barrier()\n" for n in range(40)}, "a.py": f"{HEAD}from m0 import C0\nC0()(1)\n{RANK}"}, says="a.py:7:5: DDP101"),
    Kind("itself: modules that are asked for names", {"p/__init__.py": "import importlib\ndef __getattr__(name): return getattr(importlib.import_module('.' + name, __name__), name)\ndef __dir__(): return __getattr__('__all__')\n__all__ = [*__all__, *__dir__()]\n", "p/b.py": "from p import *\nfrom p import __getattr__, b\nbarrier = b.barrier\n", "a.py": f"{HEAD}import p\nfrom p.b import barrier as other\nif dist.get_rank() == 0:\n  p.b.barrier()\n  other()\n{RANK}"}, says="a.py:10:5: DDP101"),
    Kind("itself: packages with and without __init__ of one name", {"p/a.py": HEAD + RANK, "src/p/__init__.py": "from p.a import *\nfrom p import p as p\n", "src/p/p.py": "import p.p.p.p as p\n", "lib/p/b.py": "from ..p import a\n", "p.py": "from p import p\n", "a.py": f"{HEAD}import p.a, p.b, p.p\nfrom {'.' * 300} import x\nfrom {'.' * 3}p import y\n{RANK}"}, says="p/a.py:5:5: DDP101"),
    # ---- syntax that is long
    source("syntax: fields in the formats of fields", f"{HEAD}x = f'{'{x:' * 140}{'}' * 140}'\n{RANK}", "DDP"),
    source("syntax: formats of fields of thousands", f"{HEAD}x = f'{'{x!r:>{y}.{z}}' * 4000}'\n{RANK}", "DDP101"),
    source("syntax: a decorator of many arguments", f"{HEAD}@d({'1, ' * 30_000})\ndef f(): dist.barrier()\n{RANK}", "a.py:7:5: DDP101"),
    source("syntax: a decorator of calls in each other", f"{HEAD}@{'d(' * 90}e{')' * 90}\n@{'d' + '(e)' * 400}\ndef f(): dist.barrier()\nif dist.get_rank() == 0: f()\n{RANK}", "DDP101"),
    source("syntax: a walrus in each term", f"{HEAD}def f(x):\n  if {' and '.join(f'(a{n + 1} := a{n})' for n in range(300))}: dist.barrier()\n{RANK}", "a.py:7:5: DDP101"),
    source("syntax: stars in a call", f"{HEAD}def f(*a, **k): dist.barrier()\ndef g(x):\n  f({'*x, **x, ' * 1}{', '.join(['*x'] * 3000)})\n  f({', '.join(['**x'] * 3000)})\n{RANK}", "DDP"),
    source("syntax: stars that swap", f"{HEAD}def f(a, b):\n" + "  a, *b = *b, *a, *b\n" * 800 + f"  if a in b: dist.barrier()\n{RANK}", "DDP101"),
    source("syntax: subscripts that are unpacked", f"{HEAD}def f(*a: *tuple[int, *A]): return a[*a, *a[*a]]\n" + "x[*x] = f(*x)[*x]\n" * 1500 + RANK, "DDP101"),
    source("syntax: 4,000 strings in a row", HEAD + "x = torch.load(" + "'a'\n" * 4000 + ")\n" + RANK, "a.py:4:16: DDP000 the file is not checked, LibCST cannot parse it: 4000 strings in a row are too many for it: join some of them"),
    source("syntax: cases that share names", HEAD + "def f(x):\n  match x:\n" + "".join(f"    case [a, *b] | {{'k': a, **b}} | C(a, b=b) if a > {n} and (a := b): dist.all_reduce(a)\n" for n in range(400)) + RANK, "a.py:407:5: DDP101"),
    source("syntax: subjects that are matched by themselves", HEAD + "def f(x):\n" + "  match x, *x:\n    case x, *_: x = dist.get_rank()\n    case _: dist.all_reduce(x)\n" * 300 + RANK, "DDP101"),
    source("syntax: returns from finally, as of Python 3.14", HEAD + "def f(x):\n" + "  for a in x:\n    try: return dist.all_reduce(a)\n    except E, F: raise\n    finally: continue\n" * 200 + RANK, "DDP"),
    source("comments: behind form feeds and odd spaces", f"{HEAD}x = 1 \x0c# noqa: DDP101\n\x0cx = 1 #\xa0noqa:\u3000DDP101\nx = 1 # \u200bnoqa\n\x0c{RANK}", "a.py:8:5: DDP101"),
    source("bytes: a hole of 15 MB before the code", sparse(15 * 2**20), "NUL bytes", FAILED),
    # ---- files that are moved meanwhile
    Kind("files: links that turn", {"p/a.py": HEAD + RANK, "q/a.py": "x = 1\n", "r/change": turning}),
    # ---- configurations of others
    Kind("settings: a list of our tables", {"pyproject.toml": "[[tool.ddp-lint]]\nselect = ['ALL']\n" * 1000}, FAILED, "pyproject.toml", others=False),
    Kind("settings: a table that is extended before it is there", {"pyproject.toml": "tool.ddp-lint.select = ['ALL']\n[tool]\nddp-lint.select = 1\n"}, FAILED, "pyproject.toml", others=False),
    settings("settings: types that are mixed", "select = ['DDP101', 1, [], {}]\n", "ddp-lint.toml"),
    settings("settings: an empty key", "'' = ''\n", "ddp-lint.toml"),
    settings("settings: ends of lines of a Macintosh", "select = ['ALL']\rignore = []\r", "ddp-lint.toml"),
    Kind("settings: of other tools, nested", {"pyproject.toml": "".join(f"[[tool.x{'.y' * (n % 50)}.l{n}]]\na = [{'[' * (n % 50)}{']' * (n % 50)}]\n" for n in range(3000)), "setup.cfg": "[a\n" * 1000, "tox.ini": b"\0" * 100}),
    # ---- notebooks
    Kind("notebook: a text that begins in one cell and ends in another", {"a.ipynb": cells({}, "x = '''", "'''\n" + HEAD + RANK, "return", "await x\nyield")}, says="DDP"),
    Kind("notebook: fixed, with keys of no order", {"a.ipynb": json.dumps({"nbformat": 4, "x": [1e400, -0.0, "\u2028\ud83d\ude00"], "cells": [{"outputs": [{"\ud7ff": None}], "source": ["x = 1  # ddp-lint: ignore[DDP101]\n", "y = 2"], "cell_type": "code"}], "metadata": {}})}, says="1 finding fixed", args=(".", "--fix")),
    Kind("notebook: shell in cells of shell", {"a.ipynb": cells({}, "%%bash\n" + "torchrun a.py \\\n" * 20_000, "%%writefile b.py\n" + RANK, "!export NCCL_DEBUG=INFO; torchrun $(cat b.py) {x} && " + "!" * 5000, HEAD + RANK)}, says="DDP101"),
    Kind("shell: braces, arithmetic and names of names", {"run.sh": "#!/bin/bash\ntorchrun --nnodes {1..999999999} --nproc-per-node $((9**9**9)) ${!x} ${x:0:-9} ${x//*/$x} a{b,{c,d}}{e,f}" + "{a,b}" * 40 + ".py\nfor i in {1..9999999999}; do export NCCL_DEBUG=$i; done\n" * 300}),
    Kind("shell: jobs of no end", {"job.sbatch": "#!/bin/bash\n#SBATCH --array=0-99999999999 --nodes=1-" + "9" * 5000 + " --time=" + "9:" * 3000 + "9\n#SBATCH --ntasks-per-node=\u0663 --gres=gpu:-1\nsrun torchrun --nnodes $SLURM_JOB_NUM_NODES a.py\n"}),
    # ---- dumps and logs
    dumped("of 30,000 calls with nothing but a number", recorded(entries=[{"collective_seq_id": n} for n in range(30_000)]), "", 1),
    dumped("JSON, cut off", json.dumps(recorded())[:-30], "rank_0"),
    dumped("of the first protocol, cut off", pickle.dumps(recorded(), 0)[:-25], "UNKNOWN", 1),
    dumped("with a buffer beside it", b"\x80\x05\x97\x98.", "rank_0"),
    Kind("dump: hundreds of one rank", {f"fr/{n}/rank_0": pickle.dumps(recorded()) for n in range(300)}, 0, "no dump of rank 1", ("fr", "--no-source"), verb="diagnose"),
    logged("times of every form", "".join(time.format(n % 60) for n in range(3000) for time in TIMES) + raised("x"), "ROOT"),
    logged("every byte", bytes(range(256)) * 4000 + raised("x").encode(), "ROOT"),
    logged("UTF-16", raised("x").encode("utf-16"), "a.log:4: RuntimeError: x"),
    logged("JSON, cut off in a traceback", '{"message": "Traceback (most recent call last):\\n  File \\"/x/a.py\\"\n' * 3000 + raised("x"), "ROOT"),
    logged("an archive that is called a log", b"PK\x03\x04" + bytes(range(256)) * 100, "UNKNOWN", 1, path="a.log.bz2"),
    logged("a record of screen control", "\x1bP+q\x1b\\\x1b]0;x\x07\x9b2J\x1b[?25l\x1b(0" * 20_000 + raised("\x9b31mx")),
    Kind("log: files of ranks that are none", {f"logs/{name}.log": raised("x") for name in ("rank_-1", "rank_" + "9" * 60, "rank_0x1", "rank_\u0663", "rank_0", "rank_00", "0/rank_0", "1/0/stderr", "1/0/stdout")}, 0, "ROOT", ("logs",), verb="diagnose"),
    # ---- what programs are made of, in odd numbers and forms
    source("syntax: thousands of members of an enumeration", f"{HEAD}import enum\nclass Mode(enum.IntFlag):\n" + "".join(f"  A{n} = enum.auto()\n" for n in range(4000)) + "def f(m):\n  if m & Mode.A7 and dist.get_rank() == 0: dist.barrier()\n", "DDP101"),
    source("syntax: fields of a data class that default to each other", f"{HEAD}import dataclasses\n@dataclasses.dataclass\nclass C:\n  a0: int = 0\n" + "".join(f"  a{n}: int = dataclasses.field(default_factory=lambda: C().a{n - 1})\n" for n in range(1, 1500)) + "def f(c: C):\n  if c.a1499 == dist.get_rank(): dist.barrier()\n", "DDP101"),
    source("syntax: keywords of a partial, by thousands", f"{HEAD}import functools\ndef f(**k):\n  if k['a7'] == 7 and dist.get_rank() == 0: dist.barrier()\ng = functools.partial(f, {', '.join(f'a{n}={n}' for n in range(3000))})\nfor _ in range(3): g = functools.partial(g, **g.keywords, **{{'a' + str(1): g}})\ng(); g(**g(**g()))\n", "DDP101"),
    source("syntax: code in strings that is run", f"{HEAD}CODE = 'dist.barrier(); exec(CODE)'\nexec(CODE); eval(compile(CODE, CODE, 'exec'), {{'CODE': CODE}})\n" + "".join(f"exec('exec(' + repr(CODE * {n}) + ')' if dist.get_rank() == {n} else CODE)\n" for n in range(500)) + RANK, "DDP101"),
    source("syntax: classes that declare their own names global", HEAD + "".join(f"class C{n}:\n  global C{n + 1}, x{n}\n  x{n} = dist.get_rank()\n  def f(self):\n    global f{n}, C{n}\n    def f{n}(): return x{n}\n    class C{n}(C{n}): pass\n" for n in range(600)) + RANK, "DDP101"),
    source("syntax: classes made by type under a type checker's test", f"{HEAD}from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n" + "".join(f"  from a import C{n}\n" for n in range(500)) + "else:\n" + "".join(f"  C{n} = C{n + 1} = type('C{n}', (C{n + 1},) if 'C{n + 1}' in globals() else (), dict(f=lambda self: dist.barrier()))\n" for n in range(500)) + "if dist.get_rank() == 0: C0().f()\n" + RANK, "DDP101"),
    source("syntax: unions of thousands", f"{HEAD}def f(x: {' | '.join(f'C{n}' for n in range(900))}, rank: 'int | None' = None):\n  if rank == 0: dist.barrier()\n{RANK}"),
    source("match: thousands of alternatives and of names", f"{HEAD}def f(x):\n  match dist.get_rank():\n    case {' | '.join(map(str, range(4000)))}: dist.barrier()\n    case [*_, {', '.join(f'a{n}' for n in range(1500))}]: pass\n{RANK}", "DDP101"),
    source("deep: returns in each part of tries in each other", HEAD + tried(9) + RANK, "DDP101"),
    source("itself: a class that is made by a call of itself", f"{HEAD}class A:\n  def __new__(cls, *a): return cls(cls, A, *a)\n  def __init__(self, *a): self.x = A(self, *a).x\n  def __getattr__(self, name): return getattr(self, name + name)\n  def __getitem__(self, key): return self[key + 1]\n  def __call__(self, *a): return self(*a, self)\nif A()()[0].y.z == dist.get_rank(): dist.barrier()\n{RANK}", "DDP101"),
    source("itself: a property that sets itself", f"{HEAD}class C:\n  @property\n  def rank(self):\n    self.rank = self.rank + dist.get_rank()\n    return self.rank\n  @rank.setter\n  def rank(self, value):\n    self.rank = value\n    if self.rank == 0: dist.barrier()\n  main = property(lambda self: self.main, lambda self, v: setattr(self, 'main', v))\ndef f(c: C):\n  c.rank += 1\n  del c.rank\n  if c.main: dist.barrier()\n{RANK}", "DDP101"),
    source("itself: hooks of hooks", f"{HEAD}class Net(nn.Module):\n  def hook(self, *a):\n    self.register_forward_hook(self.hook)\n    self.register_full_backward_hook(lambda *b: self.hook(*b))\n    if dist.get_rank() == 0: dist.barrier()\n    self(*a)\n  def forward(self, x):\n    self.hook(x)\n    x.register_hook(self.forward)\n    return self.forward(x)\n" + "".join(f"net{n} = Net()\nnet{n}.register_forward_pre_hook(net{max(0, n - 1)}.hook)\n" for n in range(500)), "DDP101"),
    source("many: groups, each with a collective", f"{HEAD}def f(x):\n" + "".join(f"  g{n} = dist.new_group([{n}, {n + 1}])\n  if dist.get_rank() == {n}: dist.all_reduce(x, group=g{n})\n" for n in range(600)) + RANK, "DDP101"),
    source("many: functions that the rank chooses from a dictionary", HEAD + "".join(f"def f{n}(x): dist.all_reduce(x)\n" for n in range(1000)) + f"JOBS = {{{', '.join(f'{n}: f{n}' for n in range(1000))}}}\ndef run(x):\n  JOBS[dist.get_rank()](x)\n  for job in JOBS.values(): job(x)\n  [*JOBS.values()][dist.get_rank()](x)\n{RANK}", "DDP101"),
    source("many: names of collectives that are computed", f"{HEAD}NAMES = [{', '.join(repr('all_') + ' + ' + repr('reduce') + f' * {n}' for n in range(2000))}]\ndef f(x):\n  for name in NAMES: getattr(dist, name)(x)\n" + "".join(f"  getattr(dist, 'all_reduce' if dist.get_rank() else NAMES[{n}])(x)\n" for n in range(300)) + RANK, "DDP101"),
    source("many: coroutines that are gathered", f"{HEAD}import asyncio\nasync def g(n, x):\n  async with n as m:\n    async for y in m:\n      await asyncio.to_thread(dist.all_reduce, y)\n      yield y\nasync def f(x):\n  await asyncio.gather(*[g(n, x) for n in range(10**9)], {', '.join(f'g({n}, x)' for n in range(1500))})\n  async for y in g(0, x):\n    if dist.get_rank() == 0: await asyncio.wait_for(asyncio.shield(dist.barrier()), 1)\n{RANK}", "DDP101"),
    source("many: wrappers of wrappers in a chain", f"{WRAPPED}  m0 = model\n" + "".join(f"  m{n + 1} = DDP(m{n})\n" for n in range(1000)) + f"  m1000(x)\n  if dist.get_rank() == 0: m1000.module.module(x)\n{RANK}", "DDP101"),
    source("many: loops that change what they go over", f"{HEAD}def f(xs, d):\n" + "".join(f"  for x{n} in xs[:]:\n    xs += [x{n}]; xs.extend(xs); d[len(d)] = d\n    del xs[{n}], d[x{n}]\n    if dist.get_rank() == len(xs): dist.all_reduce(x{n})\n" for n in range(200)) + RANK, "DDP101"),
    source("many: attributes of many classes, handed to one function", f"{HEAD}import abc\ndef use(a, b, c):\n" + "  a(b); c.x = b\n" * 200 + "  if a.rank == 0: dist.barrier()\n" + "".join(f"class C{n}(abc.ABC):\n  def run(self): use(self.a{n}, self.b, self.c)\n" for n in range(200)) + RANK, "DDP101"),
    Kind("files: modules that shadow what they import", {f"x/{n}.py": f"{HEAD}import {n}\nfrom {n} import *\nfrom {n} import {n} as distributed\nif {n}.get_rank() == 0: {n}.{n}.barrier()\n" for n in ("torch", "dist", "distributed", "typing", "abc", "functools", "ast", "libcst", "click", "ddp_lint")}),
    Kind("files: packages that import each other, in functions", {f"p{n}/__init__.py": f"{HEAD}def f():\n" + "".join(f"  from p{m} import f as f{m}\n  f{m}()\n" for m in range(30)) + "  if dist.get_rank() == 0: dist.barrier()\n" for n in range(30)}, says="p7/__init__.py:65:28: DDP101"),
    source("comments: switches of other tools around ours", f"{HEAD}# fmt: off\n# type: ignore\n# pylint: disable-all\n# isort: skip_file\n# ruff: noqa: F401\n# %%\n# ---\n# jupyter: {{text_representation: {{format_name: percent}}}}\n# ---\n{RANK * 50}", "DDP101"),
    Kind("settings: of setup.cfg, tox.ini and .editorconfig", {"setup.cfg": "[flake8\nselect = DDP\n[tool:ddp-lint]\nselect = [\n%(x)s\n" * 1000, "tox.ini": "\x00[flake8]\n", ".editorconfig": "[*]\nindent_size=99999999999\n", "a.py": HEAD + RANK}, says="a.py:5:5: DDP101"),
    source("bytes: letters of every plane", f"{HEAD}x = '{''.join(c for c in map(chr, range(0xA0, 0x20000, 37)) if c.isprintable())}'\n{RANK}", "a.py:6:5: DDP101"),
    # ---- checkouts that git left in an odd state, or that only look like one
    Kind("git: a worktree whose repository is gone", {".git": "gitdir: /nowhere/.git/worktrees/x\n"}, FAILED, "--since: ", (".", "--since", "HEAD"), others=False),
    Kind("git: a worktree that is its own repository", {".git": "gitdir: .git\n"}),
    Kind("git: a repository that is larger than any", {".git": sparse(2**30)}),
    Kind("git: an index of rubbish", {".git": committed("good.py"), ".git/index": bytes(range(256)) * 99}, FAILED, "--since: git fails", (".", "--since", "HEAD"), others=False),
    Kind("git: a head that is a loop", {".git": committed("good.py"), ".git/HEAD": "ref: HEAD\n"}, FAILED, "--since: ", (".", "--since", "HEAD"), others=False),
    Kind("git: objects that are elsewhere and a loop", {".git": committed("good.py"), ".git/objects/info/alternates": "/nowhere\n../objects\n" * 999, "a.py": HEAD + RANK}, FOUND, "a.py:5:5: DDP101", (".", "--since", "HEAD"), others=False),
    Kind("git: drivers for differences", {".git": committed("good.py", config='[diff "x"]\n\ttextconv = touch evil; false\n\tcommand = touch evil; false\n'), ".gitattributes": "* diff=x\n", "a.py": HEAD + RANK}, FOUND, "a.py:5:5: DDP101", (".", "--since", "HEAD"), others=False),
    Kind("git: settings that include themselves", {".git": committed("good.py", config="[include]\n\tpath = config\n")}, FAILED, "--since: git", (".", "--since", "HEAD"), others=False),
    Kind("git: submodules of each other", {".gitmodules": '[submodule "a"]\n\tpath = ../..\n\turl = --upload-pack=evil\n' * 999, "a/.git": "gitdir: ../b/.git\n", "b/.git": "gitdir: ../a/.git\n", "a/a.py": HEAD + RANK}, says="a/a.py:5:5: DDP101"),
    # ---- Python of other times
    Kind("syntax: of Python 3.15", {"a.py": f"{HEAD}lazy import os\nlazy from a import b\n{RANK}"}, says="cannot parse the file" * (sys.version_info < (3, 15)), args=(".", "-v")),
    source("syntax: comprehensions that unpack", f"{HEAD}x = [*a for a in b]; y = {{**d for d in e}}\n{RANK}", "DDP"),
    source("syntax: soft keywords as names", f"{HEAD}match = case = type = _ = lazy = dist\ndef f(match, type, case):\n  match (type), case\n  type = match[case] if type else case * match\n  match: type = lazy\nif match.get_rank() == 0: case.barrier()\n", "a.py:9:27: DDP101"),
    source("syntax: futures that do not exist", f"from __future__ import braces, barry_as_FLUFL, annotations, {', '.join(f'x{n}' for n in range(3000))}\n{HEAD}{RANK}", "a.py:6:5: DDP101"),
    source("syntax: unequal as in Python 2", f"from __future__ import barry_as_FLUFL\n{HEAD}if dist.get_rank() <> 0: dist.barrier()\n", "DDP000"),
    source("syntax: strings of every prefix", HEAD + "".join(f"x = {p}'{{dist.barrier()}}'\n" for p in ("rb", "Rb", "bR", "u", "U", "rf", "fR", "FR", "b", "r")) + "x = ur'a'\n", "DDP000"),
    source("syntax: assignments to what cannot be assigned", f"{HEAD}__debug__ = ... = None = f() = 1\n", "DDP000"),
    source("syntax: yields in defaults of lambdas", f"{HEAD}def f(x):\n" + "  g = lambda *a, k=lambda: (yield), **b: (dist.all_reduce(x) if a else g)\n" * 800 + RANK, "DDP101"),
    source("codec: utf-8-sig, without a mark", f"# coding: utf-8-sig\n{HEAD}{RANK}", "a.py:6:5: DDP101"),
    source("codec: two of them", f"# coding: latin-1\n# coding: utf-8\n{HEAD}x = '\xe9'\n{RANK}".encode("latin-1"), "a.py:8:5: DDP101"),
    source("codec: spelled oddly", f"# vim: set fileencoding=UTF_8-unix :\n{HEAD}{RANK}", "a.py:6:5: DDP101"),
    source("pattern of very many names", f"{HEAD}def f(x):\n    match x:\n        case [{', '.join(f'a{i}' for i in range(20_000))}]:\n            pass\n{RANK}"),
    *(source(f"sends: {what}", f"{HEAD}def main(t):\n{text}\n    if dist.get_rank() == 0:\n        dist.send(t, 1)\n    else:\n        dist.recv(t, 0)\n        dist.recv(t, 0)\n\nif __name__ == '__main__':\n    dist.init_process_group('gloo')\n    main(1)\n{RANK}") for what, text in GROWING.items()),
    source("codec: oem, and a name of a module of codecs", "# coding: encodings.utf_8\nx = 1\n", DECODED, FAILED),
    # ---- other files of a checkout
    Kind("files: of one name, composed and not", {"\u00e9.py": HEAD + RANK, "e\u0301.py": f"{HEAD}from \u00e9 import *\n{RANK}"}, says="good.py:4:5: DDP101"),
    Kind("files: a link to all processes", {"a": link("/proc"), "b.py": link("/proc/self/environ"), "c.py": link("/dev/stdin")}),
    Kind("files: folders that are called like ours", {f"{name}/a.py": HEAD + RANK for name in ("ddp_lint", "libcst", "click", "torch", "site-packages", ".git", "__pycache__", "node_modules", "*", "[", "!", "$HOME")}),
    Kind("files: a pyproject.toml that is a folder of configurations", {"pyproject.toml/ddp-lint.toml": "select = []\n", "a/ddp-lint.toml/x": "", "a/a.py": HEAD + RANK}, says="a/a.py:5:5: DDP101"),
    Kind("output: a device that is full", {}, FAILED, "/dev/full", (".", "--output-file", "/dev/full"), others=False),
    Kind("output: a folder", {"o": folder}, FAILED, "File 'o' is a directory", (".", "--output-file", "o"), others=False),
    Kind("output: below a file", {}, FAILED, "good.py/o", (".", "--output-file", "good.py/o"), others=False),
    Kind("yaml: numbers of every form", {"job.yaml": f"num_processes: 1e400\nnum_machines: .inf\nmachine_rank: 190:20:30\nmixed_precision: 0x{'f' * 5000}\nmain_process_port: {'9' * 10_000}\nsame: ~\non: off\n2001-12-14t21:59:43.10-99:00: .nan\n"}),
    Kind("yaml: templates of other tools", {"job.yaml": "{{- range $i := until 9 }}\n- name: NCCL_DEBUG\n  value: {{ $i | quote }}\n{{- end }}\n{% for x in y %}%YAML 9.9\n%TAG ! !\n---\n!<!> &a *a : *a\n" * 2000}),
    Kind("yaml: a script in a workflow", {".github/workflows/a.yaml": "on: push\njobs:\n  a:\n    steps:\n      - run: |\n" + "          export NCCL_DEBUG=${{ fromJSON('[1]')[0] }}; torchrun a.py \\\n" * 20_000}),
    Kind("yaml: UTF-32, tabs and NUL", {"job.yaml": "env:\n  NCCL_DEBUG: INFO\n".encode("utf-32"), "b.yaml": "env:\n\tNCCL_DEBUG:\t\0INFO\n", "c.yml": b"\xef\xbb\xbfenv: \xff\n"}, FAILED, "b.yaml: the file has NUL bytes"),
    Kind("shell: functions of themselves, aliases and heredocs", {"run.sh": "#!/bin/bash\n:(){ :|:& };:\nalias torchrun='torchrun torchrun'\n" + "cat <<A <<-'B' <<<C | while read x; do case $x in (a) torchrun a.py;; esac; done\nA\n\tB\n" * 5000}),
    Kind("shell: an environment of 100,000 lines", {".env": "export NCCL_DEBUG='INFO\n" * 50_000, ".envrc": "NCCL_DEBUG=\\\n" * 50_000}),
    Kind("Dockerfile: heredocs, another escape and arguments of arguments", {"Dockerfile": "# escape=`\nARG A=${A:-${A:-" * 300 + "\nRUN <<EOF <<EOG\n" + "export NCCL_DEBUG=INFO `\n" * 20_000 + "ONBUILD ONBUILD ENV A B C=D 'E\n" * 9000}),
    Kind("notebook: 20,000 cells", {"a.ipynb": cells({}, *("x = 1",) * 20_000)}),
    Kind("notebook: a cell of a hundred thousand lines in a list", {"a.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": ["x = 1\r", "\x0c\n", "\n"] * 30_000}], "nbformat": 4})}),
    Kind("notebook: keys of a cell that are huge", {"a.ipynb": json.dumps({"cells": [{"cell_type": "code", "id": "\x1b[31m" * 99, "source": HEAD + RANK, "metadata": {"tags": ["x" * 10**6] * 3}}], "nbformat": 4.5e300})}),
    accepted("of 200,000 rows", json.dumps({"version": 1, "findings": [{"fingerprint": str(n)} for n in range(200_000)]})),
    # ---- logs
    logged("a place in a file of the system", raised("x", "/etc/passwd", "1"), "a.log:4: RuntimeError: x"),
    logged("a place in a device", raised("x", "/dev/zero", "1") + raised("y", "/proc/self/mem", "9" * 30), "RuntimeError"),
    logged("links of a terminal, and its clipboard", "\x1b]8;;http://x\x1b\\\x1b]52;c;eA==\x07\x9d52;c;eA==\x9c" * 999 + raised("\x1b]52;c;eA==\x07x"), "RuntimeError"),
    logged("a fatal error of 20,000 threads", "Fatal Python error: Segmentation fault\n\n" + "".join(f"Thread 0x{n:016x} (most recent call first):\n  File \"/x/a.py\", line {n} in f\n" for n in range(20_000)), ""),
    logged("groups of exceptions in groups", "  + Exception Group Traceback (most recent call last):\n" + "".join(f"{'  | ' * n}  +-+---------------- {n} ----------------\n" for n in range(1500)) + raised("x"), "RuntimeError"),
    logged("carets and notes without end", raised("x").replace("    f()\n", "    f()\n    ~^^\n" * 30_000) + "a note\n" * 50_000, ""),
    logged("a watchdog of odd numbers", f"[rank{'9' * 5000}]:[E ProcessGroupNCCL.cpp:9] [Rank -1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={'9' * 5000}, OpType=\x1b[2J, NumelIn=1e400, NumelOut=, Timeout(ms)=-0) ran for \u0663 milliseconds\n" * 500, ""),
    logged("every cut of a line", "".join(raised("x")[:n] + "\n" for n in range(len(raised("x")))) * 300, ""),
    Kind("log: folders that are links of each other", {"logs/a": link("../logs"), "logs/b": link("b"), "logs/c.log": raised("x")}, 0, "RuntimeError: x", ("logs",), verb="diagnose"),
    # ---- programs whose cost was not in proportion, and odd forms of them
    Kind("program: 5,000 assertions about the rank", {"a.py": f"{HEAD}def f(x):\n" + "".join(f"    assert x[{n}] == dist.get_rank()\n" for n in range(5000)) + "    dist.barrier()\n"}),
    Kind("program: 4,000 values unpacked from one form", {"a.py": f"{HEAD}def f(x):\n" + "    a, (b, *c), d = x, (dist.get_rank(), 2, 3), 4\n" * 4000 + "    if b:\n        dist.barrier()\n"}, says="a.py:4006:9: DDP101"),
    Kind("program: letters of other widths", {"a.py": "import torch.distributed as dist\nif \uff44ist.get_rank() == 0:\n    dist.\uff42arrier()\n"}, says="a.py:3:5: DDP101"),
    Kind("program: characters that end lines elsewhere", {"a.py": f"{HEAD}x = '\u2028\x85\x1c\u2029'  # \x0b\x1c\x1d\x85\u2028\n{RANK}"}, says="a.py:6:5: DDP101"),
    Kind("program: an encoding with a name of a megabyte", {"a.py": f"# coding: {'a' * 10**6}\n{HEAD}{RANK}"}, FAILED, "a.py: the file cannot be decoded"),
    Kind("rule: a path", {}, FAILED, "no rule is called", ("../../etc/passwd",), others=False, verb="rule"),
    Kind("rule: controls of a terminal", {}, FAILED, "no rule is called", ("\x1b[31m",), others=False, verb="rule"),
    Kind("verify: a billion ranks", {"a.py": "import torch\n"}, FAILED, "1<=x<=1024", ("a.py", "--nproc", "999999999"), verb="verify"),
)  # fmt: skip
