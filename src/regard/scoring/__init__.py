"""Scores that can be trusted: every one comes with the signature of how it was made and a 95% interval."""

from regard.scoring.alignment import (
    alignment_error,
    best_head,
    format_moses,
    links,
    merge_words,
    parse_moses,
    uniform_error,
)
from regard.scoring.answers import answer_scores
from regard.scoring.captions import by_rank, caption_scores, covered, grounding_scores, inside, sentence_bleu
from regard.scoring.classification import label_scores
from regard.scoring.correlation import correlations
from regard.scoring.likelihood import accuracy, compare_right, item_accuracy, perplexity
from regard.scoring.retrieval import retrieval_ranks, retrieval_scores
from regard.scoring.rouge import compare_summaries, summary_scores
from regard.scoring.score import Score, bootstrap
from regard.scoring.translation import compare, score_by_length, translation_scores

__all__ = [
    "Score",
    "accuracy",
    "alignment_error",
    "answer_scores",
    "best_head",
    "bootstrap",
    "by_rank",
    "caption_scores",
    "compare",
    "compare_right",
    "compare_summaries",
    "correlations",
    "covered",
    "format_moses",
    "grounding_scores",
    "inside",
    "item_accuracy",
    "label_scores",
    "links",
    "merge_words",
    "parse_moses",
    "perplexity",
    "retrieval_ranks",
    "retrieval_scores",
    "score_by_length",
    "sentence_bleu",
    "summary_scores",
    "translation_scores",
    "uniform_error",
]
