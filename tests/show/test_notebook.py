"""The notebook of docs/any-model.md runs as it is, and its figures display by themselves."""

import copy
from base64 import b64decode
from pathlib import Path

import pytest

pytest.importorskip("transformers")
nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "any-model.ipynb"


def code_lines(notebook):
    return [line for cell in notebook.cells if cell.cell_type == "code" for line in cell.source.splitlines() if line.strip()]


def test_notebook_has_at_most_twelve_lines_and_no_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert len(code_lines(notebook)) <= 12
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


@pytest.mark.system
def test_notebook_watches_shows_explains_and_ablates(tmp_path):
    notebook = copy.deepcopy(nbformat.read(NOTEBOOK, as_version=4))
    check = "assert model.config._attn_implementation == 'sdpa' and (model(**inputs).logits == before).all()"
    notebook.cells.append(nbformat.v4.new_code_cell(check))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    assert len(shown) == 2
    assert "<iframe" in shown[0]["text/html"] and "self-attention: 12 layers of 12 heads" in shown[0]["text/plain"]
    drawn = b64decode(shown[1]["text/html"].partition("base64,")[2].partition('"')[0]).decode()
    assert "occlusion" in drawn and "hungry" in drawn
    (ablated,) = [output.text for output in outputs if output.output_type == "stream" and output.name == "stdout"]
    assert "tensor" in ablated and "0.0000, 0.0000" not in ablated
