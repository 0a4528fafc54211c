"""The bilingual world: determinism, splits, alignments, antecedents, and German grammar."""

import re
from itertools import islice, pairwise
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.worlds.bilingual import (
    LEVELS,
    PRONOUN_GENDER,
    SPLITS,
    SentencePair,
    assign_split,
    count_sentences,
    equal_except_pronouns,
    generate,
    iterate_sentences,
    pronoun_baselines,
    pronouns_correct,
    sentence_text,
    write,
)
from regard.worlds.coreference import fitting_classes, pronoun_templates
from regard.worlds.inflection import AUXILIARIES
from regard.worlds.lexicon import lexicon, read_table

NUMBER = 5000
CASES = ("nominative", "accusative", "dative")
FIRST = [
    "The cat finds the new coat in the house, although my young woman must renovate it.",
    "My girl must see the small child whom the queen saw.",
]


@pytest.fixture(scope="module", params=LEVELS)
def level(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def pairs(level) -> list[SentencePair]:
    return generate(NUMBER, 1, level=level)


@pytest.fixture(scope="module")
def full() -> list[SentencePair]:
    return generate(4000, 3, level=3)


def bare(text: str) -> list[str]:
    return [word.strip(".,") for word in text.split()]


# --- determinism, distinct sentences, disjoint splits ---------------------------------------------------------------


def test_generation_is_a_function_of_the_seed(level, pairs):
    assert generate(NUMBER, 1, level=level) == pairs
    assert generate(100, 2, level=level) != pairs[:100]


def test_first_sentences_of_a_seed_never_change():
    """Changing these lines would change everyone's test data."""
    assert [pair.source for pair in generate(2, 1, level=1)] == FIRST


def test_smaller_number_is_a_prefix_of_a_larger_one(level, pairs):
    assert generate(777, 1, level=level) == pairs[:777]


def test_sentences_are_distinct(pairs):
    assert len({pair.source for pair in pairs}) == NUMBER


def test_splits_are_disjoint_for_all_seeds(level):
    texts = [{pair.source for seed in (1, 2, 3) for pair in generate(300, seed, level=level, split=split)} for split in SPLITS]
    assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]


def test_splits_have_the_expected_fractions():
    found = [assign_split(str(n)) for n in range(16000)]
    assert 800 < found.count("valid") < 1200 and 800 < found.count("test") < 1200


def test_every_english_sentence_has_one_translation(level):
    german: dict[str, str] = {}
    for ours, theirs, _ in islice(iterate_sentences(level, 2), 25000):
        text = sentence_text(theirs)
        assert german.setdefault(sentence_text(ours), text) == text


def test_no_verb_form_is_ambiguous_between_present_and_past():
    """ "The women read the letters" would be lesen or lasen."""
    assert not any("lasen" in bare(sentence_text(theirs)) for _, theirs, _ in islice(iterate_sentences(1, 3), 10000))


def test_level_three_has_over_ten_million_sentences():
    assert count_sentences(1) > 500_000 and count_sentences(3) > count_sentences(2) > 10_000_000
    drawn = [sentence_text(ours) for ours, _, _ in islice(iterate_sentences(3, 5), 60000)]
    repeated = len(drawn) - len(set(drawn))
    assert repeated < len(drawn) ** 2 / 2 / 10_000_000  # what ten million equally likely sentences would repeat


def test_sentence_count_is_over_distinct_words(level):
    """The product in count_sentences() is exact only if no two entries have the same English."""
    words = lexicon(level)
    names = [name for listed in words.nouns.values() for noun in listed for name in (noun.singular, noun.plural) if name]
    assert len(names) == len(set(names))
    for adjectives in words.adjectives.values():
        assert len({a.english for a in adjectives}) == len(adjectives)
    for kind in ("person", "animal"):
        acts = [(verb.base, verb.particle, thing) for verb in words.acting["transitive", kind] for thing in verb.objects]
        assert len(acts) == len(set(acts))


# --- alignments and antecedents ----------------------------------------------------------------------------------------------


