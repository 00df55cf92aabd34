"""``--report``: a page that says what the results say, in a browser too."""

import json
import re
import shlex
from html import unescape
from xml.etree.ElementTree import fromstring

import browser
import numpy as np
import pytest

from covfree import SentBytes
from covfree.cli.app import run
from covfree.data.partitions import partition_statistics
from covfree.studies import Federation, Result, Run, report, summarise
from covfree.studies.page.details import detail
from covfree.studies.page.headline import behind, gains, headline, over_places
from covfree.studies.page.pictures import as_svg
from covfree.studies.plots import style as figures
from covfree.studies.predictions import Predictions

NAMES = ["<script>document.title = 'run'</script>", 'a "quoted" & <b>bold</b> name', "dog", "cat's", "$x$"]
METHODS = "fedncm,fed3r,fedcof"
# Of the bars of classes: their widths, those of what they lie in, the texts beside them.
_WIDTHS = """return Array.from(document.querySelectorAll('details[open] .track'), track => [
    track.firstElementChild.getBoundingClientRect().width, track.getBoundingClientRect().width,
    track.nextElementSibling.innerText])"""
_HEIGHTS = """return Array.from(document.querySelectorAll('details[open] .histogram div'), each => [
    each.lastElementChild.getBoundingClientRect().height, Number(each.innerText)]).filter(each => each[1])"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of ``compare``, of a file whose test examples have clients and whose classes have odd names."""
    path = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    labels, clients = rng.integers(0, 5, 400), rng.integers(0, 6, 400)
    features = (rng.normal(size=(400, 8)) + 1.5 * rng.normal(size=(5, 8))[labels]).astype(np.float32)
    arrays = {"features": features, "labels": labels, "clients": clients, "is_test": rng.random(400) < 0.4}
    np.savez(path / "data <b>.npz", class_names=np.array(NAMES), **arrays)
    arguments = ["compare", "--dataset", str(path / "data <b>.npz"), "--methods", METHODS, "--seeds", "2"]
    assert run([*arguments, "--out", str(path / "out"), "--report", str(path / "out" / "page.html")]) == 0
    return path


def in_one_line(page: str) -> str:
    """A page whose command is not wrapped: where it is depends on the lengths of paths."""
    return page.replace(" \\\n  ", " ")


def without_times(page: str) -> str:
    return re.sub(r"[\d.]+ m?s\b|data-number=\S+|--(?:out|report) \S+", "", in_one_line(page))


