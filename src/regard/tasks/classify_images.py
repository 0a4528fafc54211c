"""Classification of images (ViT, Dosovitskiy et al. 2021)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self, overload

import torch
from pydantic import model_validator

from regard.batches.image_rows import ImageClassificationRows
from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset
from regard.corpus.examples import ImageExamples
from regard.models.vit import VitClassifier
from regard.recipe import ImageTraining, LabelledImageData, Recipe, VitModel, require_patches
from regard.scoring import compare_accuracy
from regard.tasks.base import Run
from regard.tasks.classify import check_positive_label, score_labels, validation_scores
from regard.tasks.shared.images import ImageInput, embed_images, resize_images
from regard.tasks.shared.labels import Classification, label_ids, rank_labels, read_labels, write_labels
from regard.tasks.shared.one_or_many import one_or_many
from regard.tasks.task import ComparisonRow, EvaluationResult, Size, Task, TaskCard
from regard.tasks.translate import exact_matches
from regard.training.losses import nll


class ClassifyImagesRecipe(Recipe):
    """Predict which of several labels an image has; `model.kind` tells it from texts."""

    task: Literal["classify"] = "classify"
    data: LabelledImageData
    tokens: None = None  # type: ignore[assignment]
    """Images have none."""
    model: VitModel
    train: ImageTraining = ImageTraining()  # type: ignore[assignment]

    @model_validator(mode="after")
    def check_patches(self) -> Self:
        require_patches(self.data, self.model, "model")
        return self


class ClassifyImagesRun(Run):
    """An image classifier."""

    labels: list[str]

    embed = embed_images
    resize = resize_images

    @overload
    def classify(self, images: ImageInput) -> Classification: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, images: Iterable[ImageInput]) -> list[Classification]: ...
    def classify(self, images: ImageInput | Iterable[ImageInput]) -> Classification | list[Classification]:
        """Return every label of an image, or of each image of a list, the most probable first."""
        return one_or_many(images, lambda several: rank_labels(self.labels, self._logits(self._images.rows(several))))

    @classmethod
    def _prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        check_positive_label(recipe, write_labels(folder, data))

    def _open_files(self) -> None:
        self.labels = read_labels(self.folder, self._huggingface)

    def _model_sizes(self) -> list[Size]:
        return [*super()._model_sizes(), len(self.labels)]

    def _config_sizes(self) -> dict[str, Any]:
        return {**super()._config_sizes(), "labels": len(self.labels)}

    def _encode(self, examples: ImageExamples, *, training: bool = False) -> Rows:
        classes = label_ids(self.labels, examples, examples.label)
        return ImageClassificationRows(
            self._images.pixels(examples), classes, self._max_positions, self._images.augmentation(training)
        )

    def _predictions(self, examples: ImageExamples) -> list[str]:
        return [found.label for found in rank_labels(self.labels, self._logits(self._encode(examples)))]

    def _validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:
        """Return the loss and the scores of the predicted labels, in one pass."""
        logits, truth = self._logits(rows), torch.from_numpy(label_ids(self.labels, examples, examples.label))
        predicted = [self.labels[best] for best in logits.argmax(-1).tolist()]
        measured = validation_scores(self.recipe, self.labels, predicted, examples.label)
        return {"valid_loss": float(nll(logits.log_softmax(-1), truth).mean()), **measured}

    def _score(self, name: str, examples: ImageExamples) -> EvaluationResult:
        return score_labels(self.recipe, self.labels, name, examples, self._predictions(examples))

    def _compare(self, runs: "dict[str, ClassifyImagesRun]", examples: ImageExamples) -> list[ComparisonRow]:
        return compare_accuracy({name: exact_matches(run._predictions(examples), examples.label) for name, run in runs.items()})


CLASSIFY_IMAGES = Task(
    name="classify",
    does="classifies images",
    recipe=ClassifyImagesRecipe,
    run=ClassifyImagesRun,
    models={"vit": VitClassifier},
    verbs=("classify", "embed", "resize"),
    reads=("image",),
    image_positions=True,
    metrics=("valid_accuracy", "valid_f1", "valid_mcc"),
    pretrained=(VitModel, LabelledImageData),
    explains="image_label",
    model_sizes=lambda recipe, vocabulary: (recipe.data.height_width, vocabulary[0]),
    lengths=lambda recipe, given: (recipe.model.length(recipe.data.height_width),) * 2,
    card=TaskCard(
        uses="Labels of images like those it was trained on. Research and teaching.",
        misuses="Recognising or judging people; anything that matters to somebody's health, rights or safety without a person "
        "who checks every decision.",
        limits="It knows only its own labels, and predicts one of them for any image. It repeats the biases of its training "
        "images; images unlike them, and details smaller than its `data.size` shows, come out badly. Its "
        "probabilities are not calibrated.",
        commands=("classify {} a.jpg", "embed {} a.jpg"),
    ),
)
