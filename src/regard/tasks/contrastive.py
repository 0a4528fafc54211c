"""Contrastive image-text models (CLIP, Radford et al. 2021): which image and which text belong together."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal, Self, cast, overload

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor, nn

from regard import distributed
from regard.batches.image_rows import ImageClassificationRows, ImageTextRows
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, encoder_inputs
from regard.corpus.examples import ImageExamples
from regard.corpus.image_files import IMAGE_SUFFIXES
from regard.corpus.lines import iterate_lines
from regard.decoding.batching import batches_by_length
from regard.errors import UserError
from regard.files import path_exists
from regard.models.clip import Clip
from regard.recipe import ClipModel, ContrastiveTraining, ImageTextData, Recipe, require_encoder
from regard.scoring import Score, accuracy, compare_accuracy, retrieval_ranks, retrieval_scores
from regard.tasks.base import Run
from regard.tasks.shared.embedding import EMBED_TOKENS, EmbeddedText
from regard.tasks.shared.images import MAX_VECTOR_BYTES, ImageInput, are_frozen, in_mode, resize_images
from regard.tasks.shared.labels import Classification, rank_labels
from regard.tasks.shared.one_or_many import as_several, is_one, one_or_many
from regard.tasks.starters.image_starters import contrastive_recipe
from regard.tasks.task import ComparisonRow, EvaluationResult, Task, TaskCard
from regard.tokens.special_tokens import BOS, DEFAULT_SPECIAL_TOKENS, END_NAME, SpecialTokens
from regard.tokens.tokenizer import Tokenizer
from regard.training.losses import ContrastiveLoss
from regard.worlds import shapes

CHOICES = 100
"""Captions to choose from, of which one is true."""
NEAR_MISS_FRACTION = {f"true_of_{CHOICES}": 0.0, f"true_of_{CHOICES}_near": 0.5}
"""The fraction of the false captions that are the true one with one thing changed."""
NEGATIVES_EPOCHS = 5
"""Epochs after which the hard negatives of an image repeat, as its captions do; fewer if it has MAX_NEGATIVES of them."""
MAX_NEGATIVES = 32
"""Hard negatives generated for an image, about 50 µs each, unless one batch needs more."""
DEFAULT_TEMPLATES = ("{}",)


class ContrastiveRecipe(Recipe):
    """Learn which image and which text belong together."""

    task: Literal["contrastive"] = "contrastive"
    data: ImageTextData
    model: ClipModel = ClipModel()
    train: ContrastiveTraining = ContrastiveTraining()  # type: ignore[assignment]

    @model_validator(mode="after")
    def check_images(self) -> Self:
        require_encoder(self, self.model.image, "model.image")
        if self.train.hard_negatives and self.data.world is None:
            raise ValueError(
                f"train.hard_negatives = {self.train.hard_negatives}: only the world of shapes has false captions; set it to 0"
            )
        return self


class PlainText(str):
    """A text, even if a file has this name."""


class ContrastiveRun(Run):
    """A model that embeds images and texts in one space."""

    recipe: ContrastiveRecipe
    _extra_special_tokens = (END_NAME,)

    resize = resize_images

    @overload
    def match(  # type: ignore[overload-overlap]
        self, images: ImageInput, labels: str | Sequence[str], templates: str | Sequence[str] = DEFAULT_TEMPLATES
    ) -> Classification: ...
    @overload
    def match(
        self, images: Iterable[ImageInput], labels: str | Sequence[str], templates: str | Sequence[str] = DEFAULT_TEMPLATES
    ) -> list[Classification]: ...
    def match(
        self,
        images: ImageInput | Iterable[ImageInput],
        labels: str | Sequence[str],
        templates: str | Sequence[str] = DEFAULT_TEMPLATES,
    ) -> Classification | list[Classification]:
        """Return every label of an image, or of each image of a list, the most probable first (zero-shot classification).

        A label replaces {} in each template, and its vectors are averaged (Radford et al. 2021, sec. 3.1.4).
        """
        return one_or_many(images, lambda several: self._match(several, as_several(labels), as_several(templates)))

    def _match(
        self, images: Sequence[ImageInput] | ImageExamples, labels: Sequence[str], templates: Sequence[str]
    ) -> list[Classification]:
        """Return every label of each image, the most probable first."""
        texts = self._label_vectors(labels, templates)
        similarities = torch.from_numpy(self._image_vectors(images) @ texts.T)  # (N, C)
        return rank_labels(labels, float(self.model.scale().detach()) * similarities)

    def similarity(self, images: ImageInput | Iterable[ImageInput], texts: str | Iterable[str]) -> np.ndarray:
        """Return the cosine similarity of each image and each text (N, M), without the dimension of what is not a list."""
        similarity = self._image_vectors(as_several(images)) @ self._text_vectors(as_several(texts)).T
        return np.asarray(similarity[0 if is_one(images) else slice(None), 0 if is_one(texts) else slice(None)])

    @overload
    def embed(  # type: ignore[overload-overlap]
        self, texts: ImageInput, *, layer: int = -1, pool: str = "mean", read_as: str | None = None
    ) -> EmbeddedText: ...
    @overload
    def embed(
        self, texts: Iterable[ImageInput], *, layer: int = -1, pool: str = "mean", read_as: str | None = None
    ) -> list[EmbeddedText]: ...
    def embed(
        self,
        texts: ImageInput | Iterable[ImageInput],
        *,
        layer: int = -1,
        pool: str = "mean",
        read_as: str | None = None,
    ) -> EmbeddedText | list[EmbeddedText]:
        """Return the vector of an image or text, or of each of a list, in the shared space.

        A path of a file is an image; `read_as`, "image" or "text", overrides that.
        """
        if layer != -1 or pool != "mean":
            raise UserError(f"{self.folder} embeds in one shared space, without layers or pooling: leave out --layer and --pool")
        if read_as not in (None, "image", "text"):
            raise UserError(f"--as {read_as}: should be image or text")
        return one_or_many(texts, lambda several: self._embed(several, read_as))

    def _embed(self, texts: Sequence[ImageInput], read_as: str | None) -> list[EmbeddedText]:
        are_images = [is_image(one) if read_as is None else read_as == "image" for one in texts]
        image_vectors = iter(self._image_vectors([one for one, image in zip(texts, are_images) if image]))
        words = [str(one) for one, image in zip(texts, are_images) if not image]
        if not all(word.strip() for word in words):
            raise UserError("an empty text has no vectors; leave it out")
        text_vectors = iter(self._text_vectors(words))
        return [
            EmbeddedText([str(one)], next(image_vectors if image else text_vectors)[None])
            for one, image in zip(texts, are_images)
        ]

    def zero_shot(
        self, examples: ImageExamples, labels: Sequence[str] | None = None, templates: Sequence[str] = DEFAULT_TEMPLATES
    ) -> EvaluationResult:
        """Return the zero-shot accuracy on images with labels; `labels` defaults to those that occur."""
        labels = examples.labels() if labels is None else labels
        if unknown := sorted(set(examples.label) - set(labels)):
            raise UserError(f"{examples.name} has the label {unknown[0]!r}, which is none of those to choose from")
        ranked = [[prediction.label for prediction in found] for found in self._match(examples, labels, templates)]
        scores = {}
        for k in (1, 5):
            if k < len(labels):
                name = "accuracy" if k == 1 else f"accuracy_top{k}"
                scores[name] = accuracy([right in found[:k] for found, right in zip(ranked, examples.label)], name)
        return self._sign(EvaluationResult(examples.name, examples, [found[0] for found in ranked], scores))

    # vectors

    def _image_vectors(self, images: Sequence[ImageInput] | ImageExamples) -> np.ndarray:
        """Return a unit vector of each image (N, E); a dataset is decoded once and cached."""
        width = self.recipe.model.projection_width
        return self._images.encode(self._images.rows(images), self.model.image_features, width)

    def _text_vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Return a unit vector of each text (N, E); equal texts are read once."""
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        ids = Ragged.from_rows(self._ids(list(number)))
        vectors = self._encode_texts(ids, self.model.text_features, self.recipe.model.projection_width)
        return vectors[[number[text] for text in texts]]

    @torch.no_grad()
    def _encode_texts(self, ids: Ragged, encode: Callable[..., Tensor], width: int) -> np.ndarray:
        """Return what `encode` gives for texts: (N, width)."""
        found = np.zeros((len(ids), width), np.float32)
        lengths = (ids.lengths + self._special_tokens.num_added).tolist()
        for rows in distributed.shard(batches_by_length(lengths, EMBED_TOKENS)):
            inputs = encoder_inputs(ids.take(np.array(rows)), self._special_tokens)
            found[rows] = encode(**{name: part.to(self.device) for name, part in inputs.items()}).float().cpu().numpy()
        return distributed.all_reduce_sum(found)

    def _run_frozen(self, rows: Rows) -> Rows:
        """Encode every image once, where its tower is frozen and training adds no noise to its outputs; and texts likewise."""
        if not isinstance(rows, ImageTextRows):
            return rows
        regularize, model = self.recipe.train.regularize, self.recipe.model
        images_vary = rows.augment is not None or (model.image.kind == "vit" and regularize.has_noise)
        texts_vary = regularize.has_noise or regularize.bpe_dropout > 0
        with in_mode(self.model, training=False):
            if not images_vary and self._can_run_once(self.model.image, len(rows), model.image.width):
                images = ImageClassificationRows(rows.pixels, np.zeros(len(rows), np.int64), self._max_positions)
                vectors = self._images.encode(images, self.model.encode_images, model.image.width)
                rows = replace(rows, image_vectors=torch.from_numpy(vectors))
            if not texts_vary and self._can_run_once(self.model.text, len(rows.captions.ids), model.text.width):
                texts = rows.captions.take(np.arange(len(rows.captions.ids)), 0, 0)
                vectors = self._encode_texts(texts, self.model.text, model.text.width)
                rows = replace(rows, text_vectors=torch.from_numpy(vectors))
        return rows

    def _can_run_once(self, tower: nn.Module, number: int, width: int) -> bool:
        """Whether a tower is frozen, and its vectors of so many inputs fit into memory."""
        return are_frozen(self.model, [tower]) and 4 * number * width <= MAX_VECTOR_BYTES

    def _label_vectors(self, labels: Sequence[str], templates: Sequence[str] = DEFAULT_TEMPLATES) -> np.ndarray:
        """Return a unit vector for each label (C, E), the mean over templates."""
        require_labels(labels, templates)
        texts = self._text_vectors([template.replace("{}", label) for label in labels for template in templates])
        mean = texts.reshape(len(labels), len(templates), -1).mean(1)
        return np.asarray(mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12))

    def _vectors(self, examples: ImageExamples) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Return the vectors of the images, of all their captions, and the image that each caption belongs to."""
        owners = [i for i, captions in enumerate(examples.captions) for _ in captions]
        texts = [caption for captions in examples.captions for caption in captions]
        return self._image_vectors(examples), self._text_vectors(texts), owners

    # files and examples

    def _load_tokenizers(self) -> list[Tokenizer]:
        found = super()._load_tokenizers()
        for tokenizer in found:
            end = tokenizer.library.token_to_id(END_NAME)
            if tokenizer.special_tokens == DEFAULT_SPECIAL_TOKENS:
                tokenizer.special_tokens = (
                    SpecialTokens(prefix=(BOS,)) if end is None else SpecialTokens(BOS, end, (BOS,), (end,))
                )
        return found

    @property
    def _image_encoder(self) -> tuple[Any, Any]:
        return self.model.image, self.recipe.model.image

    def _encode(self, examples: ImageExamples, *, training: bool = False) -> Rows:
        number = self.recipe.train.hard_negatives if training else 0
        stored = max(number, min(number * NEGATIVES_EPOCHS, MAX_NEGATIVES))
        negatives = sample_hard_negatives(examples, stored, self.recipe.seed) if number else []
        texts = [text for several in (*examples.captions, *negatives) for text in several]
        store = self._token_store(texts, self.tokenizers[0], training)
        offsets = np.cumsum([0, *map(len, examples.captions)])
        return ImageTextRows(
            self._images.pixels(examples),
            replace(store, max_length=self.recipe.model.max_length - self._special_tokens.num_added),
            offsets,
            self._max_positions,
            self._special_tokens,
            self._images.augmentation(training),
            offsets[-1] + np.cumsum([0, *map(len, negatives)]) if number else None,
            number,
        )

    def _inputs(self, text: ImageInput) -> dict[str, Tensor]:
        """Return the inputs of one tower: an image by its path, or a text."""
        return self._images.inputs(text) if is_image(text) else super()._inputs(str(text))

    def _forward(self, inputs: dict[str, Tensor]) -> Any:
        return self.model.image_features(**inputs) if "pixels" in inputs else self.model.text_features(**inputs)

    # scores

    @torch.no_grad()
    def _validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:
        """Return the loss of batches as large as in training, and the mean recall@1 of both directions over all pairs."""
        number, size = len(rows), self.recipe.train.images_per_batch
        images, texts = (torch.zeros(number, self.recipe.model.projection_width) for _ in range(2))
        for batch in self._batches(rows):
            image, text, _ = self.model(**batch.inputs)
            images[batch.rows], texts[batch.rows] = image.cpu(), text.cpu()
        images, texts = distributed.all_reduce_sum(images), distributed.all_reduce_sum(texts)
        loss = 0.0
        with torch.autocast("cpu", enabled=False):  # as in the loss of training
            logits = float(self.model.scale()) * images @ texts.T
            for start in range(0, number, size):
                part = logits[start : start + size, start : start + size]
                loss -= float((part.log_softmax(0) + part.log_softmax(1)).diagonal().sum()) / 2
        ranks = retrieval_ranks(images.numpy(), texts.numpy(), range(number))
        return {"valid_loss": loss / number, "valid_recall": 50 * sum(float((rank == 0).mean()) for rank in ranks)}

    def _score(self, name: str, examples: ImageExamples) -> EvaluationResult:
        """Return recall@1, 5 and 10 of both directions; on the world of shapes, also of the true caption among false ones.

        The output for an image is the nearest of all captions.
        """
        images, texts, owners = self._vectors(examples)
        captions = [caption for captions in examples.captions for caption in captions]
        nearest = [captions[int(np.argmax(texts @ image))] for image in images]
        scores = retrieval_scores(images, texts, owners)
        if examples.gold:
            scores.update(self._choose_true(examples, images))
        return EvaluationResult(name, examples, nearest, scores)

    def _choose_true(self, examples: ImageExamples, images: np.ndarray) -> dict[str, Score]:
        """Return how often the true caption of an image of the world of shapes is nearer than CHOICES - 1 false ones."""
        scores = {}
        for name, near in NEAR_MISS_FRACTION.items():
            choices = [
                [captions[0], *shapes.false_captions(image.scene, CHOICES - 1, Random(f"false {row}"), near)]
                for row, (captions, image) in enumerate(zip(examples.captions, examples.gold))
            ]
            number = {text: i for i, text in enumerate(dict.fromkeys(text for texts in choices for text in texts))}
            vectors = self._text_vectors(list(number))
            similar = np.stack([vectors[[number[text] for text in texts]] @ image for texts, image in zip(choices, images)])
            scores[name] = accuracy(similar[:, 0] > similar[:, 1:].max(1), name)
        return scores

    def _compare(self, runs: "dict[str, ContrastiveRun]", examples: ImageExamples) -> list[ComparisonRow]:
        return compare_accuracy(
            {name: retrieval_ranks(*run._vectors(examples))[0] == 0 for name, run in runs.items()}, "image_to_text_r1"
        )


def sample_hard_negatives(examples: ImageExamples, number: int, seed: int) -> list[list[str]]:
    """Return captions that are false of each image of the world of shapes, each a true one with one thing changed."""
    return [
        shapes.false_captions(image.scene, number, Random(f"hard negatives {seed} {row}"), near=1.0)
        for row, image in enumerate(examples.gold)
    ]


def parse_labels(given: str) -> list[str]:
    """Return the labels in a text, separated by commas, or in a file, one per line."""
    if path_exists(given) and Path(given).is_file():
        return [line.strip() for line in iterate_lines(Path(given)) if line.strip()]
    return [label.strip() for label in given.split(",")] if given.strip() else []


def is_image(given: ImageInput) -> bool:
    """Whether an input is an image (pixels, or the path of a file) and not a text."""
    if not isinstance(given, str) or isinstance(given, PlainText):
        return not isinstance(given, str)
    if path_exists(given) and Path(given).is_file():
        return True
    if given.lower().endswith(IMAGE_SUFFIXES) and len(given.split()) == 1:
        raise UserError(f"no image at {given}; to read it as a text, add --as text")
    return False


def require_labels(labels: Sequence[str], templates: Sequence[str]) -> None:
    """Check labels and templates."""
    if not labels:
        raise UserError("no labels to choose from; give some: --labels 'a cat,a dog', or a file with one per line")
    if empty := [number for number, label in enumerate(labels, start=1) if not label.strip()]:
        raise UserError(f"label {empty[0]} is empty; leave it out")
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise UserError(f"the label {twice[0]!r} is there twice; leave one out")
    if not templates:
        raise UserError("no template; give one, such as 'a photo of a {}', or leave --template out")
    for template in templates:
        if "{}" not in template:
            raise UserError(f"--template {template!r} has no place for a label; write {{}} there")


def contrastive_loss(run: ContrastiveRun) -> ContrastiveLoss:
    """Return the loss of a batch of pairs and hard negatives."""
    train = run.recipe.train
    return ContrastiveLoss(train.regularize.label_smoothing, train.own_negatives_weight)


CONTRASTIVE = Task(
    name="contrastive",
    does="matches images and texts",
    recipe=ContrastiveRecipe,
    run=ContrastiveRun,
    models={"clip": Clip},
    verbs=("match", "similarity", "zero_shot", "embed", "resize"),
    reads=("text", "image"),
    image_positions=True,
    loss=cast(Any, contrastive_loss),
    metrics=("valid_recall",),
    pretrained=(ClipModel, ImageTextData),
    explains="similarity",
    model_sizes=lambda recipe, vocabulary: (recipe.data.height_width, vocabulary[0]),
    lengths=lambda recipe, given: (recipe.model.image.length(recipe.data.height_width), recipe.model.max_length),
    starter=contrastive_recipe,
    card=TaskCard(
        uses="Which of some texts fits an image, and which image a text; search among images like those it was trained "
        "on. Research and teaching.",
        misuses="Recognising, sorting or judging people; watching over them; any label that was not tried on images like "
        "those at hand.",
        limits="It compares the texts it is given, and ranks one first even where none fits. How a label is worded changes "
        "the result. It repeats the biases of its training images and captions; it counts badly and confuses who "
        "is where. Its probabilities are over the labels given, and not calibrated.",
        commands=('match {} a.jpg --labels "a cat,a dog"', 'embed {} a.jpg "a cat"'),
    ),
)