@pytest.mark.slow
def test_the_page_in_a_browser(folder):
    page, content = folder / "out" / "page.html", json.loads((folder / "out" / "results.json").read_text())
    driver = browser.chromium()
    try:
        browser.show(driver, page, 390)
        # Nothing is loaded, nothing sticks out, and no name has become an element or a script.
        assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
        assert driver.title.startswith("data <b>: ")
        assert (
            driver.execute_script("return document.querySelectorAll('main script, td b, dt b').length") == 0
        )
        browser.show(driver, page)
        results = sorted(content["results"], key=lambda record: -record["accuracy_mean"])
        shown = browser.cells(driver)
        assert [line[0] for line in shown] == [record["title"] for record in results]
        for line, record in zip(shown, results, strict=True):
            assert line[1].split(" ")[0] == f"{100 * record['accuracy_mean']:.2f}"
        heads = driver.find_elements("css selector", "table.sortable th button")
        names = [head.text for head in heads]
        for column, key in ((0, "title"), (names.index("bytes up"), "bytes_up")):
            texts = []
            for _ in range(2):
                heads[column].click()
                texts.append([line[0] for line in browser.cells(driver)])
            # Numbers from the largest on first, names from A on, each stable; then the other way round.
            sign = -1 if column else 1
            orders = [[r["title"] for r in _by(results, key, turn * sign)] for turn in (1, -1)]
            if key == "title":
                assert texts == orders
            else:
                sizes = {record["title"]: record[key] for record in results}
                assert [[sizes[t] for t in each] for each in texts] == [
                    [sizes[t] for t in each] for each in orders
                ]
        for each in driver.find_elements("css selector", "details")[:2]:
            driver.execute_script("arguments[0].open = true", each)
        # By class and method: weighted by the class's examples, a column is the method's accuracy.
        classes = browser.cells(driver, "details.all table")
        assert sorted(line[0] for line in classes) == sorted(NAMES)
        assert [float(line[-1]) for line in classes] == sorted(
            (float(line[-1]) for line in classes), reverse=True
        )
        # Bars are in proportion, from 0: of one scale the classes, of another the histogram.
        widths = driver.execute_script(_WIDTHS)
        assert len({round(track) for _, track, _ in widths}) == 1
        for bar, track, text in widths:
            assert 100 * bar / track == pytest.approx(float(text.split(" ")[0]), abs=0.3)
        heights = driver.execute_script(_HEIGHTS)
        assert len(heights) > 1
        for height, number in heights:
            assert height / heights[0][0] == pytest.approx(number / heights[0][1], abs=0.02)
        bars = driver.find_elements("css selector", "details[open] dt")
        assert sorted(bar.text for bar in bars) == sorted(NAMES)
        matrix = browser.cells(driver, "details[open] table.matrix")
        assert [line[0] for line in matrix] == NAMES
        counts = np.array([[int(cell or 0) for cell in line[1:]] for line in matrix])
        assert counts.trace() / counts.sum() == pytest.approx(results[0]["accuracy_mean"])
        examples = dict(zip(NAMES, counts.sum(1), strict=True))
        weights = [examples[line[0]] for line in classes]
        for column, record in enumerate(results, start=1):
            mean = np.average([float(line[column]) for line in classes], weights=weights)
            assert mean == pytest.approx(100 * record["accuracy_mean"], abs=0.05)
        browser.show(driver, page, script=False)
        source = driver.page_source
        assert "<button" not in source
        assert "details open" not in source
    finally:
        driver.quit()


def _by(records, key, sign):
    values = sorted({record[key] for record in records}, reverse=sign < 0)
    return [record for value in values for record in records if record[key] == value]


def test_resuming_writes_the_page_without_running(cli, folder):
    page = folder / "out" / "page.html"
    first = page.read_text(encoding="utf-8")
    data = str(folder / "data <b>.npz")
    arguments = ("compare", "--dataset", data, "--methods", METHODS, "--seeds", 2, "--out", folder / "out")
    again = cli(*arguments, "--resume", "--report", folder / "again.html")
    assert again.code == 0
    assert "run 1" not in again.err
    second = (folder / "again.html").read_text(encoding="utf-8")
    expected = in_one_line(first).replace(f"--report {page}", f"--report {folder / 'again.html'}")
    assert in_one_line(second) == expected
    assert len(second) < 200_000
    # Whose test examples are whose is known, so that accuracy by client is measured.
    assert "on each client&#39;s own test examples" in first
    # The command on the page gives the same page again.
    command = re.search(r"<code>(.*?)</code>", first, re.DOTALL)
    assert command is not None
    words = shlex.split(unescape(command[1]).replace("\\\n", " "))
    assert words[0] == "covfree"
    assert words[words.index("--out") + 1] == str(folder / "out")
    words[words.index("--out") + 1] = str(folder / "repeated")
    words[words.index("--report") + 1] = str(folder / "repeated" / "page.html")
    assert cli(*words[1:]).code == 0
    repeated = (folder / "repeated" / "page.html").read_text(encoding="utf-8")
    assert without_times(repeated) == without_times(first)


