"""Laws of writing on: a stream is the text, a batch is its texts one by one, a text ends where it is told to."""

import json
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers
from typer.testing import CliRunner

import regard
from regard import cli
from regard.errors import UserError
from regard.run.train import train
from regard.tokens.special_tokens import EOS, SPECIAL_TOKEN_NAMES
from regard.worlds import bilingual

PROMPTS = ["Der Hund", "Die", "", "Die alte Frau sieht", "größer"]
KINDS = {
    "gpt": {"kind": "transformer", "layers": 1, "heads": 4, "feed_forward": 96, "window": 8},
    "recurrent": {"attention": "dot"},
}


def byte_level(folder):
    """Tokens that are bytes: a model that knows little writes much that is no character."""
    library = Library(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIAL_TOKEN_NAMES,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    library.train_from_iterator([pair.target for pair in bilingual.generate(300, 1, level=1)], trainer)
    (folder / "bytes.json").write_text(library.to_str(), encoding="utf-8")
    return {"file": str(folder / "bytes.json")}


@pytest.fixture(scope="module", params=["gpt, bytes", "gpt, wordpiece", "recurrent, bpe"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate")
    model, tokens = request.param.split(", ")
    settings = {
        "task": "language",
        "data": {"world": {"number": 300, "held_out": 20}, "language": "target"},
        "tokens": byte_level(folder) if tokens == "bytes" else {"kind": tokens, "size": 300},
        "model": {"width": 32, "max_length": 48, **KINDS[model]},
        "train": {
            "steps": 40,
            "tokens_per_batch": 1024,
            "evaluate_every": 40,
            "optimizer": {"learning_rate": 1e-2},
            "schedule": {"warmup_steps": 5},
            "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
        },
    }
    return train(settings, folder / "run", device="cpu")


MANNERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([None, 0.7, 1.5, 4.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "stop": st.lists(st.sampled_from([" ", ".", "e", "en", "er d", "�", "ie al", "t, "]), max_size=2),
        "seed": st.integers(0, 5),
        "max_tokens": st.integers(1, 25),
    }
)


@given(MANNERS, st.permutations(range(len(PROMPTS))))
def test_a_stream_is_the_text_and_a_batch_its_texts_one_by_one(run, manner, order):
    together = run.generate(PROMPTS, **manner)
    for i in order:
        writing = run.stream(PROMPTS[i], place=i, **manner)
        pieces = list(writing)
        assert (
            all(pieces) and writing.prompt + "".join(pieces) == together[i].text and "".join(pieces) == together[i].continuation
        )
        assert writing.result.tokens == together[i].tokens
        assert writing.result.score == pytest.approx(together[i].score, abs=1e-3)
        alone = run.generate([PROMPTS[i]], place=i, **manner)[0]
        assert (alone.text, alone.tokens) == (together[i].text, together[i].tokens)


@given(MANNERS)
def test_a_text_is_that_without_stop_strings_up_to_the_first(run, manner):
    whole = run.generate(PROMPTS, **{**manner, "stop": []})
    for prompt, one, other in zip(PROMPTS, whole, run.generate(PROMPTS, **manner)):
        opening = len(one.text) - len(one.continuation)
        raw = run.tokenizers[0].library.decode([*run._encode_prompts([prompt])[0], *one.tokens])
        assert raw.strip() == one.text, "what was always written"
        written = raw.lstrip()[opening:]
        ends = min((written.find(stop) for stop in manner["stop"] if stop in written), default=None)
        assert other.continuation == (written.rstrip() if ends is None else written[:ends])
        assert other.tokens == one.tokens[: len(other.tokens)]


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "repetition_penalty": 1.5}, {"temperature": 1.5, "stop": "e"}])
def test_the_score_is_how_likely_the_model_finds_what_was_written(run, settings):
    for prompt, text in zip(PROMPTS, run.generate(PROMPTS, max_tokens=20, **settings)):
        begun = run._encode_prompts([prompt])[0]
        by_itself = [] if "stop" in settings and "e" in run.tokenizers[0].library.decode(text.tokens) else [EOS]
        with torch.no_grad():
            log_p = run.model(torch.tensor([[*begun, *text.tokens]])).log_softmax(-1)[0, len(begun) - 1 :]
        expected = sum(float(log_p[i, token]) for i, token in enumerate([*text.tokens, *by_itself]))
        assert text.score == pytest.approx(expected, abs=1e-3)


