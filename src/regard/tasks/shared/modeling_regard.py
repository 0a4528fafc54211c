"""A model trained with regard, in a folder that transformers opens with `trust_remote_code=True`.

`regard convert` writes this file beside the weights of models that no family of transformers has. It needs `pip install regard`;
`forward` takes the inputs of regard's model and returns its outputs.
"""

from typing import Any

from safetensors.torch import load_file
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from regard.tasks.shared.remote_code import build_exported


class RegardConfig(PretrainedConfig):
    """The recipe of the model, and the sizes that depend on its data."""

    model_type = "regard"


class RegardModel(PreTrainedModel):
    """The model of a recipe."""

    config_class = RegardConfig

    def __init__(self, config: Any):
        super().__init__(config)
        self.model = build_exported(config.recipe, config.sizes)

    @classmethod
    def from_pretrained(cls, folder: str, *_: Any, config: Any = None, **options: Any) -> "RegardModel":
        """Build the model and load its weights; nothing is left uninitialised, or initialised again."""
        names = ("cache_dir", "revision", "token", "local_files_only", "subfolder")
        chosen = {name: options[name] for name in names if options.get(name) is not None}
        model = cls(config if config is not None else RegardConfig.from_pretrained(folder, **chosen))
        model.model.load_state_dict(load_file(cached_file(folder, "model.safetensors", **chosen)))
        model.name_or_path = str(folder)
        return model.eval().to(options.get("dtype"))

    def forward(self, **inputs: Any) -> Any:
        """Return the outputs of the model."""
        return self.model(**inputs)
