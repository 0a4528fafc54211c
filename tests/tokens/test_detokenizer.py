"""Laws of the detokenizer: text decoded token by token equals text decoded at once, and no piece is ever taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard.recipe import TokenSettings
from regard.tokens.detokenizer import Detokenizer
from regard.tokens.special_tokens import SPECIAL_TOKEN_NAMES
from regard.tokens.tokenizer import Tokenizer, train_tokenizer

TEXTS = [
    "the dog doesn't sleep, the cat does!",
    "größere Bäume; 漢字 und 日本語 😀",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
] * 3
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def trained(model, trainer, pre_tokenizer, decoder, **options):
    library = Library(model)
    library.pre_tokenizer, library.decoder = pre_tokenizer, decoder
    library.train_from_iterator(TEXTS, trainer(special_tokens=SPECIAL_TOKEN_NAMES, show_progress=False, **options))
    return Tokenizer(library)


def byte_fallback():
    """Like Llama 2: words and spaces as pieces, everything else as bytes."""
    tokens = [*SPECIAL_TOKEN_NAMES, *BYTES, "▁", *"abcdefghijklmnopqrstuvwxyz", "▁▁", "�"]
    numbers = {token: number for number, token in enumerate(tokens)}
    library = Library(models.BPE(numbers, [("▁", "▁")], unk_token="<unk>", byte_fallback=True))
    library.add_special_tokens(SPECIAL_TOKEN_NAMES)
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(library)


MAKE = {
    **{
        kind: lambda kind=kind: train_tokenizer(TokenSettings(kind=kind, size=150), TEXTS)
        for kind in ("bpe", "wordpiece", "unigram", "words", "characters")
    },
    "byte-level": lambda: trained(
        models.BPE(),
        trainers.BpeTrainer,
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ),
    "bert": lambda: trained(
        models.WordPiece(unk_token="<unk>"),
        trainers.WordPieceTrainer,
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
        vocab_size=120,
    ),
    "suffixed": lambda: trained(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
        trainers.BpeTrainer,
        pre_tokenizers.BertPreTokenizer(),
        decoders.BPEDecoder(suffix="</w>"),
        vocab_size=150,
        end_of_word_suffix="</w>",
    ),
    "no decoder": lambda: trained(
        models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer, pre_tokenizers.Whitespace(), None
    ),
    "byte fallback": byte_fallback,
}


@pytest.fixture(scope="module", params=MAKE)
def tokenizer(request):
    return MAKE[request.param]()


def pieces(tokenizer, prompt, ids):
    detokenizer = Detokenizer(tokenizer, prompt)
    return [detokenizer.prompt, *(detokenizer.push(number) for number in ids), detokenizer.flush()]


@given(st.text("abgdo ö漢😀,'!", max_size=8), st.data())
def test_pieces_join_to_the_text_decoded_at_once(tokenizer, text, data):
    """For any ids, also of malformed text; special tokens and ids without a token are skipped."""
    prompt = tokenizer.encode([text])[0]
    few = st.sampled_from(data.draw(st.lists(st.integers(0, tokenizer.size + 1), min_size=1, max_size=4)))
    ids = data.draw(st.lists(st.one_of(st.integers(0, tokenizer.size + 1), few), max_size=25))
    if tokenizer.byte_fallback and prompt and tokenizer.library.id_to_token(prompt[-1]) in BYTES:
        prompt = [*prompt, *tokenizer.encode(["a"])[0]]
    assert "".join(pieces(tokenizer, prompt, ids)) == tokenizer.library.decode([*prompt, *ids])


@given(text=st.text("ab ö漢😀", max_size=20))
def test_no_piece_holds_part_of_a_character(tokenizer, text):
    ids = tokenizer.encode([text])[0]
    said = pieces(tokenizer, [], ids)
    assert "".join(said) == tokenizer.library.decode(ids) and not any("�" in piece for piece in said)


def test_piece_is_emitted_as_soon_as_it_is_certain():
    bytewise, fallback = MAKE["byte-level"](), byte_fallback()
    ids = [bytewise.library.token_to_id(token) for token in ("a", "Ġ", "æ", "¼", "¢", "b")]
    assert pieces(bytewise, [], ids) == ["", "a", " ", "", "", "漢", "b", ""]
    assert pieces(bytewise, [], ids[:4]) == ["", "a", " ", "", "", "�"]
    ids = [fallback.library.token_to_id(token) for token in ("a", "<0xE6>", "<0xBC>", "<0xA2>", "<0xE6>", "b")]
    assert pieces(fallback, [], ids) == ["", "a", "", "", "", "", "����b", ""]  # one wrong byte spoils the run
    assert pieces(fallback, [], ids[:4]) == ["", "a", "", "", "", "漢"]


def test_generated_bytes_do_not_change_the_prompt():
    tokenizer = byte_fallback()
    character, wrong = tokenizer.encode(["漢"])[0][1:], tokenizer.library.token_to_id("<0xE6>")
    assert pieces(tokenizer, character, [wrong]) == ["漢", "", "�"]
    assert pieces(tokenizer, character, character) == ["漢", "", "", "", "漢"]
