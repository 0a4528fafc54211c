"""The plan of a Hugging Face folder."""

import pytest
import transformers

from regard.errors import UserError
from regard.plan import plan


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_the_plan_of_a_huggingface_folder_counts_its_parameters(kind, tmp_path, write_huggingface_model):
    sizes = dict(vocab_size=61, bos_token_id=1, eos_token_id=2)
    if kind.startswith("Bert"):
        config = transformers.BertConfig(
            **sizes, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, max_position_embeddings=32
        )
    else:
        config = transformers.GPT2Config(**sizes, n_embd=24, n_layer=2, n_head=4, n_positions=32)
    model = getattr(transformers, kind)(config)
    folder = write_huggingface_model(model, tmp_path / "folder")
    found = plan(folder)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    with pytest.raises(UserError, match="init_from"):
        plan(folder, ["train.steps=3"])
