"""Metrics; every score has a 95% interval and a signature that says how it was computed."""

from regard.scoring.alignment import (
    alignment_error,
    argmax_links,
    best_head,
    format_moses,
    merge_words,
    parse_moses,
    uniform_alignment_error,
)
from regard.scoring.classification import accuracy, classification_scores, compare_accuracy, grouped_accuracy, perplexity
from regard.scoring.comet import TranslationMetric, open_metric
from regard.scoring.confusion import ClassScores, Confusion
from regard.scoring.correlation import correlation_scores
from regard.scoring.image_metrics import (
    attention_in_boxes,
    box_coverage,
    caption_scores,
    grounding_scores,
    psnr,
    reconstruction_scores,
    retrieval_ranks,
    retrieval_scores,
    sentence_bleu,
    transpose_references,
)
from regard.scoring.score import Score, bootstrap_interval, paired_randomization_test, paired_t_test
from regard.scoring.smoothed_bleu import ReferenceNgrams
from regard.scoring.translation import compare_systems, score_by_length, translation_scores
from regard.scoring.word_overlap import answer_scores, compare_rouge, rouge_scores, score_answer

__all__ = [
    "ClassScores",
    "Confusion",
    "ReferenceNgrams",
    "Score",
    "TranslationMetric",
    "accuracy",
    "alignment_error",
    "answer_scores",
    "argmax_links",
    "attention_in_boxes",
    "best_head",
    "bootstrap_interval",
    "box_coverage",
    "caption_scores",
    "classification_scores",
    "compare_accuracy",
    "compare_rouge",
    "compare_systems",
    "correlation_scores",
    "format_moses",
    "grounding_scores",
    "grouped_accuracy",
    "merge_words",
    "open_metric",
    "paired_randomization_test",
    "paired_t_test",
    "parse_moses",
    "perplexity",
    "psnr",
    "reconstruction_scores",
    "retrieval_ranks",
    "retrieval_scores",
    "rouge_scores",
    "score_answer",
    "score_by_length",
    "sentence_bleu",
    "translation_scores",
    "transpose_references",
    "uniform_alignment_error",
]
