"""Text generation: streamed = batched = one by one, stop strings, sampling settings and the command line."""

import json
import sys

import pytest
import torch
from hypothesis import given, settings
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
    """Train a byte-level tokenizer, with which a weak model generates invalid UTF-8."""
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


SAMPLING = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([None, 0.7, 1.5, 4.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "stop": st.lists(st.sampled_from([" ", ".", "e", "en", "er d", "�", "ie al", "t, "]), max_size=2),
        "seed": st.integers(0, 5),
        "max_tokens": st.integers(1, 25),
    }
)


@settings(max_examples=10)
@given(SAMPLING, st.permutations(range(len(PROMPTS))))
def test_streamed_and_batched_generation_equal_one_by_one(run, sampling, order):
    together = run.generate(PROMPTS, **sampling)
    for i in order:
        stream = run.stream(PROMPTS[i], place=i, **sampling)
        pieces = list(stream)
        assert all(pieces) and stream.prompt + "".join(pieces) == together[i].text and "".join(pieces) == together[i].continuation
        assert stream.result.tokens == together[i].tokens
        assert stream.result.score == pytest.approx(together[i].score, abs=1e-3)
        alone = run.generate([PROMPTS[i]], place=i, **sampling)[0]
        assert (alone.text, alone.tokens) == (together[i].text, together[i].tokens)


@given(SAMPLING)
def test_stop_string_truncates_the_generated_text(run, sampling):
    whole = run.generate(PROMPTS, **{**sampling, "stop": []})
    for prompt, one, other in zip(PROMPTS, whole, run.generate(PROMPTS, **sampling)):
        opening = len(one.text) - len(one.continuation)
        raw = run.tokenizers[0].library.decode([*run._encode_prompts([prompt])[0], *one.tokens])
        assert raw.strip() == one.text, "the decoded tokens are the text"
        written = raw.lstrip()[opening:]
        ends = min((written.find(stop) for stop in sampling["stop"] if stop in written), default=None)
        assert other.continuation == (written.rstrip() if ends is None else written[:ends])
        assert other.tokens == one.tokens[: len(other.tokens)]


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "repetition_penalty": 1.5}, {"temperature": 1.5, "stop": "e"}])
def test_generation_score_equals_the_rescored_log_probability(run, settings):
    for prompt, text in zip(PROMPTS, run.generate(PROMPTS, max_tokens=20, **settings)):
        prompt_ids = run._encode_prompts([prompt])[0]
        by_itself = [] if "stop" in settings and "e" in run.tokenizers[0].library.decode(text.tokens) else [EOS]
        with torch.no_grad():
            log_p = run.model(torch.tensor([[*prompt_ids, *text.tokens]])).log_softmax(-1)[0, len(prompt_ids) - 1 :]
        expected = sum(float(log_p[i, token]) for i, token in enumerate([*text.tokens, *by_itself]))
        assert text.score == pytest.approx(expected, abs=1e-3)


def test_row_leaves_the_batch_after_its_stop_string(run, monkeypatch):
    sampling, rows, start, step = dict(max_tokens=12, temperature=3.0), [], type(run.model).start, type(run.model).step
    stop = run.generate(PROMPTS[:2], **sampling)[0].continuation.strip()[:2]
    monkeypatch.setattr(type(run.model), "step", lambda *given: rows.append(len(given[1])) or step(*given))
    monkeypatch.setattr(type(run.model), "start", lambda *given, **more: (start(*given, **more), rows.clear())[0])
    ended = run.generate(PROMPTS[:2], stop=[stop], **sampling)
    assert stop not in ended[0].continuation and len(ended[0].tokens) < 12
    assert sum(rows) - sum(len(text.tokens) for text in ended) == (
        stop not in run.generate(PROMPTS[:2], **sampling)[1].continuation
    )


def test_samples_are_independent_of_number_and_batch_size(run, monkeypatch):
    sampling = dict(temperature=1.5, max_tokens=8, seed=4)
    many = [text.text for found in run.generate(PROMPTS, number=5, **sampling) for text in found]
    assert many[::5] == [text.text for text in run.generate(PROMPTS, **sampling)]
    assert (
        len(set(many[:5])) > 1
        and len({text.text for found in run.generate(["Der"] * 2, number=2, **sampling) for text in found}) == 4
    )
    assert many != [text.text for found in run.generate(PROMPTS, number=5, **{**sampling, "seed": 5}) for text in found]
    monkeypatch.setattr("regard.tasks.language.GENERATE_BATCH", 3)
    assert many == [text.text for found in run.generate(PROMPTS, number=5, **sampling) for text in found]
    assert many[10:15] == [text.text for found in run.generate(PROMPTS[2:3], number=5, place=2, **sampling) for text in found]
    assert many[13] == run.stream(PROMPTS[2], place=2, sample=3, **sampling).prompt + "".join(
        run.stream(PROMPTS[2], place=2, sample=3, **sampling)
    )


def test_repetition_penalty_of_one_has_no_effect(run, monkeypatch):
    before = run.generate(PROMPTS, temperature=1.0)
    monkeypatch.setattr("regard.decoding.sampling.apply_repetition_penalty", None)
    assert run.generate(PROMPTS, temperature=1.0, repetition_penalty=1.0) == before == run.generate(PROMPTS, temperature=1.0)


