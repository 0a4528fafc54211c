"""The plan of a Hugging Face folder."""

import json

import pytest
import transformers

from regard.errors import UserError
from regard.plan import plan
from regard.recipe import ImageTraining


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


def test_the_plan_of_a_folder_of_an_image_model_has_batches_of_images(tmp_path):
    config = transformers.ViTConfig(
        image_size=16, patch_size=4, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
    )
    model = transformers.ViTForImageClassification(config)
    model.save_pretrained(tmp_path)
    size = {"height": 16, "width": 16}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor", "size": size}))
    found = plan(tmp_path)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    images = ImageTraining().images_per_batch
    assert any(f"steps of {images} images, by default" in note for note in found.notes)