@pytest.mark.slow
def test_many_federations(cli, tmp_path):
    small = ("--methods", "fedncm,fedcof", "--clients", 6, "--seeds", 1)
    page = tmp_path / "sweep.html"
    outcome = cli("compare", *small, "--alpha", "1,4", "--report", page, "--format", "json")
    assert outcome.code == 0, outcome.err
    shares = {
        (record["title"], record["alpha"]): f"{100 * record['accuracy_mean']:.2f}"
        for record in json.loads(outcome.out)["results"]
    }
    driver = browser.chromium()
    try:
        browser.show(driver, page, 390)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
        browser.show(driver, page)
        heads = driver.find_elements("css selector", "table.sortable th button")[:3]
        assert [head.text for head in heads] == ["method", "alpha 1", "alpha 4"]
        for head, alpha in zip(heads[1:], (1, 4), strict=True):
            for downwards in (True, False):
                head.click()
                shown = browser.cells(driver)
                assert {(m, a): s for m, *two in shown for a, s in zip((1, 4), two, strict=True)} == shares
                column = [float(line[1 if alpha == 1 else 2]) for line in shown]
                assert column == sorted(column, reverse=downwards)
        # Each federation says which it is, and what came out there, before it is opened.
        summaries = [each.text for each in driver.find_elements("css selector", ".place > summary")]
        best = {a: max(share for (_, at), share in shares.items() if at == a) for a in (1, 4)}
        for alpha, summary in zip((1, 4), summaries, strict=True):
            assert summary.startswith(f"alpha {alpha} ")
            assert best[alpha] in summary
    finally:
        driver.quit()
    text = page.read_text(encoding="utf-8")
    assert text.count('<details class="place">') == 2
    assert "FedCOF (LDA, automatic γ) has the highest test accuracy on both federations." in text
    assert "expected: each client&#39;s mean of the classes&#39; accuracies" in text


@pytest.mark.slow
def test_fine_tuning(cli, folder, tmp_path):
    """On data with clients of its own, which the command to repeat it must not name."""
    data = folder / "data <b>.npz"
    small = ("finetune", "--dataset", data, "--init", "fedncm", "--algorithm", "fedavg", "--rounds", 2)
    kept = ("--out", tmp_path / "out", "--format", "json")
    outcome = cli(*small, *kept, "--report", tmp_path / "page.html")
    assert outcome.code == 0, outcome.err
    (record,) = json.loads(outcome.out)["results"]
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    # The counts are of the head after the last round.
    right = sum(map(int, re.findall(r'class="hit" style="[^"]*">(\d+)<', text)))
    assert right / np.load(data)["is_test"].sum() == pytest.approx(record["last_accuracy_mean"])
    command = re.search(r"<code>(.*?)</code>", text, re.DOTALL)
    assert command is not None
    words = shlex.split(unescape(command[1]).replace("\\\n", " "))
    words[words.index("--report") + 1] = str(tmp_path / "again.html")
    # The runs that are there have the settings of this command, and give the same page.
    again = cli(*words[1:], "--format", "json", "--resume")
    assert again.code == 0, again.err
    assert "round 1" not in again.err
    repeated = (tmp_path / "again.html").read_text(encoding="utf-8")
    assert without_times(repeated) == without_times(text)


def test_bad_files_are_told_at_once(cli, tmp_path):
    for command in ("compare", "finetune"):
        out = ("--out", tmp_path / "out")
        for file, text in (("page.pdf", "that ends in .html"), ("no/page.html", "in a folder that is there")):
            outcome = cli(command, "--report", tmp_path / file, *out)
            assert outcome.refuses(f"--report: expected a file {text}")
    assert list(tmp_path.iterdir()) == []


def scored(title, accuracies, size, starts=()):
    """A method's result, from accuracies by seed, bytes up, and accuracies before training."""
    histories = {
        seed: [{"round": 0, "accuracy": start}] for seed, start in zip(accuracies, starts, strict=False)
    }
    runs = [
        Run(title, seed, accuracy, SentBytes(size, 0), 0, 10, history=histories.get(seed, ()))
        for seed, accuracy in accuracies.items()
    ]
    return Result(title, title, tuple(runs))


