"""memories.analysis: the text of a memory and its search terms."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memories.analysis import (
    MAX_TERM,
    STOPWORDS,
    analyze,
    excerpt,
    flatten,
    query_terms,
    search_text,
    term_frequencies,
    title,
)

any_text = st.text(
    st.characters(), max_size=200
)  # Includes lone surrogates, control and unassigned characters.
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


def finds(query: str, text: str) -> bool:
    return bool(set(query_terms(query)) & set(analyze(text)))


@given(any_text)
def test_no_text_raises_and_every_term_can_be_stored(text: str) -> None:
    for term in [*analyze(text), *query_terms(text)]:
        assert 0 < len(term) <= MAX_TERM
        assert "\x00" not in term
        term.encode()


@given(any_text)
def test_term_frequencies_are_sorted_and_add_up(text: str) -> None:
    terms, counts, length = term_frequencies(text)
    assert terms == sorted(set(analyze(text)))
    assert length == sum(counts) == len(analyze(text))
    assert min(counts, default=1) >= 1


@given(any_text)
def test_a_text_with_terms_is_found_by_itself(text: str) -> None:
    assert not query_terms(text) or finds(text, text)


@given(any_text, any_text, st.integers(10, 400))
def test_an_excerpt_is_never_longer_than_asked(text: str, query: str, width: int) -> None:
    assert len(excerpt(text, query, width)) <= width


@given(json_values, any_text, st.lists(any_text, max_size=3))
def test_every_json_value_has_a_text_and_a_title(value: object, key: str, tags: list[str]) -> None:
    assert isinstance(search_text(key, value, tags), str)
    assert len(title(value, key)) <= max(80, len(key))


@given(json_values)
def test_equal_values_have_equal_texts(value: object) -> None:
    again = json.loads(json.dumps(value, sort_keys=True))
    assert flatten(again) == flatten(value)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("running", "He runs every day"),
        ("CAFE", "the café on the corner"),
        ("café", "cafe\u0301"),
        ("istanbul", "İstanbul"),
        ("strasse", "Lange Straße"),
        ("ABC", "ＡＢＣ"),
        ("file", "a \ufb01le"),
        ("Martas", "Marta's bag"),
        ("Marta", "Marta’s bag"),
        ("amour", "l’amour toujours"),
        ("brien", "Conan O'Brien"),
        ("shouldnt", "you shouldn't"),
        ("usa", "made in the U.S.A. in 1980"),
        ("1000", "costs 1,000 euros"),
        ("3.14", "pi is 3.14."),
        ("20230508", "on 2023-05-08"),
        ("email", "an e-mail"),
        ("c++", "we write C++ here"),
        ("R&D", "the R&D team"),
        ("userName", "user_name is set"),
        ("user_name", "getUserName()"),
        ("name", "getUserName()"),
        ("http", "HTTPServer"),
        ("geturlparts", "getURLParts"),
        ("site.py", "/usr/local/lib/python3.11/site.py"),
        ("usr/local/lib/python3.11/site.py", "/usr/local/lib/python3.11/site.py"),
        ("local", "C:\\usr\\local"),
        ("vector", "std::vector"),
        ("example.org", "write to ann@example.org"),
        ("10", "at 10am"),
        ("京タ", "東京タワーに行く"),
        ("京", "東京タワー"),
        ("ชก", "ราชการไทย"),
        ("국어", "한국어는"),
        ("नमस्ते", "वह नमस्ते कहता है"),
        ("🎉", "party 🎉🎉"),
        ("👍", "fine 👍🏽"),
        ("👩", "family 👨‍👩‍👧"),
        ("x", "the axis x"),
    ],
)
def test_a_query_finds_the_text(query: str, text: str) -> None:
    assert finds(query, text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("cat", "concatenate"),
        ("user", "superuser"),
        ("1", "12"),
        ("大阪", "東京"),
        ("us", "he told us"),
        ("🎉", "🎂"),
    ],
)
def test_a_query_does_not_find_another_text(query: str, text: str) -> None:
    assert not finds(query, text)


def test_identifiers_of_every_style_share_their_whole_and_parts() -> None:
    assert analyze("userName") == analyze("user_name") == analyze("user-name") == ["usernam", "user", "name"]


def test_a_hexadecimal_id_is_one_term() -> None:
    assert analyze("9f86d081884c7d659a2feaa0") == ["9f86d081884c7d659a2feaa0"]


def test_stopwords_are_dropped_from_a_query_with_other_terms() -> None:
    assert query_terms("Where is the support group of Marta?") == ["support", "group", "marta"]


@pytest.mark.parametrize("text", ["The Who", "to be or not to be", "THE WHO"])
def test_a_text_of_stopwords_is_found(text: str) -> None:
    assert finds(text, f"Ann likes {text} a lot")
    assert not finds(text, "who likes the music?")


def test_a_stopword_in_capitals_is_a_name() -> None:
    assert finds("US", "moved to the US in May")
    assert finds("WHO guidance", "as the WHO says")


@pytest.mark.parametrize("word", sorted(STOPWORDS))
def test_a_lone_stopword_asks_for_nothing(word: str) -> None:
    assert query_terms(word) == []


def test_long_words_with_equal_beginnings_do_not_collide() -> None:
    one, other = analyze("a" * 500 + "1"), analyze("a" * 500 + "2")
    assert one[0] != other[0]
    assert finds("a" * 500 + "1", "see " + "A" * 500 + "1")


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a.",
        "a_",
        "aB",
        "的",
        "a,",
        "1,000",
        "'",
        "word salad ",
        "e\u0301\u0301",
        "𝒳y.",
        "\ud83d",
        "://",
        "🎉",
        "\x00",
    ],
)
def test_the_largest_value_is_analysed_in_linear_time(unit: str) -> None:
    text = unit * (262_144 // len(unit))
    started = time.process_time()
    analyze(text)
    excerpt(text, "salad a 的")
    assert time.process_time() - started < 5  # Measured: under 0.2 s. Quadratic work would take minutes.


def test_an_object_is_written_out_in_the_order_of_its_names() -> None:
    value = {"b": [1, 2.5, None, True], "a": "hi", "d": {"e": {"f": 0}}}
    assert flatten(value) == "a: hi\nb: 1, 2.5, true\nd: \ne: \nf: 0"
    assert search_text("user/prefs", value, ["t1", "t2"]) == flatten(value) + "\nuser/prefs t1 t2"


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), ("", ""), (0, "0"), (False, "false"), ([], ""), ({}, "")]
)
def test_falsy_values_have_their_own_texts(value: object, text: str) -> None:
    assert flatten(value) == text


def test_nesting_is_not_limited_by_recursion() -> None:
    value: object = "deep"
    for _ in range(10_000):
        value = [value]
    assert flatten(value) == "deep"


def test_a_title_is_the_beginning_of_the_text_or_the_key() -> None:
    assert title("  Ann \n lives  in Paris", "k") == "Ann lives in Paris"
    assert title("x" * 100, "k") == "x" * 80
    assert title({"name": "Ann"}, "k") == "name: Ann"
    assert title(None, "some/key") == title("  ", "some/key") == "some/key"


def test_an_excerpt_shows_the_place_with_most_of_the_query() -> None:
    text = "filler words " * 100 + "the blue whale sings in the deep sea " + "other words " * 100 + "a whale "
    shown = excerpt(text, "whales singing in the sea", 120)
    assert "blue whale sings in the deep sea" in shown
    assert shown.startswith("…")
    assert shown.endswith("…")


def test_an_excerpt_without_a_match_is_the_beginning() -> None:
    assert excerpt("alpha " * 100, "omega", 60).startswith("alpha alpha")


def test_an_excerpt_of_a_script_without_spaces_shows_the_match() -> None:
    assert "東京タワー" in excerpt("日本語" * 200 + "東京タワー" + "日本語" * 200, "東京タワー", 100)


def test_a_short_text_is_its_own_excerpt() -> None:
    assert excerpt("Ann  lives\nin Paris", "Paris") == "Ann lives in Paris"
