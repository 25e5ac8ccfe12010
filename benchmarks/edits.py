"""How long a language server takes from an edit to the diagnostics: wall and CPU milliseconds over a number of edits.

    python benchmarks/edits.py FILE [--edits 50] [--root FOLDER]

A real client speaks to `ddp-lint server` as an editor does. Each edit changes a line in the middle of the file, half of
them in the body of a function; each is waited for before the next. The first check, which learns the project, is told
apart. `--root` is where the server starts, the file's folder by default.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import statistics
import sys
import time
from typing import Any

from lsprotocol import types
from pygls.lsp.client import BaseLanguageClient


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--edits", type=int, default=50)
    parser.add_argument("--root", type=pathlib.Path)
    options = parser.parse_args()
    file = options.file.resolve()
    asyncio.run(_measure(file, (options.root or file.parent).resolve(), options.edits))
    return 0


async def _measure(file: pathlib.Path, root: pathlib.Path, edits: int) -> None:
    client = BaseLanguageClient("benchmark", "1")
    shown = asyncio.Event()
    found: list[Any] = []

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def publish(params: Any) -> None:
        found[:] = params.diagnostics
        shown.set()

    await client.start_io(sys.executable, "-m", "ddp_lint", "server", cwd=root)
    await client.initialize_async(
        types.InitializeParams(capabilities=types.ClientCapabilities(), root_uri=root.as_uri())
    )
    client.initialized(types.InitializedParams())
    assert client._server is not None
    server = client._server.pid
    text, uri = file.read_text(), file.as_uri()

    async def done(started: float, before: float) -> tuple[float, float]:
        await asyncio.wait_for(shown.wait(), 300)
        shown.clear()
        return time.perf_counter() - started, _cpu(server) - before

    started, before = time.perf_counter(), _cpu(server)
    client.text_document_did_open(types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "python", 0, text)))
    first = await done(started, before)
    lines = text.split("\n")
    places = _places(lines)
    times = []
    for version in range(1, edits + 1):
        at = places[version * 7919 % len(places)]
        changed = "\n".join([*lines[:at], f"{lines[at]}  # edit {version}", *lines[at + 1 :]])
        started, before = time.perf_counter(), _cpu(server)
        document = types.VersionedTextDocumentIdentifier(version=version, uri=uri)
        change = types.TextDocumentContentChangeWholeDocument(changed)
        client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))
        times.append(await done(started, before))
    wall, cpu = ([1000 * t[n] for t in times] for n in (0, 1))
    print(f"{file.name}: {len(lines)} lines, {len(found)} diagnostics; open {first[0]:.2f} s, {first[1]:.2f} CPU s")
    for name, values in (("wall ms", wall), ("CPU ms", cpu)):
        p95 = statistics.quantiles(values, n=20)[-1]
        print(f"{name:8} median {statistics.median(values):4.0f}  95th {p95:4.0f}  least {min(values):4.0f}")
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def _cpu(process: int) -> float:
    """The CPU seconds of a process until now, with those of the system for it. Linux tells."""
    times = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _places(lines: list[str]) -> list[int]:
    """Lines that a comment may be added to: a statement of its own, as far as a look at the text tells."""
    ended = (")", "]", "0", "1", "None", "True", "False", "pass", ":")
    found = [n for n, line in enumerate(lines) if line.startswith(" ") and line.endswith(ended) and '"' not in line]
    return found or [0]


if __name__ == "__main__":
    sys.exit(main())
