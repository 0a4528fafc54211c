"""Models of transformers as attribution targets: they are called as ours are, with the inputs "source", "target" and "pixels"."""

import copy
import inspect
from typing import Any

from torch import Tensor, nn

from regard.errors import UserError
from regard.tasks.transformers_models import TransformersRun


class LogitsModel(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, model: Any, names: dict[str, str]):
        """`names` are the model's own names of our inputs."""
        super().__init__()
        self.model, self.names = model, names
        has_cache = "use_cache" in inspect.signature(model.forward).parameters
        self.options = {"use_cache": False} if has_cache else {}
        reads_twice = model.config.is_encoder_decoder and "target" not in names
        self.token_embeddings = [] if reads_twice else find_token_embeddings(model)
        """The modules that embed tokens; none where an encoder and a decoder both read the text, for gradients are of one."""

    def forward(self, **inputs: Tensor) -> Tensor:
        named = {self.names.get(name, name): part for name, part in inputs.items()}
        logits: Tensor = self.model(**named, **self.options, return_dict=True).logits
        return logits


class SimilarityModel(nn.Module):
    """An image-text model of transformers, with features of length 1."""

    def __init__(self, model: Any):
        super().__init__()
        self.image = model.vision_model  # named before the whole, so that its attention is that of "image"
        self.model = model

    def image_features(self, pixels: Tensor) -> Tensor:
        return unit_features(self.model.get_image_features(pixel_values=pixels))

    def text_features(self, **inputs: Tensor) -> Tensor:
        return unit_features(self.model.get_text_features(**inputs))


def unit_features(found: Any) -> Tensor:
    features: Tensor = found if isinstance(found, Tensor) else found.pooler_output
    return nn.functional.normalize(features, dim=-1)


def find_token_embeddings(model: Any) -> list[nn.Module]:
    """Return the modules that embed tokens: the model's input embeddings, and those of the same vocabulary beside them."""
    embeddings: list[Any] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    try:
        main = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        return embeddings
    size = getattr(main, "num_embeddings", None)
    found = [module for module in embeddings if module.num_embeddings == size]
    return found if main in found or not isinstance(main, nn.Module) else [main, *found]


def explained_model(run: TransformersRun, *, randomized: bool = False) -> nn.Module:
    """Return the model of a run as targets call it, or one of the same configuration with random weights."""
    model: Any = run.model
    if randomized:
        model = type(model)(copy.deepcopy(model.config)).to(run.device, next(model.parameters()).dtype).eval()
    if run.task.explains == "similarity":
        if not hasattr(model, "vision_model"):
            raise UserError(f"{run.folder}: {type(model).__name__} has no vision_model; its similarities are not explained")
        return SimilarityModel(model).eval()
    return LogitsModel(model, input_names(run)).eval()


def input_names(run: TransformersRun) -> dict[str, str]:
    """Return the model's own names of our inputs. A model that predicts next tokens reads its text as the target."""
    names = {"target" if run.task.decoder_only else "source": "input_ids", "pixels": "pixel_values"}
    return {**names, "target": "decoder_input_ids"} if run.task.encoder_decoder else names


def named_inputs(run: TransformersRun, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs of a model by our names, on its device."""
    ours = {theirs: name for name, theirs in input_names(run).items()}
    return {ours.get(name, name): part.to(run.device) for name, part in inputs.items()}
