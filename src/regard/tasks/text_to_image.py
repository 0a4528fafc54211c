"""A run that draws pictures from captions: DALL·E, with the run of its codes in a sub-folder."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard import distributed
from regard import recipe as recipes
from regard.batches.batches import sequential_batches
from regard.batches.image_rows import ImageClassificationRows, TextToImageRows, caption_prefix, open_image_codes
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset
from regard.corpus.examples import ImageExamples
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.sampling import SamplingParams
from regard.errors import UserError
from regard.interop.convert import HuggingFaceFolder
from regard.models.registry import MODELS
from regard.models.vit import format_size
from regard.recipe import ShapesWorld
from regard.scoring import accuracy, perplexity
from regard.tasks.base import EVALUATE_TOKENS, EmbeddedText, EvaluationResult
from regard.tasks.features import copy_run
from regard.tasks.image_codes import ImageCodesRun
from regard.tasks.images import ImageInput, ImageRun
from regard.tasks.language import sample_index
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens
from regard.training.losses import Objective, TextToImageLoss, nll
from regard.worlds.shapes import image_satisfies

FOLDER, RERANKER = "codes", "rank"
DRAW_AT_ONCE = 64
CANDIDATES = 32
"""Pictures to choose from where another run ranks them."""
CODES_ALONE = SpecialTokens(eos=NO_TOKEN, suppressed=())
"""A picture ends with its last place."""


@dataclass(frozen=True)
class GeneratedImage:
    """A picture drawn from a caption."""

    picture: np.ndarray  # (H, W, 3)
    codes: np.ndarray  # (h, w)
    score: float
    """Log-probability of its codes; where another run ranks pictures, what that thinks of it."""


class TextToImageRun(ImageRun):
    does = "draws"

    def __init__(self, folder: Path, recipe: Any, device: torch.device, huggingface: HuggingFaceFolder | None = None):
        from regard.run.load import load  # a run may hold a run

        self.codes: ImageCodesRun = load(folder / FOLDER, device=str(device))
        super().__init__(folder, recipe, device, huggingface)

    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        size = copy_held_run(
            recipe.model.image_codes.run, folder / FOLDER, "model.image_codes.run", "image-codes"
        ).data.height_width
        if size != recipe.data.height_width:
            raise UserError(
                f"data.size = {recipe.data.size}, but model.image_codes.run = '{recipe.model.image_codes.run}' reads pictures of "
                f"{format_size(size)} pixels; set data.size to that"
            )
        if recipe.sample.reranker is not None:
            copy_held_run(recipe.sample.reranker, folder / RERANKER, "sample.reranker", "contrastive")
        super().prepare(folder, recipe, data)

    @classmethod
    def tokenizer_names(cls, recipe: Any) -> list[str]:
        return ["tokenizer.json"]

    def build_model(self) -> nn.Module:
        return MODELS[self.recipe.task][self.recipe.model.kind](
            self.recipe.model,
            self.tokenizers[0].size,
            self.codes.recipe.model.codebook_size,
            self.codes.model.grid,
            self.recipe.train.regularize,
        )

    @property
    def places(self) -> int:
        """Codes of a picture."""
        return self.codes.longest

    @property
    def longest(self) -> int:
        return self.recipe.model.text_length + self.places

    def sizes(self) -> dict[str, Any]:
        return {
            "size": list(self.frame.size),
            "vocabularies": [self.tokenizers[0].size],
            "grid": list(self.codes.model.grid),
            "book": self.codes.recipe.model.codebook_size,
        }

    # what it learns from

    def encode(self, examples: ImageExamples, *, training: bool = False) -> Rows:
        texts = [caption for captions in examples.captions for caption in captions]
        ids = self.side(texts, self.tokenizers[0], training).ids
        picture = np.repeat(np.arange(len(examples)), [len(captions) for captions in examples.captions])
        kept, text = np.arange(len(ids)), self.recipe.model.text_length
        long = np.flatnonzero(ids.lengths > text)
        if len(long) and self.recipe.data.too_long == "error":
            raise UserError(
                f"{examples.where(int(picture[long[0]]))} has a caption of {ids.lengths[long[0]]} tokens, more than "
                f"model.text_length = {text}; raise it, or set data.too_long = 'drop' or 'truncate'"
            )
        if training and self.recipe.data.too_long == "drop":  # what is scored is cut instead
            kept = np.setdiff1d(kept, long)
        chosen = np.unique(picture[kept])
        if not len(chosen):
            raise UserError(f"{examples.name}: every caption is longer than model.text_length = {text} tokens; raise it")
        of = np.searchsorted(picture[kept], [*chosen, len(examples)])
        return TextToImageRows(ids.take(kept).truncate(text), of, self.codes_of(examples)[chosen], self.tokenizers[0].size, text)

    def codes_of(self, examples: ImageExamples) -> np.ndarray:
        """The codes (N, h·w) of a set's pictures, said once."""
        weights = hashlib.sha256((self.folder / FOLDER / "model.safetensors").read_bytes()).hexdigest()

        def said() -> np.ndarray:
            return self.codes.codes_of(
                ImageClassificationRows(self.pixels(examples), np.zeros(len(examples), np.int64), self.places)
            )

        return open_image_codes(examples, self.frame, weights, said)

    def objective(self) -> Objective:
        """The caption has its weight in the loss and the picture the rest, whatever the number of their positions."""
        text, places, share = self.recipe.model.text_length, self.places, self.recipe.model.text_loss_weight
        each = torch.tensor([share / text] * text + [(1 - share) / places] * places, device=self.device)
        first = self.model.first_code
        sayable = torch.tensor([first] * text + [self.model.vocabulary - first] * places, device=self.device)
        return TextToImageLoss(self.recipe.train.regularize, self.longest * each, sayable)

    # how well it does

    @torch.no_grad()
    def surprises(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """-log p of the words of each row's caption and of its picture's codes (N, 2), and how many there are of both."""
        found, counts = np.zeros((len(rows), 2)), np.zeros((len(rows), 2))
        for batch in distributed.shard(sequential_batches(rows, EVALUATE_TOKENS)):
            there = batch.to(self.device)
            each = nll(self.model(**there.inputs).float().log_softmax(-1), there.labels)  # (B, T)
            words, codes = there.labels < self.tokenizers[0].size, there.labels >= self.model.first_code
            for side, asked in enumerate((words, codes)):
                found[batch.rows, side] = (each * asked).sum(1).cpu()
                counts[batch.rows, side] = asked.sum(1).cpu()
        return distributed.all_reduce_sum(found), distributed.all_reduce_sum(counts)

    def validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:
        """The loss a word and a code, weighed as in training."""
        found, counts = self.surprises(rows)
        text, picture = found.sum(0) / np.maximum(counts.sum(0), 1)
        share = self.recipe.model.text_loss_weight
        weighed = share * text + (1 - share) * picture
        return {"valid_loss": float(weighed), "valid_text": float(text), "valid_picture": float(picture)}

    def score(self, name: str, examples: ImageExamples) -> EvaluationResult:
        found, counts = self.surprises(self.encode(examples))
        result = EvaluationResult(
            name,
            examples,
            [],
            {
                "caption_perplexity": perplexity(-found[:, 0], counts[:, 0]),
                "picture_perplexity": perplexity(-found[:, 1], counts[:, 1]),
            },
        )
        if isinstance(self.recipe.data.world, ShapesWorld):
            self.judge(result)
        return result

    def judge(self, result: EvaluationResult) -> None:
        """Where the truth is known: of how many first captions the picture drawn, as `sample` says, is right; and how many of
        the true pictures still are when they are made of their codes again, which is the most that could be."""
        from regard.run.load import load  # a run may hold a run

        captions, manner = [captions[0] for captions in result.examples.captions], self.recipe.sample
        options: dict[str, Any] = dict(temperature=manner.temperature, top_k=manner.top_k, top_p=manner.top_p)
        if manner.reranker is not None:
            options |= dict(reranker=load(self.folder / RERANKER, device=str(self.device)), candidates=manner.candidates)
        drawn = [
            bool(image_satisfies(found[0].picture, caption)) for caption, found in zip(captions, self.draw(captions, **options))
        ]
        rebuilt = self.codes.decode(self.codes_of(result.examples).reshape(-1, *self.codes.model.grid).astype(np.int64))
        still = [bool(image_satisfies(picture, caption)) for caption, picture in zip(captions, rebuilt)]
        result.scores |= {"right": accuracy(drawn, "right"), "right_rebuilt": accuracy(still, "right_rebuilt")}
        result.outputs = [f"{'right' if right else 'wrong'}\t{caption}" for caption, right in zip(captions, drawn)]

    # what it can do

    def draw(
        self,
        texts: Sequence[str],
        *,
        number: int = 1,
        temperature: float | None = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        reranker: Any = None,
        candidates: int | None = None,
    ) -> list[list[GeneratedImage]]:
        """`number` pictures of each caption; without a temperature, the likeliest code each time. With `rank`, a run that
        compares pictures and texts (CLIP), the best of `of` pictures, best first. What is drawn depends on the seed, the place of
        the caption among all and which of its pictures it is, not on the batch."""
        if reranker is not None and not hasattr(reranker, "similarity"):
            raise UserError(
                f"{getattr(reranker, 'folder', 'the run to rank by')} {getattr(reranker, 'does', 'cannot rank')}: it does not "
                "compare pictures with texts; rank by a run of task = 'contrastive'"
            )
        if reranker is None and candidates is not None:
            raise UserError(f"candidates = {candidates}: who chooses? name a run that ranks pictures")
        many = number if reranker is None else CANDIDATES if candidates is None else candidates
        if many < number:
            raise UserError(f"candidates = {many}: the best {number} of them are asked for; draw at least so many")
        manner = SamplingParams(self.places, temperature, top_k, top_p, seed=seed, number=many)
        begun = caption_prefix(Ragged.from_rows(self.caption_ids(texts)), self.recipe.model.text_length, self.tokenizers[0].size)
        found = self.drawn(begun, manner)
        return found if reranker is None else [rerank(text, pictures, reranker)[:number] for text, pictures in zip(texts, found)]

    def caption_ids(self, texts: Sequence[str]) -> list[list[int]]:
        found, most = self.tokenizers[0].encode(texts), self.recipe.model.text_length
        for number, ids in enumerate(found, start=1):
            if not ids:
                raise UserError(f"caption {number} is empty; say what to draw")
            if len(ids) > most and self.recipe.data.too_long != "truncate":
                raise UserError(f"caption {number} is {len(ids)} tokens long, the model takes {most}; shorten it")
        return [ids[:most] for ids in found]

    def drawn(self, begun: Tensor, manner: SamplingParams) -> list[list[GeneratedImage]]:
        """Pictures of captions as they are read (B, 1 + text)."""
        rows = list(product(range(len(begun)), range(manner.number)))
        found: list[list[GeneratedImage]] = [[] for _ in begun]
        for start in range(0, len(rows), DRAW_AT_ONCE):
            part = rows[start : start + DRAW_AT_ONCE]
            numbers = np.array([sample_index(caption, sample) for caption, sample in part])
            limits = torch.full((len(part),), self.places + 1, device=self.device)
            prefix = begun[[caption for caption, _ in part]].to(self.device)
            said = greedy_or_sample(self.model, None, limits, manner.chooser(numbers), prefix=prefix, special_tokens=CODES_ALONE)
            codes = np.array([one.tokens for one in said]).reshape(-1, *self.codes.model.grid) - self.model.first_code
            for (caption, _), picture, grid, one in zip(part, self.codes.decode(codes), codes, said):
                found[caption].append(GeneratedImage(picture, grid, one.log_probability))
        return found

    def embed(self, texts: Sequence[ImageInput], *, layer: int = -1, pool: str = "mean") -> list[EmbeddedText]:
        raise UserError(f"{self.folder} draws, and has no vectors of texts or pictures")


def copy_held_run(run: str, into: Path, setting: str, task: str) -> Any:
    """The recipe of a run of this task, which a setting names and which is copied into another's folder once."""
    if not (into / "model.safetensors").is_file():
        copy_run(Path(run), into, setting)
    recipe = recipes.read_recipe(into / "recipe.toml")
    if recipe.task != task:
        raise UserError(f"{setting} = '{run}' is a run of task = {recipe.task!r}; name one of task = {task!r}")
    return recipe


def rerank(text: str, pictures: Sequence[GeneratedImage], rank: Any) -> list[GeneratedImage]:
    """Pictures by how well another run finds that they fit a caption, best first."""
    likeness = np.asarray(rank.similarity([one.picture for one in pictures], [text]))[:, 0]  # (N,)
    return [
        GeneratedImage(pictures[i].picture, pictures[i].codes, float(likeness[i])) for i in np.argsort(-likeness, kind="stable")
    ]