def test_alignments_are_in_range_and_cover_every_word(pairs):
    """In this world every word of both languages is aligned."""
    for pair in pairs:
        ours, theirs = len(pair.source.split()), len(pair.target.split())
        assert {a for a, _ in pair.alignment} == set(range(ours)), pair
        assert {b for _, b in pair.alignment} == set(range(theirs)), pair
        assert len(set(pair.alignment)) == len(pair.alignment)


def test_aligned_nouns_and_numbers_translate_each_other(level, pairs):
    words = lexicon(level)
    listed = [noun for ns in words.nouns.values() for noun in ns]
    german = {noun.singular: {noun.forms[case, noun.gender] for case in CASES} for noun in listed}
    german |= {noun.plural: {noun.forms[case, "p"] for case in CASES} for noun in listed if noun.plural}
    numbers = {ours: {theirs} for ours, theirs in words.numbers}
    ambiguous = {verb.base for vs in words.verbs.values() for verb in vs} | {"saw"}  # to water the plants, to saw
    for pair in pairs:
        ours, theirs = bare(pair.source), bare(pair.target)
        for a, b in pair.alignment:
            word = ours[a].lower() if a == 0 else ours[a]
            allowed = numbers.get(word) or (german.get(word) if word not in ambiguous else None)
            assert allowed is None or theirs[b] in allowed or theirs[b].lower() in allowed, (pair, ours[a], theirs[b])


def test_both_parts_of_a_separated_verb_are_aligned():
    met = 0
    for pair in generate(3000, 4, level=1):
        ours, theirs = bare(pair.source), bare(pair.target)
        for verb in (at for at, word in enumerate(ours) if word in {"opens", "closed"}):
            said = [theirs[b] for a, b in pair.alignment if a == verb]
            met += len(said) == 2
            assert said in (
                ["macht", "auf"],
                ["machte", "zu"],
                ["machten", "zu"],
                ["aufmacht"],
                ["zumachte"],
                ["zumachten"],
                ["zugemacht"],
            ), pair
    assert met > 5


def test_a_third_of_the_sentences_contain_it(pairs):
    assert 0.25 < sum(bool(pair.pronouns) for pair in pairs) / NUMBER < 0.35
    for pair in pairs:
        assert bare(pair.source).count("it") == len(pair.pronouns)


def test_pronouns_agree_in_gender_with_their_antecedent(level, pairs):
    gender = {noun.forms[case, noun.gender]: noun.gender for ns in lexicon(level).nouns.values() for noun in ns for case in CASES}
    seen = set()
    for pair in pairs:
        ours, theirs = bare(pair.source), bare(pair.target)
        for pronoun in pair.pronouns:
            seen.add(pronoun.form)
            assert ours[pronoun.source] == "it" and theirs[pronoun.target] == pronoun.form
            assert gender[theirs[pronoun.antecedent_target]] == PRONOUN_GENDER[pronoun.form], pair
            assert (pronoun.antecedent_source, pronoun.antecedent_target) in pair.alignment
            assert pronoun.antecedent_source in pronoun.candidates and len(set(pronoun.genders)) == len(pronoun.candidates)
            assert list(pronoun.candidates) == sorted(pronoun.candidates) and pronoun.candidates[-1] < pronoun.source
            meant = pronoun.genders[pronoun.candidates.index(pronoun.antecedent_source)]
            assert meant == PRONOUN_GENDER[pronoun.form]
    assert seen == {"er", "ihn", "sie", "es"}


