"""What the site adds to the pages in docs/: reference, notebooks, MathJax, and files that they link to.

On GitHub pages lie in docs/ and link to files beside it; on the site docs/ is the root. So a file of the
repository has one name in each, and links are rewritten from one to the other.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from importlib.metadata import files as files_of
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from reference import ROOT, overview, page_name, sections
from reference import page as reference_page

# Pages outside docs/ that the menu names.
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "experiments/README.md", "benchmarks/README.md")
_LINK = re.compile(r"""(\]\(|src=")([^)\s#"]+)(#[^)\s]*)?(?=[)"])""")
_DOCTEST = re.compile(r"^( *)```python\n(?= *>>> )", re.MULTILINE)


def site_name(path: str) -> str:
    """What a file of the repository is called among the site's sources.

    >>> [site_name(path) for path in ("docs/shift.md", "README.md", "covfree/core/lapack.py", "CHANGELOG.md")]
    ['shift.md', 'index.md', 'covfree/core/lapack.py.md', 'CHANGELOG.md']
    """
    if path == "README.md":
        return "index.md"
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return path.removeprefix("docs/") + (".md" if path.endswith(".py") else "")


def links(text: str, path: str) -> Iterator[tuple[re.Match[str], str]]:
    """Links of a page of the repository to its files: each match, and the file's path in the repository."""
    for match in _LINK.finditer(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        if ":" not in match[2] and (ROOT / target).is_file():
            yield match, target


def for_the_site(text: str, path: str) -> str:
    """A page of the repository, with links as the site needs them, and sessions of Python marked as such."""
    here = posixpath.dirname(site_name(path)) or "."
    for match, target in reversed(list(links(text, path))):
        link = posixpath.relpath(site_name(target), here) + (match[3] or "")
        text = f"{text[: match.start()]}{match[1]}{link}{text[match.end() :]}"
    return _DOCTEST.sub(r"\1```pycon\n", text)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the reference's pages in the menu, those of one module together."""
    menu = next(entry["API"] for entry in config.nav or [] if "API" in entry)
    for title, module, _ in sections():
        page = page_name(title)
        if title == module:
            menu.append({module: page})
        else:
            if module not in menu[-1]:
                menu.append({module: []})
            menu[-1][module].append({title.removeprefix(f"{module}: "): page})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and files that do not lie in docs/."""

    def add(name: str, **content: Any) -> None:
        files.append(File.generated(config, name, **content))

    for section in sections():
        add(page_name(section[0]), content=reference_page(*section))
    for located in files_of("sphinx-mathjax-offline") or ():
        path = str(located).partition("/static/")[2]
        if path.endswith((".woff", "/tex-chtml.js")):
            add(path, abs_src_path=str(located.locate()))
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages() if file.abs_src_path]
    waiting += ("README.md", *PAGES)
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, outputs = MarkdownExporter().from_notebook_node(nbformat.read(notebook, as_version=4))
        for name, data in outputs["outputs"].items():
            text = text.replace(f"]({name})", f"]({notebook.stem}_{name})")
            add(f"notebooks/{notebook.stem}_{name}", content=data)
        add(f"notebooks/{notebook.stem}.md", content=text)
    while waiting:
        path = waiting.pop()
        source = ROOT / path
        if path.endswith(".md"):
            waiting += [
                target
                for _, target in links(source.read_text(encoding="utf-8"), path)
                if files.get_file_from_path(site_name(target)) is None and target not in waiting
            ]
        if files.get_file_from_path(site_name(path)) is None:
            if path.endswith(".py"):
                code = source.read_text(encoding="utf-8")
                add(site_name(path), content=f"# {path}\n\n````python\n{code}````\n")
            else:
                add(site_name(path), abs_src_path=str(source))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite what was written for GitHub."""
    name = page.file.src_uri
    if name == "index.md":  # the README, and below it the list of pages
        front, pages = (ROOT / "README.md").read_text(encoding="utf-8"), markdown[markdown.index("\n## ") :]
        return for_the_site(front, "README.md") + for_the_site(pages, "docs/index.md")
    if name == "api.md":
        markdown += overview()
    if name.startswith("notebooks/"):
        return for_the_site(markdown, name.replace(".md", ".ipynb"))
    return for_the_site(markdown, f"docs/{name}" if (ROOT / "docs" / name).is_file() else name)
