"""Rows larger than memory: the same totals as in one batch, resumed to the bit, bad messages named."""

import dataclasses
import os
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest
from deployed import rows as by_hand
from deployed import spoil, with_rows
from precision import FLOAT32, assert_heads_close

import covfree
from covfree.engine import batch, parts, stream
from covfree.engine.reading import add_part
from covfree.engine.reading import ahead as read_ahead
from covfree.engine.shapes import passed
from covfree.engine.totals import How
from covfree.protocol.files import save_message
from covfree.protocol.inbox import Inbox

CLASSES, DIM, LENGTH, PART = 3, 4, 90, 16
ROOT = Path(__file__).resolve().parents[2]
FEDCOF = covfree.fedcof()


def table(length: int = LENGTH, *, clients: int = 12, offset: float = 3.0) -> covfree.Rows:
    """Rows ordered by client, with padding that holds NaN; the first ones of a larger table are the same."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, CLASSES, length).astype(np.int32)
    mean = (rng.normal(size=(length, DIM)) + offset + label[:, None]).astype(np.float32)
    label[::17], mean[::17] = -1, np.nan
    client = np.sort(rng.integers(0, clients, length)).astype(np.int32)
    return covfree.Rows(mean, rng.integers(1, 9, length).astype(np.int32), label, client)


def solve(method, source, **options):
    stream = covfree.Stream(source, **{"part_rows": PART, **options})
    return covfree.solve_rows(method, stream, num_classes=CLASSES)


def totals(method, source, num_classes=CLASSES, **options):
    stream = covfree.Stream(source, **{"part_rows": PART, **options})
    return covfree.accumulate(method, stream, num_classes=num_classes)


def in_one(method, rows):
    return covfree.accumulate(method, rows, num_classes=CLASSES)


def assert_bits(actual, expected) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("covfree")]


METHODS = {
    "fedncm": covfree.fedncm(),
    "fedcof": FEDCOF,
    "fedcof-components": covfree.fedcof_components(),
    "fed3r-within": covfree.fed3r(0.1, "within"),
}


def assert_totals_close(actual, expected, rtol: float = FLOAT32.tolerance) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-5)


def whoever_they_are(totals):
    """FedCOF's totals, less what depends on how clients are numbered."""
    moments, spread = totals
    sums = spread.statistics
    return moments, spread.scatter, sums.counts @ sums.counts.T, sums.totals.T @ sums.totals, sums.classes


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_same_as_in_one_batch(method):
    rows = table()
    if method.summary.merge is not None:
        for source in (rows, covfree.Stream(rows)):
            with pytest.raises(ValueError, match=r"rows: expected one for each example, .* solve_message"):
                covfree.solve_rows(method, source, num_classes=CLASSES)
        rows = dataclasses.replace(rows, count=np.ones_like(rows.count))
    assert_totals_close(totals(method, rows), in_one(method, rows))


@pytest.mark.parametrize(
    "method", [covfree.fedncm(), covfree.fedcof(shrinkage=0.1)], ids=["fedncm", "fedcof"]
)
def test_the_same_head(method):
    expected = covfree.solve_rows(method, table(), num_classes=CLASSES)
    assert_heads_close(solve(method, table()), expected, FLOAT32.tolerance)


def test_in_both_precisions(precision):
    rows = dataclasses.replace(table(), mean=table().mean.astype(precision.dtype))
    expected = in_one(covfree.fedncm(), rows)
    (moments,) = totals(covfree.fedncm(), rows)
    precision.assert_close(moments.total, expected[0].total)
    np.testing.assert_array_equal(moments.count, expected[0].count)


def test_sums_do_not_lose_with_the_number_of_parts():
    # A plain sum of the 300 equal parts is off by 25 eps.
    rows = covfree.Rows(np.full((1200, 1), 1.1, np.float32), np.ones(1200, int), np.zeros(1200, int))
    (moments,) = covfree.accumulate(covfree.fedncm(), covfree.Stream(rows, part_rows=4), num_classes=1)
    exact = 1200 * float(np.float32(1.1))
    assert abs(float(moments.total[0, 0]) - exact) <= 2 * np.finfo(np.float32).eps * exact


def test_parts_of_several_pieces():
    rows = table(5001, clients=5001)
    method = covfree.fedncm()
    assert_totals_close(totals(method, rows, part_rows=4500), in_one(method, rows), rtol=1e-6)


