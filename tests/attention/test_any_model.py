"""`watch` sees the attention of models that others wrote, without changing one bit of their output.

Every row of the table in docs/any-model.md is a test: `python tests/attention/test_any_model.py` writes the table. timm,
torchvision, open_clip and diffusers come from a folder of their own (`make dev` installs it): torchvision's wheel needs its
compiled operators only for detection, and transformers would import it wherever it finds it.
"""

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.edit import edit
from regard.attention.watch import watch

transformers = pytest.importorskip("transformers")
PAGE = Path(__file__).parents[2] / "docs" / "any-model.md"
START, END = "<!-- start of the table -->", "<!-- end of the table -->"

BLOCK = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=99)
GROUPED = BLOCK | dict(num_key_value_heads=2)
WIDE = GROUPED | dict(head_dim=8)
GPT = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=99)
T5 = dict(d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=48, vocab_size=99, decoder_start_token_id=0)
PAIR = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
PAIR |= dict(encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=99, pad_token_id=0, decoder_start_token_id=2)
IMAGE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4)
DISENTANGLED = BLOCK | dict(relative_attention=True, pos_att_type=["c2p", "p2c"])
NO_TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
TRANSFORMERS: dict[str, dict] = {
    "albert": BLOCK | dict(embedding_size=32),
    "bart": PAIR,
    "beit": IMAGE,
    "bert": BLOCK,
    "blenderbot": PAIR,
    "bloom": dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=99),
    "camembert": BLOCK,
    "codegen": GPT | dict(rotary_dim=4),
    "cohere": BLOCK,
    "ctrl": GPT | dict(dff=48),
    "deberta": DISENTANGLED,
    "deberta-v2": DISENTANGLED | dict(position_buckets=8),
    "deit": IMAGE,
    "dinov2": IMAGE,
    "distilbert": dict(dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=99),
    "electra": BLOCK | dict(embedding_size=32),
    "ernie": BLOCK,
    "gemma": WIDE,
    "gemma2": WIDE,
    "gemma3_text": WIDE | dict(sliding_window=4),
    "gpt2": GPT,
    "gpt_neo": BLOCK | dict(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]),
    "gpt_neox": BLOCK,
    "gpt_oss": WIDE | dict(num_local_experts=2, num_experts_per_tok=1),
    "gptj": GPT | dict(rotary_dim=4),
    "granite": BLOCK,
    "llama": GROUPED,
    "m2m_100": PAIR,
    "marian": PAIR,
    "mbart": PAIR,
    "megatron-bert": BLOCK,
    "mistral": GROUPED | dict(sliding_window=3),
    "mixtral": GROUPED | dict(num_local_experts=2),
    "modernbert": BLOCK | dict(pad_token_id=0),
    "mpnet": BLOCK,
    "mpt": dict(d_model=32, n_layers=2, n_heads=4, vocab_size=99),
    "mt5": T5,
    "olmo2": BLOCK,
    "opt": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, vocab_size=99, word_embed_proj_dim=32),
    "pegasus": PAIR,
    "persimmon": BLOCK,
    "phi": BLOCK,
    "phi3": BLOCK | dict(pad_token_id=0),
    "qwen2": GROUPED,
    "qwen3": WIDE,
    "roberta": BLOCK,
    "roformer": BLOCK | dict(embedding_size=32),
    "smollm3": GROUPED | NO_TOKENS,
    "starcoder2": GROUPED,
    "swin": dict(embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=2, image_size=16, patch_size=2),
    "t5": T5,
    "umt5": T5,
    "vit": IMAGE,
    "xlm": dict(vocab_size=99, emb_dim=32, n_layers=2, n_heads=4),
    "xlm-roberta": BLOCK,
    "xlnet": dict(vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=48),
}
"""The settings of tiny models of transformers, by `model_type`."""


@dataclass
class Trial:
    """A model with its inputs, and a function that returns the weights by which its own library says it attends."""

    model: nn.Module
    run: Callable[[], Tensor]
    own_weights: Callable[[], list[Tensor]]
    path: str
    """How the model attends: the function that `watch` sees."""


def transformers_trial(name: str) -> Trial:
    config = transformers.AutoConfig.for_model(name, **TRANSFORMERS[name])
    model = transformers.AutoModel.from_config(config).eval()
    ids = torch.randint(3, 99, (2, 7))
    if "image_size" in TRANSFORMERS[name]:
        inputs = {"pixel_values": torch.randn(2, 3, 16, 16)}
    else:
        mask = torch.ones_like(ids)
        mask[1, 5:] = 0  # the second text is padded
        inputs = {"input_ids": ids, "attention_mask": mask}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids[:, :5]

    def own_weights() -> list[Tensor]:
        model.set_attn_implementation("eager")
        output = model(**inputs, output_attentions=True)
        names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
        return [layer for name in names for layer in output.get(name) or ()]

    return Trial(model, lambda: model(**inputs)[0], own_weights, config._attn_implementation)


