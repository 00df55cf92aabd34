"""The site: gathers its pages in one folder, and has zensical build it.

    python docs/site/build.py [FOLDER]

On GitHub pages lie in docs/ and link to files beside it; on the site docs/ is the root. So a file of the
repository has one name in each, and links are rewritten from one to the other. The reference from docstrings,
the notebooks, MathJax, and files that pages link to are added.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import files as files_of
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import MarkdownExporter
from reference import ROOT, overview, page_name, sections
from reference import page as reference_page

# Pages outside docs/ that the menu names.
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "experiments/README.md", "benchmarks/README.md")
_LINK = re.compile(r"""(\]\(|src=")([^)\s#"]+)(#[^)\s]*)?(?=[)"])""")
_IMAGE = re.compile(r'<img [^>]*?src="([^"]+)\.png"[^>]*>')
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_SIGNS = re.compile(
    r"(?P<name>-+\w+(?:-\w+)*|\w+(?:-\w+)+)"  # browsers break after hyphens
    r"|[(=,:/](?=[^\s)])"
    r"|\.(?!(?:csv|html|jsonl?|md|np[yz]|onnx|pdf|png|pth?|py|safetensors|sh|svg|toml|tsv)\b)(?=[a-z_])"
)
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


def gather(folder: Path) -> None:
    """Write all pages and files of the site to an empty folder."""

    def write(name: str, content: str | bytes) -> None:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)

    for section in sections():
        write(page_name(section[0]), reference_page(*section))
    for located in files_of("sphinx-mathjax-offline") or ():
        path = str(located).partition("/static/")[2]
        if path.endswith((".woff", "/tex-chtml.js")):
            write(path, Path(str(located.locate())).read_bytes())
    for file in (ROOT / "docs" / "site").iterdir():
        if file.suffix in (".js", ".css"):
            write(f"site/{file.name}", file.read_bytes())
    notebooks = list((ROOT / "notebooks").glob("*.ipynb"))
    for notebook in notebooks:
        text, outputs = MarkdownExporter().from_notebook_node(nbformat.read(notebook, as_version=4))
        for name, data in outputs["outputs"].items():
            text = text.replace(f"]({name})", f"]({notebook.stem}_{name})")
            write(f"notebooks/{notebook.stem}_{name}", data)
        write(f"notebooks/{notebook.stem}.md", for_the_site(text, f"notebooks/{notebook.name}"))
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    below = {
        "README.md": for_the_site(index[index.index("\n## ") :], "docs/index.md"),
        "docs/api.md": overview(),
    }
    waiting = {"README.md", *PAGES, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))}
    done = {"docs/index.md", *(f"notebooks/{notebook.name}" for notebook in notebooks)}
    while waiting := waiting - done:
        path = waiting.pop()
        done.add(path)
        source = ROOT / path
        if source.suffix not in (".md", ".py"):
            write(site_name(path), source.read_bytes())
            if (phone := source.with_stem(f"{source.stem}-phone")).is_file():
                write(posixpath.join(posixpath.dirname(site_name(path)), phone.name), phone.read_bytes())
            continue
        text = source.read_text(encoding="utf-8")
        if source.suffix == ".py":
            text = f"# {path}\n\n````python\n{text}````\n"
        else:
            waiting |= {target for _, target in links(text, path)}
            text = for_the_site(text, path) + below.get(path, "")
        write(site_name(path), text)


def breakable(html: str) -> str:
    """A page in which code in tables may be broken after signs, but not in names, of files too, and numbers.

    >>> breakable("<td><code>fedcof(head=1.0)</code></td> <code>f(x)</code>")
    '<td><code>fedcof(<wbr>head=<wbr>1.0)</code></td> <code>f(x)</code>'
    >>> breakable("<td><code>examples/two_hosts.py</code> <code>Strategy.fit</code></td>")
    '<td><code>examples/<wbr>two_hosts.py</code> <code>Strategy.<wbr>fit</code></td>'
    >>> breakable("<td><code>--init fedcof-student</code></td>")
    '<td><code><span class="whole">--init</span> <span class="whole">fedcof-student</span></code></td>'
    """

    def in_code(found: re.Match[str]) -> str:
        return _SIGNS.sub(
            lambda at: f'<span class="whole">{at[0]}</span>' if at["name"] else f"{at[0]}<wbr>", found[0]
        )

    return _CELL.sub(lambda cell: _CODE.sub(in_code, cell[0]), html)


def for_phones(html: str, page: Path) -> str:
    """Let a page show, on narrow screens, its pictures' second drawings (NAME-phone.png), if they exist."""

    def with_second(image: re.Match[str]) -> str:
        if not (page.parent / f"{image[1]}-phone.png").is_file():
            return image[0]
        source = f'<source media="(max-width: 44.9375em)" srcset="{image[1]}-phone.png">'
        return f"<picture>{source}{image[0]}</picture>"

    return _IMAGE.sub(with_second, html)


def menu(nav: list[dict[str, Any]]) -> None:
    """Add the reference's pages to the menu, those of one module together."""
    entries = next(entry["API"] for entry in nav if "API" in entry)
    for title, module, _ in sections():
        if title == module:
            entries.append({module.removeprefix("covfree."): page_name(title)})
        else:
            if module not in entries[-1]:
                entries.append({module: []})
            entries[-1][module].append({title.removeprefix(f"{module}: "): page_name(title)})


def settings() -> dict[str, Any]:
    """What zensical.toml says, and what is known only now: version, reference, places on the disk."""
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config["site_name"] = f"covfree {project['version']}"
    if "Repository" in project["urls"]:
        config["repo_url"] = project["urls"]["Repository"]
    menu(config["nav"])
    reference = config["plugins"]["mkdocstrings"]["handlers"]["python"]
    reference["paths"] = [str(ROOT)]
    reference["options"]["extensions"] = [str(ROOT / "docs" / "site" / "docstrings.py")]
    return config


def main(folder: Path) -> None:
    """Build the site in this folder, in place of what it held; a broken link or name is an error."""
    with tempfile.TemporaryDirectory() as work:
        gather(Path(work) / "docs")
        (Path(work) / "mkdocs.yml").write_text(json.dumps(settings()), encoding="utf-8")  # JSON is YAML
        subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=work, check=True)
        for page in (Path(work) / "site").rglob("*.html"):
            html = page.read_text(encoding="utf-8")
            page.write_text(for_phones(breakable(html), page), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(Path(work) / "site", folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "out" / "site")