def test_a_row_that_found_its_stop_string_is_not_computed_further(run, monkeypatch):
    draw, rows, start, step = dict(max_tokens=12, temperature=3.0), [], type(run.model).start, type(run.model).step
    stop = run.generate(PROMPTS[:2], **draw)[0].continuation.strip()[:2]
    monkeypatch.setattr(type(run.model), "step", lambda *given: rows.append(len(given[1])) or step(*given))
    monkeypatch.setattr(type(run.model), "start", lambda *given, **more: (start(*given, **more), rows.clear())[0])
    ended = run.generate(PROMPTS[:2], stop=[stop], **draw)
    assert stop not in ended[0].continuation and len(ended[0].tokens) < 12
    assert sum(rows) - sum(len(text.tokens) for text in ended) == (stop not in run.generate(PROMPTS[:2], **draw)[1].continuation)


def test_samples_are_the_same_however_many_and_in_whatever_batch(run, monkeypatch):
    draw = dict(temperature=1.5, max_tokens=8, seed=4)
    many = [text.text for text in run.generate(PROMPTS, number=5, **draw)]
    assert many[::5] == [text.text for text in run.generate(PROMPTS, **draw)]
    assert len(set(many[:5])) > 1 and len({text.text for text in run.generate(["Der"] * 2, number=2, **draw)}) == 4
    assert many != [text.text for text in run.generate(PROMPTS, number=5, **{**draw, "seed": 5})]
    monkeypatch.setattr("regard.tasks.language.GENERATE_BATCH", 3)
    assert many == [text.text for text in run.generate(PROMPTS, number=5, **draw)]
    assert many[10:15] == [text.text for text in run.generate(PROMPTS[2:3], number=5, place=2, **draw)]
    assert many[13] == run.stream(PROMPTS[2], place=2, sample=3, **draw).prompt + "".join(
        run.stream(PROMPTS[2], place=2, sample=3, **draw)
    )


def test_a_penalty_of_one_is_none(run, monkeypatch):
    before = run.generate(PROMPTS, temperature=1.0)
    monkeypatch.setattr("regard.decoding.sampling.apply_repetition_penalty", None)
    assert run.generate(PROMPTS, temperature=1.0, repetition_penalty=1.0) == before == run.generate(PROMPTS, temperature=1.0)


def test_a_stream_may_be_left_or_closed_and_others_go_on(run):
    draw = dict(temperature=1.0, max_tokens=12, seed=1)
    first, second = run.stream("Der Hund", **draw), run.stream("Die", place=1, **draw)
    pieces = [next(first), next(second)]
    assert torch.is_grad_enabled()
    first.close()
    assert list(first) == [] and first.result.text == "Der Hund" + pieces[0]
    assert pieces[1] + "".join(second) == run.generate(["Der Hund", "Die"], **draw)[1].continuation
    for _ in run.stream("Der Hund", **draw):
        break
    assert torch.is_grad_enabled() and run.generate(["Der Hund"], **draw)[0].continuation.startswith(pieces[0])


def test_a_prompt_that_leaves_no_room_is_one_line(run):
    long = "Der Hund " * 60
    if run.recipe.model.kind != "transformer":  # it reads on for ever
        assert run.generate([long], max_tokens=2)[0].tokens
        return
    said = r"^prompt 2 has \d+ tokens, and the model takes 48 with what it generates; shorten it$"
    with pytest.raises(UserError, match=said):
        run.generate(["Der", long])
    with pytest.raises(UserError, match=said):
        run.stream(long, place=1)
    words = [" ".join(long.split()[:number]) for number in range(1, 60)]
    fits = [text for text in words if len(run.tokenizers[0].encode([text])[0]) + 1 < 48][-1]
    assert len(run.generate([fits], temperature=3.0)[0].tokens) <= 48 - len(run._encode_prompts([fits])[0])


def test_settings_are_refused_before_anything_is_written(run):
    for write in (run.generate, lambda prompts, **settings: run.stream(prompts[0], **settings)):
        with pytest.raises(UserError, match=r"^temperature = 0: "):
            write(["Der"], temperature=0)