def test_the_headline_says_how_sure_it_is():
    ahead = scored("A", {0: 0.92, 1: 0.93, 2: 0.925}, 1000)
    second = scored("B", {0: 0.90, 1: 0.912, 2: 0.906}, 4000)
    close = scored("C", {0: 0.93, 1: 0.92, 2: 0.92}, 500)
    lost = scored("D", {0: float("nan")}, 10)
    assert headline([second, lost, ahead], 100, "bytes up") == [
        "A has the highest test accuracy: 92.50 ± 0.50 % over 3 seeds.",
        # 2, 1.8 and 1.9 points: mean 1.9 ± 4.303 · 0.1/√3.
        "It is 1.90 points above B (95 % interval 1.65 to 2.15, and it is higher with 3 of 3 seeds).",
        "A takes 1.0 kB (bytes up), 4 times less than B.",
        "D is left out: with 3 of 3 seeds it has no test accuracy.",
    ]
    level = headline([ahead, close], 100, "bytes up")
    both = "A and C are level at the top: 92.50 ± 0.50 % and 92.33 ± 0.58 %"
    assert level[0] == f"{both} test accuracy over 3 seeds."
    assert level[1].startswith("The seeds do not tell the two apart")
    assert level[2] == "A takes 1.0 kB (bytes up); C comes within a point of it for 500 B."
    one = [scored("A", {0: 0.9}, 1000), scored("B", {0: 0.8}, 1000)]
    assert headline(one, 100, "bytes up") == [
        "A has the highest test accuracy: 90.00 % with one seed.",
        "It is 10.00 points above B.",
        "One seed does not tell how much of this is chance; 100 test examples alone make a standard error of "
        "3.00 points.",
        "A takes 1.0 kB (bytes up), as much as B.",
    ]
    assert headline([lost], 100, "bytes up") == ["No method has a test accuracy with all seeds."]
    half = scored("E", {0: 0.99, 1: float("nan")}, 10)
    alone = headline([half, second], 100, "bytes up")
    assert alone[0].startswith("B: 90.60 ± 0.60 % test accuracy")
    assert alone[1:] == ["E is left out: with 2 of 3 seeds it has no test accuracy."]
    assert behind([second, lost, ahead]) == ["−1.90 ± 0.10", "–", "best"]
    assert over_places([[ahead, second], [second], [ahead, close]]) == [
        "A has the highest mean test accuracy on 2 of 3 federations (level with C on 1), B on 1."
    ]
    assert over_places([[ahead, second], [second]]) == [
        "A has the highest test accuracy on 1 of 2 federations, B on 1."
    ]
    two = headline([scored("A", {0: 0.9, 1: 0.8}, 1), scored("B", {0: 0.8, 1: 0.8}, 1)], 100, "bytes up")
    assert two[0].startswith("A and B are not told apart by 2 seeds: 85.00 ± 7.07 % and 80.00 ± 0.00 %")
    # A fixed split and clients of the data's own: no seed changes anything.
    fixed = headline([scored("A", {0: 0.9, 1: 0.9}, 1), scored("B", {0: 0.8, 1: 0.8}, 1)], 100, "bytes up")
    assert fixed[1:3] == [
        "It is 10.00 points above B.",
        "Seeds that all give the same do not tell how much of this is chance; 100 test examples alone make a "
        "standard error of 3.00 points.",
    ]


def test_the_headline_says_what_training_lost():
    """The refined head was better before any round than anything that was trained."""
    refined = scored("Refined → FedAvg", {0: 0.9424}, 2000, [0.9450])
    random = scored("Random → FedAvg", {0: 0.9010}, 1000, [0.1])
    ncm = scored("FedNCM → FedAvg", {0: 0.8900}, 1000, [0.8960])
    said = gains([random, refined, ncm], ["first.", "second."])
    assert said == [
        "No training reaches the best start: 94.50 % before any round of Refined → FedAvg, 94.24 % at most "
        "after training.",
        "first.",
        "From its start of 94.50 %, Refined → FedAvg lost 0.26 points by training.",
        "Training also made worse: FedNCM → FedAvg (0.60 points).",
        "second.",
    ]
    assert gains([random], ["first."]) == [
        "first.",
        "From its start of 10.00 %, Random → FedAvg gained 80.10 points by training.",
    ]


