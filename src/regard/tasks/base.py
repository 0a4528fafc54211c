"""A run: a model with its recipe, tokenizers and data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard import __version__, distributed
from regard.attention.modules import attention_modules
from regard.batches.batch import Batch
from regard.batches.batches import sequential_batches
from regard.batches.language_rows import PackedRows, UnpaddedRows
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, encoder_inputs, evaluation_rows, training_rows
from regard.batches.token_store import TokenStore, build_token_store, open_token_store
from regard.corpus.dataset import Dataset, read_dataset
from regard.corpus.examples import Examples
from regard.decoding.batching import DecodingEngine
from regard.decoding.ensemble import Ensemble
from regard.errors import UserError
from regard.hardware import hardware
from regard.interop.convert import HuggingFaceFolder
from regard.progress import track
from regard.recipe import Recipe
from regard.scoring import Score, perplexity
from regard.tasks.shared.run_folder import (
    copy_features_run,
    load_contextual_features,
    load_tokenizers,
    prepare_tokenizers,
    read_json,
)
from regard.tasks.shared.summary import summary_html, summary_text
from regard.tasks.starters.starter import StarterOptions
from regard.tasks.task import ComparisonRow, EvaluationResult, Size, Task
from regard.tokens.special_tokens import SpecialTokens
from regard.tokens.tokenizer import Tokenizer
from regard.training.losses import Objective, sequence_log_probs

if TYPE_CHECKING:
    from regard.explain.explanation import Explanation
    from regard.show.inline import InlineFigure
    from regard.tasks.shared.images import ImageInput, ImageReader

EVALUATE_TOKENS = 8192
OWN_ENGINE = f"regard-{__version__}"
SideTokens = list[list[str]] | dict[str, list[int]]
"""The tokens of one side: a list of strings for each row, or the rows and columns of its "patches"."""
TokensBySide = dict[str, SideTokens]
"""The tokens that a model reads: "text"; of an encoder–decoder "source", "target" and "predicted", the token that each position
of the target predicts."""


class Run:
    """A trained model with its recipe, tokenizers and data: what `regard.load` returns.

    Subclasses add the verbs of their task. Names with an underscore are for the package only.
    """

    _engine: DecodingEngine | None = None
    """Another program that decodes; everything else stays ours."""
    _extra_special_tokens: tuple[str, ...] = ()
    """Special tokens of the vocabulary besides the usual ones."""
    _ensemble: "tuple[Run, ...]" = ()
    """Other runs whose models predict together with this one's, in searches and scores."""

    recipe: Recipe

    def __init__(
        self, task: Task, folder: Path, recipe: Recipe, device: torch.device, huggingface: HuggingFaceFolder | None = None
    ):
        """Open a run folder, or the Hugging Face folder `huggingface`; the weights are loaded by the caller."""
        self.task, self.folder, self.recipe, self.device = task, folder, recipe, device
        self._huggingface = huggingface
        self._open_files()
        self.tokenizers = self._load_tokenizers()
        self.model: Any = self._build_model().to(device).eval()
        self._trained_model: Any = self.model
        """The model in the precision it was trained in; `model` may be a quantized copy (run/engines.py)."""
        self._precision = "fp32"

    def __repr__(self) -> str:
        return summary_text(self)

    def _repr_html_(self) -> str:
        """Return what a notebook displays."""
        return summary_html(self)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the texts that the model reads: `run.tokenizer("a text")` are its token ids."""
        if not self.tokenizers:
            raise UserError(f"{self.folder} {self.task.does}, and has no tokenizer")
        return self.tokenizers[0]

    @cached_property
    def data(self) -> Dataset[Any]:
        """The validation and test sets of the recipe, of the kind of examples that the task reads."""
        if self._is_pretrained:
            raise UserError(f"{self.folder} is a Hugging Face folder, which names no data; give --source and --reference")
        return read_dataset(self.recipe.data, train=False)

    def explain(self, text: "ImageInput", method: str = "all", **selection: str | int) -> "Explanation":
        """Attribute an output to the tokens of a text or the patches of an image, and test how faithful that attribution is.

        The output is the predicted one, or selected by `label`, `word` or (image-text models) a text that the image `fits`;
        `position` is the word of the text, or the mask, whose prediction by a language model or masked model is explained.
        `against` names another output to contrast it with; `layer` and `head` (from 1) are those whose attention is tested.
        """
        from regard.explain.report import explain_one
        from regard.explain.selection import OutputSelection

        return explain_one(self, text, method, OutputSelection(**cast(dict[str, Any], selection)))

    def evaluate(
        self,
        data: str | Path | None = None,
        *,
        source: str | Path | None = None,
        reference: str | Path | None = None,
        columns: Mapping[str, str] | None = None,
        metrics: Sequence[str] = (),
        task: str | None = None,
        save: bool = False,
    ) -> list[EvaluationResult]:
        """Score the run on the test sets of its recipe, a file of `data`, or a pair of files; return the scores of each set.

        A file of data has the columns of the recipe; others are named by `columns`, with the keys text, text_pair and label.
        `metrics` are scored besides the usual ones of a translation: "chrf++", "comet". `task` selects one task of a text-to-text
        run; `save` writes scores.json into the run folder.
        """
        from regard.run.evaluate import evaluate

        data, source, reference = (None if path is None else Path(path) for path in (data, source, reference))
        named = None if columns is None else StarterOptions(**cast(dict[str, Any], columns))
        return evaluate(self, data=data, source=source, reference=reference, task=task, columns=named, metrics=metrics, save=save)

    def show(
        self,
        text: "ImageInput | list[str] | None" = None,
        view: str | None = None,
        *,
        kind: str | None = None,
        layer: int | None = None,
        head: int | str | None = None,
        token: str | int | None = None,
        max_tokens: int | None = None,
        scale: str = "shown",
    ) -> "InlineFigure":
        """Show what the model attends to when it reads a text or an image, as a figure that displays by itself in a notebook.

        `view` is "matrix", "heads" (lines between tokens), "head-matrices" (all heads of a layer), "model" (all heads of all
        layers), "token" (one token over the layers), "entropy", "neurons" (q·k of one head, component by component), "steps"
        (generation token by token), "beam" (the search tree), "lens" (what each layer would predict), "flow" (the text through
        the model, step by step) or "search" (what each head attends to in several texts, by default the validation set);
        without one, the alignment of a translation or the regions of an image where there are some, else a matrix. `kind` is
        "cross", "encoder" or "decoder"; `layer`, `head` and `token` are counted from 1. A head may also be named as outputs name
        it ("cross-attention, layer 2, head 3"), or be the "aligner" or "antecedent", the best on the validation set of an
        embedded world. With `scale="absolute"` colours end at weight 1.
        """
        from regard.show.selection import ViewSelection
        from regard.show.views import BEST_HEADS, best_head_name, show_run

        head = best_head_name(self, str(head)) if head in BEST_HEADS else head
        selection = ViewSelection.of(view or ("matrix" if token is None else "token"), kind, layer, head, token, scale=scale)
        plain = view is None and token is None and kind is None and selection.kind in (None, "cross")
        return show_run(self, text, selection, plain=plain, max_tokens=max_tokens)

    # files, tokenizers and model

    @property
    def _is_pretrained(self) -> bool:
        """Whether the model came without a recipe, and so without data."""
        return self._huggingface is not None

    @classmethod
    def _prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        """Write what a run needs besides its weights."""
        if (features := getattr(recipe.model, "features", None)) is not None:
            copy_features_run(Path(features.run), folder)
        prepare_tokenizers(folder, recipe, data.train.texts(), cls._extra_special_tokens)

    def _open_files(self) -> None:
        """Read the task's own files of the run folder, before the model is built."""

    def _load_tokenizers(self) -> list[Tokenizer]:
        if self._huggingface is not None:
            return [] if self._huggingface.tokenizer is None else [self._huggingface.tokenizer]
        return load_tokenizers(self.folder, self.recipe)

    @cached_property
    def _images(self) -> "ImageReader":
        """The reader of images, for the tasks that have some."""
        from regard.tasks.shared.images import ImageReader

        return ImageReader(self)

    @property
    def _special_tokens(self) -> SpecialTokens:
        return self.tokenizers[0].special_tokens

    def _output_special_tokens(self) -> SpecialTokens:
        """Return the special tokens that generated text begins and ends with."""
        return self._special_tokens

    def _build_model(self) -> nn.Module:
        settings = getattr(self.recipe.model, "features", None)
        features = [] if settings is None else [load_contextual_features(self.folder, settings)]
        return self.task.build(self.recipe.model, *self._model_sizes(), self.recipe.train.regularize, *features)

    def _model_sizes(self) -> list[Size]:
        """Return the sizes that the model is built with after its settings: of images, of vocabularies, of labels."""
        images = [self._images.size] if "image" in self.task.reads else []
        tokenizers = [self.tokenizers[0], self.tokenizers[-1]] if self.task.encoder_decoder else self.tokenizers
        return [*images, *(tokenizer.size for tokenizer in tokenizers)]

    def _export_weights(self) -> dict[str, Tensor]:
        """Return the weights of a model whose outputs are the run's, for other libraries, which have the model alone."""
        return dict(self.model.named_parameters())

    def _to_training_scale(self, logits: Tensor) -> Tensor:
        """Return the outputs of such an exported model in the scale that ours is trained in."""
        return logits

    @property
    def _max_positions(self) -> int:
        """Positions that an example may take."""
        model = self.recipe.model
        return int(model.length(self._images.size) if self.task.image_positions else model.max_length)

    def _config_sizes(self) -> dict[str, Any]:
        """Return the sizes of the model that depend on the data, for config.json."""
        images = {"size": list(self._images.size)} if "image" in self.task.reads else {}
        return {**images, "vocabularies": [tokenizer.size for tokenizer in self.tokenizers]} if self.tokenizers else images

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return read_json(path, dict) if path.exists() else {}

    @property
    def _predictor(self) -> Any:
        """The model that searches and scores ask: `model`, or its ensemble with those of other runs."""
        return Ensemble([run.model for run in (self, *self._ensemble)]).eval() if self._ensemble else self.model

    # examples -> rows

    def _encode(self, examples: Any, *, training: bool = False) -> Rows:
        """Tokenize examples."""
        raise NotImplementedError

    def _token_store(self, texts: Sequence[str], tokenizer: Tokenizer, training: bool) -> TokenStore:
        """Tokenize texts; for training, into a memory-mapped store and with BPE-dropout."""
        if not training:
            return build_token_store(texts, tokenizer)
        return open_token_store(texts, tokenizer, bpe_dropout=self.recipe.train.regularize.bpe_dropout, seed=self.recipe.seed)

    def _too_long(self, examples: Any) -> str:
        """Return what happens to examples that are too long: "error", "drop", "truncate" or "split"."""
        return str(self.recipe.data.too_long)

    def _training_rows(self, examples: Any) -> tuple[Rows, int]:
        """Return the training examples that fit, tokenized, and how many did not fit."""
        max_length = self._max_positions
        rows, num_too_long = training_rows(
            examples, partial(self._encode, training=True), max_length=max_length, too_long=self._too_long(examples)
        )
        if getattr(self.recipe.data, "pack", False):
            return PackedRows(cast(UnpaddedRows, rows), max_length), num_too_long
        return rows, num_too_long

    def _evaluation_rows(self, examples: Any, *, refuse: bool = False) -> Rows:
        """Tokenize examples to be scored; if `refuse`, those too long are an error where the recipe says so, else truncated."""
        too_long = self._too_long(examples)
        return evaluation_rows(
            examples,
            self._encode,
            max_length=self._max_positions,
            too_long="truncate" if too_long == "error" and not refuse else too_long,
        )

    def _run_frozen(self, rows: Rows) -> Rows:
        """Return rows in which the outputs of frozen parts of the model replace their inputs, where these are always the same."""
        return rows

    def _batches(self, rows: Rows, budget: int = EVALUATE_TOKENS, *, shard: bool = True) -> Iterator[Batch]:
        """Yield rows in batches on the run's device, of at most `budget` positions; with `shard`, those of this rank."""
        batches = sequential_batches(rows, budget)
        mine = distributed.shard(batches) if shard else batches
        return (batch.to(self.device) for batch in track(mine, len(rows), lambda batch: len(batch.rows)))

    def _objective(self) -> Objective:
        """Return the loss to train with."""
        return self.task.loss(self)

    # scores

    def _validate(self, examples: Any, rows: Rows) -> dict[str, float]:
        """Return the validation metrics measured during training: the loss per label, and more where that is cheap."""
        total, count = 0.0, 0
        for batch in self._batches(rows):
            total -= float(sequence_log_probs(self.model, batch).sum())
            count += batch.label_count()
        return {"valid_loss": distributed.all_reduce_sum(total) / distributed.all_reduce_sum(count)}

    def _score(self, name: str, examples: Any) -> EvaluationResult:
        """Return every score of one evaluation set."""
        raise NotImplementedError

    def _compare(self, runs: "dict[str, Any]", examples: Any) -> list[ComparisonRow]:
        """Test whether each run differs from the first on these examples."""
        raise UserError(
            f"{self.folder} {self.task.does}, for which there is no paired test; compare the confidence intervals of evaluate"
        )

    def _sign(self, result: EvaluationResult) -> EvaluationResult:
        """Append the run's signature to that of every score."""
        signature = self._signature()
        result.scores = {
            metric: replace(score, signature=f"{score.signature}|{signature}") for metric, score in result.scores.items()
        }
        return result

    def _signature(self) -> str:
        decode, engine = self.recipe.decode, OWN_ENGINE if self._engine is None else self._engine.name
        search = f"beam:{decode.beam}|alpha:{decode.length_penalty}|" if self.task.searches else ""
        precision = "" if self._precision == "fp32" else f"|precision:{self._precision}"
        recipes = "+".join(run.recipe.digest() for run in (self, *self._ensemble))
        return f"{search}recipe:{recipes}|engine:{engine}{precision}|hardware:{hardware(self.device)}"

    def _perplexity(self, examples: Examples) -> Score:
        """Return the perplexity per label; there is one label per token."""
        return self._rows_perplexity(self._evaluation_rows(examples))

    def _rows_perplexity(self, rows: Rows) -> Score:
        log_p, counts = np.zeros(len(rows)), np.zeros(len(rows))
        for batch in self._batches(rows, self.recipe.decode.batch_tokens):
            log_p[batch.rows] = sequence_log_probs(self._predictor, batch).cpu()
            counts[batch.rows] = [int(labels.ge(0).sum()) for labels in batch.labels]
        return perplexity(distributed.all_reduce_sum(log_p), distributed.all_reduce_sum(counts))

    @torch.no_grad()
    def _logits(self, rows: Rows) -> Tensor:
        """Return the logits (N, C) of a model that has one output per row."""
        found: list[Any] = [None] * len(rows)
        for batch in self._batches(rows):
            for row, logits in zip(batch.rows, self.model(**batch.inputs).float().tolist()):
                found[row] = logits
        return torch.tensor(distributed.merge_shards(found)) if found else torch.zeros(0, 1)

    @property
    def _image_encoder(self) -> tuple[Any, Any]:
        """The module that reads images, and its settings."""
        return self.model.encoder, self.recipe.model

    # one text -> inputs

    @property
    def _attends(self) -> bool:
        """Whether the model has attention to show: to the source, if it has one."""
        return bool(attention_modules(self.model, kinds="cross" if self.task.encoder_decoder else None))

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts; one longer than the model takes is an error, or truncated where the recipe says so."""
        found, max_length, added = self.tokenizers[0].encode(texts), self.recipe.model.max_length, self._special_tokens.num_added
        for number, ids in enumerate(found, start=1):
            if len(ids) + added > max_length and self.recipe.data.too_long == "error":
                raise UserError(f"line {number} has {len(ids) + added} tokens, the model takes {max_length}; split the sentence")
        return [ids[: max_length - added] for ids in found]

    def _inputs(self, text: Any) -> dict[str, Tensor]:
        """Return the model's inputs for one text or image, as a batch of one."""
        if self.task.reads == ("image",):
            return self._images.inputs(text)
        (ids,) = self._ids([text])
        if not ids:
            raise UserError("the text is empty: there is nothing to show")
        return encoder_inputs(Ragged.from_rows([ids]), self._special_tokens)

    def _forward(self, inputs: dict[str, Tensor]) -> Any:
        """Run the model on what `_inputs` returns."""
        return self.model(**inputs)

    def _input_name(self, inputs: dict[str, Tensor]) -> str:
        """Return the name of the input that a user gave: a text or an image, not what is written about it."""
        return next(name for name in ("pixels", "source", "target") if name in inputs)

    def _side_tokens(self, inputs: dict[str, Tensor]) -> TokensBySide:
        """Return the tokens of each side of what `_inputs` returns, as they are shown."""
        from regard.tasks.shared.images import patch_grid

        name = self._input_name(inputs)
        source: SideTokens = (
            {"patches": list(patch_grid(self))} if name == "pixels" else [self.tokenizers[0].labels(inputs[name][0].tolist())]
        )
        if name == "target" or "target" not in inputs:
            return {"text": source}
        tokenizer, target = self.tokenizers[-1], inputs["target"][0].tolist()
        predicted = tokenizer.labels(self._predicted(inputs))
        return {"source": source, "target": [tokenizer.labels(target)], "predicted": [predicted]}

    def _predicted(self, inputs: dict[str, Tensor]) -> list[int]:
        """Return the token that each position of the target predicts, of an encoder–decoder that reads its own output."""
        return [*inputs["target"][0, 1:].tolist(), self._special_tokens.eos]

    def _continue(self, text: str, max_tokens: int) -> tuple[list[int], list[int]]:
        """Return the tokens of a prompt and of its continuation, with the end token if that stopped it."""
        raise NotImplementedError

    def _causal_inputs(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """Return the inputs of a language model that reads these tokens."""
        return {"target": torch.tensor([list(ids)], device=self.device)}