def said(*words, stdin=None):
    result = CliRunner().invoke(cli.app, ["generate", *map(str, words), "--device", "cpu"], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_command_line_streams_what_it_else_writes_at_once(run):
    draw = ["--temperature", 1, "--seed", 3, "--max-tokens", 12, "--repetition-penalty", 1.1, "--stop", "en", "--stop", "."]
    whole = said(run.folder, *PROMPTS[:2], "-n", "2", *draw)
    assert len(whole.splitlines()) == 4 and whole == said(run.folder, *PROMPTS[:2], "-n", "2", "--stream", *draw)
    assert whole == said(run.folder, "-n", "2", *draw, stdin="\n".join(PROMPTS[:2]))
    assert whole == said(run.folder, "-n", "2", *draw, "--stream", stdin="\r\n".join(PROMPTS[:2]) + "\n")
    expected = run.generate(["Der Hund"], temperature=1, seed=3, max_tokens=12, repetition_penalty=1.1, stop=["en", "."])[0]
    objects = [json.loads(line) for line in said(run.folder, "Der Hund", "--json", "--stream", *draw).splitlines()]
    assert all(set(one) == {"piece"} for one in objects[:-1]) and set(objects[-1]) == {"text", "score"}
    assert "Der Hund" + "".join(one["piece"] for one in objects[:-1]) == objects[-1]["text"] == expected.text
    assert json.loads(said(run.folder, "Der Hund", "--json", *draw)) == objects[-1]


def test_prompts_of_standard_input_are_numbered_through(run, monkeypatch):
    draw = ["--temperature", "1", "--max-tokens", "6"]
    lines = ["Der Hund"] * 5
    whole = said(run.folder, *lines, *draw)
    assert len(set(whole.splitlines())) > 1
    monkeypatch.setattr("regard.tasks.language.GENERATE_BATCH", 2)
    assert whole == said(run.folder, *draw, stdin="\n".join(lines))


@pytest.mark.parametrize(
    "words, streams",
    [
        ([], True),
        (["--no-stream"], False),
        (["--json"], False),
        (["Die"], False),
        (["-n", "2", "--temperature", "1"], False),
        (["Die", "--stream"], True),
    ],
)
def test_one_prompt_on_a_terminal_is_streamed(run, monkeypatch, capsys, words, streams):
    streamed, stream = [], type(run).stream
    monkeypatch.setattr(type(run), "stream", lambda *given, **more: streamed.append(given) or stream(*given, **more))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "argv", ["regard", "generate", str(run.folder), "Der Hund", "--device", "cpu", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code and bool(streamed) == streams
    assert "Der Hund" in capsys.readouterr().out


def test_a_stream_that_is_interrupted_ends_its_line(run, monkeypatch, capsys):
    def interrupted(self, *given, **more):
        yield " a"
        raise KeyboardInterrupt

    monkeypatch.setattr(type(run), "_stream", interrupted)
    monkeypatch.setattr(sys, "argv", ["regard", "generate", str(run.folder), "Der Hund", "--device", "cpu", "--stream"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130 and capsys.readouterr().out == "Der Hund a\n"


@pytest.mark.parametrize(
    "words, said",
    [
        (["--temperature", "0"], "temperature = 0.0: "),
        (["--top-p", "1.5"], "top_p = 1.5: "),
        (["--top-k", "-1"], "top_k = -1: "),
        (["--repetition-penalty", "0"], "repetition_penalty = 0.0: "),
        (["--stop", ""], "stop = '': "),
        (["--max-tokens", "0"], "max_tokens = 0: "),
        (["--number", "0"], "number = 0: "),
        (["--number", "2", "--stream"], "number = 2: "),
    ],
)
def test_settings_out_of_range_are_one_line_and_status_2(monkeypatch, capsys, words, said):
    monkeypatch.setattr(sys, "argv", ["regard", "generate", "nowhere", "Der Hund", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == 2 and not out and err.startswith(f"regard: {said}") and len(err.splitlines()) == 1


def test_loaded_again_it_writes_the_same(run):
    draw = dict(temperature=1.0, max_tokens=8, number=2, stop="e")
    assert regard.load(run.folder, device="cpu").generate(PROMPTS, **draw) == run.generate(PROMPTS, **draw)
