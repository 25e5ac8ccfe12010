import pathlib
import tempfile
from collections.abc import Iterable
from typing import Any

from ddp_lint.diagnose.report import as_dict
from ddp_lint.diagnose.session import diagnose


def diagnosed(lines: Iterable[str]) -> dict[str, Any]:
    """What is reported for one log, without a working tree."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "log")
        log.write_text("\n".join(lines), encoding="utf-8", newline="")
        return as_dict(diagnose([str(log)], None))
