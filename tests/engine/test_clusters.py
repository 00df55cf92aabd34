"""The jobs of examples/clusters for Ray and Spark, where these are installed, as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import covfree

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "clusters"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "pyspark"])
def test_the_job_gives_the_head_of_fit(engine, tmp_path):
    pytest.importorskip(engine)
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rng, count = np.random.default_rng(0), 20_000
    labels, clients = rng.integers(0, 10, count), rng.integers(0, 50, count)
    features = (rng.normal(size=(count, 256)) + rng.normal(size=(10, 256))[labels]).astype(np.float32)
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(count), 40)):
        columns = {"labels": labels[part], "clients": clients[part], "features": list(features[part])}
        parquet.write_table(pyarrow.table(columns), folder / f"{number}.parquet")
    script = EXAMPLES / f"on_{engine.removeprefix('py')}.py"
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(script), str(folder), str(tmp_path / "head.npz"), "10"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head = covfree.load_head(tmp_path / "head.npz").head
    expected = covfree.fit(covfree.fedcof(), features, labels, clients)
    scale = np.abs(np.asarray(expected.weight)).max()
    np.testing.assert_allclose(head.weight, expected.weight, atol=1e-6 * scale)
