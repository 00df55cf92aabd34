"""The files of tables, and the page that is made of them."""

import doctest
import re
from collections import Counter

import pytest

from experiments.tables import formulas, printed, words
from experiments.tables.counts import COUNTS, count
from experiments.tables.page import PAGE, page, state_of
from experiments.tables.results import Results
from experiments.tables.spec import FROM_DATA, find_table, read_table, table_files

TABLES = {path.stem: read_table(path) for path in table_files()}


def test_the_page_is_up_to_date():
    assert page() == PAGE.read_text(encoding="utf-8"), "run python -m experiments page"


def test_every_cell_is_on_the_page():
    """Counted in the page itself: a cell is what a semicolon parts."""
    text = PAGE.read_text(encoding="utf-8").partition("## Overview")[2]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert sum(line.count("; ") for line in lines) == sum(len(list(table.cells)) for table in TABLES.values())


def test_every_table_of_the_papers_has_a_file():
    """Those whose cells another prints too share its file."""
    assert {name for name in TABLES if name.startswith("fedcof-table")} == {
        f"fedcof-table{n}" for n in range(1, 17)
    }
    assert {name for name in TABLES if name.startswith("fedcgs-table")} == {
        f"fedcgs-table{n}" for n in range(1, 9)
    }
    assert {name for name in TABLES if name.startswith("fed3r-table")} == {
        f"fed3r-table{n}" for n in (1, 2, 3, 4, 5, 7)
    }


# What arithmetic on the papers' formulas gives: equal, cut, different.
@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("fedcof-table1", (5, 0, 0)),
        ("fedcof-table3", (47, 6, 7)),
        # PFPT on Cars, and FedCOF on CIFAR-100, which is 8.8 in Table 3 too.
        ("fedcof-table4", (14, 0, 2)),
        ("fedcgs-communication", (3, 0, 0)),
    ],
)
def test_cells_without_data(name, states):
    table = TABLES[name]
    found = Counter(state_of(Results(table.results).ours(cell)) for cell in table.cells)
    assert (found["equal"], found["cut"], found["different"]) == states


def test_counts_by_hand():
    sizes = dict(pairs=2870, dim=1280, matrices=100, classes=100, rounds=200, sampled=30, pool=20, pools=1777)
    expected = {
        "means": 4 * 2870 * 1280 / 1e6,
        "grams": 4 * (2870 * 1280 + 100 * 1280**2) / 1e6,
        "covariances": 4 * 2870 * (1280 + 1280**2) / 1e6,
        "probe": 8 * 1280 * 100 * 200 * 30 / 1e6,
        "prompts": 8 * (1280 * 100 + 20 * 1280) * 200 * 30 / 1e6,
        "prompt_pools": 8 * (1280 * 100 * 200 + 1280 * 1777) * 30 / 1e6,
    }
    for name, value in expected.items():
        assert count({**sizes, "count": name}) == (pytest.approx(value), None)
    # The parameters that torchvision says, less those of its classifiers of 1000 classes.
    resnet = count({**sizes, "count": "network", "backbone": "resnet18", "dim": 512})[0]
    assert resnet == pytest.approx(8 * (11_689_512 - 513_000 + 51_200) * 200 * 30 / 1e6)
    # MobileNetV2 has 300.8 million by its paper's count, of which 1.28 million are of the classifier.
    assert count({"count": "extractor_flops", "backbone": "mobilenet_v2"})[0] == pytest.approx(299.5, abs=0.1)
    with pytest.raises(ValueError, match=r"^count means: expected dim$"):
        count({"count": "means", "pairs": 3})
    with pytest.raises(ValueError, match=r"^count: expected one of means, .*, got 'none'$"):
        count({"count": "none"})
    assert "pairs" in COUNTS


def test_formulas():
    assert doctest.testmod(formulas).failed == 0
    sums = {"terms": [["d", "C", "K"], ["d", "d", "K"]]}
    assert formulas.compared({**sums, "method": "fed3r"}) == "="
    oracle = {**sums, "method": "fedcof-oracle"}
    with pytest.raises(ValueError, match=r"^sent: expected dCK\+d²K = 1520, got 4080$"):
        formulas.compared(oracle)
    assert formulas.compared({**oracle, "ours": [["d", "C", "K"], ["d", "d", "C", "K"]]}) == "dCK+d²CK"
    with pytest.raises(ValueError, match=r"^counts: expected one of sent, .*, got 'seconds'$"):
        formulas.compared({**oracle, "counts": "seconds"})


def test_only_plots_and_what_is_not_printed_has_no_command():
    reasons = {
        cell.settings["missing"] for each in TABLES.values() for cell in each.cells if cell.kind == "missing"
    }
    assert reasons == {"printed as a plot alone", "the paper has none"}


