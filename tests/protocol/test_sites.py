"""Which sites fail the test, what is said of them, and what `collect` does with them."""

import dataclasses

import numpy as np
import pytest

import covfree
from covfree.protocol.sites_model import class_means_of, deviation

CLASSES, DIM = 6, 12
TRUE = 2 * np.random.default_rng(0).normal(size=(CLASSES, DIM))
NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")


def federation(sites=20, seed=0, shift=0.3, each=9):
    """Class means [sites, C, d] of sites that each have a shift of their own."""
    rng = np.random.default_rng([1, seed])
    noise = rng.normal(size=(sites, CLASSES, DIM)) / each**0.5
    return TRUE + noise + shift * rng.normal(size=(sites, 1, DIM))


def rows(means, count=9):
    sites = len(means)
    counts = np.broadcast_to(np.asarray(count, np.int32), (sites,))
    return covfree.Rows(
        means.reshape(-1, DIM).astype(np.float32),
        np.repeat(counts, CLASSES),
        np.tile(np.arange(CLASSES, dtype=np.int32), sites),
        np.repeat(np.arange(sites, dtype=np.int32), CLASSES),
    )


def failed(means, count=9):
    return covfree.diagnose_sites(rows(means, count), num_classes=CLASSES, class_names=NAMES).failed


@pytest.mark.parametrize("sites", [5, 20, 200])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_honest_sites_pass(sites, shift):
    for seed in range(5):
        assert failed(federation(sites, seed, shift)) == {}