def test_the_antecedent_is_the_only_candidate_that_fits(level, pairs):
    """Checked on the English text: the word after (or before) "it" is the predicate; the candidates give their classes."""
    words = lexicon(level)
    kind = {noun.singular: noun.kind for ns in words.nouns.values() for noun in ns}
    adjectives = {a.english.split()[0]: a for a in words.predicates if a.kinds != ("person",)}
    doing = {form: verb for verb in words.verbs["it_does"] for form in (verb.third, verb.past, verb.participle)}
    suffering = {f: verb for verb in words.verbs["it_undergoes"] for f in (verb.base, verb.past, verb.participle)}
    for pair in pairs:
        ours = bare(pair.source)
        for pronoun in pair.pronouns:
            after = [word for word in ours[pronoun.source + 1 :] if word not in {"already", "really"}]
            if after and after[0] in {"is", "was"}:
                predicate = adjectives[after[1]]
            elif after and (after[0] in doing or after[0] in {"has", "had"}):
                predicate = doing[after[0] if after[0] in doing else after[1]]
            else:
                predicate = suffering[ours[pronoun.source - 1]]
            fitting = [c for c in pronoun.candidates if kind[ours[c]] in (*fitting_classes(predicate), *predicate.marginal)]
            assert fitting == [pronoun.antecedent_source], pair


def test_every_class_of_antecedents_has_nouns_of_every_gender(level):
    for made in pronoun_templates(level).values():
        for kind in {kind for template in made for slot in template.slots for kind in slot}:
            assert all(lexicon(level).gendered[kind, gender] for gender in "mfn"), kind


@pytest.mark.parametrize("split", list(SPLITS))
def test_simple_baselines_do_not_find_the_antecedent(level, split):
    scores = pronoun_baselines(generate(1500, 1, level=level, split=split))
    assert set(scores) == {"nearest noun", "subject", "commonest gender"}
    assert max(scores.values()) <= 0.45, scores


def test_pronouns_are_correct_if_their_sequence_is(pairs):
    pair = next(pair for pair in pairs if pair.pronouns)
    form = pair.pronouns[0].form
    other = "sie" if form != "sie" else "es"
    assert pronouns_correct(pair, pair.target) and pronouns_correct(pair, f"Ja, {form}.")
    assert not pronouns_correct(pair, re.sub(rf"\b{form}\b", other, pair.target))
    assert not pronouns_correct(pair, "") and not pronouns_correct(pair, f"{form} {form}")
    assert equal_except_pronouns(pair.target, re.sub(rf"\b{form}\b", other, pair.target))
    assert not equal_except_pronouns(pair.target, pair.target.split(maxsplit=1)[1])


def test_er_sie_es_ihn_translate_nothing_but_it(pairs):
    assert all(pronouns_correct(pair, pair.target) for pair in pairs)


# --- German grammar, checked against an independent school grammar ----------------------------------