def test_sums_are_updated_in_place():
    cut = parts.TableParts(table(), PART, CLASSES, False)
    (first, *_) = passed(FEDCOF, lambda: cut.padding, CLASSES)
    running, part = stream._nothing(first.upload), jax.device_put(cut.read(0, True))
    client = FEDCOF.rounds[0].client
    add_part(client, FEDCOF.params, (), running, part, How(CLASSES, False))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(running))


def test_memory_maps(tmp_path):
    rows = table()
    names = ("mean", "count", "label", "client")
    for name in names:
        np.save(tmp_path / f"{name}.npy", getattr(rows, name))
    mapped = covfree.Rows(*(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in names))
    assert_bits(totals(FEDCOF, mapped), totals(FEDCOF, rows))


@pytest.mark.parametrize("length", [0, 1, PART, 5 * PART + 1])
def test_one_function_a_phase_for_any_number_of_rows(length):
    totals(FEDCOF, table())
    before = add_part._cache_size()
    moments, _ = totals(FEDCOF, table(length))
    assert add_part._cache_size() == before
    assert moments.count.sum() == np.where(table(length).label >= 0, table(length).count, 0).sum()


def test_a_phase_compiles_once():
    before = add_part._cache_size()
    # A size of part that no other test has.
    totals(FEDCOF, table(), part_rows=7)
    totals(covfree.fedcof(shrinkage=covfree.automatic()), table(50), part_rows=7)
    assert add_part._cache_size() == before + 2


def test_labels_without_a_sign_and_ids_beyond_int32():
    rows = table()
    large = np.where(rows.client > 3, rows.client.astype(np.int64) * 10**12, -1)
    # Rows of clients unknown are all clients of their own.
    small = np.where(rows.client > 3, rows.client, -1)
    unsigned = dataclasses.replace(rows, client=large, count=np.where(rows.label < 0, 0, rows.count))
    unsigned = dataclasses.replace(unsigned, label=np.maximum(rows.label, 0).astype(np.uint8))
    method = METHODS["fedcof-components"]
    expected = totals(method, dataclasses.replace(rows, client=small))
    assert_bits(totals(method, unsigned), expected)


