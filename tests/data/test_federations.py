"""Federations by name: LEAF's files, and tables of images with their clients and classes."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covfree.data import federation, image_table, load_images

rng = np.random.default_rng(0)


def leaf(folder: Path, part: str, number: int, **users) -> None:
    """Write one of LEAF's files: for each user grey levels and labels."""
    data = {
        user: {"x": (levels.reshape(len(labels), 16) / 255).tolist(), "y": labels}
        for user, (levels, labels) in users.items()
    }
    content = {
        "users": list(data),
        "num_samples": [len(each["y"]) for each in data.values()],
        "user_data": data,
    }
    (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / part / f"all_data_{number}_niid_0_keep_0_{part}_9.json").write_text(json.dumps(content))


def pixels(count: int) -> np.ndarray:
    return rng.integers(0, 256, (count, 4, 4), dtype=np.uint8)


def test_femnist_as_leaf_writes_it(tmp_path, monkeypatch):
    one, two, three = pixels(3), pixels(2), pixels(1)
    folder = tmp_path / "femnist"
    leaf(folder, "train", 0, f0=(one, [2, 0, 1]), nobody=(pixels(0), []))
    leaf(folder, "train", 1, f1=(two, [1, 1]))
    leaf(folder, "test", 0, f1=(three, [3]))
    monkeypatch.setenv("COVFREE_DATA", str(tmp_path))
    images = load_images("femnist")
    assert images.name == "femnist"
    np.testing.assert_array_equal([images.read(i) for i in range(6)], np.concatenate([one, two, three]))
    assert images.labels.tolist() == [2, 0, 1, 1, 1, 3]
    assert images.clients is not None
    assert images.is_test is not None
    assert images.clients.tolist() == ["f0"] * 3 + ["f1"] * 3
    assert images.is_test.tolist() == [False] * 5 + [True]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"users": ["a"], "user_data": {}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[2]], "y": [0]}}}',
    ],
)
def test_what_leaf_did_not_write_is_named(content, tmp_path):
    for part in ("train", "test"):
        leaf(tmp_path / "femnist", part, 0, user=(pixels(1), [0]))
    file = tmp_path / "femnist" / "test" / "more.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=rf"^{file}: (expected|user 'a')"):
        federation("femnist", data_dir=tmp_path)


@pytest.fixture
def landmarks(tmp_path):
    """A folder as of Landmarks-User-160k: tables, and images deep in folders."""
    root = tmp_path / "landmarks-user-160k"
    for name in ("0a", "0b", "1c", "1d", "unused"):
        path = root / "train" / name[0] / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    (root / "federated_train.csv").write_text("user_id,image_id,class\n7,0a,10\n7,1c,9\n12,0b,10\n")
    (root / "test.csv").write_text("image_id,class\n1d,9\n")
    return root


def test_a_federation_of_tables(landmarks):
    images = federation("landmarks-user-160k", data_dir=landmarks.parent)
    assert images.name == "landmarks-user-160k"
    assert images.ids == ("0/0a.jpg", "1/1c.jpg", "0/0b.jpg", "1/1d.jpg")
    assert images.class_names == ("9", "10")  # by number
    assert images.labels.tolist() == [1, 0, 1, 0]
    assert images.clients is not None
    assert images.is_test is not None
    assert images.clients.tolist() == ["7", "7", "12", ""]
    assert images.is_test.tolist() == [False, False, False, True]
    assert images.read(3).size == (4, 4)


def test_other_columns_and_names_with_extensions(landmarks):
    table = landmarks / "mine.csv"
    table.write_text("site,file,species\nA,0a.jpg,owl\nB,0b.jpg,crow\n")
    columns = {"client_column": "site", "image_column": "file", "label_column": "species"}
    images = image_table(landmarks / "train", table, **columns)
    assert (images.class_names, images.labels.tolist(), images.is_test) == (("crow", "owl"), [1, 0], None)


def test_lines_may_differ_in_length_where_nothing_is_read(landmarks):
    table = landmarks / "mine.csv"
    table.write_text("user_id,image_id,class,note\nA,0a,owl\nB,0b,crow,,\n")
    images = image_table(landmarks / "train", table)
    assert (images.class_names, images.labels.tolist()) == (("crow", "owl"), [1, 0])


@pytest.mark.parametrize(
    ("labels", "order"),
    [("10 2 9", "2 9 10"), ("10 2 -1", "-1 10 2"), ("10 --1 2", "--1 10 2"), ("٣ 10 2", "2 ٣ 10")],
)
def test_labels_are_numbered_as_heads_hold_them(landmarks, labels, order):
    (landmarks / "mine.csv").write_text(
        "user_id,image_id,class\n"
        + "".join(
            f"u,{name},{label}\n" for name, label in zip(("0a", "0b", "1c"), labels.split(), strict=True)
        )
    )
    assert image_table(landmarks / "train", landmarks / "mine.csv").class_names == tuple(order.split())


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (
            "user_id,image\n1,0a\n",
            ValueError,
            r"expected columns image_id and .*, got \['user_id', 'image'\]",
        ),
        ("user_id,image_id,class\n,0a,1\n", ValueError, "line 2 has no 'user_id'"),
        ("user_id,image_id,class\n1,0a\n", ValueError, "mine.csv: line 2: expected 3 values, got fewer"),
        ("user_id,image_id,class\n1,0a,snow, owl\n", ValueError, "line 2: expected 3 values, got more"),
        ("user_id,image_id,class\n", ValueError, "expected a line for each image, got none"),
        ("", ValueError, r"expected columns image_id .*, got \[\]"),
        ("user_id,image_id,class\n1,0a,1\n2,zz,1\n", FileNotFoundError, r"1 of 2 images .* 'zz'"),
        ("user_id,image_id,class\n1,0a,1\n2,0a,1\n", ValueError, "'0/0a.jpg' twice"),
    ],
)
def test_wrong_tables_are_named(table, error, message, landmarks):
    (landmarks / "mine.csv").write_text(table)
    with pytest.raises(error, match=message):
        image_table(landmarks / "train", landmarks / "mine.csv")


def test_two_files_of_one_name_are_named(landmarks):
    Image.new("RGB", (4, 4)).save(landmarks / "train" / "1" / "0a.png")
    with pytest.raises(ValueError, match="two files are image '0a'"):
        image_table(landmarks / "train", landmarks / "federated_train.csv")


def test_what_is_missing_is_said_with_where_to_put_it(tmp_path):
    with pytest.raises(ValueError, match=r"name: expected one of femnist, .*, got 'mnist'"):
        federation("mnist")
    with pytest.raises(FileNotFoundError, match=rf"train and test in {tmp_path / 'femnist'}.*preprocess\.sh"):
        federation("femnist", data_dir=tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"train_user_120k.csv and test.csv and train_val.*user-120k\.zip"
    ):
        federation("inaturalist-user-120k", data_dir=tmp_path)