def foreign(name: str):
    """Import a library of images from the folder that `make dev` keeps apart."""
    folder = str(Path(sys.prefix) / "foreign")
    if folder not in sys.path:
        sys.path.append(folder)
    declare_operators()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{error}; make dev installs it")


@cache
def declare_operators() -> torch.library.Library:
    """Declare the operators that torchvision's Python expects of its compiled part, which needs a matching build of torch."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def multihead_weights(model: nn.Module, run: Callable[[], Tensor]) -> list[Tensor]:
    """Return what every nn.MultiheadAttention gives with `need_weights=True`, for the inputs that it gets."""
    found: list[Tensor] = []

    def ask(module: nn.MultiheadAttention, args, kwargs, output) -> None:
        found.append(module.forward(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})[1])

    hooks = [
        module.register_forward_hook(ask, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
    ]
    run()
    for hook in hooks:
        hook.remove()
    return found


def torch_trial(name: str) -> Trial:
    x, y = torch.randn(2, 7, 32), torch.randn(2, 5, 32)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    layer = dict(d_model=32, nhead=4, dim_feedforward=48, batch_first=True)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    if name == "MultiheadAttention":
        model = nn.MultiheadAttention(32, 4, batch_first=True)
        run = lambda: model(x, x, x, key_padding_mask=padding)[0]  # noqa: E731
    elif name == "TransformerEncoder":
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2, enable_nested_tensor=False)
        run = lambda: model(x, src_key_padding_mask=padding)  # noqa: E731
    elif name == "TransformerDecoder":
        model = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2)
        run = lambda: model(y, x, tgt_mask=causal, memory_key_padding_mask=padding)  # noqa: E731
    else:
        model = nn.Transformer(32, 4, 2, 2, 48, batch_first=True)
        run = lambda: model(x, y, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding)  # noqa: E731
    model.eval()
    return Trial(model, run, lambda: multihead_weights(model, run), "MultiheadAttention")


def timm_trial(name: str) -> Trial:
    sizes = dict(img_size=32, num_classes=3)
    small = {
        "vit_tiny_patch16_224": dict(patch_size=8, embed_dim=32, depth=2, num_heads=4),
        "deit3_small_patch16_224": dict(patch_size=8, embed_dim=32, depth=2, num_heads=4),
        "eva02_tiny_patch14_224": dict(patch_size=8, embed_dim=32, depth=2, num_heads=4),
        "swin_tiny_patch4_window7_224": dict(patch_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 4), window_size=4),
        "beit_base_patch16_224": dict(patch_size=8, embed_dim=32, depth=2, num_heads=4),
    }[name]
    model = foreign("timm").create_model(name, pretrained=False, **sizes, **small).eval()
    image = torch.randn(2, 3, 32, 32)

    def own_weights() -> list[Tensor]:
        found: list[Tensor] = []
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False
                module.attn_drop.register_forward_hook(lambda module, args, output: found.append(args[0]))
        model(image)
        return found

    return Trial(model, lambda: model(image), own_weights, "sdpa")


def torchvision_trial(name: str) -> Trial:
    models = importlib.import_module("torchvision.models") if foreign("torchvision") else None
    image = torch.randn(2, 3, 32, 32)
    if name == "VisionTransformer":
        model = models.VisionTransformer(32, 8, 2, 4, 32, 48, num_classes=3).eval()
        return Trial(model, lambda: model(image), lambda: multihead_weights(model, lambda: model(image)), "MultiheadAttention")
    model = models.SwinTransformer([4, 4], 16, [1, 1], [2, 4], [4, 4], num_classes=3).eval()
    return Trial(model, lambda: model(image), lambda: softmaxes(lambda: model(image)), "softmax")


def softmaxes(run: Callable[[], Tensor], dims: int = 4) -> list[Tensor]:
    """Return the result of every softmax over as many dimensions that a model computes."""
    found: list[Tensor] = []

    class Collect(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            output = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") == "softmax" and output.dim() == dims:
                found.append(output)
            return output

    with Collect():
        run()
    return found


def open_clip_trial(name: str) -> Trial:
    clip = foreign("open_clip")
    vision = clip.CLIPVisionCfg(layers=2, width=32, head_width=8, patch_size=8, image_size=32)
    model = clip.CLIP(16, vision, clip.CLIPTextCfg(context_length=7, vocab_size=99, width=32, heads=4, layers=2)).eval()
    image, ids = torch.randn(2, 3, 32, 32), torch.randint(3, 99, (2, 7))

    def run() -> Tensor:
        return torch.cat(model(image, ids)[:2])

    return Trial(model, run, lambda: multihead_weights(model, run), "MultiheadAttention")


def x_transformers_trial(name: str) -> Trial:
    library = pytest.importorskip("x_transformers")
    layers = library.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, attn_flash=name == "flash")
    model = library.TransformerWrapper(num_tokens=99, max_seq_len=16, attn_layers=layers).eval()
    ids = torch.randint(3, 99, (2, 7))

    def own_weights() -> list[Tensor]:
        if name == "flash":
            for module in model.modules():
                if hasattr(module, "flash"):
                    module.flash = False
        return softmaxes(lambda: model(ids))

    return Trial(model, lambda: model(ids), own_weights, "sdpa" if name == "flash" else "softmax")


def diffusers_trial(name: str) -> Trial:
    """A text-conditioned U-Net, as in Stable Diffusion: self- and cross-attention over a grid of pixels."""
    library = foreign("diffusers")
    model = library.UNet2DConditionModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    ).eval()
    image, text = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 16)

    def own_weights() -> list[Tensor]:
        processors = importlib.import_module("diffusers.models.attention_processor")
        model.set_attn_processor(processors.AttnProcessor())  # written out, heads folded into the batch
        return [weights.unflatten(0, (2, 4)) for weights in softmaxes(lambda: model(image, 1, text)[0], dims=3)]

    return Trial(model, lambda: model(image, 1, text)[0], own_weights, "sdpa")


def sentence_transformers_trial(name: str) -> Trial:
    """A BERT with mean pooling, run by the library itself."""
    pytest.importorskip("sentence_transformers")
    package = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    library = importlib.import_module("sentence_transformers")
    bert = transformers_trial("bert")

    class TinyTransformer(nn.Module):
        """The library's own module reads a folder; this one holds the tiny model."""

        def __init__(self):
            super().__init__()
            self.auto_model = bert.model

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            states = self.auto_model(input_ids=features["input_ids"], attention_mask=features["attention_mask"])[0]
            return features | {"token_embeddings": states}

    model = library.SentenceTransformer(modules=[TinyTransformer(), package.Pooling(32)], device="cpu").eval()
    features = {"input_ids": torch.randint(3, 99, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)}

    def own_weights() -> list[Tensor]:
        bert.model.set_attn_implementation("eager")
        return list(bert.model(**features, output_attentions=True).attentions)

    return Trial(model, lambda: model(dict(features))["sentence_embedding"], own_weights, "sdpa")