DER = {"m": ("der", "den", "dem"), "f": ("die", "die", "der"), "n": ("das", "das", "dem"), "p": ("die", "die", "den")}
EIN = {"m": ("", "en", "em"), "f": ("e", "e", "er"), "n": ("", "", "em"), "p": ("e", "e", "en")}
DIES = {"m": ("er", "en", "em"), "f": ("e", "e", "er"), "n": ("es", "es", "em"), "p": ("e", "e", "en")}
AFTER_DER = {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en"), "p": ("en", "en", "en")}
AFTER_EIN = {"m": ("er", "en", "en"), "f": ("e", "e", "en"), "n": ("es", "es", "en"), "p": ("en", "en", "en")}
RELATIVES = {"der", "die", "das", "den", "dem"}  # these after a comma may stand alone: "die Ziege, die Würste frisst"
MELTED = {"im": "dem", "ins": "das"}


def readings() -> dict[str, set[tuple[str, int]]]:
    """Each noun form with the genus and case (0, 1, 2) it can be."""
    found: dict[str, set[tuple[str, int]]] = {}
    for row in read_table("nouns"):
        singular, plural = row["german"], row["german_plural"]
        genus = {"der": "m", "die": "f", "das": "n"}[row["article"]]
        oblique = plural if row["declension"] == "weak" else singular
        forms = [(singular, genus, 0), (oblique, genus, 1), (oblique, genus, 2)]
        if plural:
            forms += [(plural, "p", 0), (plural, "p", 1), (plural if plural[-1] in "ns" else plural + "n", "p", 2)]
        for form, *reading in forms:
            found.setdefault(form, set()).add(tuple(reading))
    return found


NOUNS = readings()
STEMS = {row["stem"] for row in read_table("adjectives") if row["use"] == "attributive"}
NUMBERS = {"zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"}


def ending(word: str) -> str | None:
    """The ending of a known adjective."""
    return next((word[len(s) :] for s in STEMS if word.startswith(s) and word[len(s) :] in {"e", "en", "er", "es", "em"}), None)


def agrees(determiner: str, adjective: str | None, genus: str, case: int) -> bool:
    """Whether a determiner ("" for none) and the ending of an adjective go with a genus and a case."""
    if determiner in RELATIVES:
        return determiner == DER[genus][case] and adjective in {None, AFTER_DER[genus][case]}
    for stem, rest in (match for s in ("dies", "jed", "all") if (match := split_stem(determiner, s))):
        return rest == DIES[genus][case] and adjective in {None, AFTER_DER[genus][case]} and (stem != "jed" or genus != "p")
    for _, rest in (match for s in ("unser", "mein", "sein", "ein", "ihr") if (match := split_stem(determiner, s))):
        return rest == EIN[genus][case] and adjective in {None, AFTER_EIN[genus][case]}
    for _, rest in (match for s in ("viel", "einig") if (match := split_stem(determiner, s))):
        return genus == "p" and rest == DIES[genus][case] and adjective in {None, DIES[genus][case]}
    assert determiner == ""
    return adjective in {None, DIES[genus][case]}


def split_stem(word: str, stem: str) -> tuple[str, str] | None:
    rest = word.removeprefix(stem)
    return (stem, rest) if word.startswith(stem) and rest in {"", "e", "en", "em", "er", "es"} else None


def is_determiner(word: str) -> bool:
    stems = ("dies", "jed", "all", "unser", "mein", "sein", "ein", "ihr", "viel", "einig")
    return word in RELATIVES or any(split_stem(word, stem) for stem in stems)


def noun_phrases(text: str):
    """Each noun with what stands before it: (word before, determiner, ending, possible readings)."""
    tokens = ["", "", ""] + [t for word in (text[0].lower() + text[1:]).split() for t in spelt_out(word)]
    for at, token in enumerate(tokens):
        found = NOUNS.get(token.strip(".,"))
        if not found:
            continue
        at -= 1
        adjective = ending(tokens[at])
        at -= adjective is not None
        at -= (numbered := tokens[at] in NUMBERS)
        determiner = tokens[at] if is_determiner(tokens[at]) else ""
        before = tokens[at - 1] if determiner else tokens[at]
        options = {determiner, ""} if before.endswith(",") and determiner in RELATIVES else {determiner}
        yield (
            before,
            determiner,
            adjective,
            {(g, c) for g, c in found for d in options if agrees(d, adjective, g, c) and (g == "p" or not numbered)},
        )


def spelt_out(word: str) -> list[str]:
    return ["in", MELTED[word]] if word in MELTED else [word]


def test_determiner_adjective_and_noun_agree_in_gender_number_and_case(pairs):
    for pair in pairs:
        for _, determiner, adjective, possible in noun_phrases(pair.target):
            assert possible, (pair.target, determiner, adjective)


def test_agreement_checker_rejects_ungrammatical_phrases():
    for text in ("Der Turm sieht das Hund.", "Ein kleine Hund schläft.", "Die zwei alte Männer schlafen.", "Er sieht den Junge."):
        assert not all(possible for *_, possible in noun_phrases(text)), text


@pytest.mark.parametrize(("preposition", "case"), [("mit", 2), ("zwischen", 2), ("für", 1)])
def test_prepositions_govern_their_case(preposition, case, full):
    met = 0
    for pair in full:
        for before, _, _, possible in noun_phrases(pair.target):
            if before == preposition:
                met += 1
                assert case in {c for _, c in possible}, pair.target
    assert met > 20


def test_motion_takes_the_accusative_and_rest_the_dative(full):
    met = 0
    for pair in full:
        moving = re.search(r"\b(into|onto)\b", pair.source)
        resting = re.search(r"\b(sleeps|slept|sits|sat|waits|waited) (in|on|under|behind|next to)\b", pair.source)
        if bool(moving) == bool(resting) or len(re.findall(r"\b(in|im|ins|auf|unter|hinter|neben|vor)\b", pair.target)) != 1:
            continue
        for before, _, _, possible in noun_phrases(pair.target):
            if before in {"in", "auf", "unter", "hinter", "neben"}:
                met += 1
                assert (1 if moving else 2) in {c for _, c in possible}, pair.target
    assert met > 100


def finite_forms() -> set[str]:
    found = {form for aux in AUXILIARIES.values() for form in aux[2:]}
    for verb in (verb for listed in lexicon(3).verbs.values() for verb in listed):
        found |= set(verb.finite.values()) | {verb.prefix + form for form in verb.finite.values()}
    return found


def test_subordinate_clauses_end_with_their_finite_verb(full):
    finite = finite_forms()
    met = 0
    for pair in full:
        for clause in re.findall(r"\b(?:weil|obwohl|dass|während|bevor|sobald) ([^,.]*)[,.]", pair.target):
            met += 1
            assert clause.split()[-1] in finite, pair.target
    assert met > 500


def test_finite_verb_is_second_after_a_fronted_time(full):
    finite = finite_forms()
    times = {"Heute", "Gestern", "Morgen", "Jetzt", "Nachts", "Manchmal"}
    fronted = [words for pair in full if (words := pair.target.split())[0] in times]
    assert len(fronted) > 50
    assert all(words[1] in finite for words in fronted)


def test_a_comma_precedes_every_german_subordinator(pairs):
    for pair in pairs:
        words = pair.target.split()
        for before, word in pairwise(words):
            assert word not in {"weil", "obwohl", "dass", "aber"} or before.endswith(","), pair.target


# --- files and errors ------------------------------------------------------------------------------------------------------


def test_written_files_contain_the_pairs(tmp_path: Path):
    write(tmp_path / "world", 300, 7, 2)
    for split in SPLITS:
        pairs = generate(300 if split == "train" else 200, 7, level=2, split=split)
        files = [tmp_path / "world" / f"{split}.{kind}" for kind in ("en", "de", "align", "antecedents.tsv")]
        ours, theirs, links, table = (file.read_bytes().decode().removesuffix("\n").split("\n") for file in files)
        assert ours == [pair.source for pair in pairs] and theirs == [pair.target for pair in pairs]
        read = [tuple(tuple(map(int, link.split("-"))) for link in line.split()) for line in links]
        assert read == [pair.alignment for pair in pairs]
        rows = [dict(zip(table[0].split("\t"), row.split("\t"))) for row in table[1:]]
        assert len(rows) == sum(len(pair.pronouns) for pair in pairs)
        for row in rows:
            sentence, pronoun = pairs[int(row["line"])], pairs[int(row["line"])].pronouns[0]
            assert bare(sentence.source)[int(row["source"])] == "it"
            assert bare(sentence.target)[int(row["target"])] == row["form"] == pronoun.form
            assert int(row["antecedent_source"]) == pronoun.antecedent_source
            assert int(row["antecedent_target"]) == pronoun.antecedent_target
            assert row["candidates"] == ",".join(map(str, pronoun.candidates)) and row["genders"] == ",".join(pronoun.genders)
    assert "Moses" in (tmp_path / "world" / "README.md").read_text()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"number": 0}, "number = 0"),
        ({"number": -5}, "number = -5"),
        ({"level": 4}, "level = 4"),
        ({"split": "dev"}, "split ="),
        ({"number": 10**13}, "ask for fewer"),
        ({"number": 10**9, "level": 1, "split": "test"}, "ask for fewer"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(asked, named):
    with pytest.raises(UserError, match=re.escape(named)) as caught:
        generate(**{"number": 10, "seed": 1, **asked})
    assert "\n" not in str(caught.value)


def test_pronoun_baselines_need_a_pronoun():
    with pytest.raises(UserError, match="pronoun"):
        pronoun_baselines([pair for pair in generate(50, 1, level=1) if not pair.pronouns])
