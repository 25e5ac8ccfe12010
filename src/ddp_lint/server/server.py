"""The server: listens to the editor, checks in a thread of its own, and publishes what was found."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pathlib
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from lsprotocol import types
from pygls import uris
from pygls.lsp.server import LanguageServer

from ddp_lint import __version__
from ddp_lint.config import FILES
from ddp_lint.files import absolute
from ddp_lint.findings import Finding
from ddp_lint.gc_tuning import let_go_of_trees, rare_collections
from ddp_lint.output import Sources
from ddp_lint.server.messages import FIX_ALL, Translator, contains, hover
from ddp_lint.server.workplace import Checked, Document, Workplace
from ddp_lint.source.file import normalised
from ddp_lint.source.notebook import Lines, module_of

#: Seconds without a keystroke before a text is looked at, and before it is checked once it was.
PAUSE, _PAUSE_BEFORE_CHECK = 0.03, 0.4
#: Checks after which memory is freed once there was no edit for so many seconds; after so many more, anyway.
_TIDIED, _IDLE, _TIDIED_ANYWAY = 25, 2.0, 250
#: Of the thread that checks: the analysis follows calls deeper than the default of some systems allows.
_STACK = 256 * 1024 * 1024
_NOTEBOOKS = types.NotebookDocumentSyncOptions(
    notebook_selector=[
        types.NotebookDocumentFilterWithNotebook(
            notebook=types.NotebookDocumentFilterNotebookType(notebook_type="jupyter-notebook"),
            cells=[types.NotebookCellLanguage(language="python")],
        )
    ]
)


class Server(LanguageServer):
    """A language server with the projects of the documents that are open.

    Checks run one after the other in one thread. A document that changes while it waits for its turn is checked once,
    as it is by then; what was found in a text that has changed since is not published. Of an edit within a function the
    editor is shown what a first look finds; the check, which takes longer, waits for a pause in typing.
    """

    def __init__(self) -> None:
        super().__init__("ddp-lint", __version__, notebook_document_sync=_NOTEBOOKS)
        self._workplace = Workplace()
        threading.stack_size(_STACK)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "check")
        #: By the document's URI, or the notebook's: the wait before a check, the version wanted, what was found last.
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._wanted: dict[str, int] = {}
        self._checked: dict[str, Checked] = {}
        #: Since memory was tidied up, and when it is next.
        self._checks = 0
        self._tidying: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- texts

    def document(self, uri: str) -> Document | None:
        """The text of a document, or of the cells of a notebook, as the editor has it now."""
        notebook = self.workspace.get_notebook_document(notebook_uri=uri)
        if notebook is not None:
            cells = [(n, cell.document) for n, cell in enumerate(notebook.cells, 1) if _is_code(cell)]
            module = module_of((n, self._open_text(document) or "") for n, document in cells)
            return Document(_path(uri), module, Lines.of(module))
        text = self._open_text(uri)
        return Document(_path(uri), text) if text is not None else None

    def _open_text(self, uri: str) -> str | None:
        """The text of a document or a cell that is open, never what is on disk under its name."""
        known = self.workspace.text_documents.get(urllib.parse.unquote(uri))  # as pygls keeps them
        return normalised(known.source) if known is not None else None

    def owner(self, uri: str) -> str:
        """The notebook of a cell; any other document itself."""
        notebook = self.workspace.get_notebook_document(cell_uri=uri)
        return notebook.uri if notebook is not None else uri

    # ---- checking

    def changed(self, uri: str, pause: float = PAUSE) -> None:
        """Check a document after a pause, in which it must not change again."""
        self._wanted[uri] = self._wanted.get(uri, 0) + 1
        if waiting := self._waiting.pop(uri, None):
            waiting.cancel()
        self._waiting[uri] = self._started(self._check_after(uri, pause))

    def others_changed(self, uri: str = "") -> None:
        """Look at the other open documents again: what they depend on may have changed."""
        for other in list(self._checked):
            if other != uri and other not in self._waiting:
                self.changed(other)

    def _started(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _check_after(self, uri: str, pause: float) -> None:
        await asyncio.sleep(pause)
        self._waiting.pop(uri, None)
        wanted = self._wanted.get(uri)
        document = self.document(uri)
        if document is None or wanted is None:
            return
        loop = asyncio.get_running_loop()
        before = self._checked.get(uri)
        if await self._in_turn(uri, wanted, self._workplace.look, document):
            await asyncio.sleep(_PAUSE_BEFORE_CHECK)
        if not await self._in_turn(uri, wanted, self._workplace.check, document):
            return
        self._checks += 1
        if self._checks >= _TIDIED:
            if self._tidying:
                self._tidying.cancel()
            self._tidying = loop.call_later(0 if self._checks >= _TIDIED_ANYWAY else _IDLE, self._tidy)
        if before is None or before.document != document:
            self.others_changed(uri)

    def _tidy(self) -> None:
        self._checks = 0
        self._thread.submit(let_go_of_trees)

    async def _in_turn(
        self, uri: str, wanted: int, check: Callable[[Document], Checked | None], document: Document
    ) -> bool:
        """Check a document in the thread for that, and publish what was found. False where nothing was: the document
        has changed meanwhile, or the check is not for it."""

        def checked() -> Checked | None:
            if self._wanted.get(uri) != wanted:
                return None
            with rare_collections():
                return check(document)

        found = await asyncio.get_running_loop().run_in_executor(self._thread, checked)
        if found is None or self._wanted.get(uri) != wanted:
            return False
        if found != self._checked.get(uri):
            self._checked[uri] = found
            self._publish(uri, found)
        return True

    async def in_background(self, work: Any, *arguments: Any) -> None:
        """Do something in the thread that checks, in its turn."""
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*arguments))

    async def close(self, uri: str) -> None:
        """The document is closed: the file on disk counts, and its findings disappear from the editor."""
        checked = self._checked.pop(uri, None)
        self._wanted.pop(uri, None)
        if waiting := self._waiting.pop(uri, None):
            waiting.cancel()
        for target in self._targets(uri, checked):
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(target, []))
        await self.in_background(self._workplace.close, _path(uri))
        self.others_changed(uri)

    async def changed_on_disk(self, changes: Sequence[types.FileEvent]) -> None:
        listing = any(change.type is not types.FileChangeType.Changed for change in changes)
        paths = [_path(change.uri) for change in changes]
        await self.in_background(lambda: self._workplace.changed_on_disk(paths, listing=listing))
        self.others_changed()

    # ---- what the editor shows

    def _publish(self, uri: str, checked: Checked) -> None:
        translator = self.translator(uri, checked)
        found: dict[str, list[types.Diagnostic]] = {target: [] for target in self._targets(uri, checked)}
        for finding in checked.findings:
            target = translator.uri_of(finding.span.path, finding.span.cell)
            found.setdefault(target, []).append(translator.diagnostic(finding))
        if checked.problem:
            found[next(iter(found), uri)].append(_problem(checked.problem))
        for target, diagnostics in found.items():
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(target, diagnostics))

    def _targets(self, uri: str, checked: Checked | None) -> list[str]:
        """The documents that findings are shown in: the document, or the cells of the notebook."""
        notebook = self.workspace.get_notebook_document(notebook_uri=uri)
        if notebook is not None:
            return [cell.document for cell in notebook.cells if _is_code(cell)]
        return [uri] if checked is None or checked.document.cells is None else []

    def translator(self, uri: str, checked: Checked) -> Translator:
        """For the findings of a document: texts that are open are what the editor shows."""
        own = checked.document
        sources = Sources()
        texts = {known.document.path: known.document for known in self._checked.values()} | {own.path: own}

        def lines_of(path: str, cell: int) -> Sequence[str]:
            document = texts.get(absolute(path))
            if document is None:
                return sources.lines(path, cell)
            text = document.cells.text(document.text, cell) if document.cells else document.text
            return text.split("\n")

        def uri_of(path: str, cell: int) -> str:
            file = absolute(path)
            target = uri if file == own.path else next((u for u in self._checked if _path(u) == file), file.as_uri())
            notebook = self.workspace.get_notebook_document(notebook_uri=target) if cell else None
            known = notebook is not None and cell <= len(notebook.cells)
            return notebook.cells[cell - 1].document if notebook is not None and known else target

        return Translator(self.workspace.position_codec, lines_of, uri_of)

    def at(self, uri: str, place: types.Range) -> tuple[Translator, list[Finding], Checked] | None:
        """What was found at a place of a document; None where the text has changed since it was checked."""
        owner = self.owner(uri)
        checked = self._checked.get(owner)
        if checked is None or checked.document != self.document(owner):
            return None
        translator = self.translator(owner, checked)
        found = [
            finding
            for finding in checked.findings
            if translator.uri_of(finding.span.path, finding.span.cell) == uri
            and contains(translator.range(finding.span), place)
        ]
        return translator, found, checked


def _path(uri: str) -> pathlib.Path:
    """The file of a document; a text without one is taken for a script in the working directory."""
    path = uris.to_fs_path(uri) if uri.startswith("file:") else None
    return pathlib.Path(path) if path else pathlib.Path.cwd() / "untitled.py"


def _is_code(cell: types.NotebookCell) -> bool:
    return cell.kind is types.NotebookCellKind.Code


def _problem(message: str) -> types.Diagnostic:
    start = types.Position(0, 0)
    return types.Diagnostic(
        types.Range(start, start), message, severity=types.DiagnosticSeverity.Error, source="ddp-lint"
    )


# ---- the protocol


def make() -> Server:
    """A server that knows what to do with each message of the protocol."""
    server = Server()
    _listen_to_documents(server)
    _listen_to_notebooks(server)
    _answer(server)

    @server.feature(types.INITIALIZED)
    async def initialized(_: types.InitializedParams) -> None:
        await _watch_files(server)

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    async def files_changed(params: types.DidChangeWatchedFilesParams) -> None:
        await server.changed_on_disk(params.changes)

    return server


def _listen_to_documents(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def opened(params: types.DidOpenTextDocumentParams) -> None:
        server.changed(params.text_document.uri, pause=0)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: types.DidChangeTextDocumentParams) -> None:
        server.changed(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def saved(params: types.DidSaveTextDocumentParams) -> None:
        server.changed(params.text_document.uri, pause=0)
        server.others_changed(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    async def closed(params: types.DidCloseTextDocumentParams) -> None:
        await server.close(params.text_document.uri)


def _listen_to_notebooks(server: Server) -> None:
    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    async def opened(params: types.DidOpenNotebookDocumentParams) -> None:
        server.changed(params.notebook_document.uri, pause=0)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    async def changed(params: types.DidChangeNotebookDocumentParams) -> None:
        server.changed(params.notebook_document.uri)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    async def closed(params: types.DidCloseNotebookDocumentParams) -> None:
        await server.close(params.notebook_document.uri)


def _answer(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hovered(params: types.HoverParams) -> types.Hover | None:
        uri, at = params.text_document.uri, params.position
        found = server.at(uri, types.Range(at, at))
        if found is None:
            return None
        lines = server.workspace.get_text_document(uri).lines
        line = lines[at.line] if at.line < len(lines) else ""
        text = hover(found[1], line, server.workspace.position_codec.position_from_client_units(lines, at).character)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text)) if text else None

    kinds = [types.CodeActionKind.QuickFix, FIX_ALL]

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=kinds))
    def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        found = server.at(params.text_document.uri, params.range)
        if found is None:
            return []
        translator, findings, checked = found
        only = params.context.only
        actions: list[types.CodeAction] = []
        if _wants(only, types.CodeActionKind.QuickFix.value):
            actions += [action for finding in findings for action in translator.actions(finding)]
        if _wants(only, FIX_ALL) and (action := translator.fix_all(checked.findings)):
            actions.append(action)
        return actions


def _wants(only: Sequence[types.CodeActionKind | str] | None, kind: str) -> bool:
    """Whether an editor that requests some kinds of actions takes this one; a kind includes those below it."""
    return only is None or any(f"{kind}.".startswith(f"{getattr(k, 'value', k)}.") for k in only)


async def _watch_files(server: Server) -> None:
    """Ask the editor to say when files change that are not open."""
    workspace = server.client_capabilities.workspace
    watching = workspace.did_change_watched_files if workspace else None
    if watching is None or not watching.dynamic_registration:
        return
    watchers = [types.FileSystemWatcher(glob_pattern=f"**/{name}") for name in ("*.py", *FILES)]
    options = types.DidChangeWatchedFilesRegistrationOptions(watchers=watchers)
    method = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
    registration = types.Registration("ddp-lint-files", method, options)
    await server.client_register_capability_async(types.RegistrationParams([registration]))
