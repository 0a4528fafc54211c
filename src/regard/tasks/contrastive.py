"""A run that knows which pictures and texts belong together: matches, zero-shot labels, retrieval, vectors of a shared space."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard import distributed
from regard.batches.batches import sequential_batches
from regard.batches.image_rows import ImageClassificationRows, ImageTextRows
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, encoder_inputs
from regard.corpus.examples import ImageExamples
from regard.corpus.image_files import IMAGE_SUFFIXES
from regard.corpus.lines import iterate_lines
from regard.decoding.batching import batches_by_length
from regard.errors import UserError
from regard.models.registry import MODELS
from regard.scoring import Score, accuracy, compare_accuracy, retrieval_ranks, retrieval_scores
from regard.tasks.base import EMBED_TOKENS, EVALUATE_TOKENS, EmbeddedText, EvaluationResult, Run
from regard.tasks.classify import Prediction
from regard.tasks.images import ImageInput, ImageRun
from regard.tokens.special_tokens import BOS, DEFAULT_SPECIAL_TOKENS, END_NAME, SpecialTokens
from regard.tokens.tokenizer import Tokenizer
from regard.training.losses import ContrastiveLoss
from regard.worlds import shapes

CHOICES = 100
"""Captions of which one is true."""
NEAR_MISS_FRACTION = {"": 0.0, "_near": 0.5}
"""How many of the false ones are the truth with one thing changed."""
DEFAULT_TEMPLATES = ("{}",)


class PlainText(str):
    """A text, whatever files are called so."""


class ContrastiveRun(ImageRun):
    does = "matches pictures and texts"
    more_marks = (END_NAME,)

    @classmethod
    def tokenizer_names(cls, recipe: Any) -> list[str]:
        return ["tokenizer.json"]

    def load_tokenizers(self) -> list[Tokenizer]:
        found = super().load_tokenizers()
        for tokenizer in found:
            end = tokenizer.library.token_to_id(END_NAME)
            if tokenizer.special_tokens == DEFAULT_SPECIAL_TOKENS:
                tokenizer.special_tokens = (
                    SpecialTokens(prefix=(BOS,)) if end is None else SpecialTokens(BOS, end, (BOS,), (end,))
                )
        return found

    def build_model(self) -> nn.Module:
        settings = self.recipe.model
        return MODELS["contrastive"][settings.kind](
            settings, self.frame.size, self.tokenizers[0].size, self.recipe.train.regularize
        )

    def sizes(self) -> dict[str, Any]:
        return {"size": list(self.frame.size), "vocabularies": [self.tokenizers[0].size]}

    @property
    def eye(self) -> tuple[Any, Any]:
        return self.model.image, self.recipe.model.image

    def reading(self, text: ImageInput) -> dict[str, Tensor]:
        """A picture by its path, or a text: one of the two towers reads."""
        return super().reading(text) if is_image(text) else Run.reading(self, str(text))

    def read(self, inputs: dict[str, Tensor]) -> Any:
        return self.model.image_features(**inputs) if "pixels" in inputs else self.model.text_features(**inputs)

    # what it learns from

    def encode(self, examples: ImageExamples, *, training: bool = False) -> Rows:
        texts = [caption for captions in examples.captions for caption in captions]
        side = self.side(texts, self.tokenizers[0], training)
        first = np.cumsum([0, *map(len, examples.captions)])
        augment = self.recipe.train.augment if training and self.recipe.train.augment.enabled else None
        return ImageTextRows(
            self.pixels(examples),
            replace(side, max_length=self.recipe.model.max_length - self.special_tokens.num_added),
            first,
            self.longest,
            self.special_tokens,
            augment,
        )

    def objective(self) -> ContrastiveLoss:
        return ContrastiveLoss(self.recipe.train.regularize.label_smoothing)

    # how well it does

    @torch.no_grad()
    def validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:
        """The loss of batches as large as those in training, and how often a picture finds its caption among those of all, one
        each, and a caption its picture."""
        number, size = len(rows), self.recipe.train.images_per_batch
        images, texts = (torch.zeros(number, self.recipe.model.projection_width) for _ in range(2))
        for batch in distributed.shard(sequential_batches(rows, EVALUATE_TOKENS)):
            one, other, _ = self.model(**batch.to(self.device).inputs)
            images[batch.rows], texts[batch.rows] = one.cpu(), other.cpu()
        images, texts = distributed.all_reduce_sum(images), distributed.all_reduce_sum(texts)
        similar, loss = float(self.model.scale()) * images @ texts.T, torch.zeros(())
        for start in range(0, number, size):
            part = similar[start : start + size, start : start + size]
            loss -= (part.log_softmax(0) + part.log_softmax(1)).diagonal().sum() / 2
        places = retrieval_ranks(images.numpy(), texts.numpy(), range(number))
        return {"valid_loss": float(loss) / number, "valid_recall": 50 * sum(float((place == 0).mean()) for place in places)}

    def score(self, name: str, examples: ImageExamples) -> EvaluationResult:
        """Retrieval both ways; on the world of shapes also the true caption among false ones. What it says of each picture is the
        nearest caption of all."""
        images, texts, owners = self.vectors_of(examples)
        flat = [caption for captions in examples.captions for caption in captions]
        nearest = [flat[int(np.argmax(texts @ image))] for image in images]
        scores = retrieval_scores(images, texts, owners)
        if examples.gold:
            scores.update(self.choose_true(examples, images))
        return EvaluationResult(name, examples, nearest, scores)

    def retrieve(self, examples: ImageExamples) -> dict[str, Score]:
        """R@1, R@5 and R@10, from pictures to their captions and back."""
        return retrieval_scores(*self.vectors_of(examples))

    def choose_true(self, examples: ImageExamples, images: np.ndarray | None = None) -> dict[str, Score]:
        """How often a caption that is true of a picture of the world of shapes is nearest to it, among others that are false."""
        images = self.image_vectors(examples) if images is None else images
        return {
            f"true_of_{CHOICES}{name}": self.choose(examples, images, near, f"true_of_{CHOICES}{name}")
            for name, near in NEAR_MISS_FRACTION.items()
        }

    def choose(self, examples: ImageExamples, images: np.ndarray, near: float, name: str) -> Score:
        choices = [
            [captions[0], *shapes.false_captions(picture.scene, CHOICES - 1, Random(f"false {row}"), near)]
            for row, (captions, picture) in enumerate(zip(examples.captions, examples.gold))
        ]
        number = {text: i for i, text in enumerate(dict.fromkeys(text for texts in choices for text in texts))}
        vectors = self.text_vectors(list(number))
        similar = np.stack([vectors[[number[text] for text in texts]] @ image for texts, image in zip(choices, images)])
        return accuracy(similar[:, 0] > similar[:, 1:].max(1), name)

    def zero_shot(
        self, examples: ImageExamples, labels: Sequence[str] | None = None, templates: Sequence[str] = DEFAULT_TEMPLATES
    ) -> EvaluationResult:
        """How often the nearest label is the right one of pictures with labels; those that occur, when none are given."""
        labels = examples.labels() if labels is None else labels
        if strange := sorted(set(examples.label) - set(labels)):
            raise UserError(f"{examples.name} has the label {strange[0]!r}, which is none of those to choose from")
        ranked = [[judged.label for judged in found] for found in self.match(examples, labels, templates)]
        scores = {
            f"accuracy{f'_top{k}' if k > 1 else ''}": accuracy(
                [right in found[:k] for found, right in zip(ranked, examples.label)], f"accuracy{f'_top{k}' if k > 1 else ''}"
            )
            for k in (1, 5)
            if k < len(labels)
        }
        return self.signed(EvaluationResult(examples.name, examples, [found[0] for found in ranked], scores))

    def paired(self, runs: "dict[str, ContrastiveRun]", examples: ImageExamples) -> list[dict[str, Any]]:
        return compare_accuracy(
            {name: retrieval_ranks(*run.vectors_of(examples))[0] == 0 for name, run in runs.items()}, "image_to_text_r1"
        )

    # what it can do

    def match(
        self, pictures: Sequence[ImageInput] | ImageExamples, labels: Sequence[str], templates: Sequence[str] = DEFAULT_TEMPLATES
    ) -> list[list[Prediction]]:
        """Every label of each picture, the most probable first. A label is put in the place of {} in each template, and the mean
        of its vectors counts (Radford et al. 2021, sec. 3.1.4)."""
        texts = self.label_vectors(labels, templates)
        near = torch.from_numpy(self.image_vectors(pictures) @ texts.T)  # (N, C)
        p = (float(self.model.scale().detach()) * near).softmax(-1)
        order = p.argsort(descending=True, stable=True)
        return [[Prediction(labels[i], float(row[i])) for i in best] for row, best in zip(p, order.tolist())]

    def similarity(self, pictures: Sequence[ImageInput] | ImageExamples, texts: Sequence[str]) -> np.ndarray:
        """How near each picture is to each text, from -1 to 1: (N, M)."""
        return self.image_vectors(pictures) @ self.text_vectors(texts).T

    def labels_from(self, given: str) -> list[str]:
        """Labels with commas between them, or those in a file, one a line."""
        if Path(given).is_file():
            return [line.strip() for line in iterate_lines(Path(given)) if line.strip()]
        return [label.strip() for label in given.split(",")] if given.strip() else []

    def label_vectors(self, labels: Sequence[str], templates: Sequence[str] = DEFAULT_TEMPLATES) -> np.ndarray:
        """A vector of length 1 for each label: (C, E)."""
        require_labels(labels, templates)
        texts = self.text_vectors([template.replace("{}", label) for label in labels for template in templates])
        mean = texts.reshape(len(labels), len(templates), -1).mean(1)
        return mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)

    @torch.no_grad()
    def image_vectors(self, pictures: Sequence[ImageInput] | ImageExamples) -> np.ndarray:
        """A vector of length 1 of each picture: (N, E). A set is decoded once and kept; pictures by themselves are not."""
        rows = (
            ImageClassificationRows(self.pixels(pictures), np.zeros(len(pictures), np.int64), self.longest)
            if isinstance(pictures, ImageExamples)
            else self.unlabelled(pictures)
        )
        found = np.zeros((len(pictures), self.recipe.model.projection_width), np.float32)
        for batch in distributed.shard(sequential_batches(rows, EVALUATE_TOKENS)):
            found[batch.rows] = self.model.image_features(**batch.to(self.device).inputs).cpu().numpy()
        return distributed.all_reduce_sum(found)

    @torch.no_grad()
    def text_vectors(self, texts: Sequence[str]) -> np.ndarray:
        """A vector of length 1 of each text: (N, E). The same text is read once."""
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        ids = self.ids(list(number))
        found = np.zeros((len(number), self.recipe.model.projection_width), np.float32)
        for rows in distributed.shard(batches_by_length([len(row) + self.special_tokens.num_added for row in ids], EMBED_TOKENS)):
            inputs: dict[str, Tensor] = encoder_inputs(Ragged.from_rows([ids[i] for i in rows]), self.special_tokens)
            inputs = {name: part.to(self.device) for name, part in inputs.items()}
            found[rows] = self.model.text_features(**inputs).cpu().numpy()
        return distributed.all_reduce_sum(found)[[number[text] for text in texts]]

    def vectors_of(self, examples: ImageExamples) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Of the pictures, of all their captions, and which picture each caption belongs to."""
        owners = [i for i, captions in enumerate(examples.captions) for _ in captions]
        return (
            self.image_vectors(examples),
            self.text_vectors([caption for captions in examples.captions for caption in captions]),
            owners,
        )

    def embed(
        self, texts: Sequence[ImageInput], *, layer: int = -1, pool: str = "mean", read_as: str | None = None
    ) -> list[EmbeddedText]:
        """The vector of each picture or text in the shared space. What is the path of a file is a picture; `read_as`, "image" or
        "text", says otherwise."""
        if layer != -1 or pool != "mean":
            raise UserError(
                f"{self.folder} gives vectors of its shared space, which has no layers and nothing to pool: "
                "leave out --layer and --pool"
            )
        if read_as not in (None, "image", "text"):
            raise UserError(f"--as {read_as}: should be image or text")
        seen = [is_image(one) if read_as is None else read_as == "image" for one in texts]
        images = iter(self.image_vectors([one for one, picture in zip(texts, seen) if picture]))
        words = [str(one) for one, picture in zip(texts, seen) if not picture]
        if not all(word.strip() for word in words):
            raise UserError("there are no vectors of an empty text")
        read_texts = iter(self.text_vectors(words))
        return [EmbeddedText([str(one)], next(images if picture else read_texts)[None]) for one, picture in zip(texts, seen)]


def is_image(given: ImageInput) -> bool:
    """Whether it is the path of a picture, or pixels, and not a text."""
    if not isinstance(given, str) or isinstance(given, PlainText):
        return not isinstance(given, str)
    if "\n" not in given and len(given) < 4096 and Path(given).is_file():
        return True
    if given.lower().endswith(IMAGE_SUFFIXES) and len(given.split()) == 1:
        raise UserError(f"no picture at {given}; to read it as a text, add --as text")
    return False


def require_labels(labels: Sequence[str], templates: Sequence[str]) -> None:
    if not labels:
        raise UserError("no labels to choose from; give some: --labels 'a cat,a dog', or a file with one a line")
    if empty := [number for number, label in enumerate(labels, start=1) if not label.strip()]:
        raise UserError(f"label {empty[0]} is empty; leave it out")
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise UserError(f"the label {twice[0]!r} is there twice; leave one out")
    if not templates:
        raise UserError("no template; give one, such as 'a photo of a {}', or leave --template out")
    for template in templates:
        if "{}" not in template:
            raise UserError(f"--template {template!r} has no place for a label; write {{}} there")
