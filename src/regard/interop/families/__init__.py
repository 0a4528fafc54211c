"""The supported Hugging Face families, by `model_type`."""

from regard.interop.families.albert import ALBERT, ELECTRA
from regard.interop.families.bart import BART, M2M100, MBART, PEGASUS
from regard.interop.families.bert import BERT, DISTILBERT, ROBERTA, XLM_ROBERTA
from regard.interop.families.clip import CLIP
from regard.interop.families.gemma import GEMMA, GEMMA2, GEMMA3
from regard.interop.families.gpt import GPT, GPT2
from regard.interop.families.llama import LLAMA, MISTRAL
from regard.interop.families.marian import MARIAN
from regard.interop.families.modernbert import MODERNBERT
from regard.interop.families.qwen import QWEN2, QWEN3
from regard.interop.families.t5 import MT5, T5
from regard.interop.families.vit import DEIT, VIT
from regard.interop.family_rules import ModelFamily

FAMILIES: dict[str, ModelFamily] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "distilbert": DISTILBERT,
    "albert": ALBERT,
    "electra": ELECTRA,
    "modernbert": MODERNBERT,
    "gpt2": GPT2,
    "openai-gpt": GPT,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "marian": MARIAN,
    "bart": BART,
    "mbart": MBART,
    "m2m_100": M2M100,
    "pegasus": PEGASUS,
    "t5": T5,
    "mt5": MT5,
    "vit": VIT,
    "deit": DEIT,
    "clip": CLIP,
}
