"""The site: built in a process of its own, as make does, and looked at in a browser."""

import os
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import chromium, show
from pages import run_python
from PIL import Image
from reference import page_name, place_of, sections
from selenium.webdriver import ActionChains
from selenium.webdriver.support.wait import WebDriverWait

from covfree.studies.plots.style import FORMATS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site; strict, so a link that leads nowhere or a name without a docstring fails here."""
    folder = tmp_path_factory.mktemp("site")
    run_python("docs/site/build.py", str(folder))
    return folder


class Sources(HTMLParser):
    """What a browser loads to show a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") not in ("next", "prev"):
            self.found.append(given.get("href") or "")


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        for source in filter(None, Sources(page).found):
            assert not re.match(r"([a-z]+:)?//", source), f"{page.relative_to(site)} loads {source}"
            if page.name != "404.html" and not source.startswith("data:"):
                assert (page.parent / source.partition("?")[0]).resolve().is_file(), f"{page}: {source}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.slow
def test_every_name_has_a_place_in_the_reference(site):
    found = list(sections())
    assert {"covfree", "covfree.core.linalg", "covfree.heads.metrics"} <= {module for _, module, _ in found}
    overview = (site / "api.html").read_text(encoding="utf-8")
    for title, module, names in found:
        where = page_name(title).replace(".md", ".html")
        page = (site / where).read_text(encoding="utf-8")
        for name in names:
            place = place_of(module, name)
            assert f'id="{place}"' in page, f"{where} lacks {name}"
            assert re.search(rf">\s*{module}\.{name}\s*<", page), f"{where} has no heading {module}.{name}"
            assert re.search(rf'href="reference/[^"]*#{place}"', overview), f"api.html does not link {name}"
        assert "doc-symbol-module" not in page, f"{where}: a file is described in place of what is in it"
    # Examples stand in docstrings without a fence; they must not be taken for quotations.
    assert "<blockquote>" not in (site / "reference" / "covfree-estimators.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_formulas_and_sessions_are_marked_as_such(site):
    text = (site / "derivation.html").read_text(encoding="utf-8")
    source = (ROOT / "docs" / "derivation.md").read_text(encoding="utf-8")
    assert text.count('<div class="arithmatex">') == source.count("```math\n") > 20
    assert "$" not in re.sub(r"<(script|code).*?</\1>", "", text, flags=re.DOTALL)
    # Session prompts are marked, so that they are not copied.
    assert text.count('<span class="gp">') >= source.count("\n>>> ")
    assert (site / "mathjax" / "tex-chtml.js").is_file()
    fonts = {path.name for path in (site / "mathjax" / "output" / "chtml" / "fonts" / "woff-v2").glob("*")}
    assert {"MathJax_Main-Regular.woff", "MathJax_Math-Italic.woff", "MathJax_Size2-Regular.woff"} <= fonts


@pytest.fixture(scope="module")
def driver():
    driver = chromium()
    yield driver
    driver.quit()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "index",
        "choosing",
        "corrected",
        "gallery",
        "derivation",
        "methods",
        "privacy",
        "refinement",
        "security",
        "shift",
        "experiments/index",
        "experiments/speech/index",
    ],
)
def test_no_page_is_wider_than_a_telephone(page, site, driver):
    """Wide tables and formulas scroll in boxes of their own."""
    typeset = "!document.querySelector('.arithmatex:not(:has(> mjx-container))')"
    show(driver, site / f"{page}.html", 390, until=typeset)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
    assert not driver.execute_script("return document.querySelectorAll('mjx-merror').length")
    # Pages show pictures as a whole, from second drawings for this width. In the gallery and in experiments
    # those of the width that papers need may keep it, and scroll: their letters are read.
    pictures = driver.execute_script(
        "return Array.from(document.querySelectorAll('.md-content p img:not([width])'),"
        " img => [img.currentSrc, img.naturalWidth, img.clientWidth])"
    )
    may_scroll = page == "gallery" or page.startswith("experiments/")
    for source, natural, shown in pictures:
        assert natural <= 800 or (may_scroll and natural == 1380 and shown == 690), (source, natural, shown)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index", "choosing", "from-pytorch"])
def test_tables_of_the_first_pages_fit_a_telephone(page, site, driver):
    """Their code is broken after brackets and commas, so that no column is off the screen."""
    show(driver, site / f"{page}.html", 390, until="document.querySelector('.md-content table td') !== null")
    right = driver.execute_script(
        "return Array.from(document.querySelectorAll('.md-content table td:last-child'),"
        " cell => cell.getBoundingClientRect().right)"
    )
    assert right
    assert max(right) <= 390


