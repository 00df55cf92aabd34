"""Build hook: the README for package indexes, its links absolute if the project has an address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Where a link (of Markdown) or a picture begins that is no address and no place on the page itself.
_MARKDOWN = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)")
_PICTURE = re.compile(r'(<img\b[^>]*?\bsrc=")(?![a-z]+:)')


def absolute(text: str, repository: str | None) -> str:
    """Point relative links at the files of a repository, as GitHub and its like serve them."""
    if repository is None:
        return text
    root = repository.removesuffix("/").removesuffix(".git")
    text = _PICTURE.sub(lambda found: f"{found[1]}{root}/raw/main/", text)
    return _MARKDOWN.sub(
        lambda found: f"{found[1]}{found[2]}{root}/{'raw' if found[1] else 'blob'}/main/", text
    )


class Readme(MetadataHookInterface):
    """Gives the project's ``readme``, with links to its ``urls.Repository``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add ``readme`` to the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository)}