def test_what_is_written_in_a_picture_stays():
    """Colours and names are rewritten where they are colours and names."""
    text = 'fill: #000000 id="q" url(#z) 0.123456'
    with figures.style():
        figure = figures.new_figure(3, 1)
        figure.text(0.1, 0.5, text)
        figure.add_subplot().plot([0, 1])
        drawn = as_svg(figure, "p")
    element = fromstring(drawn)
    assert text in [each.text for each in element.iter("{http://www.w3.org/2000/svg}text")]
    assert "stroke: var(--text)" in drawn


def test_ties_are_said():
    """Of accuracies that are the same to the digits that are shown."""
    first, second = scored("A", {0: 0.925}, 1000), scored("B", {0: 0.92500001}, 4000)
    worse = scored("A", {0: 0.9}, 1000)
    assert over_places([[first, second], [first]]) == [
        "A has the highest mean test accuracy on both federations (level with B on 1)."
    ]
    assert over_places([[first, second], [worse, second], [lost_of("C"), first]]) == [
        "B has the highest mean test accuracy on 2 of 3 federations (level with A on 1), A on 1."
    ]
    assert over_places([[first, second]] * 2) == [
        "No method is surely the best: B has the highest mean test accuracy on both federations "
        "(level with A on 2)."
    ]
    three = [scored(title, {0: 0.925}, 1) for title in "CDE"]
    assert over_places([[first, *three], [first]]) == [
        "A has the highest mean test accuracy on both federations (level with others on 1)."
    ]


def lost_of(title):
    return scored(title, {0: float("nan")}, 10)


def test_details_of_few_and_of_many_classes():
    labels = np.repeat(np.arange(40), 3)
    partitions = {0: partition_statistics(labels, np.arange(120) % 7, 40)}
    few = {0: Predictions(((0, 0, 3), (0, 1, 1), (1, -1, 2), (1, 1, 2)))}
    found = detail("A", few, {0: partition_statistics(np.array([0, 1]), np.array([0, 1]), 3)}, "xyz")
    bars = [(bar["name"], bar["text"]) for bar in found["classes"]]
    assert bars == [("y", "50.0 % of 4"), ("x", "75.0 % of 4")]
    assert found["classes_text"] == "1 without test examples"
    assert found["text"] == "worst class y: 50.0 %; most often y is taken for none"
    assert found["matrix"]["columns"] == ["x", "y", "z", "none"]
    assert [[cell["text"] for cell in line] for line in found["matrix"]["lines"]] == [
        ["3", "1", "", ""],
        ["", "2", "", "2"],
        [""] * 4,
    ]
    assert found["clients"]["text"].startswith("2 clients: median 62.5 %")
    # Class c has c of 40 wrong, all taken for the next one.
    pairs = tuple(pair for c in range(40) for pair in ((c, c, 40 - c), (c, (c + 1) % 40, c)) if pair[2] > 0)
    found = detail("A", {0: Predictions(pairs)}, partitions, [f"class {c}" for c in range(40)])
    assert found["matrix"] is None
    assert [bar["name"] for bar in found["classes"]] == [f"class {c}" for c in range(39, 9, -1)]
    assert found["classes_text"] == "the worst 30 of 40 classes"
    assert sum(int(bar["text"] or 0) for bar in found["spread"]["bars"]) == 40
    assert list(found["confused"][0].values()) == ["class 39", "class 0", 39, "97.5 %"]
    assert len(found["confused"]) == 20


def test_a_method_that_failed_with_a_seed_is_not_ranked():
    """A mean over the easier seeds is no mean over all."""
    place = {"dataset": "digits", "federation": Federation(10, "inner_dirichlet", 0.1)}
    runs = [
        Run(method, seed, accuracy, SentBytes(8, 4), 0, 10, **place)
        for method, accuracies in (("A", (0.9, 0.8)), ("B", (0.89,)))
        for seed, accuracy in enumerate(accuracies)
    ]
    results = summarise(runs)
    said = headline(results, 100, "bytes up")
    assert said[0].startswith("A: 85.00 ± 7.07 % test accuracy over 2 seeds")
    assert said[-1] == "B is left out: with 1 of 2 seeds it has no test accuracy."
    assert [line[1] for line in report.table(results).lines] == ["85.00 ± 7.07", "89.00 (1 seed)"]