@pytest.mark.slow
def test_names_in_tables_are_whole_on_a_telephone(site, driver):
    show(driver, site / "methods.html", 390, until="document.querySelector('td .whole') !== null")
    lines = driver.execute_script(
        "return Array.from(document.querySelectorAll('td .whole'),"
        " name => [name.innerText, name.getClientRects().length])"
    )
    assert ["fedcof-residuals-student", 1] in lines
    assert {count for _, count in lines} == {1}


@pytest.mark.slow
def test_search_works_from_the_disk(site, driver):
    show(driver, site / "index.html", until="document.querySelector('.md-search__button') !== null")
    driver.execute_script("document.querySelector('.md-search__button').click()")
    # The theme draws its search in a shadow.
    inside = "const root = Array.from(document.querySelectorAll('*')).find(e => e.shadowRoot)?.shadowRoot;"
    WebDriverWait(driver, 60).until(lambda driver: driver.execute_script(f"{inside} return root"))
    driver.execute_script(f"{inside} root.querySelector('input').focus()")
    ActionChains(driver).send_keys("shift_test").perform()
    found = f"{inside} return Array.from(root.querySelectorAll('a'), link => link.href)"
    places = WebDriverWait(driver, 60).until(lambda driver: driver.execute_script(found))
    assert any("shift.html" in place for place in places)


@pytest.mark.slow
def test_the_reference_sets_subscripts_and_leaves_code(site, driver):
    show(driver, site / "derivation.html", until="document.querySelector('h2 sub') !== null")
    assert "K_c" not in driver.execute_script(
        "return document.querySelector('.md-content h2 sub').parentNode.innerText"
    )
    page = site / "reference" / "covfree-estimators.html"
    show(driver, page, 390, until="document.querySelector('sub') !== null")
    low = driver.execute_script("return Array.from(document.querySelectorAll('sub'), e => e.textContent)")
    assert {"c", "j", "k"} <= set(low)
    text = driver.execute_script("return document.querySelector('.md-content').innerText")
    assert "class_weight" in text
    assert "Σ_" not in driver.execute_script(
        "return Array.from(document.querySelectorAll('.doc-contents p'), e => e.textContent).join()"
    )
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390


@pytest.mark.slow
def test_prompts_and_outputs_are_not_copied(site, driver):
    show(driver, site / "tutorial.html", until="document.querySelector('pre [data-md-type=copy]') !== null")
    # The theme selects a hidden text and tells the browser to copy it.
    driver.execute_script("document.execCommand = () => (window.copied = document.activeElement.value)")
    block = "Array.from(document.querySelectorAll('pre')).find(pre => pre.innerText.includes('bincount'))"
    assert driver.execute_script(f"return {block}.innerText").startswith(">>> import numpy")
    driver.execute_script(f"{block}.querySelector('[data-md-type=copy]').click()")
    assert driver.execute_script("return window.copied") == (
        "import numpy as np\n"
        "for client in range(3):\n"
        "    print(client, np.bincount(labels[clients == client], minlength=10))"
    )


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_formulas_in_lines_look_right_on_github_too(page):
    """There a backslash before punctuation disappears, and an underscore after it may begin emphasis."""
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for formula in re.findall(r"\$[^$]+\$", text):
        assert not re.search(r"\\[^a-zA-Z]|[^A-Za-z0-9]_|\*\w|^\$\s|\s\$$|operatorname", formula), formula


def test_the_gallery_has_every_picture():
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for folder in ("docs", "experiments", "benchmarks"):
        for picture in (ROOT / folder).rglob("*.png"):
            if picture.stem.endswith("-phone"):
                continue  # a second drawing
            assert f"]({os.path.relpath(picture, ROOT / 'docs')})" in text, f"docs/gallery.md lacks {picture}"


def test_wide_pictures_have_a_second_drawing_for_phones():
    """But for those that commands draw: the page of ``--report`` has theirs."""
    by_commands = ("accuracy_vs_bytes", "linear-probing-caltech101", "finetune-images")
    for folder in ("docs", "experiments", "benchmarks"):
        for picture in (ROOT / folder).rglob("*.png"):
            with Image.open(picture) as drawn:
                wide = drawn.width > 800 and not any(name in str(picture) for name in by_commands)
            assert picture.with_stem(f"{picture.stem}-phone").is_file() == wide, picture


def test_the_picture_of_the_idea_draws_the_estimate(tmp_path):
    script = runpy.run_path(str(ROOT / "docs" / "figures" / "covariance_from_means.py"))
    _, _, means, counts = script["one_class"](0)
    spread = np.cov(means.T.astype(np.float64), fweights=counts) * (counts.sum() - 1) / (len(counts) - 1)
    np.testing.assert_allclose(script["draw"](tmp_path / "drawn.png"), spread, rtol=1e-4)
    for suffix in FORMATS:
        assert (tmp_path / f"drawn.{suffix}").stat().st_size > 10_000