class WrittenByHand(nn.Module):
    """Two layers of causal attention in one module: a layer with bmm over folded heads, and one with einsum."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.first, self.second = 4, nn.Linear(32, 96), nn.Linear(32, 96)
        self.weights: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        hidden = torch.ones(T, T).triu(1).bool()
        q, k, v = (part.view(B, T, 4, 8).transpose(1, 2).reshape(B * 4, T, 8) for part in self.first(x).chunk(3, -1))
        weights = F.dropout(torch.baddbmm(torch.zeros(1), q, k.mT, alpha=8**-0.5).masked_fill(hidden, -1e9).softmax(-1), 0.0)
        x = x + torch.bmm(weights, v).view(B, 4, T, 8).transpose(1, 2).reshape(B, T, D)
        q, k, v = (part.view(B, T, 4, 8) for part in self.second(x).chunk(3, -1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
        again = torch.softmax(scores.masked_fill(hidden, -1e9), dim=-1)
        self.weights = [weights.view(B, 4, T, T), again]
        return x + torch.einsum("bhqk,bkhd->bqhd", again, v).reshape(B, T, D)


class AdditiveByHand(nn.Module):
    """Bahdanau attention as tutorials write it: a softmax over (B, S), multiplied with the states and summed."""

    def __init__(self):
        super().__init__()
        self.score, self.weights = nn.Linear(64, 1), torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        steps = []
        for query in x.unbind(1):
            energy = self.score(torch.cat([x, query[:, None].expand_as(x)], -1).tanh()).squeeze(-1)
            self.weights = F.softmax(energy, dim=1)  # (B, S)
            steps.append((self.weights.unsqueeze(2) * x).sum(1) if len(steps) % 2 else (self.weights.unsqueeze(1) @ x)[:, 0])
        return torch.stack(steps, 1)


def hand_written_trial(name: str) -> Trial:
    model, x = (WrittenByHand() if name == "bmm and einsum" else AdditiveByHand()).eval(), torch.randn(2, 7, 32)

    def own_weights() -> list[Tensor]:
        model(x)
        return model.weights if name == "bmm and einsum" else [model.weights[:, None, None]]

    return Trial(model, lambda: model(x), own_weights, "softmax")


LIBRARIES: dict[str, tuple[Callable[[str], Trial], tuple[str, ...]]] = {
    "transformers": (transformers_trial, tuple(TRANSFORMERS)),
    "torch.nn": (torch_trial, ("MultiheadAttention", "TransformerEncoder", "TransformerDecoder", "Transformer")),
    "timm": (
        timm_trial,
        (
            "vit_tiny_patch16_224",
            "deit3_small_patch16_224",
            "eva02_tiny_patch14_224",
            "beit_base_patch16_224",
            "swin_tiny_patch4_window7_224",
        ),
    ),
    "torchvision": (torchvision_trial, ("VisionTransformer", "SwinTransformer")),
    "open_clip": (open_clip_trial, ("CLIP",)),
    "x-transformers": (x_transformers_trial, ("flash", "written out")),
    "diffusers": (diffusers_trial, ("UNet2DConditionModel",)),
    "sentence-transformers": (sentence_transformers_trial, ("bert with mean pooling",)),
    "by hand": (hand_written_trial, ("bmm and einsum", "additive")),
}
ROWS = [(library, name) for library, (_, names) in LIBRARIES.items() for name in names]


def measure(library: str, name: str) -> tuple[str, int, bool, float]:
    """Return how a model attends, the number of places found, whether its output is the same to the bit, and the largest
    difference from the weights that its own library gives."""
    torch.manual_seed(0)
    trial = LIBRARIES[library][0](name)
    with torch.set_grad_enabled(trial.path == "MultiheadAttention"):  # without gradients, torch.nn takes a fused path
        plain = trial.run()
        with watch(trial.model) as seen:
            watched = trial.run()
        own = trial.own_weights()
    recorded = [call.parts["weights"] for place in seen.names() for call in seen.recorded(place)]
    assert len(recorded) >= len(own) > 0

    def distance(one: Tensor, other: Tensor) -> float:
        return (one.float() - other).abs().max().item() if one.shape == other.shape else 9.0

    differences = [min(distance(expected, weights) for weights in recorded) for expected in own]
    return trial.path, len(seen.names()), torch.equal(plain, watched), max(differences)


@pytest.mark.parametrize(("library", "name"), ROWS)
def test_watching_another_librarys_model_changes_nothing_and_gives_its_own_weights(library, name):
    _, places, unchanged, difference = measure(library, name)
    assert places > 0 and unchanged and difference < 1e-5, (places, unchanged, difference)


def test_the_fused_inference_path_of_torch_is_left_with_a_warning():
    """It calls no attention that could be seen; the output then differs by rounding."""
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 7, 32)
    with torch.no_grad():
        plain = model(x)
        with pytest.warns(UserWarning, match="fused inference path"), watch(model) as seen:
            watched = model(x)
    torch.testing.assert_close(watched, plain)
    assert seen.names() == ["layers.0.self_attn", "layers.1.self_attn"]


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "gptj", "bloom"])
def test_edit_of_one_head_equals_zeroing_its_slice_of_the_output_projection(name):
    """The projection after attention reads the heads side by side, whoever wrote the model."""
    torch.manual_seed(0)
    trial = transformers_trial(name)
    place, projection = {
        "bert": ("encoder.layer.1.attention.self", "encoder.layer.1.attention.output.dense"),
        "gpt2": ("h.1.attn", "h.1.attn.c_proj"),
        "t5": ("decoder.block.1.layer.1.EncDecAttention", "decoder.block.1.layer.1.EncDecAttention.o"),
        "gptj": ("h.1.attn", "h.1.attn.out_proj"),
        "bloom": ("h.1.self_attention", "h.1.self_attention.dense"),
    }[name]
    with torch.no_grad():
        plain = trial.run()
        with edit(trial.model, lambda _, weights: weights * 0, heads=[2], kinds=f"^{place}$"):
            edited = trial.run()
        with edit(trial.model, lambda _, weights: weights):
            torch.testing.assert_close(trial.run(), plain)
        weight = trial.model.get_submodule(projection).weight  # GPT-2's is transposed: (in, out)
        (weight[16:24] if name == "gpt2" else weight[:, 16:24]).zero_()
        torch.testing.assert_close(trial.run(), edited)
    assert (edited - plain).abs().max() > 1e-4


def table() -> str:
    """Return the table of docs/any-model.md."""
    lines = ["| library | architecture | sees | places | output unchanged | largest difference |", "|---|---|---|---|---|---|"]
    for library, name in ROWS:
        path, places, unchanged, difference = measure(library, name)
        below = next(power for power in (0, 1e-8, 1e-7, 1e-6, 1e-5, 1.0) if difference <= power)
        close = "0" if below == 0 else f"< {below:.0e}"
        lines.append(f"| {library} | {name} | {path} | {places} | {'yes' if unchanged else 'no'} | {close} |")
    return "\n".join(lines)


def test_the_table_of_the_docs_lists_every_architecture():
    text = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \| [1-9]\d* \| yes \|", text, re.MULTILINE)
    assert listed == ROWS, "write it again: python tests/attention/test_any_model.py"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(f"{before}{START}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
