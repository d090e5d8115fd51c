"""Text analysis for search: what a memory's text is, and which terms stand for it in the keyword leg.

Pure functions: no database, no settings, no I/O. One tokeniser serves both sides: what `term_frequencies`
stores for a text, `query_terms` asks for, so a word is found in the form in which it was written, in
another case, accent or English inflection.

Nothing here raises on any `str`: lone surrogates, control characters and unassigned code points are
separators.

The rule for stopwords ("common grams" in the search engines Nutch and Lucene):
- a stopword alone is no term, unless it is written in capitals, as `US`, `IT` and `WHO` are;
- two stopwords in a row make one term, `the who`, always indexed, and asked for only where a query has
  nothing else.

So "The Who" and "to be or not to be" are found, and no query has to score every row that says "the".
Measured on 2,760 turns of chat: the pairs add 24 % postings, every stopword by itself would add 61 %. A query
such as "who" has no terms: the semantic leg alone serves it.
"""

import hashlib
import json
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Final

MAX_TERM: Final = 64
"""Longest term in characters. A longer one keeps its head and ends in a hash of the whole."""

ENGLISH: Final = "english"
SIMPLE: Final = "simple"
LANGUAGES: Final = (
    ENGLISH, SIMPLE, "arabic", "armenian", "basque", "catalan", "danish", "dutch", "finnish", "french",
    "german", "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali",
    "norwegian", "portuguese", "romanian", "russian", "serbian", "spanish", "swedish", "tamil", "turkish",
)  # fmt: skip
"""What a namespace's text may be said to be: `simple` takes words as they are, the others are stemmed
(Snowball)."""

_HASH_DIGITS: Final = 16
_CACHED_TOKEN: Final = 64
"""Tokens above this length (characters) are analysed afresh each time, so that the cache stays small."""

_TITLE_WIDTH: Final = 80

STOPWORDS: Final = frozenset(
    "a an the this that these those i me my we us our you your he him his she her it its they them their "
    "am is are was were be been being do does did have has had will would shall should can could may might "
    "must and or but if of at by for with to from in on as than then so not no what which who whom whose "
    "when where why how there here im ive id dont didnt doesnt isnt wasnt arent cant wont".split()
)

# Scripts written without spaces between words, and Hangul, whose particles cling to the word: Thai and Lao,
# Myanmar, Hangul Jamo, Khmer, Kana, Bopomofo, Han with its extensions, Hangul syllables.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u318f"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# No combining mark has a higher code point, but for variation selectors, which may be ignored.
_LAST_MARK: Final = 0x1EFFF

_JOINER: Final = r"(?:://|::|[./\\:@&'\-]|(?<=\d),(?=\d{3}(?!\d)))"
_ASCII_TOKEN: Final = re.compile(rf"[A-Za-z](?:\+\+|\#)(?!\w)|\w+(?:{_JOINER}\w+)*", re.ASCII)