def test_printed_numbers():
    assert doctest.testmod(printed).failed == 0
    assert printed.in_form_of("41.5±0.1", 41.54, 0.24) == ("41.5±0.2", "=")
    assert printed.in_form_of("1.3e7", 1.26e7) == ("1.3E+07", "=")
    assert printed.in_form_of("11,181,642", 11181642.0) == ("11181642", "=")
    assert printed.in_form_of("–", 4e-7) == ("4.0E-07", "")
    # A measured number is near another; no digits of it were cut.
    assert not printed.is_cut("970±155", 970.9)


def test_tables_that_print_the_same_cells_agree():
    """FedCOF's Tables 5, 9, 10 and 11 repeat cells of Table 3, and 6 of 2: a slip of the pen would show."""
    seen: dict[tuple, tuple[str, str]] = {}
    repeated = 0
    names = (3, 2, 5, 6, 9, 10, 11)
    for table in (TABLES[f"fedcof-table{n}"] for n in names):
        for cell in table.cells:
            if cell.kind in FROM_DATA and cell.printed != "–":
                keys = ("data", "backbone", "method", "init", "algorithm", "measure", "rounds", "clients")
                key = (cell.kind, *(cell.settings.get(key) for key in keys))
                text = cell.printed.partition("±")[0]
                repeated += key in seen
                assert seen.setdefault(key, (text, cell.name))[0] == text, (cell.name, seen[key])
    assert repeated > 30


def test_bad_files(tmp_path):
    good = {
        "title": 'title = "T"\n',
        "source": 'source = "S"\n',
        "defaults": '[defaults]\nkind = "accuracy"\ndata = "digits"\nseeds = 1\nclients = 5\n'
        'partition = "iid"\nalpha = 1\n',
        "names": '[names]\nFedNCM = { method = "fedncm" }\n',
        "grids": '[[grids]]\ntitle = "G"\ncolumns = ["alpha=0.1"]\nrows = { FedNCM = ["90.5±0.8"] }\n',
    }
    path = tmp_path / "own.toml"

    def table(**changes):
        path.write_text("".join({**good, **changes}.values()), encoding="utf-8")
        return read_table(path)

    (cell,) = table().cells
    assert cell.settings["alpha"] == 0.1
    assert cell.settings["method"] == "fedncm"
    (other,) = read_table(path, {"alpha": 2}).cells
    assert other.settings["alpha"] == 2
    assert find_table(str(path)) == path
    wrong = {
        "expected source": {"source": ""},
        "expected TOML": {"title": "title = \n"},
        "kind: expected one of accuracy, .*, got 'speed'": {
            "defaults": good["defaults"].replace("accuracy", "speed")
        },
        "kind accuracy: expected seeds": {"defaults": good["defaults"].replace("seeds = 1\n", "")},
        "label 'FedNCM': 'FedNCM' is no name": {"names": ""},
        "combine: expected mean or difference, .* got 'sum'": {
            "names": good["names"].replace('"fedncm"', '"fedncm", combine = "sum", over = { alpha = [1, 2] }')
        },
        # A label's setting is the stronger one: what the grid says would not be run.
        "FedNCM, alpha=0.1: alpha: 1 of the grid is hidden by 0.1 of a label": {
            "grids": good["grids"].replace('"G"\n', '"G"\nalpha = 1\n')
        },
        "expected 1 cells, got 2": {"grids": good["grids"].replace('"90.5±0.8"', '"1", "2"')},
        "expected a number, such as 41.5±0.1, got 'ninety'": {
            "grids": good["grids"].replace("90.5±0.8", "ninety")
        },
    }
    for message, changes in wrong.items():
        with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + message):
            table(**changes)
    with pytest.raises(FileNotFoundError, match=r"^absent: expected .* one of fedcof-table1, "):
        find_table("absent")


def test_the_rate_of_linear_probing_is_the_papers():
    """Fed-LP's 0.001 on iNaturalist, 0.01 elsewhere."""
    rates = {
        cell.settings["data"]: cell.settings["client_lr"]
        for cell in TABLES["fedcof-table11"].cells
        if cell.kind == "trained"
    }
    assert rates.pop("iNaturalist-Users-120K") == 0.001
    assert set(rates.values()) == {0.01}


def test_words_find_the_cells_that_they_name():
    def found(table, *wanted):
        return sum(cell.is_meant(list(wanted)) for cell in TABLES[table].cells)

    assert found("fedcof-table14", "squeezenet") == 10
    assert found("fedcof-table11", "MB") == 5
    assert 0 < found("fedcgs-table4", "Δμ") < found("fedcgs-table4")
    assert found("fedcof-table3", "head") == 0
    assert found("fedcof-table12", "cifar10") * 2 == found("fedcof-table12", "cifar")
    # Whole numbers, and no part of a word: "number" and "combined" are no MB.
    assert found("fedcof-table15", "alpha=0") == 0
    assert found("fedcof-table15", "alpha=0.05") == 8
    assert found("fedcof-table16", "MB") == 0
    assert found("fedcgs-table4", "clients=10,") == found("fedcgs-table4", "clients=50") > 0
    assert doctest.testmod(words).failed == 0


def test_no_number_is_no_cut_one():
    assert not printed.is_cut("109.6", float("nan"))
