"""A user's own methods on the command line: functions in a file, and those that packages name."""

import json
import re
import sys

import pytest
from pages import programs

SMALL = ("compare", "--clients", "6", "--alpha", "2")
FILE = """
import covfree


def cautious(shrinkage=0.5):
    return covfree.fedcof(covfree.relative(shrinkage))


def in_a_unit():
    return covfree.fedcof(0.5)


def no_method():
    return [1]


def needs(number):
    return covfree.fedcof(number)


def spread(power=1.0):
    def head(covariance, moments):
        return covfree.LinearHead(POWER * power * moments.mean.T, moments.mean[:, 0])

    return covfree.fedcof(0.5, head=head)


POWER = 1.0


def broken():
    def head(covariance, moments):
        raise RuntimeError("no head\\nat length")

    return covfree.fedcof(0.5, head=head)


def annotated(power: float = 1.0):
    return covfree.fedcof(power)


def raises(power=1.0):
    return {}[power]


def overflows():
    raise FloatingPointError("too large\\nby far")


NUMBERS = [1]
"""
# What is asked for, and what the line must say.
BAD = {
    "mine.py": "expected a function of the file, such as mine.py:my_method, got 'mine.py'",
    "mine.py:other": "in_a_unit, no_method, needs, spread, broken, annotated, raises, overflows; got 'other'",
    "mine.py:no_method": "mine.py:no_method: expected the function to return a method, got a list",
    "mine.py:needs": "mine.py:needs: expected a default for every argument, got none for number",
    "mine.py:NUMBERS": "mine.py:NUMBERS: expected a function that returns a method, got a list",
    "mine.py:cautious:width=3": "mine.py:cautious takes shrinkage, got width",
    "mine.py:annotated:power=much": "expected a number for power, as its annotation says, got 'much'",
    "mine.py:raises:power=much": "mine.py:raises:power=much: KeyError: 'much'",
    "mine.py:overflows": "mine.py:overflows: FloatingPointError: too large by far (mine.py, line 47, in ",
    "absent.py:cautious": "expected a Python file, got 'absent.py', which is not there",
    "median": "unknown method 'median'",
    "fedcof-or-": "unknown method ''",
    "-or-fedcof": "unknown method ''",
    "fedcofx-or-fedncm": "unknown method 'fedcofx'",
    "mine-or-fedcof": "unknown method 'mine'",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the file; the import path is restored."""
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_a_file_s_function_is_compared_like_covfree_s_methods(cli, folder):
    ways = "mine.py:cautious,mine.py:cautious:shrinkage=2,fedcof"
    result = cli(*SMALL, "--methods", ways, "--seeds", "1", "--format", "json", "--out", "kept")
    assert result.code == 0, result.err
    records = {each["method"]: each for each in json.loads(result.out)["results"]}
    own, other, fedcof = (records[name] for name in ways.split(","))
    assert own["bytes_up"] == fedcof["bytes_up"]
    assert [own["title"], other["title"]] == ["cautious", "cautious (shrinkage=2)"]
    assert own["accuracy_mean"] != other["accuracy_mean"]
    again = cli(*SMALL, "--methods", ways, "--seeds", "1", "--format", "json", "--out", "kept", "--resume")
    assert json.loads(again.out)["results"] == json.loads(result.out)["results"]


def test_a_file_that_was_changed_holds_other_methods(cli, folder):
    """Or --resume would show the old function's figures."""
    ways = *SMALL, "--methods", "mine.py:spread", "--seeds", "1", "--out", "kept"
    assert cli(*ways).code == 0
    assert cli(*ways, "--resume").code == 0
    (folder / "mine.py").write_text(FILE.replace("POWER = 1.0", "POWER = 2.0"))
    result = cli(*ways, "--resume")
    assert result.refuses("holds runs of another method named 'mine.py:spread' (its settings or code differ)")


@pytest.mark.slow
def test_check_names_all_laws_that_a_method_breaks(cli, folder):
    (program,) = programs("docs/your-own.md")
    (folder / "paged.py").write_text(program)
    sound = cli(*SMALL, "--methods", "paged.py:balanced:shrinkage=0.3", "--seeds", "1", "--check")
    assert sound.code == 0, sound.err
    assert "covfree: paged.py:balanced:shrinkage=0.3 passes all checks" in sound.err
    result = cli(*SMALL, "--methods", "mine.py:in_a_unit", "--check")
    assert result.refuses("--check: mine.py:in_a_unit: method 'fedcof' breaks the law 'scaling'")
    result = cli(*SMALL, "--methods", "mine.py:spread", "--check")
    assert result.is_one_line
    laws = re.findall("breaks the law '(.*?)'", result.err)
    assert laws == ["finite", "scaling"]
    result = cli(*SMALL, "--methods", "mine.py:broken", "--check")
    assert "raised RuntimeError: no head at length (mine.py, line 33, in head)" in result.err


def test_a_path_may_have_the_word_that_joins_a_choice(cli, folder):
    (folder / "my-or-dir").mkdir()
    (folder / "mine.py").rename(folder / "my-or-dir" / "mine.py")
    own = "my-or-dir/mine.py:cautious"
    methods = ("--methods", f"{own},fedncm-or-{own}", "--report", "page.html")
    result = cli(*SMALL, *methods, "--seeds", "1", "--format", "json")
    assert result.code == 0, result.err
    alone, choice = json.loads(result.out)["results"]
    assert (alone["method"], alone["title"]) == (own, "cautious")
    assert choice["title"] == f"Clients' choice: fedncm, {own}"
    # On a narrow page the name breaks at its signs.
    broken = 'my<span class="or">-or-</span>dir/<wbr>mine.py:<wbr>cautious'
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert f'<th scope="row">Clients&#x27; choice: fedncm, {broken}</th>' in page
    # In the picture both have the mark of what clients send.
    assert ">class means</text>" in page
    assert ">other</text>" not in page


@pytest.mark.parametrize("asked", BAD)
def test_what_is_no_method_is_one_line(cli, folder, asked):
    result = cli(*SMALL, "--methods", asked)
    assert result.is_one_line
    assert result.err.startswith("covfree: --methods: ")
    assert BAD[asked] in result.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import none_such",
            "ModuleNotFoundError: No module named 'none_such' (bad.py, line 1, in <module>)",
        ),
        ("def f(:", "SyntaxError: invalid syntax (bad.py, line 1)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line(cli, folder, text, said):
    (folder / "bad.py").write_text(text)
    for command in (("compare", "--methods"), ("fit", "--out", "head.npz", "--method")):
        result = cli(*command, "bad.py:f")
        assert result.is_one_line
        assert result.err == f"covfree: {command[-1]}: bad.py: {said}\n"


def test_values_for_all_methods_are_told_with_an_error(cli, folder):
    result = cli(*SMALL, "--methods", "mine.py:spread", "--set", "power=much", "--seeds", "1")
    assert result.code == 2
    assert "covfree: mine.py:spread with --set power=much: TypeError: " in result.err
    result = cli(*SMALL, "--methods", "mine.py:raises", "--set", "power=much")
    assert result.err.startswith(
        "covfree: --methods: mine.py:raises:power=much: KeyError: 'much' (mine.py, line 43, in raises)"
    )
    assert cli(*SMALL, "--set", "bogus=1").err.startswith(
        "covfree: --set: bogus: none of the methods takes it"
    )


def test_a_package_names_its_methods(cli, folder):
    installed = folder / "site"
    (installed / "robust-1.0.dist-info").mkdir(parents=True)
    (installed / "robust-1.0.dist-info" / "METADATA").write_text("Name: robust\nVersion: 1.0\n")
    (installed / "robust-1.0.dist-info" / "entry_points.txt").write_text(
        "[covfree.methods]\nmedian-means = robust_means:cautious\n"
    )
    (installed / "robust_means.py").write_text(FILE)
    sys.path.insert(0, str(installed))
    ways = ("--methods", "median-means:shrinkage=2", "--seeds", "1", "--format", "csv")
    result = cli(*SMALL, *ways)
    assert result.code == 0, result.err
    assert result.out.splitlines()[1].startswith("median-means:shrinkage=2,")
    assert "median-means" in cli(*SMALL, "--methods", "median").err


def test_a_method_that_breaks_does_not_end_the_table_and_a_head_is_fitted_by_one_s_own(cli, folder):
    result = cli(*SMALL, "--methods", "mine.py:broken,fedncm", "--seeds", "1", "--format", "csv")
    assert result.code == 1
    assert (
        "mine.py:broken, seed 0: failed, and is left out: RuntimeError: no head (mine.py, line 33, in head)\n"
        in result.err
    )
    assert [line.partition(",")[0] for line in result.out.splitlines()] == ["method", "fedncm"]
    assert (
        cli("fit", "--method", "mine.py:cautious:shrinkage=2", "--clients", "6", "--out", "head.npz").code
        == 0
    )
    assert cli("evaluate", "--head", "head.npz").code == 0
    fitted = cli("fit", "--method", "mine.py:broken", "--clients", "6", "--out", "other.npz")
    assert fitted.is_one_line
    assert "mine.py:broken: RuntimeError: no head at length (mine.py, line 33, in head)\n" in fitted.err