_APOSTROPHES: Final = re.compile("[\u2018\u2019\u02bc\uff07]")
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3})")
_PATH_SEPARATOR: Final = re.compile(r"://|[/\\]")
_NAME_SEPARATOR: Final = re.compile(r"::|[.:@&]")
_WORD_SEPARATOR: Final = re.compile(r"[-_']+")
_HUMPS: Final = re.compile(r"\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# With more changes of case or digits than this it is a hash or an id, whose parts nobody searches for.
_MAX_HUMPS: Final = 8
_ACCENTED: Final = re.compile("([a-z])[\u0300-\u036f]+")
_CLITICS: Final = frozenset({"s", "d", "m", "ll", "re", "ve"})
_SPACES: Final = re.compile(r"\s+")


def search_text(key: str, value: Any, tags: Sequence[str]) -> str:
    """The text by which a memory is found, by keyword and by meaning.

    A string stands as it is. Other JSON is written out, an object as `name: value` lines in the order of its
    sorted names, an array with commas, so that equal values have equal texts. The key and the tags follow on
    a line of their own. `null` adds nothing.
    """
    return "\n".join(part for part in (flatten(value), " ".join((key, *tags))) if part)


def title(value: Any, key: str) -> str:
    """One line for lists: the first 80 characters of the value's text, else the key."""
    text = _SPACES.sub(" ", flatten(value)[: _TITLE_WIDTH * 8]).strip()
    return text[:_TITLE_WIDTH].rstrip() or key


def flatten(value: Any) -> str:
    """A JSON value as plain text; see `search_text`. Without recursion, so that no nesting is too deep."""
    if isinstance(value, str):
        return value
    pieces: list[str] = []
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        lead, node = stack.pop()
        if isinstance(node, dict):
            pieces.append(lead)
            names = sorted(node, key=str)
            for i in range(len(names) - 1, -1, -1):
                stack.append((f"{chr(10) if i or lead else ''}{names[i]}: ", node[names[i]]))
        elif isinstance(node, list | tuple):
            pieces.append(lead)
            leaves = [item for item in node if item is not None]
            stack.extend((", " if i else "", leaves[i]) for i in range(len(leaves) - 1, -1, -1))
        elif node is None:
            pieces.append(lead)
        else:
            pieces.append(lead + (node if isinstance(node, str) else json.dumps(node)))
    return "".join(pieces).strip()


def analyze(text: str, language: str = ENGLISH) -> list[str]:
    """The terms of a text in reading order, with repeats.

    - Unicode NFKC and case folding; accents on Latin letters are dropped (`Café` = `cafe`); English words
      are stemmed (Snowball).
    - Identifiers give the whole and its parts: `userName`, `user_name` and `user-name` give `usernam user
      name`; a path, a dotted name, an address gives itself, its segments and their parts.
    - Runs of scripts without spaces give every character and every pair, so a substring is found.
    - Emoji are terms; numbers are terms (`1,000` = `1000`).
    - Stopwords only in pairs, as two words with a space between.

    language: one of `LANGUAGES`. Another than English has its own stemmer and no stopwords (a word that
    every text has weighs next to nothing anyhow); `simple` has neither.
    """
    terms: list[str] = []
    before = ""
    for token in _tokens(_normalized(text)):
        expand = _expand if len(token) <= _CACHED_TOKEN else _expand_afresh
        stopword, expanded = expand(token, language)
        if stopword and before:
            terms.append(f"{before} {stopword}")
        before = stopword
        terms += expanded
    return terms


def query_terms(text: str, languages: Sequence[str] = (ENGLISH,)) -> list[str]:
    """The distinct terms to look for, in reading order; stopword pairs only where there is nothing else.

    languages: those of the searched texts.
    """
    terms = list(dict.fromkeys(term for language in languages for term in analyze(text, language)))
    return [term for term in terms if " " not in term] or terms


def term_frequencies(text: str, language: str = ENGLISH) -> tuple[list[str], list[int], int]:
    """Terms sorted by code point, their counts in the same order, and their sum, the length of the text."""
    terms = analyze(text, language)
    counts = sorted(Counter(terms).items())
    return [term for term, _ in counts], [count for _, count in counts], len(terms)


def excerpt(text: str, query: str, width: int = 300, languages: Sequence[str] = (ENGLISH,)) -> str:
    """At most `width` characters of plain text around the place that holds the most different query terms.

    White space is collapsed; "…" marks a cut. Without a match, or with a short text, the text's beginning.
    """
    text = _SPACES.sub(" ", text).strip()
    if len(text) <= width:
        return text
    wanted = frozenset(query_terms(query, languages))
    start = _best_window(text, wanted, width - 2, languages[0]) if wanted else 0
    if start:
        space = text.find(" ", start, start + 20)
        start = start if space < 0 else space + 1
    end = min(len(text), start + width - 2)
    if end < len(text):
        space = text.rfind(" ", max(start + 1, end - 20), end + 1)
        end = end if space < 0 else space
    return f"{'…' if start else ''}{text[start:end].strip()}{'…' if end < len(text) else ''}"


def _best_window(text: str, wanted: frozenset[str], width: int, language: str) -> int:
    """Where the window of `width` characters with the most different wanted terms begins; else the first."""
    hits = [(at, found) for at, terms in _located(text, language) if (found := wanted.intersection(terms))]
    inside: Counter[str] = Counter()
    best, best_first, best_last, left = 0, 0, 0, 0
    for at, found in hits:
        inside.update(found)
        while at - hits[left][0] > max(0, width - MAX_TERM):  # a window shorter than a term holds one hit
            inside.subtract(hits[left][1])
            left += 1
        distinct = sum(count > 0 for count in inside.values())
        if distinct > best:
            best, best_first, best_last = distinct, hits[left][0], at
    # Centre what was found; near the end of the text show a full window all the same.
    return max(0, min((best_first + best_last - width) // 2, best_first, len(text) - width))


def _located(text: str, language: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Where each token of a text begins, with its terms; a run without spaces is given pair by pair."""
    before = ""
    for match in _tokenizer(text).finditer(text):
        token = _normalized(match.group())
        if _is_unspaced(token):
            before = ""
            for i in range(len(match.group())):
                yield match.start() + i, tuple(_pairs(match.group()[i : i + 2]))
            continue
        expand = _expand if len(token) <= _CACHED_TOKEN else _expand_afresh
        stopword, terms = expand(token, language)
        yield match.start(), (*terms, f"{before} {stopword}") if stopword and before else terms
        before = stopword


def _normalized(text: str) -> str:
    if text.isascii():
        return text
    return _APOSTROPHES.sub("'", unicodedata.normalize("NFKC", text))


def _tokens(text: str) -> list[str]:
    return _tokenizer(text).findall(text)


def _tokenizer(text: str) -> re.Pattern[str]:
    return _ASCII_TOKEN if text.isascii() else _unicode_tokenizer()


@lru_cache(maxsize=1)
def _unicode_tokenizer() -> re.Pattern[str]:
    """The ASCII pattern, and words with combining marks (as Indic vowel signs are), unspaced runs, emoji.

    Built on the first text that is not ASCII: its classes come from Python's own Unicode data (60 ms).
    """
    marks = _ranges(lambda category: category[0] == "M", 0x300, _LAST_MARK)
    letter = rf"[^\W{_UNSPACED}]"
    word = rf"{letter}+(?:[{marks}]+{letter}*)*"
    # Emoji are symbols (So); skin tones are modifiers (Sk) and joined families hold U+200D: each person of
    # a family is a term.
    symbols = _ranges(lambda category: category == "So", 0x2190, 0x1FBFF)
    return re.compile(rf"[A-Za-z](?:\+\+|\#)(?!\w)|[{_UNSPACED}]+|{word}(?:{_JOINER}{word})*|[{symbols}]")


def _ranges(wanted: Callable[[str], bool], first: int, last: int) -> str:
    """A regular expression class of the code points whose general category is wanted."""
    found: list[list[int]] = []
    for code in range(first, last + 1):
        if wanted(unicodedata.category(chr(code))):
            if found and found[-1][1] == code - 1:
                found[-1][1] = code
            else:
                found.append([code, code])
    return "".join(f"{re.escape(chr(low))}-{re.escape(chr(high))}" for low, high in found)


def _expand_afresh(token: str, language: str) -> tuple[str, tuple[str, ...]]:
    """One token of the tokeniser as (the stopword that it is, or ""; its terms)."""
    if _is_unspaced(token):
        return "", tuple(_pairs(token))
    if token[-1] in "+#":
        return "", (token.lower(), token[0].lower())
    terms: list[str] = []
    _add_path(_THOUSANDS.sub("", token) if "," in token else token, terms, language)
    if language != ENGLISH:
        return "", tuple(terms)
    if len(terms) == 1 and terms[0] in STOPWORDS:
        return terms[0], tuple(terms) if token.isupper() and len(token) > 1 else ()
    return "", tuple(term for term in terms if term not in STOPWORDS)


_expand = lru_cache(maxsize=32768)(_expand_afresh)


def _is_unspaced(token: str) -> bool:
    return not token.isascii() and _unspaced_run().match(token) is not None


@lru_cache(maxsize=1)
def _unspaced_run() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}]+")


def _pairs(run: str) -> Iterator[str]:
    """Each character of a run and each pair of neighbours."""
    for i, character in enumerate(run):
        yield character
        if i + 1 < len(run):
            yield run[i : i + 2]


def _add_path(token: str, terms: list[str], language: str) -> None:
    segments = _PATH_SEPARATOR.split(token)
    if len(segments) > 1:
        terms.append(_capped(_folded(token)))
    for segment in segments:
        _add_name(segment, terms, language)


def _add_name(segment: str, terms: list[str], language: str) -> None:
    words = _NAME_SEPARATOR.split(segment)
    if len(words) > 1:
        if "." in segment and all(len(word) == 1 and word.isalpha() for word in words):
            terms.append(_stemmed(_folded("".join(words)), language))  # U.S.A. = USA
            return
        terms.append(_capped(_folded(segment)))
    for word in words:
        _add_word(word, terms, language)


def _add_word(word: str, terms: list[str], language: str) -> None:
    if "'" in word:
        base, _, clitic = word.rpartition("'")
        if base and clitic.casefold() in _CLITICS:
            word = base
        elif clitic.casefold() == "t":
            terms.append(_stemmed(_folded(word.replace("'", "")), language))
            return
    parts = [part for part in _WORD_SEPARATOR.split(word) if part]
    if len(parts) > 1:
        terms.append(_stemmed(_folded("".join(parts)), language))
        parts = [part for part in parts if len(part) > 1 or not part.isalpha()]
    for part in parts:
        _add_humps(part, terms, language)


def _add_humps(part: str, terms: list[str], language: str) -> None:
    terms.append(_stemmed(_folded(part), language))
    if part.isalpha() and (part.islower() or part[1:].islower() or part.isupper()) or part.isdecimal():
        return
    if part.isascii() and 1 < len(humps := _HUMPS.findall(part)) <= _MAX_HUMPS:
        terms.extend(
            _stemmed(hump.casefold(), language) for hump in humps if len(hump) > 1 or hump.isdecimal()
        )


def _folded(token: str) -> str:
    if token.isascii():
        return token.lower()
    decomposed = unicodedata.normalize("NFKD", token.casefold()).casefold()
    return unicodedata.normalize("NFKC", _ACCENTED.sub(r"\1", decomposed))


def _capped(term: str) -> str:
    if len(term) <= MAX_TERM:
        return term
    digest = hashlib.blake2b(term.encode(), digest_size=_HASH_DIGITS // 2).hexdigest()
    return f"{term[: MAX_TERM - _HASH_DIGITS - 1]}~{digest}"


# The pure-Python stemmers on purpose, also where the C ones are installed: two processes must agree on every
# stem, and behind the token cache the difference is not measurable. One keeps its state in the object, hence
# the lock.
_stemmer_lock = threading.Lock()


@cache
def _stemmer(language: str) -> Any:
    module = import_module(f"snowballstemmer.{language}_stemmer")
    return getattr(module, f"{language.capitalize()}Stemmer")()


def _stemmed(word: str, language: str) -> str:
    if len(word) < 3 or len(word) > MAX_TERM or not word.isalpha() or language == SIMPLE:
        return _capped(word)
    if language == ENGLISH and (not word.isascii() or word in STOPWORDS):
        return _capped(word)
    with _stemmer_lock:
        return _capped(str(_stemmer(language).stemWord(word)))
