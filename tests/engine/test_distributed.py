"""Heads and features from shards on a Dask cluster of two processes, one of which is killed in the middle."""

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from classifiers import assert_same_classifier, expected_head, make
from federations import CLASSES
from federations import make as federation
from pages import programs

import covfree
from covfree.backbones import Extractor
from covfree.core.columns import open_table
from covfree.data import read_feature_file

distributed = pytest.importorskip("distributed")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def examples():
    found = federation(0)
    return found.with_features(found.features.astype(np.float32))


@pytest.fixture
def shards(tmp_path, examples):
    """Ten Parquet files; every client's examples lie in several."""
    import pyarrow

    paths = []
    for number, part in enumerate(np.array_split(np.arange(len(examples.labels)), 10)):
        columns = dict(zip(("features", "labels", "clients"), (own[part] for own in examples), strict=True))
        table = pyarrow.table(columns | {"features": columns["features"].tolist()})
        paths.append(tmp_path / f"{number}.parquet")
        parquet.write_table(table, paths[-1])
    return paths


def read_and_die(marker, path):
    """Read a shard, but the first to read the sixth kills its own process before the task is done."""
    if path.endswith("5.parquet") and not Path(marker).exists():
        Path(marker).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    found = dict(open_table(Path(path)))
    return found | {"features": found["features"].astype(np.float32)}


def test_dask_collections_threads_and_bad_shards(shards, examples, tmp_path):
    """Without a cluster Dask's threads do the work; a partition holds columns as a file does.

    It comes before the tests with a cluster, which is the current one as long as it lives.
    """
    from dask import delayed

    class Collection:
        def to_delayed(self):
            return [delayed(open_table)(path) for path in shards]

    head = covfree.distributed.fit(make("fed3r"), Collection(), num_classes=CLASSES)
    assert_same_classifier(head, expected_head("fed3r", make("fed3r"), examples), 1e-4)
    fit = partial(covfree.distributed.fit, covfree.fed3r(), num_classes=CLASSES)
    with pytest.raises(TypeError, match="shards: expected a list of paths"):
        fit(str(shards[0]))
    with pytest.raises(ValueError, match="got none"):
        fit([])
    with pytest.raises(ValueError, match=r"shards: expected each once, .* got '.*' twice"):
        fit([*shards, f"{shards[0]}"])
    with pytest.raises(KeyError, match="'label'"):
        fit(shards, columns=("features", "label", None))
    with pytest.raises(ValueError, match=r"x\.txt: expected a file that ends in \.npz"):
        fit([tmp_path / "x.txt"])
    ragged = tmp_path / "ragged.parquet"
    import pyarrow

    parquet.write_table(pyarrow.table({"features": [[1.0], [1.0, 2.0]], "labels": [0, 1]}), ragged)
    with pytest.raises(ValueError, match=r"ragged\.parquet: features: expected a list of the same"):
        fit([ragged], columns=("features", "labels", None))


def test_shards_that_are_empty_tables_or_lack_columns(shards, examples, tmp_path):
    """Also before the cluster lives."""
    import pyarrow

    expected = expected_head("fed3r", make("fed3r"), examples)
    fit = partial(covfree.distributed.fit, make("fed3r"), num_classes=CLASSES)
    # Without clients no example is padding.
    used = [("clients", ">=", 0), ("labels", ">=", 0)]
    tables = [parquet.read_table(path, columns=["features", "labels"], filters=used) for path in shards]
    empty = tmp_path / "empty.parquet"
    lists = pyarrow.list_(pyarrow.float32())
    none = {"features": pyarrow.array([], lists), "labels": pyarrow.array([], "int64")}
    parquet.write_table(pyarrow.table(none | {"clients": none["labels"]}), empty)
    assert_same_classifier(fit([*tables, tables[0][:0]]), expected, 1e-4)
    assert_same_classifier(fit([*shards, empty], read=parquet.read_table), expected, 1e-4)
    assert_same_classifier(fit([*map(str, shards), empty]), expected, 1e-4)
    with pytest.raises(KeyError, match=r"expected 'clients' .*; the method needs the client of each example"):
        covfree.distributed.fit(covfree.fedcof(), tables, num_classes=CLASSES)
    with pytest.raises(
        KeyError,
        match=r"expected 'client' in each shard, .*; give None in its place for shards without clients",
    ):
        fit(tables, columns=("features", "labels", "client"))

    # Texts, and images of several shapes, come as lists; labels and clients may be absent.
    def sizes(inputs):
        assert isinstance(inputs, list)
        return [[len(each)] for each in inputs]

    images = np.empty(2, object)
    images[:] = [np.ones((2, 3)), np.ones((4, 5))]
    for kind, inputs in {"texts": np.array(["a", "bcd"]), "images": images, "none": images[:0]}.items():
        columns = ("images", None, "clients")
        paths = covfree.distributed.extract(sizes, [{"images": inputs}], tmp_path / kind, columns=columns)
        with np.load(paths[0]) as found:
            assert found.files == ["features"]
            assert found["features"].ravel().tolist() == {"texts": [1, 3], "images": [2, 4], "none": []}[kind]


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_nothing(cluster, shards, examples, tmp_path):
    before, marker = set(cluster.run(os.getpid).values()), tmp_path / "died"
    read = partial(read_and_die, str(marker))
    settings = {"num_classes": CLASSES}
    total = covfree.distributed.total(covfree.fedcof(), shards, read=read, client=cluster, **settings)
    assert int(marker.read_text()) in before
    assert int(marker.read_text()) not in cluster.run(os.getpid).values(), "the worker was not killed"
    # The head is a function of the total's rows, one for each client and class.
    whole = covfree.aggregate.add(covfree.aggregate.zero(covfree.fedcof(), **settings), *examples)
    for found, expected in zip(total.rows[:4], covfree.aggregate.compacted(whole).rows[:4], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def scaled(batch):
    assert len(batch) == 4, "a batch of another shape would be compiled anew"
    return 2 * batch


def doubled(batch):
    return 2 * batch


@pytest.mark.slow
def test_extracted_shards_are_what_fit_reads(cluster, shards, examples, tmp_path, monkeypatch):
    columns = ("features", "labels", "clients")
    twofold = Extractor("twofold", examples.features.shape[1], scaled, weights="1")
    paths = covfree.distributed.extract(
        twofold, shards, tmp_path / "out", batch_size=4, columns=columns, client=cluster
    )
    found = [open_table(Path(path)) for path in paths]
    for name, own in zip(columns, examples, strict=True):
        expected = 2 * own if name == "features" else own
        np.testing.assert_array_equal(np.concatenate([part[name] for part in found]), expected)
    assert read_feature_file(paths[0]).key == twofold.key
    # The page's program does so by the names that columns have unless said.
    program, _ = programs("docs/scale.md")
    np.savez(
        tmp_path / "images.npz", images=examples.features, labels=examples.labels, clients=examples.clients
    )
    names = {"covfree": covfree, "network": doubled, "image_shards": [tmp_path / "images.npz"]}
    monkeypatch.setattr(distributed, "Client", lambda address: cluster)
    program = program.replace("num_classes=100", f"num_classes={CLASSES}")
    exec(program.replace("s3-mount", str(tmp_path)), names)
    assert names["head"].weight.shape == (examples.features.shape[1], CLASSES)
    sums = covfree.distributed.fit(make("fed3r"), paths, num_classes=CLASSES, client=cluster)
    twice = examples.with_features(2 * examples.features)
    assert_same_classifier(sums, expected_head("fed3r", make("fed3r"), twice), 1e-4)
