"""Text-to-image generation (DALL·E, Ramesh et al. 2021): a caption, then the codes of its image."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack, cast, overload

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from regard import distributed
from regard.batches.image_rows import TextToImageRows, caption_prefix, open_image_codes
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset
from regard.corpus.examples import ImageExamples
from regard.decoding.batching import SearchParams, Sources, decode_all
from regard.decoding.sampling import SamplingParams, sample_index
from regard.errors import UserError
from regard.models.dalle import Dalle
from regard.models.vit import format_size
from regard.recipe import CaptionedImageData, DalleModel, ImageSampling, ImageTraining, Recipe, ShapesWorld
from regard.scoring import accuracy, perplexity
from regard.tasks.base import Run
from regard.tasks.contrastive import ContrastiveRun
from regard.tasks.image_codes import ImageCodesRun
from regard.tasks.shared.one_or_many import best_or_ranked
from regard.tasks.shared.run_folder import copy_run
from regard.tasks.starters.image_starters import text_to_image_recipe
from regard.tasks.task import EvaluationResult, Size, Task, TaskCard
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens
from regard.training.losses import TextToImageLoss, nll
from regard.worlds.shapes import image_satisfies

CODES_FOLDER, RERANKER_FOLDER = "image_codes", "reranker"
DRAW_BATCH = 64
"""Images generated together on a CPU, and at least so many on a GPU."""
DRAW_POSITIONS = 2**15
"""Positions of the images generated together on a GPU: a few small images do not fill it."""
CANDIDATES = 32
"""Images to choose from when another run reranks them."""
CODES_ONLY = SpecialTokens(eos=NO_TOKEN, suppressed=())
"""An image ends with its last code."""


class TextToImageRecipe(Recipe):
    """Generate images from captions."""

    task: Literal["text-to-image"] = "text-to-image"
    data: CaptionedImageData
    model: DalleModel
    train: ImageTraining = ImageTraining()  # type: ignore[assignment]
    sample: ImageSampling = ImageSampling()

    @model_validator(mode="after")
    def check_training(self) -> Self:
        if self.train.augment.enabled:
            raise ValueError("train.augment: images are encoded as codes once; augment them where the codes are learned")
        if self.train.regularize.r_drop:
            raise ValueError("train.regularize.r_drop is not for this task: set it to 0")
        if self.train.regularize.bpe_dropout:
            raise ValueError("train.regularize.bpe_dropout is not for this task: set it to 0")
        return self


@dataclass(frozen=True)
class GeneratedImage:
    """An image generated from a caption."""

    image: np.ndarray  # (H, W, 3)
    codes: np.ndarray  # (h, w)
    score: float
    """Log-probability of its codes; if another run reranks, its similarity to the caption."""


class DrawingOptions(TypedDict, total=False):
    """How to generate an image; a `reranker` chooses among `candidates` of them."""

    temperature: float | None
    top_k: int
    top_p: float
    seed: int
    reranker: ContrastiveRun | None
    candidates: int | None


class TextToImageRun(Run):
    """A text-to-image model; it holds the run of its image codes, and may hold a reranker (CLIP)."""

    recipe: TextToImageRecipe

    @overload
    def draw(  # type: ignore[overload-overlap]
        self, texts: str, *, number: None = None, **options: Unpack[DrawingOptions]
    ) -> GeneratedImage: ...
    @overload
    def draw(self, texts: str, *, number: int, **options: Unpack[DrawingOptions]) -> list[GeneratedImage]: ...  # type: ignore[overload-overlap]
    @overload
    def draw(self, texts: Iterable[str], *, number: None = None, **options: Unpack[DrawingOptions]) -> list[GeneratedImage]: ...
    @overload
    def draw(self, texts: Iterable[str], *, number: int, **options: Unpack[DrawingOptions]) -> list[list[GeneratedImage]]: ...
    def draw(
        self, texts: str | Iterable[str], *, number: int | None = None, **options: Unpack[DrawingOptions]
    ) -> GeneratedImage | list[GeneratedImage] | list[list[GeneratedImage]]:
        """Generate an image of a caption, or of each caption of a list; with a `number`, a list of so many images.

        With a `reranker`, a contrastive run, the best of `candidates` images, best first. A sample depends on the seed, the
        index of the caption among all and the number of the sample, not on the batch; without a temperature, images are
        generated greedily. Options: temperature, top_k, top_p, seed, reranker, candidates.
        """
        return best_or_ranked(texts, number, lambda several: self._draw(several, 1 if number is None else number, **options))

    def _draw(
        self,
        texts: Sequence[str],
        number: int,
        *,
        temperature: float | None = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        reranker: ContrastiveRun | None = None,
        candidates: int | None = None,
    ) -> list[list[GeneratedImage]]:
        """Return `number` images of each caption."""
        if reranker is not None and not hasattr(reranker, "similarity"):
            raise UserError(
                f"{getattr(reranker, 'folder', 'the reranker')} does not compare images with texts; rerank with a run of "
                "task = 'contrastive'"
            )
        if reranker is None and candidates is not None:
            raise UserError(f"candidates = {candidates}: name the run that chooses among them (reranker)")
        total = number if reranker is None else CANDIDATES if candidates is None else candidates
        if total < number:
            raise UserError(f"candidates = {total}: the best {number} of them are asked for; draw at least so many")
        params = SamplingParams(self._num_codes, temperature, top_k, top_p, seed=seed, number=total)
        ids = Ragged.from_rows(self._caption_ids(texts))
        found = self._sample(caption_prefix(ids, self.recipe.model.text_length, self.tokenizers[0].size), params)
        return found if reranker is None else [rerank(text, images, reranker)[:number] for text, images in zip(texts, found)]

    def _caption_ids(self, texts: Sequence[str]) -> list[list[int]]:
        found, max_length = self.tokenizers[0].encode(texts), self.recipe.model.text_length
        for number, ids in enumerate(found, start=1):
            if not ids:
                raise UserError(f"caption {number} is empty; describe an image")
            if len(ids) > max_length and self.recipe.data.too_long != "truncate":
                raise UserError(f"caption {number} has {len(ids)} tokens, the model takes {max_length}; shorten it")
        return [ids[:max_length] for ids in found]

    def _sample(self, prefix: Tensor, params: SamplingParams) -> list[list[GeneratedImage]]:
        """Generate images of tokenized captions (B, 1 + text)."""
        rows = list(product(range(len(prefix)), range(params.number)))
        sources = Sources(
            [prefix.size(1)] * len(rows),
            [self._num_codes + 1] * len(rows),
            lambda indices: None,
            prefix=lambda indices: prefix[[rows[i][0] for i in indices]].to(self.device),
            sequence_ids=[sample_index(*row) for row in rows],
        )
        batch = DRAW_BATCH if self.device.type == "cpu" else max(DRAW_BATCH, DRAW_POSITIONS // self._max_positions)
        search = SearchParams(sampling=params, batch_tokens=batch * prefix.size(1))
        found = decode_all(self.model, sources, search, device=self.device, special_tokens=CODES_ONLY)
        codes = (
            np.array([best.tokens for (best,) in found], np.int64).reshape(-1, *self._codes_run.model.grid)
            - self.model.first_code
        )
        images = map(GeneratedImage, self._codes_run.decode(codes), codes, (best.log_probability for (best,) in found))
        return [list(islice(images, params.number)) for _ in prefix]

    # files and examples

    @classmethod
    def _prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        setting, run = "model.image_codes.run", recipe.model.image_codes.run
        size = copy_held_run(run, folder / CODES_FOLDER, setting, "image-codes").data.height_width
        if size != recipe.data.height_width:
            raise UserError(
                f"data.size = {recipe.data.size}, but {setting} = '{run}' reads images of {format_size(size)} pixels; "
                "set data.size to that"
            )
        if recipe.sample.reranker is not None:
            copy_held_run(recipe.sample.reranker, folder / RERANKER_FOLDER, "sample.reranker", "contrastive")
        super()._prepare(folder, recipe, data)

    def _open_files(self) -> None:
        from regard.tasks import load_run_folder  # a run may hold a run

        self._codes_run = cast(ImageCodesRun, load_run_folder(self.folder / CODES_FOLDER, self.device))

    def _model_sizes(self) -> list[Size]:
        return [*super()._model_sizes(), self._codes_run.recipe.model.codebook_size, self._codes_run.model.grid]

    @property
    def _num_codes(self) -> int:
        """Codes of an image."""
        return self._codes_run._max_positions

    @property
    def _max_positions(self) -> int:
        return self.recipe.model.text_length + self._num_codes

    def _config_sizes(self) -> dict[str, Any]:
        return {
            "size": list(self._images.size),
            "vocabularies": [self.tokenizers[0].size],
            "grid": list(self._codes_run.model.grid),
            "codebook_size": self._codes_run.recipe.model.codebook_size,
        }

    def _encode(self, examples: ImageExamples, *, training: bool = False) -> Rows:
        texts = [caption for captions in examples.captions for caption in captions]
        ids = self._token_store(texts, self.tokenizers[0], training).ids
        owner = np.repeat(np.arange(len(examples)), [len(captions) for captions in examples.captions])
        kept, max_length = np.arange(len(ids)), self.recipe.model.text_length
        too_long = np.flatnonzero(ids.lengths > max_length)
        if len(too_long) and self.recipe.data.too_long == "error":
            raise UserError(
                f"{examples.where(int(owner[too_long[0]]))} has a caption of {ids.lengths[too_long[0]]} tokens, more than "
                f"model.text_length = {max_length}; raise it, or set data.too_long = 'drop' or 'truncate'"
            )
        if training and self.recipe.data.too_long == "drop":  # captions that are scored are truncated instead
            kept = np.setdiff1d(kept, too_long)
        chosen = np.unique(owner[kept])
        if not len(chosen):
            raise UserError(f"{examples.name}: every caption is longer than model.text_length = {max_length} tokens; raise it")
        offsets = np.searchsorted(owner[kept], [*chosen, len(examples)])
        codes = self._codes(examples)[chosen]
        return TextToImageRows(ids.take(kept).truncate(max_length), offsets, codes, self.tokenizers[0].size, max_length)

    def _codes(self, examples: ImageExamples) -> np.ndarray:
        """Return the codes (N, h·w) of a dataset's images, encoded once and cached."""
        weights = hashlib.sha256((self.folder / CODES_FOLDER / "model.safetensors").read_bytes()).hexdigest()

        def encode() -> np.ndarray:
            return self._codes_run._codes(self._images.rows(examples))

        return open_image_codes(examples, self._images.transform, weights, encode)

    # scores

    @torch.no_grad()
    def _nlls(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the negative log-likelihoods of each row's caption and of its codes (N, 2), and the tokens of both."""
        found, counts = np.zeros((len(rows), 2)), np.zeros((len(rows), 2))
        for batch in self._batches(rows):
            each = nll(self.model(**batch.inputs).float().log_softmax(-1), batch.labels)  # (B, T)
            words, codes = batch.labels < self.tokenizers[0].size, batch.labels >= self.model.first_code
            for side, mask in enumerate((words, codes)):
                found[batch.rows, side] = (each * mask).sum(1).cpu()
                counts[batch.rows, side] = mask.sum(1).cpu()
        return distributed.all_reduce_sum(found), distributed.all_reduce_sum(counts)

    def _validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:
        """Return the loss per word and per code, and both weighted as in training."""
        found, counts = self._nlls(rows)
        text, image = found.sum(0) / np.maximum(counts.sum(0), 1)
        weight = self.recipe.model.text_loss_weight
        return {
            "valid_loss": float(weight * text + (1 - weight) * image),
            "valid_text": float(text),
            "valid_image": float(image),
        }

    def _score(self, name: str, examples: ImageExamples) -> EvaluationResult:
        found, counts = self._nlls(self._encode(examples))
        scores = {
            "caption_perplexity": perplexity(-found[:, 0], counts[:, 0]),
            "image_perplexity": perplexity(-found[:, 1], counts[:, 1]),
        }
        result = EvaluationResult(name, examples, [], scores)
        if isinstance(self.recipe.data.world, ShapesWorld):
            self._score_scenes(result, examples)
        return result

    def _score_scenes(self, result: EvaluationResult, examples: ImageExamples) -> None:
        """Add how many first captions are true of the image generated for them, on the world of shapes.

        `right_rebuilt` is the same of the gold images reconstructed from their codes: the upper bound.
        """
        from regard.tasks import load_run_folder  # a run may hold a run

        captions, settings = [captions[0] for captions in examples.captions], self.recipe.sample
        options: dict[str, Any] = dict(temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)
        if settings.reranker is not None:
            reranker = load_run_folder(self.folder / RERANKER_FOLDER, self.device)
            options |= dict(reranker=reranker, candidates=settings.candidates)
        generated = self.draw(captions, **options)
        right = [bool(image_satisfies(found.image, caption)) for caption, found in zip(captions, generated)]
        codes = self._codes(examples).reshape(-1, *self._codes_run.model.grid).astype(np.int64)
        rebuilt = [bool(image_satisfies(*pair)) for pair in zip(self._codes_run.decode(codes), captions)]
        result.scores |= {"right": accuracy(right, "right"), "right_rebuilt": accuracy(rebuilt, "right_rebuilt")}
        result.outputs = [f"{'right' if one else 'wrong'}\t{caption}" for caption, one in zip(captions, right)]


def text_to_image_loss(run: TextToImageRun) -> TextToImageLoss:
    """Return a loss in which the caption has `text_loss_weight` and the image the rest, whatever their lengths."""
    text, codes, weight = run.recipe.model.text_length, run._num_codes, run.recipe.model.text_loss_weight
    each = torch.tensor([weight / text] * text + [(1 - weight) / codes] * codes, device=run.device)
    first = run.model.first_code
    choices = torch.tensor([first] * text + [run.model.vocabulary - first] * codes, device=run.device)
    return TextToImageLoss(run.recipe.train.regularize, run._max_positions * each, choices)


def copy_held_run(run: str, into: Path, setting: str, task: str) -> Recipe:
    """Copy the run that a setting names into this run's folder, once, and return its recipe, checked to be of this task."""
    from regard.tasks import read_recipe

    if not (into / "model.safetensors").is_file():
        copy_run(Path(run), into, setting)
    recipe = read_recipe(into / "recipe.toml")
    if recipe.task != task:
        raise UserError(f"{setting} = '{run}' is a run of task = {recipe.task!r}; name one of task = {task!r}")
    return recipe


def rerank(text: str, images: Sequence[GeneratedImage], reranker: ContrastiveRun) -> list[GeneratedImage]:
    """Return images by their similarity to a caption, best first."""
    similarity = np.asarray(reranker.similarity([one.image for one in images], [text]))[:, 0]  # (N,)
    order = np.argsort(-similarity, kind="stable")
    return [GeneratedImage(images[i].image, images[i].codes, float(similarity[i])) for i in order]


def codes_recipe_of(recipe: Recipe) -> Recipe:
    """Return the recipe of the image codes that a text-to-image recipe names."""
    from regard.tasks import read_recipe

    path = Path(recipe.model.image_codes.run, "recipe.toml")
    if not path.is_file():
        raise UserError(
            f"model.image_codes.run = '{recipe.model.image_codes.run}' is not there, and the number of codes of an image "
            "follows from it; train it first"
        )
    return read_recipe(path)


def model_sizes(recipe: Recipe, vocabulary: tuple[int, int]) -> tuple[Size, ...]:
    """Return the sizes of the caption's vocabulary, the codebook and the grid of codes."""
    codes = codes_recipe_of(recipe).model
    return vocabulary[0], codes.codebook_size, codes.grid(recipe.data.height_width)


def lengths(recipe: Recipe, given: tuple[int, int] | None) -> tuple[int, int]:
    """Return the positions of a caption and the codes of its image."""
    return (recipe.model.text_length + codes_recipe_of(recipe).model.length(recipe.data.height_width),) * 2


TEXT_TO_IMAGE = Task(
    name="text-to-image",
    does="generates images",
    recipe=TextToImageRecipe,
    run=TextToImageRun,
    models={"dalle": Dalle},
    verbs=("draw",),
    loss=cast(Any, text_to_image_loss),
    model_sizes=model_sizes,
    lengths=lengths,
    starter=text_to_image_recipe,
    card=TaskCard(
        uses="Images like those it was trained on, from captions like theirs. Research and teaching.",
        misuses="Misleading images: of people, of events, of anything passed off as seen or as made by a person; imitating "
        "somebody's work without leave.",
        limits="It repeats the biases of its training images and captions, draws something for any caption, and often not "
        "what was asked. Captions unlike its own, and longer than `model.text_length` tokens, come out badly.",
        commands=('draw {} "…" --out a.png --number 8',),
    ),
)
