"""Pre-computed word vectors: the text files of word2vec (Mikolov et al. 2013) and GloVe (Pennington et al. 2014)."""

from pathlib import Path

import numpy as np

from regard.corpus.lines import iterate_lines
from regard.corpus.table import is_natural_number
from regard.errors import UserError


def read_word_vectors(path: Path, words: set[str], *, width: int) -> dict[str, np.ndarray]:
    """Read the vectors of these words that the file has. A line is a word and its numbers; word2vec files start with the
    number of words and the width."""
    found: dict[str, np.ndarray] = {}
    for number, line in enumerate(iterate_lines(path), start=1):
        cells = line.rstrip().split(" ")
        if number == 1 and len(cells) == 2 and all(map(is_natural_number, cells)):
            _require_width(path, number, int(cells[1]), width)
            continue
        if not line.strip():
            continue
        _require_width(path, number, len(cells) - 1, width)
        if cells[0] in words:
            try:
                found[cells[0]] = np.array(cells[1:], dtype=np.float32)
            except ValueError:
                raise UserError(f"{path}:{number} is not a word and {width} numbers; remove the line") from None
    if not found:
        raise UserError(
            f"{path} has no vector of any token of the vocabulary; vectors need tokens.kind = 'words', "
            "and tokens.lowercase = true if they are of lower-cased words"
        )
    return found


def _require_width(path: Path, line: int, found: int, expected: int) -> None:
    if found != expected:
        raise UserError(
            f"{path}:{line} has {found} numbers, the model's embeddings have {expected}; set model.embedding_width = {found}"
        )
