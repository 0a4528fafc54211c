"""A run that says in words what a picture shows, and where it looked for each word."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.watch import watch
from regard.batches.batches import sequential_batches
from regard.batches.image_rows import CaptionRows
from regard.batches.image_store import Pixels, decode_images, take_pixels
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows
from regard.batches.token_store import TokenStore
from regard.corpus.examples import ImageExamples
from regard.decoding.batching import Sources, decode_all
from regard.decoding.protocol import Hypothesis
from regard.errors import UserError
from regard.models.registry import MODELS
from regard.scoring import caption_scores, compare_systems, merge_words, transpose_references
from regard.tasks.base import EmbeddedText, EvaluationResult, Run, search_params
from regard.tasks.grounding import add_scene_scores
from regard.tasks.images import ImageInput, ImageRun, as_image_source
from regard.tasks.translate import Alignment, Translation

LOOK_AT_ONCE = 64


@dataclass(frozen=True)
class CaptionAlignment:
    """The words of a caption, and where each of them looked: weights (T, rows, columns)."""

    words: list[str]
    weights: np.ndarray
    heads: np.ndarray
    """Of every layer and head (L, H, T, rows, columns); `weights` is the mean of the heads of the layer that looks sharpest."""


class CaptionRun(ImageRun):
    does = "captions pictures"

    @classmethod
    def tokenizer_names(cls, recipe: Any) -> list[str]:
        return Run.tokenizer_names(recipe)

    def build_model(self) -> nn.Module:
        return MODELS["caption"][self.recipe.model.kind](
            self.recipe.model, self.frame.size, self.tokenizers[0].size, self.recipe.train.regularize
        )

    @property
    def longest(self) -> int:
        return self.recipe.model.max_length

    @property
    def eye(self) -> tuple[Any, Any]:
        return self.model.encoder, self.recipe.model.encoder

    def reading(self, text: ImageInput) -> dict[str, Tensor]:
        """A picture, and its best caption as the decoder reads it."""
        pixels = self.seen([text])
        said = self.tell(pixels)[0][0].tokens
        return (
            CaptionRows.from_counts(
                pixels, TokenStore(Ragged.from_rows([said])), [1], positions=self.longest, special_tokens=self.special_tokens
            )
            .batch(np.array([0]), 0, 0)
            .inputs
        )

    def sizes(self) -> dict[str, Any]:
        return {**super().sizes(), **Run.sizes(self)}

    def encode(self, examples: ImageExamples, *, training: bool = False) -> Rows:
        """To learn from, a picture a row, with one of its captions; else a row for each caption."""
        augment = self.recipe.train.augment if training and self.recipe.train.augment.enabled else None
        return CaptionRows.from_counts(
            self.pixels(examples),
            self.side(examples.texts()[0], self.tokenizers[0], training),
            [len(captions) for captions in examples.captions],
            positions=self.longest,
            special_tokens=self.special_tokens,
            augment=augment,
            row_per_caption=not training,
        )

    # how well it does

    def validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:
        """The loss, and greedy BLEU-4 where the recipe asks for it."""
        scores = super().validate(examples, rows)
        if number := self.recipe.train.evaluate_sentences:
            some = examples.select(range(0, len(examples), -(-len(examples) // number)))
            said = [found[0].text for found in self.tell(self.pixels(some), beam=1)]
            scores["valid_bleu"] = caption_scores(said, some.captions, orders=(4,), samples=2)["bleu_4"].score
        return scores

    def score(self, name: str, examples: ImageExamples) -> EvaluationResult:
        said = [found[0].text for found in self.tell(self.pixels(examples))]
        scores = caption_scores(said, examples.captions)
        scores["perplexity"] = self.perplexity(examples)
        result = EvaluationResult(name, examples, said, scores)
        if examples.gold:
            add_scene_scores(self, result, examples)
        return result

    def paired(self, runs: "dict[str, CaptionRun]", examples: ImageExamples) -> list[dict[str, Any]]:
        """Is each run different from the first on these pictures?"""
        said = {name: [found[0].text for found in run.tell(run.pixels(examples))] for name, run in runs.items()}
        return compare_systems(said, transpose_references(examples.captions))

    def signature(self) -> str:
        decode = self.recipe.decode
        return f"beam:{decode.beam}|alpha:{decode.length_penalty}|{super().signature()}"

    # what it can do

    def caption(self, pictures: Sequence[ImageInput], **settings: Any) -> list[list[Translation]]:
        """The best captions of each picture, best first; settings as of `tell`."""
        return self.tell(self.seen(pictures), **settings)

    def seen(self, pictures: Sequence[ImageInput]) -> np.ndarray:
        """Pictures as a user gives them, brought to the size that is read: (N, H, W, 3)."""
        if not len(pictures):
            return np.zeros((0, *self.frame.size, 3), np.uint8)
        return decode_images([as_image_source(one) for one in pictures], self.frame)

    @torch.no_grad()
    def tell(
        self,
        pixels: Pixels,
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_tokens: int | None = None,
        number: int = 1,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[list[Translation]]:
        """The `number` best captions of each picture (N, H, W, 3), best first. A `temperature` samples one instead."""
        params = search_params(
            self.recipe.decode,
            "captions",
            beam=beam,
            length_penalty=length_penalty,
            max_tokens=max_tokens,
            number=number,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
        sources = self.sources(pixels, params.max_tokens)
        found = decode_all(self.model, sources, params, device=self.device, special_tokens=self.special_tokens)
        return [self.captions(hypotheses) for hypotheses in found]

    def sources(self, pixels: Pixels, max_tokens: int | None) -> Sources:
        """Return images (N, H, W, 3) as inputs to decode from."""
        rows, columns = self.model.grid
        limit = min(self.longest, max_tokens + 1 if max_tokens else self.longest)
        return Sources(
            [rows * columns] * len(pixels),
            [limit] * len(pixels),
            lambda indices: take_pixels(pixels, np.array(indices)).to(self.device),
        )

    def captions(self, hypotheses: Sequence[Hypothesis]) -> list[Translation]:
        texts = self.tokenizers[0].decode([one.tokens for one in hypotheses])
        return [Translation(text, one.score, one.log_probability, one.tokens) for text, one in zip(texts, hypotheses)]

    def look(self, pictures: Sequence[ImageInput], captions: Sequence[str] | None = None) -> Iterator[CaptionAlignment]:
        """Where each word of a caption (the model's own, unless others are given) looked in its picture."""
        pixels = self.seen(pictures)
        ids = [found[0].tokens for found in self.tell(pixels)] if captions is None else self.ids(captions)
        if len(ids) != len(pixels):
            raise UserError(f"{len(pixels)} pictures but {len(ids)} captions: give one for each")
        return self.looks(pixels, ids)

    def looks(self, pixels: Pixels, captions: Sequence[Sequence[int]]) -> Iterator[CaptionAlignment]:
        """The same of pictures (N, H, W, 3) and the tokens of their captions, whatever was looked at to say the end left out."""
        rows_of = CaptionRows.from_counts(
            pixels,
            TokenStore(Ragged.from_rows(captions)),
            [1] * len(captions),
            positions=self.longest,
            special_tokens=self.special_tokens,
        )
        for start in range(0, len(captions), LOOK_AT_ONCE):
            rows = np.arange(start, min(start + LOOK_AT_ONCE, len(captions)))
            batch = rows_of.batch(rows, 0, 0).to(self.device)
            with torch.no_grad(), watch(self.model, kinds="cross") as seen:
                self.model(**batch.inputs)
            weights = seen.stack().float().cpu().numpy()  # (L, B, H, T, S)
            for row, i in enumerate(rows.tolist()):
                yield self.by_words(captions[i], weights[:, row, :, : len(captions[i])])

    def by_words(self, caption: Sequence[int], weights: np.ndarray) -> CaptionAlignment:
        """Sub-words merged into words."""
        numbers, places = self.tokenizers[0].word_ids(caption), range(weights.shape[-1])
        merged = np.array([[merge_words(head, numbers, places) for head in layer] for layer in weights])  # (L, H, T, S)
        words = self.tokenizers[0].decode([list(caption)])[0].split()
        mean = Alignment([], words, merged).view()[0] if words else merged[0, 0]
        grid = self.model.grid
        return CaptionAlignment(words, mean.reshape(-1, *grid), merged.reshape(*merged.shape[:3], *grid))

    def embed(self, texts: Sequence[ImageInput], *, layer: int = -1, pool: str = "mean") -> list[EmbeddedText]:
        """The mean of each picture's map."""
        if pool != "mean" or layer not in (-1, 0):
            raise UserError(f"--layer {layer}, --pool {pool}: of a captioner there is one vector a picture, the mean of its map")
        found: list[Any] = [None] * len(texts)
        for batch in sequential_batches(self.unlabelled(texts), self.recipe.decode.batch_tokens):
            with torch.no_grad():
                vectors = (
                    self.model.image_features(batch.to(self.device).inputs["pixels"]).float().mean(1, keepdim=True).cpu().numpy()
                )
            for row, vector in zip(batch.rows, vectors):
                found[row] = EmbeddedText([str(texts[row])], vector)
        return found

    def resize(self, size: tuple[int, int]) -> None:
        raise UserError(
            f"{self.folder} captions pictures of one size, {self.frame.size[0]} × {self.frame.size[1]}; "
            "train another for another size"
        )