# What is wrong with a table


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("mean", np.nan, "mean: row 41 (class {label}) holds nan at position 0; expected finite numbers"),
        ("count", -1, "count: row 41 has count -1; expected finite numbers of at least 0"),
        ("label", 9, "label: row 41 has label 9; expected labels below num_classes = 3"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_row(name, value, reason):
    rows = table()
    getattr(rows, name)[41] = value
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared whole
        totals(FEDCOF, rows)
    assert str(caught.value) == reason.format(label=rows.label[41])
    assert readers() == []


def test_methods_that_keep_rows_say_so_before_any_is_read(monkeypatch):
    monkeypatch.setattr(parts.TableParts, "read", None)
    rows = dataclasses.replace(table(), covariance=np.ones(LENGTH, np.float32))
    with pytest.raises(ValueError, match="totals of fixed size, got one that keeps all rows"):
        solve(covfree.fedpft(), rows)


def test_clients_that_must_stay_whole():
    method, rows = METHODS["fedcof-components"], table()
    with pytest.raises(ValueError, match="rows: expected rows with a client each"):
        totals(method, dataclasses.replace(rows, client=None))
    with pytest.raises(
        ValueError, match="client: expected the rows of each client to be contiguous; those of 0"
    ):
        totals(method, dataclasses.replace(rows, client=np.arange(LENGTH, dtype=np.int32) % 80 // 2))
    with pytest.raises(
        ValueError, match=r"client: expected at most 5 rows of a client.* client 1 has more, from row 3"
    ):
        totals(method, rows, part_rows=5)


@pytest.mark.parametrize(("name", "value"), [("part_rows", 0), ("num_classes", 0)])
def test_sizes_are_positive(name, value):
    with pytest.raises(ValueError, match=f"{name}: expected an integer of at least 1"):
        totals(FEDCOF, table(), **{name: value})


# Cutting


@pytest.mark.parametrize("seed", range(30))
def test_clients_are_cut_as_one_would_by_hand(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, rng.integers(1, 20))
    names = np.where(rng.random(len(sizes)) < 0.2, -1, rng.permutation(len(sizes)))
    clients = np.repeat(names, sizes)
    size = int(rng.integers(5, 9))
    # Greedily: whoever does not fit any more opens the next part.
    runs = [n for name, n in zip(names, sizes, strict=True) for n in ([n] if name >= 0 else [1] * n)]
    expected, filled = [0], 0
    for run in runs:
        if filled + run > size:
            expected.append(expected[-1] + filled)
            filled = 0
        filled += run
    expected.append(expected[-1] + filled)
    assert parts.cuts(clients, len(clients), size).tolist() == expected


# Folders


def messages(number: int = 9, most: int = 7) -> dict[str, covfree.Message]:
    """One a client, of 1 to ``most`` rows."""
    rng = np.random.default_rng(1)
    sent = {}
    for client in range(number):
        n = int(rng.integers(1, most + 1))
        label = rng.integers(0, CLASSES, n).astype(np.int32)
        mean = (rng.normal(size=(n, DIM)) + label[:, None]).astype(np.float32)
        sent[f"client-{client}"] = covfree.Message(covfree.Rows(mean, rng.integers(1, 9, n), label))
    return sent


def written(path, sent) -> Inbox:
    for name, message in sent.items():
        save_message(message, path / f"{name}.safetensors")
    return Inbox(path)


def together(sent) -> covfree.Rows:
    return covfree.collect(sent, num_classes=CLASSES).message.rows


@pytest.mark.parametrize("name", ["fedcof", "fedcof-components"])
@pytest.mark.parametrize("most", [7, PART])
def test_a_folder_gives_what_its_messages_give(name, most, tmp_path):
    sent = messages(most=most)
    expected = in_one(METHODS[name], together(sent))
    assert_totals_close(totals(METHODS[name], written(tmp_path, sent)), expected)


def test_files_in_data_types_without_a_common_one(tmp_path):
    """NumPy promotes neither bfloat16 and integers nor bfloat16 and float16."""
    bfloat16 = jax.numpy.bfloat16
    sent = {
        name: by_hand(mean=np.full((2, DIM), k), count_dtype=count, mean_dtype=mean)
        for k, (name, mean, count) in enumerate(
            [("a", np.float32, np.int64), ("b", np.float16, bfloat16), ("c", bfloat16, np.int64)]
        )
    }
    (moments,) = totals(covfree.fedncm(), written(tmp_path, sent))
    np.testing.assert_array_equal(moments.count, [9, 0, 15])
    np.testing.assert_array_equal(np.asarray(moments.mean)[[0, 2]], np.ones((2, DIM)))


def test_files_larger_than_a_part_and_any_order(tmp_path):
    sent = {**messages(most=3 * PART), "none": by_hand(mean=np.zeros((0, DIM)), count=(), label=())}
    back = {f"{9 - i}": message for i, message in enumerate(sent.values())}
    (tmp_path / "back").mkdir()
    forth, back = totals(FEDCOF, written(tmp_path, sent)), totals(FEDCOF, written(tmp_path / "back", back))
    expected = in_one(FEDCOF, together(sent))
    assert_totals_close(forth, expected)
    assert_totals_close(whoever_they_are(back), whoever_they_are(expected))
    heads = [covfree.solve_totals(FEDCOF, *totals) for totals in (back, expected)]
    assert_heads_close(*heads, 100 * FLOAT32.tolerance)


@pytest.mark.parametrize("most", [7, 3 * PART])
def test_bad_files_are_set_aside_and_named(most, tmp_path):
    sent = messages(most=most)
    last = sent["client-3"].rows.mean.copy()
    # In the last row, whose part comes after others of a large file.
    last[-1, 2] = np.inf
    wrong = {
        "client-3": dataclasses.replace(
            sent["client-3"], rows=dataclasses.replace(sent["client-3"].rows, mean=last)
        ),
        "client-5": spoil(sent["client-5"], mean=np.nan),
        "wide": by_hand(mean=np.ones((2, DIM + 1))),
        "matrix": dataclasses.replace(sent["client-1"], matrix=np.ones((DIM, DIM), np.float32)),
        "labels": by_hand(mean=np.ones((2, DIM)), label=(0, CLASSES)),
    }
    folder = written(tmp_path, {**sent, **wrong})
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    (tmp_path / "short.safetensors").write_bytes((tmp_path / "client-0.safetensors").read_bytes()[:-1])
    folder = Inbox(tmp_path)
    assert set(folder.rejected) == {"junk", "short"}
    with pytest.raises(ValueError, match="dim: expected the number of features, as messages differ in it"):
        totals(FEDCOF, folder)
    sums = totals(FEDCOF, folder, dim=DIM)
    row, label = len(last) - 1, int(sent["client-3"].rows.label[-1])
    assert set(folder.rejected) == {*wrong, "junk", "short"}
    assert folder.rejected["client-3"] == (
        f"mean: row {row} (class {label}) holds inf at position 2; expected finite numbers"
    )
    assert folder.rejected["wide"] == f"mean: expected shape [rows, {DIM}], got [2, {DIM + 1}]"
    assert folder.rejected["labels"] == "label: row 1 has label 3; expected labels below num_classes = 3"
    good = {name: message for name, message in sent.items() if name not in wrong}
    assert_totals_close(whoever_they_are(sums), whoever_they_are(in_one(FEDCOF, together(good))))


def test_a_folder_without_a_sound_file(tmp_path):
    folder = written(tmp_path, {name: spoil(message, mean=np.nan) for name, message in messages().items()})
    with pytest.raises(
        ValueError, match=r"folder: expected a sound message, got none among 9 files. client-0: mean"
    ):
        totals(FEDCOF, folder)


def test_messages_with_more_than_rows_have_another_way(tmp_path):
    with pytest.raises(
        ValueError, match="got 'fed3r', which sends Gram matrices; use collect and solve_message"
    ):
        totals(covfree.fed3r(), written(tmp_path, messages()))
    sent = {
        name: dataclasses.replace(message, matrix=np.eye(DIM, dtype=np.float32))
        for name, message in messages().items()
    }
    with pytest.raises(ValueError, match="matrix: expected none as clients of 'fedcof' send, got an array"):
        totals(FEDCOF, written(tmp_path, sent))


@pytest.mark.parametrize("count", [2**31 - 1, 2**32 + 3])
def test_counts_add_up_however_large(count, tmp_path):
    """In a folder and in a table, whose sums no int32 holds; expected are their values."""
    sent = {name: by_hand(mean=np.full((2, DIM), k), count=(1, 5)) for k, name in enumerate("abc")}
    sent = {name: with_rows(m, count=np.array([count, 5], np.int64)) for name, m in sent.items()}
    table = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(m.rows for m in sent.values()))
    for source in (written(tmp_path, sent), table):
        (moments,) = totals(covfree.fedncm(), source)
        np.testing.assert_allclose(moments.count, [3 * count, 0, 15], rtol=1e-6)
        np.testing.assert_allclose(moments.mean[0], np.ones(DIM), rtol=1e-6)


def test_a_head_that_is_not_finite_is_an_error_and_the_sums_are_kept(tmp_path):
    def overflowing(params, system, moments):
        return covfree.LinearHead(moments.total.T * 1e38, moments.total[:, 0])

    method = dataclasses.replace(covfree.fedncm(), head=overflowing)
    with pytest.raises(ValueError, match="head: holds inf in weight of shape"):
        solve(method, table(), checkpoint=tmp_path / "run")
    assert (tmp_path / "run").exists()


def test_a_client_of_more_rows_than_a_part(tmp_path):
    folder = written(tmp_path, messages(most=9))
    largest = max(len(message.rows.count) for message in messages(most=9).values())
    with pytest.raises(ValueError, match=f"part_rows: expected at least {largest}, .* 'client-.'; got 8"):
        totals(METHODS["fedcof-components"], folder, part_rows=largest - 1)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_file_that_changes_between_the_rounds_is_left_out(checkpoint, tmp_path, monkeypatch):
    """The run begins again without it; who goes on changing files loses those, and no time of others."""
    monkeypatch.setattr("covfree.protocol.inbox._KEPT", 0)
    sent = messages()
    folder = written(tmp_path, sent)
    read, seen = parts.FolderParts.read, []

    def changing(self, index, check):
        if len(seen) == 2:
            save_message(sent["client-3"], tmp_path / "client-2.safetensors")
            (tmp_path / "client-5.safetensors").unlink()
        seen.append(index)
        return read(self, index, check)

    monkeypatch.setattr(parts.FolderParts, "read", changing)
    given = {"checkpoint": tmp_path / "run"} if checkpoint else {}
    actual = totals(FEDCOF, folder, **given)
    assert set(folder.rejected) == {"client-2", "client-5"}
    assert "it changed: open the folder again" in folder.rejected["client-2"]
    left = {name: message for name, message in sent.items() if name not in folder.rejected}
    assert_totals_close(actual, in_one(FEDCOF, together(left)))
    assert readers() == []
    assert not (tmp_path / "run").exists()


# Interrupted and resumed


@contextmanager
def reading(error: BaseException | None = None, *, after: int = 10**6, source=parts.TableParts):
    """Lets so many parts be read and no more; gives the list of those that were."""
    read, done = source.read, []

    def noted(self, index, check):
        if len(done) >= after:
            raise error
        done.append(index)
        return read(self, index, check)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "read", noted)
        yield done


STOP = OSError("the disk is gone")


@pytest.mark.parametrize("error", [STOP, KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("after", [1, 4, 6, 9])
def test_an_interrupted_run_goes_on_where_it_was(error, after, tmp_path):
    path, expected = tmp_path / "run", totals(FEDCOF, table())
    with reading(error, after=after) as first, pytest.raises(type(error)):
        totals(FEDCOF, table(), checkpoint=path)
    assert readers() == []
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    with reading() as then:
        assert_bits(totals(FEDCOF, table(), checkpoint=path), expected)
    # Six parts, twice; none is read again.
    assert first + then == [*range(6), *range(6)]
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_written_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_EVERY", 0.0)
    written = []
    monkeypatch.setattr(
        stream.CheckpointFolder,
        "save",
        lambda self, step, tree, about, identity: written.append((about["round"], about["part"])),
    )
    totals(FEDCOF, table(), checkpoint=tmp_path / "run")
    assert written == [(phase, part) for phase in range(2) for part in range(1, 7)]


_KILLED = """
import sys, time
import numpy as np, covfree
from covfree.engine import batch, parts, stream
read, stream._EVERY = parts.TableParts.read, 0.0

def slow(self, index, check):
    if not check and index == 3:
        print("there", flush=True)
        time.sleep(60)
    return read(self, index, check)

parts.TableParts.read = slow
folder = sys.argv[1]
columns = [np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in ("mean", "count", "label")]
run = covfree.Stream(covfree.Rows(*columns), part_rows=16, checkpoint=f"{folder}/run")
covfree.accumulate(covfree.fedcof(), run, num_classes=3)
"""


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    rows = dataclasses.replace(table(), client=None)
    for name in ("mean", "count", "label"):
        np.save(tmp_path / f"{name}.npy", getattr(rows, name))
    environment = {**os.environ, "XLA_FLAGS": ""}
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as process:
        assert process.stdout.readline() == b"there\n"
        # Until what was read before is added up: the first pass, and then three parts.
        # The steps of the first pass are 1 to 6, those of the second start at 7.
        while not any((tmp_path / "run").glob("saved/10/_CHECKPOINT_METADATA")):
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    with reading() as then:
        actual = totals(FEDCOF, rows, checkpoint=tmp_path / "run")
    assert then == [3, 4, 5]
    assert_bits(actual, totals(FEDCOF, rows))


def test_nothing_is_written_where_nothing_was_done(tmp_path):
    rows = table()
    rows.mean[1] = np.nan
    with pytest.raises(ValueError, match="row 1"):
        totals(FEDCOF, rows, checkpoint=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_what_was_set_aside_is_known_after_a_resume(tmp_path):
    sent = messages()
    sent["client-0"] = spoil(sent["client-0"], mean=np.nan)
    expected = totals(FEDCOF, written(tmp_path, sent))
    number = -(-sum(len(message.rows.count) for name, message in sent.items() if name != "client-0") // PART)
    with reading(STOP, after=number + 1, source=parts.FolderParts), pytest.raises(OSError, match="disk"):
        totals(FEDCOF, Inbox(tmp_path), checkpoint=tmp_path / "run")
    folder = Inbox(tmp_path)
    assert_bits(totals(FEDCOF, folder, checkpoint=tmp_path / "run"), expected)
    assert list(folder.rejected) == ["client-0"]


def test_a_head_that_cannot_be_made_does_not_cost_the_totals(tmp_path, monkeypatch):
    path, expected = tmp_path / "run", solve(FEDCOF, table())
    with monkeypatch.context() as patch:
        patch.setattr(batch, "solve_totals", lambda *totals: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            solve(FEDCOF, table(), checkpoint=path)
    with reading() as then:
        assert_bits(solve(FEDCOF, table(), checkpoint=path), expected)
    assert then == []
    assert not path.exists()


OTHERS = {
    "method": dict(method=covfree.fedncm()),
    "the method's numbers": dict(method=covfree.fedcof(shrinkage=0.5)),
    "the method's parts": dict(method=covfree.fedcof(weighting="pooled")),
    "num_classes": dict(num_classes=CLASSES + 1),
    "part_rows": dict(part_rows=PART + 1),
    "rows": dict(rows=table(LENGTH - 1)),
    "the rows' values": dict(rows=table(offset=3.5)),
}


@pytest.mark.parametrize(("name", "other"), OTHERS.items(), ids=OTHERS)
def test_a_checkpoint_of_another_run_is_refused(name, other, tmp_path):
    path, method = tmp_path / "run", covfree.fedcof(shrinkage=0.1)
    with reading(STOP, after=4), pytest.raises(OSError, match="disk"):
        totals(method, table(), checkpoint=path)
    before = sorted(path.rglob("*"))
    options = {"method": method, "rows": table(), "num_classes": CLASSES, "part_rows": PART, **other}
    with pytest.raises(
        ValueError, match=rf"checkpoint: expected the same run as before; .*differs in .*{name} \("
    ):
        totals(options.pop("method"), options.pop("rows"), checkpoint=path, **options)
    assert sorted(path.rglob("*")) == before


def test_a_folder_with_another_file_is_another_run(tmp_path):
    folder = written(tmp_path, messages())
    with reading(STOP, after=2, source=parts.FolderParts), pytest.raises(OSError, match="disk"):
        totals(FEDCOF, folder, checkpoint=tmp_path / "run")
    save_message(by_hand(mean=np.ones((2, DIM))), tmp_path / "one-more.safetensors")
    with pytest.raises(
        ValueError, match=r"differs in number of files \(9 there, 10 here\), the files' names and digests"
    ):
        totals(FEDCOF, Inbox(tmp_path), checkpoint=tmp_path / "run")


def test_a_file_is_no_folder_of_a_checkpoint(tmp_path):
    (tmp_path / "run").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"checkpoint: expected a folder, but .*run is a file"):
        totals(FEDCOF, table(), checkpoint=tmp_path / "run")
    (tmp_path / "run").unlink()
    # What else is in the folder stays.
    (tmp_path / "lock").write_text("mine")
    (tmp_path / "3").mkdir()
    totals(FEDCOF, table(), checkpoint=tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["3", "lock"]
    (tmp_path / "saved" / "3").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"checkpoint: expected the saved state of a run, which .*3 is not"):
        totals(FEDCOF, table(), checkpoint=tmp_path)


# While it runs


def test_the_bar_is_shown_on_request_alone(capsys):
    totals(FEDCOF, table())
    assert capsys.readouterr() == ("", "")
    totals(FEDCOF, table(), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "pass 1 of 2" in shown.err
    assert "pass 2 of 2" in shown.err
    assert "rows/s" in shown.err


def test_parts_are_read_ahead():
    started = threading.Event()

    def read(index):
        if index == 1:
            started.set()
        return index

    with closing(read_ahead(read, range(5))) as ahead:
        assert next(ahead) == 0
        # The second is read although nobody has asked for it.
        assert started.wait(10)
        assert list(ahead) == [1, 2, 3, 4]
    assert readers() == []


_MEMORY = """
import re, sys, threading, time
import numpy as np, covfree

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024

def run(n):
    rows = covfree.Rows(mean[:n], count[:n], label[:n])
    return covfree.accumulate(covfree.fedncm(), covfree.Stream(rows), num_classes=10)[0].count.sum()

mean = np.memmap(sys.argv[1], np.float32, "r", shape=(200_000, 256))
count = np.ones(200_000, np.int8)
label = np.zeros(200_000, np.int8)
run(20_000)
before, most, done = anonymous(), 0, threading.Event()

def watch():
    global most
    while not done.is_set():
        most = max(most, anonymous())
        time.sleep(0.02)

watcher = threading.Thread(target=watch)
watcher.start()
assert run(200_000) == 200_000
done.set()
watcher.join()
print(most - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured as Linux tells it")
def test_memory_does_not_grow_with_the_rows(tmp_path):
    # 200 MB of zeros, of which the disk holds none.
    with (tmp_path / "mean").open("wb") as file:
        file.truncate(200_000 * 256 * 4)
    run = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(tmp_path / "mean")],
        env={**os.environ, "XLA_FLAGS": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    # Parts are 8 MB each, of which there may be a handful.
    assert float(run.stdout) < 100