BAD = {
    "swapped": (lambda m: m[[1, 0, 2, 3, 4, 5]], "labels: classes ant and bee are swapped"),
    "shifted": (lambda m: np.roll(m, 1, 0), "labels: shifted by 1: its class ant is the others' fox"),
    "mixed": (lambda m: m.mean(0) + 0.1 * (m - m.mean(0)), "classes: its class means differ"),
    "negative": (lambda m: -m, ""),
    "tenfold": (lambda m: 10 * m, "scale: its means have "),
    "enormous": (lambda m: 1e15 * m, "scale: its means have "),
    "zero": (lambda m: 0 * m, ""),
    "turned": (lambda m: m[:, ::-1], ""),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize(("offset", "unit"), [(0, 1), (0, 1e-4), (20, 1)])
def test_bad_sites_are_found_alone_and_named(kind, offset, unit):
    make, reason = BAD[kind]
    means = federation()
    for site in (3, 11, 17):
        means[site] = make(means[site])
    found = failed(unit * (means + offset))
    assert set(found) == {3, 11, 17}
    if not offset:
        assert all(reason in text for text in found.values()), found


def test_a_count_that_no_honest_site_has_is_named_and_a_large_one_is_not():
    counts = np.full(20, 9)
    counts[[4, 5]] = 5000, 30
    assert failed(federation(), counts) == {4: "count: 30000 examples, 556 times the median"}


def test_with_four_sites_nobody_can_judge():
    means = federation(4)
    means[0] *= -100
    report = covfree.diagnose_sites(rows(means), num_classes=CLASSES)
    assert not report.judged
    assert report.failed == {}
    assert "too few to judge" in str(report)
    assert list(report.sites) == [0, 1, 2, 3]


def test_no_site_one_site_and_classes_of_one_site():
    empty = covfree.Rows(np.zeros((0, DIM), np.float32), *[np.zeros(0, np.int32)] * 3)
    assert covfree.diagnose_sites(empty, num_classes=CLASSES).sites == {}
    assert len(covfree.diagnose_sites(rows(federation(1)), num_classes=CLASSES).sites) == 1
    own = rows(federation(6))
    apart = dataclasses.replace(own, label=own.client)  # no class has two holders
    assert covfree.diagnose_sites(apart, num_classes=CLASSES).failed == {}
    equal = np.broadcast_to(TRUE, (9, CLASSES, DIM))
    assert failed(equal) == {}


def test_padding_directions_and_several_rows_of_a_class():
    own = rows(federation(5))
    more = covfree.Rows(
        np.concatenate([own.mean, own.mean + 2, np.full((2, DIM), np.nan, np.float32)]),
        np.concatenate([own.count, own.count, [0, 7]]),
        np.concatenate([own.label, own.label, [0, -2]]),
        np.concatenate([own.client, own.client, [0, 0]]),
    )
    means = class_means_of(more, CLASSES)
    assert np.allclose(means.mean, own.mean + 1, atol=1e-5)
    assert (means.number == 18).all()


def test_deviations_are_robust_and_at_least_those_that_are_known():
    values = np.array([0.0, 1, 2, 3, 4, 1e9, np.nan])
    assert np.allclose(deviation(values, 0.1)[:2], [-2.5 / (1.4826 * 1.5), -1.5 / (1.4826 * 1.5)])
    assert deviation(values, 0.1)[-1] == 0
    assert abs(deviation(values, 0.1, 10.0)[0]) == 0.25


def message(means):
    own = rows(means[None])
    return covfree.Message(dataclasses.replace(own, client=None))


def test_collect_leaves_failing_sites_out_and_doubts_those_of_earlier_rounds():
    means = federation(12)
    means[7] = np.roll(means[7], 1, 0)
    sent = {f"site {k}": message(means[k]) for k in range(12)}
    plain = covfree.collect(sent, num_classes=CLASSES)
    assert len(plain.clients) == 12
    kept = covfree.collect(sent, num_classes=CLASSES, judge_sites=True)
    assert list(kept.rejected) == ["site 7"]
    assert kept.rejected["site 7"].startswith("labels: shifted by 1")
    assert "site 7" not in kept.clients
    assert int(kept.message.rows.client.max()) == 10
    known = covfree.collect({k: v for k, v in sent.items() if k != "site 7"}, num_classes=CLASSES)
    assert np.array_equal(kept.message.rows.mean, known.message.rows.mean)
    first = {k: sent[k] for k in ("site 7", "site 1", "site 2")}
    early = covfree.collect(first, num_classes=CLASSES, judge_sites=True)
    assert early.rejected == {}
    assert early.doubted == {}
    later = covfree.collect(sent, num_classes=CLASSES, judge_sites=True, before=early)
    assert list(later.doubted) == ["site 7"]
    assert len(later.clients) == 12
    assert covfree.diagnose_sites(later, num_classes=CLASSES).failed.keys() == {"site 7"}


def test_arguments():
    own = rows(federation(5))
    with pytest.raises(ValueError, match="collected: expected rows with a client each"):
        covfree.diagnose_sites(dataclasses.replace(own, client=None), num_classes=CLASSES)
    with pytest.raises(TypeError, match="collected"):
        covfree.diagnose_sites([1], num_classes=CLASSES)
    with pytest.raises(ValueError, match="class_names"):
        covfree.diagnose_sites(own, num_classes=CLASSES, class_names=["a"])


def test_the_command_prints_a_table_and_draws_the_sites(tmp_path, capsys):
    pytest.importorskip("typer")
    from covfree.cli.app import run

    means = federation(8)
    means[5] = means[5][[1, 0, 2, 3, 4, 5]]
    (tmp_path / "inbox").mkdir()
    for k in range(8):
        covfree.save_message(message(means[k]), tmp_path / "inbox" / f"site{k}.safetensors")
    arguments = ["diagnose", "--messages", str(tmp_path / "inbox")]
    assert run([*arguments, "--picture", str(tmp_path / "sites.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "8 sites, of which 1 failed the check."
    assert lines[3].startswith("site5")
    assert lines[3].endswith("labels: classes 0 and 1 are swapped")
    assert (tmp_path / "sites.png").stat().st_size > 5000
    assert run([*arguments[:2], str(tmp_path / "nowhere")]) == 2
    assert run(["diagnose", "--picture", "sites.png"]) == 2
    assert "--picture: expected --messages" in capsys.readouterr().err


def test_a_site_of_few_examples_is_not_judged_by_their_means():
    means = federation()
    means[4] = means[4][::-1]
    counts = np.full(20, 9)
    counts[4] = 1
    assert failed(means, counts) == {}
    counts[4] = 2
    assert set(failed(means, counts)) == {4}


def test_a_stream_and_solve_message_leave_out_whom_collect_leaves_out(tmp_path):
    means, method = federation(12), covfree.fedcof(0.1)
    means[7] = np.roll(means[7], 1, 0)
    sent = {f"site-{k:02d}": message(means[k]) for k in range(12)}
    for name, each in sent.items():
        covfree.save_message(each, tmp_path / f"{name}.safetensors")
    kept = covfree.collect(sent, num_classes=CLASSES, judge_sites=True)
    assert kept.bounds["sites"] == "12 sites, of which 1 failed the check."
    head = covfree.solve_message(method, kept.message, num_classes=CLASSES)
    inbox = covfree.Inbox(tmp_path)
    streamed = covfree.solve_rows(method, covfree.Stream(inbox, judge_sites=True), num_classes=CLASSES)
    assert inbox.rejected == kept.rejected
    whole = covfree.collect(sent, num_classes=CLASSES).message
    with pytest.warns(
        RuntimeWarning, match="judge_sites: left out client 7: labels: shifted by 1: its class 0"
    ):
        solved = covfree.solve_message(method, whole, num_classes=CLASSES, judge_sites=True)
    unjudged = covfree.solve_message(method, whole, num_classes=CLASSES)
    for other in (streamed, solved):
        np.testing.assert_allclose(other.weight, head.weight, rtol=1e-5, atol=1e-5)
    assert not np.allclose(unjudged.weight, head.weight, rtol=1e-2, atol=1e-2)
    few = covfree.collect(dict(list(sent.items())[5:9]), num_classes=CLASSES).message
    with pytest.warns(RuntimeWarning, match="judge_sites: 4 sites: too few to judge"):
        covfree.solve_message(method, few, num_classes=CLASSES, judge_sites=True)
    with pytest.raises(ValueError, match="judge_sites: expected a message of rows alone"):
        covfree.solve_message(
            covfree.fed3r(),
            dataclasses.replace(whole, matrix=np.eye(DIM)),
            num_classes=CLASSES,
            judge_sites=True,
        )
    with pytest.raises(ValueError, match="judge_sites: expected an Inbox"):
        covfree.solve_rows(method, covfree.Stream(whole.rows, judge_sites=True), num_classes=CLASSES)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_clipped_means_bound_what_a_site_can_do_and_leave_honest_ones(unit):
    means = federation(20) + 5
    honest = covfree.clip_sites(rows(unit * means), num_classes=CLASSES)
    spread = np.linalg.norm(means - means.mean(0), axis=-1).mean()
    assert np.abs(honest.mean - rows(unit * means).mean).max() < unit * spread
    assert np.mean(np.abs(honest.mean - rows(unit * means).mean).max(1) > 0) < 0.2
    # However far a mean is, it ends on its ray to the others' centre, no farther than the limit.
    ends = []
    for factor in (30, 1e4):
        bad = means.copy()
        bad[3] += factor
        bad[4] *= -factor
        clipped = covfree.clip_sites(rows(unit * bad), num_classes=CLASSES)
        ends.append(clipped.mean.reshape(20, CLASSES, DIM))
        others = np.delete(np.arange(20), [3, 4])
        centre = means[others].mean(0)
        assert (np.linalg.norm(ends[-1][3:5] / unit - centre, axis=-1) < 3 * spread).all()
    np.testing.assert_allclose(ends[0][3:5], ends[1][3:5], atol=0.3 * unit * spread)
    loose = covfree.clip_sites(rows(unit * bad), num_classes=CLASSES, limit=1e9)
    np.testing.assert_allclose(loose.mean, rows(unit * bad).mean, rtol=1e-5)


def test_clipped_counts_several_rows_and_what_cannot_be_clipped():
    counts = np.full(20, 9)
    counts[4] = 5000
    clipped = covfree.clip_sites(rows(federation(), counts), num_classes=CLASSES)
    assert np.allclose(clipped.count.reshape(20, CLASSES)[3:5], [[9], [27]])
    own = rows(federation(8))
    pairs = covfree.Rows(
        np.concatenate([own.mean - 1, own.mean + 1, np.full((2, DIM), 7, np.float32)]),
        np.concatenate([own.count, own.count, [0, 3]]),
        np.concatenate([own.label, own.label, [0, -2]]),
        np.concatenate([own.client, own.client, [0, 0]]),
    )
    pairs.mean[own.client.searchsorted(5)] += 50
    both = covfree.clip_sites(pairs, num_classes=CLASSES)
    size = len(own.label)
    moved = both.mean - pairs.mean
    np.testing.assert_allclose(moved[:size], moved[size : 2 * size], atol=1e-5)
    assert np.abs(moved[5 * CLASSES]).max() > 5
    assert (moved[2 * size :] == 0).all()
    empty = covfree.Rows(np.zeros((0, DIM), np.float32), *[np.zeros(0, np.int32)] * 3)
    assert covfree.clip_sites(empty, num_classes=CLASSES).mean.shape == (0, DIM)
    few = rows(federation(2))
    assert np.array_equal(covfree.clip_sites(few, num_classes=CLASSES).mean, few.mean)
    with pytest.raises(ValueError, match="rows: expected rows with a client each"):
        covfree.clip_sites(dataclasses.replace(own, client=None), num_classes=CLASSES)
    for limit in (0.5, float("nan")):
        with pytest.raises(ValueError, match="limit: expected at least 1, got"):
            covfree.clip_sites(own, num_classes=CLASSES, limit=limit)
