"""The files at the root that say how to cite, what has changed and how to contribute."""

import re
from pathlib import Path

import pytest
import yaml

import covfree

ROOT = Path(__file__).resolve().parents[1]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version():
    # What version 1.2.0 of the format asks for.
    assert {"cff-version", "message", "title", "authors"} <= set(CITATION)
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    # A version such as 0.1 would be read as a number.
    assert CITATION["version"] == covfree.__version__
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'license = "{CITATION["license"]}"' in text


@pytest.mark.parametrize("work", [CITATION, *CITATION["references"]], ids=lambda work: work["title"][:20])
def test_who_is_cited_has_a_name(work):
    assert work["authors"]
    for author in work["authors"]:
        # An entity, or a person; what the format knows of each.
        assert set(author) in ({"name"}, {"given-names", "family-names"}) or set(author) == {
            "given-names",
            "name-particle",
            "family-names",
        }
        assert all(isinstance(part, str) and part for part in author.values())


def name_in_bibtex(author: dict[str, str]) -> str:
    if "name" in author:
        return f"{{{author['name']}}}"
    family = f"{author.get('name-particle', '')} {author['family-names']}".strip()
    return f"{family}, {author['given-names']}"


def fields_in_bibtex(work: dict) -> dict[str, str]:
    """What a converter makes of an entry of CITATION.cff; the address may be an identifier's."""
    addresses = [each["value"] for each in work.get("identifiers", ()) if each["type"] == "url"]
    fields = {
        "author": " and ".join(name_in_bibtex(author) for author in work["authors"]),
        "title": work["title"],
        "booktitle": work.get("collection-title"),
        "version": work.get("version"),
        "year": str(work["year"] if "year" in work else work["date-released"].year),
        "url": work["url"] if "url" in work else addresses[0],
    }
    return {name: value for name, value in fields.items() if value is not None}


def test_the_readme_shows_the_citation_as_bibtex():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```bibtex\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    entries = re.findall(r"^@(\w+)\{\w+,\n(.*?)\n\}$", shown, re.MULTILINE | re.DOTALL)
    kinds = {"software": "software", "conference-paper": "inproceedings"}
    works = [CITATION, *CITATION["references"]]
    assert [kind for kind, _ in entries] == [kinds[work["type"]] for work in works]
    for (_, body), work in zip(entries, works, strict=True):
        found = dict(re.findall(r"^  (\w+) = \{(.*?)\},?$", body, re.MULTILINE | re.DOTALL))
        assert {name: " ".join(value.split()) for name, value in found.items()} == fields_in_bibtex(work)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_the_list_of_pages_begins_as_the_readme_does():
    readme, pages = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/index.md"))
    front = readme[: readme.index("```")]
    assert len(front.split()) > 100
    # Pictures are written in two ways, and links lead from different folders.
    words = [
        re.sub(r"<img.*?>|!\[[^]]*\]|\]\(.*?\)|\(figures.*?\)", " ", text, flags=re.DOTALL).split()
        for text in (front, pages)
    ]
    assert words[1][: len(words[0])] == words[0]


def test_the_changelog_begins_with_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## \[(.+?)\] - (unreleased|\d{4}-\d{2}-\d{2})$", text, re.MULTILINE)
    assert first is not None
    assert first[1] == covfree.__version__


def test_the_changelog_names_every_command():
    from covfree.cli.app import app

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.split("\n- ") if line.startswith("The command line:"))
    assert set(re.findall(r"`(\w+)`", line)) == {command.name for command in app.registered_commands}


def test_what_contributors_are_told_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:covfree|tests|docs|\.ci)/[\w/.]+|CHANGELOG\.md)`", text):
        assert (ROOT / path).exists(), path
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"make ([\w-]+)", text.replace("and make are", ""))
    assert {"test", "lint", "types", "test-oldest"} <= set(named) <= set(targets)
