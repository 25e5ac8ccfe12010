"""Messages as they come over a pipe: only whole ones reach the server, and what it logs is one line each."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import BinaryIO, NoReturn

#: At the end of a line, whatever a body of the wrong length has left before it.
_LENGTH = re.compile(rb"Content-Length: *(\d{1,12})\r?\n$", re.IGNORECASE)
#: Bytes of a line of a header, and of a body.
_LONGEST_LINE, _LONGEST_BODY = 1 << 16, 256 << 20


class Messages:
    """Standard input as pygls reads it: a header's lines, then so many bytes. What is no message is left out, and the
    next one is looked for: an editor may recover, and pygls would not."""

    def __init__(self, stream: BinaryIO, say: Callable[[str], None]) -> None:
        self._stream = stream
        self._say = say
        self._lines: list[bytes] = []
        self._body = b""

    def readline(self) -> bytes:
        """The next line of a header; nothing at the end."""
        if not self._lines:
            body = self._next()
            if body is None:
                return b""
            self._body, self._lines = body, [b"\r\n", b"Content-Length: %d\r\n" % len(body)]
        return self._lines.pop()

    def read(self, size: int) -> bytes:
        """The body that belongs to the header."""
        return self._body

    def _next(self) -> bytes | None:
        while (length := self._length()) is not None:
            body = self._stream.read(length)
            if len(body) < length:
                return None
            if _is_message(body):
                return body
            self._say("warning: a message that is no JSON-RPC was left out")
        return None

    def _length(self) -> int | None:
        """Of the next body; None at the end."""
        length = 0
        while line := self._stream.readline(_LONGEST_LINE):
            if found := _LENGTH.search(line):
                length = int(found[1])
            elif not line.strip() and 0 < length <= _LONGEST_BODY:
                return length
        return None


def _is_message(body: bytes) -> bool:
    """Is it one request, notification or response?"""
    try:
        content = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    if not isinstance(content, dict) or content.get("jsonrpc") != "2.0":
        return False
    if not isinstance(content.get("id"), int | str | None):
        return False
    if "method" in content:
        return isinstance(content["method"], str) and isinstance(content.get("params"), dict | None)
    return "id" in content and ("result" in content) != ("error" in content)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class _Said(logging.Handler):
    """What pygls logs, without the traceback: messages are the editor's."""

    def __init__(self, level: int, say: Callable[[str], None]) -> None:
        super().__init__(level)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        reason = record.exc_info[1] if record.exc_info else None
        text = record.getMessage().partition("\n")[0] + (f": {type(reason).__name__}: {reason}" if reason else "")
        self._say(f"{record.levelname.lower()}: {text}")


def log_in_lines(say: Callable[[str], None]) -> None:
    """Have `say` print what pygls logs, a line each."""
    logger = logging.getLogger("pygls")
    logger.addHandler(_Said(logging.WARNING, say))
    logger.propagate = False
