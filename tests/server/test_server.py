"""The language server, spoken to by a client over standard input and output as an editor does."""

from __future__ import annotations

import asyncio
import pathlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

types = pytest.importorskip("lsprotocol.types")
pytest.importorskip("pygls")

from ddp_lint.config import Configuration  # noqa: E402
from ddp_lint.engine.runner import check_text  # noqa: E402

pytestmark = pytest.mark.slow

TRAIN = """\
import torch
import torch.distributed as dist
from helper import save


def resume(model):
    if dist.get_rank() == 0:
        save(model)
    état = "é𝄞"; state = torch.load("é𝄞.pt")
    return model.load_state_dict(state)
    x = 1  # noqa: DDP101
"""
HELPER = "import torch.distributed as dist\n\n\ndef save(model):\n    pass\n"
SYNCED = HELPER.replace("pass", "dist.barrier()")


class Editor:
    """A client that keeps what the server publishes."""

    def __init__(self, root: pathlib.Path, encoding: str) -> None:
        from pygls.lsp.client import BaseLanguageClient

        self.root, self.encoding = root, encoding
        self.client = BaseLanguageClient("tests", "1")
        self.shown: dict[str, list[Any]] = {}
        self.published = asyncio.Event()
        self.watched: list[Any] = []
        self.versions: dict[str, int] = {}

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def publish(params: Any) -> None:
            self.shown[params.uri] = params.diagnostics
            self.published.set()

        @self.client.feature(types.CLIENT_REGISTER_CAPABILITY)
        def register(params: Any) -> None:
            self.watched += params.registrations

    async def start(self) -> None:
        await self.client.start_io(sys.executable, "-m", "ddp_lint", "server", cwd=self.root)
        watching = types.DidChangeWatchedFilesClientCapabilities(dynamic_registration=True)
        capabilities = types.ClientCapabilities(
            general=types.GeneralClientCapabilities(position_encodings=[self.encoding]),
            workspace=types.WorkspaceClientCapabilities(did_change_watched_files=watching),
        )
        self.server = await self.client.initialize_async(
            types.InitializeParams(capabilities=capabilities, root_uri=self.root.as_uri())
        )
        self.client.initialized(types.InitializedParams())

    async def stop(self) -> int | None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        process = self.client._server
        code = await asyncio.wait_for(process.wait(), 20) if process else None
        await self.client.stop()
        return code

    def uri(self, name: str) -> str:
        return (self.root / name).as_uri()

    def open(self, name: str, text: str) -> None:
        item = types.TextDocumentItem(self.uri(name), "python", 0, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, name: str, text: str) -> None:
        version = self.versions[name] = self.versions.get(name, 0) + 1
        document = types.VersionedTextDocumentIdentifier(version=version, uri=self.uri(name))
        whole = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))

    async def until(self, name: str, holds: Callable[[list[str]], bool]) -> list[Any]:
        """The diagnostics of a document, once their codes are as they should be."""

        async def wait() -> list[Any]:
            while (name_uri := self.uri(name)) not in self.shown or not holds(self.codes(name)):
                self.published.clear()
                await self.published.wait()
            return self.shown[name_uri]

        try:
            return await asyncio.wait_for(wait(), 25)
        except asyncio.TimeoutError:
            raise AssertionError(f"{name}: {self.shown.get(self.uri(name))}") from None

    def codes(self, name: str) -> list[str]:
        return [d.code for d in self.shown[self.uri(name)]]

    async def actions(self, name: str, place: Any, only: list[str] | None = None) -> list[Any]:
        context = types.CodeActionContext(diagnostics=[], only=only)
        document = types.TextDocumentIdentifier(self.uri(name))
        return list(
            await self.client.text_document_code_action_async(types.CodeActionParams(document, place, context)) or []
        )

    async def hover(self, name: str, line: int, character: int) -> str:
        place = types.Position(line, character)
        params = types.HoverParams(types.TextDocumentIdentifier(self.uri(name)), place)
        found = await self.client.text_document_hover_async(params)
        return found.contents.value if found else ""


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "ä b+c"  # what stands in a URI in another way
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    (folder / "train.py").write_text(TRAIN)
    (folder / "helper.py").write_text(HELPER)
    return folder


def session(root: pathlib.Path, work: Callable[[Editor], Awaitable[None]], encoding: str = "utf-16") -> None:
    """Do something with a server; it has to end as it is told."""

    async def run() -> None:
        editor = Editor(root, encoding)
        await editor.start()
        try:
            await work(editor)
        finally:
            code = await editor.stop()
        assert code == 0

    asyncio.run(run())


def applied(text: str, edit: Any, uri: str, units: Callable[[str], int]) -> str:
    """The text after an edit for one document whose characters have a width each."""
    lines = text.splitlines(keepends=True)

    def offset(place: Any) -> int:
        at, used = 0, 0
        line = lines[place.line] if place.line < len(lines) else ""
        while used < place.character:
            used += units(line[at])
            at += 1
        return sum(map(len, lines[: place.line])) + at

    for change in sorted(edit.changes[uri], key=lambda c: (c.range.start.line, c.range.start.character), reverse=True):
        text = text[: offset(change.range.start)] + change.new_text + text[offset(change.range.end) :]
    return text