def test_closing_a_stream_does_not_affect_other_streams(run):
    sampling = dict(temperature=1.0, max_tokens=12, seed=1)
    first, second = run.stream("Der Hund", **sampling), run.stream("Die", place=1, **sampling)
    pieces = [next(first), next(second)]
    assert torch.is_grad_enabled()
    first.close()
    assert list(first) == [] and first.result.text == "Der Hund" + pieces[0]
    assert pieces[1] + "".join(second) == run.generate(["Der Hund", "Die"], **sampling)[1].continuation
    for _ in run.stream("Der Hund", **sampling):
        break
    assert torch.is_grad_enabled() and run.generate(["Der Hund"], **sampling)[0].continuation.startswith(pieces[0])


def test_prompt_longer_than_max_length_is_refused(run):
    long = "Der Hund " * 60
    if run.recipe.model.kind != "transformer":  # recurrent models have no length limit
        assert run.generate([long], max_tokens=2)[0].tokens
        return
    message = r"^prompt 2 has \d+ tokens, and the model takes 48 with what it generates; shorten it$"
    with pytest.raises(UserError, match=message):
        run.generate(["Der", long])
    with pytest.raises(UserError, match=message):
        run.stream(long, place=1)
    words = [" ".join(long.split()[:number]) for number in range(1, 60)]
    fits = [text for text in words if len(run.tokenizers[0].encode([text])[0]) + 1 < 48][-1]
    assert len(run.generate([fits], temperature=3.0)[0].tokens) <= 48 - len(run._encode_prompts([fits])[0])


def test_invalid_sampling_settings_are_refused_by_generate_and_stream(run):
    for write in (run.generate, lambda prompts, **settings: run.stream(prompts[0], **settings)):
        with pytest.raises(UserError, match=r"^temperature = 0: "):
            write(["Der"], temperature=0)


def run_cli(*words, stdin=None):
    result = CliRunner().invoke(cli.app, ["generate", *map(str, words), "--device", "cpu"], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_generate_command_streams_the_same_text(run):
    sampling = ["--temperature", 1, "--seed", 3, "--max-tokens", 12, "--repetition-penalty", 1.1, "--stop", "en", "--stop", "."]
    whole = run_cli(run.folder, *PROMPTS[:2], "-n", "2", *sampling)
    assert len(whole.splitlines()) == 4 and whole == run_cli(run.folder, *PROMPTS[:2], "-n", "2", "--stream", *sampling)
    assert whole == run_cli(run.folder, "-n", "2", *sampling, stdin="\n".join(PROMPTS[:2]))
    assert whole == run_cli(run.folder, "-n", "2", *sampling, "--stream", stdin="\r\n".join(PROMPTS[:2]) + "\n")
    expected = run.generate(["Der Hund"], temperature=1, seed=3, max_tokens=12, repetition_penalty=1.1, stop=["en", "."])[0]
    objects = [json.loads(line) for line in run_cli(run.folder, "Der Hund", "--json", "--stream", *sampling).splitlines()]
    assert all(set(one) == {"piece"} for one in objects[:-1]) and set(objects[-1]) == {"text", "score"}
    assert "Der Hund" + "".join(one["piece"] for one in objects[:-1]) == objects[-1]["text"] == expected.text
    assert json.loads(run_cli(run.folder, "Der Hund", "--json", *sampling)) == objects[-1]


def test_prompts_from_stdin_are_seeded_by_their_line_number(run, monkeypatch):
    sampling = ["--temperature", "1", "--max-tokens", "6"]
    lines = ["Der Hund"] * 5
    whole = run_cli(run.folder, *lines, *sampling)
    assert len(set(whole.splitlines())) > 1
    monkeypatch.setattr("regard.tasks.language.GENERATE_BATCH", 2)
    assert whole == run_cli(run.folder, *sampling, stdin="\n".join(lines))


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
def test_generate_command_streams_one_prompt_on_a_terminal(run, monkeypatch, capsys, words, streams):
    streamed, stream = [], type(run).stream
    monkeypatch.setattr(type(run), "stream", lambda *given, **more: streamed.append(given) or stream(*given, **more))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "argv", ["regard", "generate", str(run.folder), "Der Hund", "--device", "cpu", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code and bool(streamed) == streams
    assert "Der Hund" in capsys.readouterr().out


def test_interrupted_stream_ends_with_a_newline_and_status_130(run, monkeypatch, capsys):
    def interrupted(self, *given, **more):
        yield " a"
        raise KeyboardInterrupt

    monkeypatch.setattr(type(run), "_stream", interrupted)
    monkeypatch.setattr(sys, "argv", ["regard", "generate", str(run.folder), "Der Hund", "--device", "cpu", "--stream"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130 and capsys.readouterr().out == "Der Hund a\n"


@pytest.mark.parametrize(
    "words, message",
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
def test_out_of_range_sampling_options_exit_with_status_2(monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["regard", "generate", "nowhere", "Der Hund", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == 2 and not out and err.startswith(f"regard: {message}") and len(err.splitlines()) == 1


def test_loaded_run_generates_like_the_trained_run(run):
    sampling = dict(temperature=1.0, max_tokens=8, number=2, stop="e")
    assert regard.load(run.folder, device="cpu").generate(PROMPTS, **sampling) == run.generate(PROMPTS, **sampling)
