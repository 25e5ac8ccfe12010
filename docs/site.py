"""What the site does with the pages: the rules stand in its navigation, family by family, and links to files outside of
docs/ lead to the repository."""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import Any

_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    families: dict[str, list[dict[str, str]]] = {}
    for page in sorted((pathlib.Path(config["docs_dir"]) / "rules").glob("DDP*.md")):
        title = next(line[2:] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        families.setdefault(f"{page.stem[:4]}xx", []).append({title: f"rules/{page.name}"})
    rules = next(section["Rules"] for section in config["nav"] if "Rules" in section)
    rules += [{family: pages} for family, pages in families.items()]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[1]))
        outside = not target.startswith("docs/") or target.endswith((".tsv", ".toml"))
        return f"]({config['repo_url']}/blob/main/{target}{match[2] or ''})" if outside else match[0]

    return _LINK.sub(link, markdown)