@pytest.mark.parametrize(
    ("encoding", "units"),
    [
        ("utf-16", lambda c: len(c.encode("utf-16-le")) // 2),
        ("utf-8", lambda c: len(c.encode())),
        ("utf-32", lambda c: 1),
    ],
)
def test_diagnostics_fixes_and_pages(root: pathlib.Path, encoding: str, units: Callable[[str], int]) -> None:
    async def work(editor: Editor) -> None:
        editor.open("train.py", TRAIN)
        shown = await editor.until("train.py", lambda codes: "DDP401" in codes)
        wanted = check_text(TRAIN, root / "train.py", Configuration().of(root)).findings
        assert sorted(editor.codes("train.py")) == sorted(f.code for f in wanted)
        load = next(d for d in shown if d.code == "DDP401")
        line = TRAIN.split("\n")[8]
        assert load.range.start.character == sum(map(units, line[: line.index("torch.load")]))
        assert "DDP401" in load.code_description.href
        assert load.related_information
        assert "## Why it breaks" in await editor.hover("train.py", 8, load.range.start.character)
        assert "# DDP002: " in await editor.hover("train.py", 10, 20)
        assert await editor.hover("train.py", 5, 2) == ""

        actions = {action.title: action for action in await editor.actions("train.py", load.range)}
        fix = next(action for title, action in actions.items() if "may change behaviour" in title)
        after = applied(TRAIN, fix.edit, editor.uri("train.py"), units)
        assert 'torch.load("é𝄞.pt", map_location="cpu")' in after
        ignored = applied(TRAIN, actions["DDP401: ignore here"].edit, editor.uri("train.py"), units)
        assert 'torch.load("é𝄞.pt")  # ddp-lint: ignore[DDP401] TODO: say why\n' in ignored
        editor.change("train.py", ignored)
        await editor.until("train.py", lambda codes: codes == ["DDP002"])
        before, _, _ = ignored.split("\n")[8].partition("DDP401")
        assert "# DDP401: " in await editor.hover("train.py", 8, sum(map(units, before)) + 1)

        anywhere = types.Range(types.Position(0, 0), types.Position(0, 0))
        (all_fixes,) = await editor.actions("train.py", anywhere, only=["source.fixAll"])
        editor.change("train.py", applied(ignored, all_fixes.edit, editor.uri("train.py"), units))
        await editor.until("train.py", lambda codes: not codes)

    session(root, work, encoding)


def test_unsaved_text_of_one_file_is_seen_from_another(root: pathlib.Path) -> None:
    async def work(editor: Editor) -> None:
        editor.open("train.py", TRAIN)
        await editor.until("train.py", lambda codes: "DDP101" not in codes)
        editor.open("helper.py", HELPER)
        editor.change("helper.py", SYNCED)
        shown = await editor.until("train.py", lambda codes: "DDP101" in codes or "DDP102" in codes)
        related = [info for d in shown for info in d.related_information or []]
        assert editor.uri("helper.py") in {info.location.uri for info in related} | {editor.uri("helper.py")}
        document = types.TextDocumentIdentifier(editor.uri("helper.py"))
        editor.client.text_document_did_close(types.DidCloseTextDocumentParams(document))
        await editor.until("train.py", lambda codes: "DDP101" not in codes)
        assert editor.shown[editor.uri("helper.py")] == ()

        (root / "helper.py").write_text(SYNCED)
        assert editor.watched
        event = types.FileEvent(editor.uri("helper.py"), types.FileChangeType.Changed)
        editor.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([event]))
        await editor.until("train.py", lambda codes: "DDP101" in codes)

        (root / "pyproject.toml").write_text('[tool.ddp-lint]\nignore = ["DDP1", "DDP4"]\n')
        event = types.FileEvent(editor.uri("pyproject.toml"), types.FileChangeType.Changed)
        editor.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([event]))
        await editor.until("train.py", lambda codes: not any(code.startswith(("DDP1", "DDP4")) for code in codes))

    session(root, work)


def test_trouble_is_told_in_the_file_and_the_server_goes_on(root: pathlib.Path) -> None:
    async def work(editor: Editor) -> None:
        editor.open("train.py", "def f(:\n")
        await editor.until("train.py", lambda codes: codes == ["DDP000"])
        for number in range(30):  # typed quickly: the last text counts
            editor.change("train.py", f"x = {number}  # noqa: DDP101\n")
        editor.change("train.py", TRAIN)
        await editor.until("train.py", lambda codes: "DDP401" in codes)
        (root / "pyproject.toml").write_text("[tool.ddp-lint]\nselct = []\n")
        event = types.FileEvent(editor.uri("pyproject.toml"), types.FileChangeType.Changed)
        editor.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([event]))
        shown = await editor.until("train.py", lambda codes: codes == [None])
        assert "selct" in shown[0].message

    session(root, work)


def test_a_notebook_by_its_cells(root: pathlib.Path) -> None:
    texts = ["import torch.distributed as dist", "%time\nif dist.get_rank() == 0:\n    dist.barrier()"]

    async def work(editor: Editor) -> None:
        kind = types.NotebookCellKind.Code
        cells = [types.NotebookCell(kind=kind, document=f"{editor.uri('a.ipynb')}#{n}") for n, _ in enumerate(texts)]
        editor.client.notebook_document_did_open(
            types.DidOpenNotebookDocumentParams(
                types.NotebookDocument(editor.uri("a.ipynb"), "jupyter-notebook", 0, cells),
                [types.TextDocumentItem(c.document, "python", 0, t) for c, t in zip(cells, texts, strict=True)],
            )
        )
        shown = await editor.until("a.ipynb#1", lambda codes: codes == ["DDP101"])
        assert shown[0].range.start.line == 2
        assert editor.shown[editor.uri("a.ipynb#0")] == ()

    class Cells(Editor):
        def uri(self, name: str) -> str:
            name, _, cell = name.partition("#")
            return super().uri(name) + (f"#{cell}" if cell else "")

    async def run() -> None:
        editor = Cells(root, "utf-16")
        await editor.start()
        try:
            await work(editor)
        finally:
            await editor.stop()

    asyncio.run(run())
