"""Render a page as HTML."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from html import escape
from pathlib import Path, PurePath
from typing import Any

from covfree.core.atomic import replacing
from covfree.core.optional import optional
from covfree.studies.names import option_text

# Options are broken into lines of about this many characters.
_WIDTH = 92


def write_page(page: Mapping[str, Any], path: Path) -> None:
    """Write a page as one HTML file, atomically."""
    text = as_html(page)
    with replacing(path) as draft:
        draft.write(text.encode())


def as_html(page: Mapping[str, Any]) -> str:
    """Render the page as HTML that includes its style, script and pictures."""
    jinja2 = optional("jinja2", "cli")
    environment = jinja2.Environment(
        # Load by package, so that the template is found wherever the package is installed.
        loader=jinja2.PackageLoader("covfree.studies.page", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "unbroken": unbroken, "breakable": breakable}
    return environment.get_template("page.html.jinja").render(page=page)


def shown(value: Any) -> str:
    """Format a setting as text, NumPy's numbers and paths too.

    >>> shown([0.1, 0.5]), shown("lda"), shown(False)
    ('0.1, 0.5', 'lda', 'no')
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    return str(value) if isinstance(value, str | PurePath) else json.dumps(value, default=str)


def unbroken(text: str) -> str:
    """Put no-break spaces between numbers and their units.

    >>> unbroken("0.3 % for 2.1 MB").replace("\N{NO-BREAK SPACE}", "_")
    '0.3_% for 2.1_MB'
    """
    return re.sub(r"(?<=[\d±]) (?=[±%]|\d|[kMG]?B\b|points)", "\N{NO-BREAK SPACE}", text)


def breakable(text: str) -> str:
    """Return a text as HTML in which names may break after ``/``, ``:`` and ``-or-``, long words after ``_``.

    >>> breakable("a/b.py:f_g-or-fedcof")
    'a/<wbr>b.py:<wbr>f_g<span class="or">-or-</span>fedcof'
    """
    broken = re.sub(r"(?:[/:]|(?<=\w{6})_(?=\w{6}))(?=\w)", r"\g<0><wbr>", escape(text))
    return broken.replace("-or-", '<span class="or">-or-</span>')


def command_line(command: str, settings: Mapping[str, Any]) -> str:
    """Format the command line that runs a command with ``settings``: values by the names of options.

    >>> command_line("compare", {"dataset": "my data.npz", "seeds": [3], "ridge": None, "tune": True})
    "covfree compare --dataset 'my data.npz' --seeds 3, --tune"
    """
    line, lines = f"covfree {command}", list[str]()
    for name, value in settings.items():
        if value is None or value is False:
            continue
        words = [] if value is True else [option_text(name, value)]
        option = shlex.join([f"--{name.replace('_', '-')}", *words])
        if len(line) + len(option) > _WIDTH:
            lines.append(line)
            line = f"  {option}"
        else:
            line += f" {option}"
    return " \\\n".join([*lines, line])
