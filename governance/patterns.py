"""Prompt-injection screening: named patterns on a normalised copy of a text, with spans in the original.

`scan` returns every match of every pattern in `CATALOGUE`. It is a heuristic. A match means "a person
should read this before a model does", and no match does not mean that a text is safe. It does not catch

- a paraphrase, an allusion or an order spread over several memories: it knows wordings and not intent;
- languages other than English, beyond a few wordings of the override pattern;
- words split by blanks ("ig nore"), reversed, misspelt, in acrostics or in ciphers such as ROT13;
- payloads in base32, in character escapes, compressed, encrypted or encoded twice; images and other media;
- two disguises on top of each other, for example letters spaced out and in leetspeak;
- secrets without a known prefix or a telling name before them, and secrets with invisible characters inside.

What it flags although it may be harmless: a quotation. "Users may type 'ignore previous instructions'" is
the same string to a model that recalls it, so quoting, negating or discussing an override flags like the
order itself. Orders to reveal, send, delete or call something count only where they stand as orders (at the
start of a sentence or quotation, or after words such as "please", "then", "you must"), so that a note *about*
XSS or about exfiltration does not flag.

How to add a pattern: append a `Pattern` to `_DEFINITIONS`, whose rules read the text as `_views` leaves it:
lower case Latin letters, digits, `.:;!?/=&@$%+` and single blanks; no quotes, brackets, commas, hyphens or
markup. Give each rule the stems without which it cannot match (`needs`: one of every group), so that ordinary
text never reaches the regular expression. Repetitions need an upper bound or must be possessive. Add an
example that flags and a harmless neighbour that does not to the tests. The version follows by itself, except
that a change in the code of a detector needs a new `_ENGINE`, which a test asks for.

Ideas from: Unicode TR36, TR39 (confusables) and TR51 (emoji sequences), OWASP LLM01 (prompt injection) and
LLM02 (disclosure), "Trojan Source" (bidi overrides), published work on tag-character and variation-selector
smuggling and on prompt extraction, and the token formats that vendors publish for secret scanning.
"""

from __future__ import annotations

import binascii
import functools
import hashlib
import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Severity = Literal["low", "medium", "high"]
Span = tuple[int, int]
Finding = tuple[str, int, int]
Stems = tuple[str, ...]
# Which copy of the text a rule reads: "words" is normalised fully, "lines" is folded and keeps line breaks
# and markup, "source" is the original.
Reads = Literal["words", "lines", "source"]

EXCERPT = 120
# Raise it when the code of this module decides differently; tables and rules are hashed as they are.
_ENGINE = 2


class Match(NamedTuple):
    """One pattern at `text[start:end]` of the scanned text, in code points.

    The excerpt is for showing and storing: shortened, invisible characters spelled out, secrets masked.
    """

    pattern: str
    start: int
    end: int
    excerpt: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One regular expression of a pattern.

    `needs` lists groups of stems, separated by commas: without one stem of every group the rule is not
    tried. `order` limits the rule to places where the words stand as an order and not as a description.
    """

    regex: str
    needs: tuple[str, ...] = ()
    order: bool = False
    reads: Reads = "words"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A named pattern: what it means for the person who reviews it, and how it is found."""

    name: str
    meaning: str
    severity: Severity
    rules: tuple[Rule, ...] = ()  # Empty where a detector in this module does it.


# --- Folding: what one character stands for -----------------------------------------------------------------


def _pairs(lookalikes: str, latin: str) -> dict[str, str]:
    return dict(zip(lookalikes, latin, strict=True))


_LOOKALIKES: dict[str, str] = {
    # Cyrillic
    **_pairs("АВЕЅІЈКМНОРСТУХҺԌԚԜӀЬ", "abesijkmhopctyxhgqwlb"),
    **_pairs("авеѕіјкмнорстухһԁԛԝӏьпгѵԍ", "abesijkmhopctyxhdqwlbnrvg"),
    # Greek
    **_pairs("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "abezhikmnoptyx"),
    **_pairs("αβεηικνορτυχγζωϲϳσ", "abenikvoptuxyzwcjo"),
    # Armenian, Cherokee
    **_pairs("օսհոցզյԼՏՍՕ", "ouhngqjlsuo"),
    **_pairs("ᎪᏟᎠᎬᎻᎫᏦᏞᎷᏢᏒᏚᎢᏙᎳᏃ", "acdehjklmprstvwz"),
    # Latin letters that do not decompose, small capitals
    **_pairs("ıɑɡɩɪøđłħŧƶɓɗɠɨʉɇɍ", "iagiiodlhtzbdgiuer"),
    **_pairs("ᴀʙᴄᴅᴇꜰɢʜᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghjklmnoprstuvwyz"),
    # Punctuation
    **_pairs("‘’‛ʼ′´“”„‟«»‹›「」『』", '\'\'\'\'\'\'""""""""""""'),
    **_pairs("‐‑‒–—―−⁃•·。、", "----------.,"),
    "æ": "ae",
    "œ": "oe",
    # Tag characters stand for the ASCII that they smuggle.
    **{chr(0xE0000 + code): chr(code).lower() for code in range(0x20, 0x7F)},
    # Negative circled, negative squared and regional indicator letters have no compatibility decomposition.
    **{chr(first + i): chr(97 + i) for first in (0x1F150, 0x1F170, 0x1F1E6) for i in range(26)},
}
_FOLDED_MEMO_LIMIT = 50_000


def _fold_character(character: str) -> str:
    """Lower-case Latin for what looks like it; nothing for marks, invisible and control characters."""
    code = ord(character)
    if 0x3400 <= code <= 0x9FFF or 0xAC00 <= code <= 0xD7A3 or 0x20000 <= code < 0xE0000:
        return _LOOKALIKES.get(character, character)
    known = _LOOKALIKES.get(character)
    if known is not None:
        return known
    parts = []
    for part in unicodedata.normalize("NFKD", character):
        category = unicodedata.category(part)
        if part in _LOOKALIKES:
            parts.append(_LOOKALIKES[part])
        elif category == "Zs":
            parts.append(" ")
        elif category in {"Zl", "Zp"} or part in "\n\r\t\v\f\x85":
            parts.append("\n" if part not in "\n\r\t" else part)
        elif category not in {"Mn", "Me", "Cf", "Cc"} and part not in "\u115f\u1160\u3164\uffa0":
            folded = part.casefold()
            parts.append(_LOOKALIKES.get(folded, folded))
    return "".join(parts)


class _Folding(dict[str, str]):
    """Folded characters, remembered up to a limit."""

    def __missing__(self, character: str) -> str:
        folded = _fold_character(character)
        if len(self) < _FOLDED_MEMO_LIMIT:
            self[character] = folded
        return folded


_FOLDING = _Folding()
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


class _Copy(NamedTuple):
    """A changed copy of the text; `offsets[i]` is the place in the original of its i-th character."""

    text: str
    offsets: Sequence[int]

    def original(self, start: int, end: int) -> Span:
        return self.offsets[start], self.offsets[end - 1] + 1

    def edited(self, edits: Iterator[tuple[int, int, str]]) -> _Copy:
        """With each (start, end, replacement) carried out; edits are in order and do not overlap."""
        pieces: list[str] = []
        offsets: list[int] = []
        done = 0
        for start, end, replacement in edits:
            if start > done:
                pieces.append(self.text[done:start])
                offsets += self.offsets[done:start]
            if replacement:
                pieces.append(replacement)
                offsets += [self.offsets[start]] * len(replacement)
            done = end
        if not done:
            return self
        pieces.append(self.text[done:])
        offsets += self.offsets[done:]
        return _Copy("".join(pieces), offsets)


def _folded(text: str) -> _Copy:
    """The text with every character folded; blanks, line breaks and markup stay."""
    if text.isascii() and not _CONTROLS.search(text):
        return _Copy(text.lower(), range(len(text)))
    parts = [_FOLDING[character] for character in text]
    return _Copy("".join(parts), [i for i, part in enumerate(parts) for _ in part])


# --- Views: the copies that the rules read ----------------------------------------------------------------

_INLINE = frozenset(
    "a abbr b bdi bdo big cite code del dfn em font i ins kbd label mark q s samp small span strike "
    "strong sub "
    "sup tt u var wbr".split()
)
_TAG = re.compile(r"</?+([a-z][a-z0-9:-]{0,30}+)(?:[\s/][^<>]{0,800}+)?+>")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#x[0-9a-f]{1,6}|[a-z]{2,8});")
_PERCENT = re.compile(r"%(2[0-9a-f]|3[0-9a-f]|4[0-9a-f]|5[0-9a-f]|6[0-9a-f]|7[0-9a-e])")
_LINK_TARGET = re.compile(r"\]\([^()\s]{0,400}+(?:\s[^()\n]{0,100}+)?\)")
_HYPHENATED = re.compile(r"(?<=[a-z])-\r?\n[ \t]{0,8}+(?=[a-z])")
# Quotes, brackets, commas and emphasis vanish; blanks, hyphens, underscores and leftover angle brackets
# separate words. A single blank between words is left alone.
_SEPARATES = r"\s\-_<>|"
_NOISE = _SEPARATES + r"""*~`"'()\[\]{}^\\,#"""
_CLUTTER = re.compile(rf"[{_NOISE}](?:(?<! )[{_NOISE}]*+|[{_NOISE}]++)")
_SEPARATOR = re.compile(rf"[{_SEPARATES}]")
_SPACED_HINT = re.compile(r"[ ./:][^\W_][ ./:][^\W_][ ./:]")
_SPACED_LETTERS = re.compile(r"(?<![^\W_])[^\W_](?:[ ./:][^\W_](?![^\W_])){3,}+")
_LEET_HINT = re.compile(r"[01345@$](?:[a-z]|(?<=[a-z].))")
_LEET = str.maketrans("01345@$7!", "oieasasti")


def _comments(text: str) -> Iterator[Span]:
    """The HTML comments; one that is never closed reaches to the end."""
    start = text.find("<!--")
    while start >= 0:
        close = text.find("-->", start + 4)
        end = len(text) if close < 0 else close + 3
        yield start, end
        start = text.find("<!--", end)


def _without_clutter(copy: _Copy) -> _Copy:
    def edits() -> Iterator[tuple[int, int, str]]:
        for found in _CLUTTER.finditer(copy.text):
            yield found.start(), found.end(), " " if _SEPARATOR.search(found[0]) else ""

    return copy.edited(edits())


def _deletions(copy: _Copy, regex: re.Pattern[str]) -> _Copy:
    return copy.edited((found.start(), found.end(), "") for found in regex.finditer(copy.text))


def _unescaped(copy: _Copy) -> _Copy:
    def edits() -> Iterator[tuple[int, int, str]]:
        for found in _ENTITY.finditer(copy.text):
            yield found.start(), found.end(), "".join(map(_FOLDING.__getitem__, html.unescape(found[0])))

    return copy.edited(edits())


def _unquoted(copy: _Copy) -> _Copy:
    """With percent-encoded ASCII as the characters that it stands for."""

    def edits() -> Iterator[tuple[int, int, str]]:
        for found in _PERCENT.finditer(copy.text):
            yield found.start(), found.end(), chr(int(found[1], 16)).lower()

    return copy.edited(edits())


def _untagged(copy: _Copy) -> _Copy:
    """Without comments and inline tags; other tags separate words."""
    copy = copy.edited((start, end, "") for start, end in _comments(copy.text))
    return copy.edited(
        (found.start(), found.end(), "" if found[1] in _INLINE else " ") for found in _TAG.finditer(copy.text)
    )


def _joined_letters(copy: _Copy) -> _Copy:
    """With "i g n o r e" as "ignore"; blanks between words so written are lost."""

    def edits() -> Iterator[tuple[int, int, str]]:
        for run in _SPACED_LETTERS.finditer(copy.text):
            for at in range(run.start() + 1, run.end(), 2):
                yield at, at + 1, ""

    return copy.edited(edits())


def _views(folded: _Copy) -> Iterator[tuple[_Copy, bool]]:
    """The copies to match, and whether blanks between their words may be missing."""
    copy = folded
    if "&" in copy.text:
        copy = _unescaped(copy)
    if "%2" in copy.text:
        copy = _unquoted(copy)
    if "-\n" in copy.text or "-\r\n" in copy.text:
        copy = _deletions(copy, _HYPHENATED)
    if "](" in copy.text:
        bare = _deletions(copy, _LINK_TARGET)
    else:
        bare = copy
    if "<" in bare.text:
        bare = _untagged(bare)
    words = _without_clutter(bare)
    yield words, False
    if bare is not copy:  # What stood in tags, comments and link targets is read by a model as well.
        yield _without_clutter(copy), False
    if _SPACED_HINT.search(words.text):
        yield _joined_letters(words), True
    if _LEET_HINT.search(words.text):
        yield _Copy(words.text.replace("11", "ll").translate(_LEET), words.offsets), False


# --- The catalogue ----------------------------------------------------------------------------------------

_FILL = (
    r"(?:(?:all|any|every|each|and|or|of|the|my|your|our|their|these|those|this|that|its|other|about|to|from|"
    r"completely|entirely|single|both|please|just|now|such|whatever|everything) ){0,7}"
)
_OBEY = r"(?:follow(?:ing)?|obey(?:ing)?|comply(?:ing)? with|adher(?:e|ing) to)"
_IGNORE = (
    r"\b(?:ignor(?:e|es|ed|ing)|disregard(?:ing)?|forget(?:ting)?|overrid(?:e|es|ing)|overlook|neglect|"
    r"discard|"
    rf"bypass|do not {_OBEY}|dont {_OBEY}|never {_OBEY}|stop {_OBEY}|no longer {_OBEY}|cease {_OBEY}|"
    r"pay no attention to|take no notice of) "
)
_BEFORE = (
    r"(?:previous(?:ly)?|prior|preceding|above|earlier|foregoing|past|former|initial|original|preexisting)"
)
_ORDERS = (
    r"(?:instructions?|prompts?|directives?|directions|guidelines?|guidance|rules?|commands|orders|"
    r"constraints|"
    r"restrictions|programming|system messages?)"
)
_STRONG_ORDERS = (
    r"(?:instructions|directives|guidelines|programming|(?:system|developer) (?:prompts?|messages?))"
)
_IGNORE_STEMS = (
    "ignor,disregard,forget,overrid,overlook,neglect,discard,bypass,follow,obey,comply,adher,"
    "attention to,notice of"
)
_ORDER_STEMS = (
    "instruction,prompt,directi,guid,rule,command,order,constraint,restriction,programming,"
    "system message,developer message"
)
_SECRETS = (
    r"(?:(?:api|access|private|ssh|secret|encryption|aws|cloud|openai|session|auth|bearer|login|admin|user|"
    r"database|stored|saved|hidden) ){0,3}"
    r"(?:keys|secrets|passwords?|credentials?|tokens?|api key|private key|ssh key|env(?:ironment)? "
    r"var(?:iable)?s|"
    r"\.env(?: file)?s?|connection strings?|session cookies|cookies|seed phrases?)\b"
)
_CREDENTIAL_STEMS = "key,secret,password,credential,token,env,string,cookie,phrase"
_SEND = (
    r"\b(?:send|post|upload|e ?mail|mail|forward|transmit|leak|exfiltrate|submit|deliver|copy|write|put|"
    r"append|"
    r"encode|smuggle|report|share|give|hand) "
)
_SEND_STEMS = (
    "send,post,upload,mail,forward,transmit,leak,exfiltrat,submit,deliver,copy,write,put ,append,"
    "encode,smuggle,report,share,give,hand "
)
_WHOSE = (
    r"(?:(?:me|us|all|any|every|of|the|your|my|our|their|this|these|users?|customers?|stored|also) ){0,5}"
)
_ASIDE = r"(?:[^ .!?]{1,30} ){0,6}?"
_TO_ELSEWHERE = (
    r"(?:to|at|via|into|in) (?:[^ .!?]{1,20} ){0,4}?(?:https?:|www\.|[^ @]{1,40}@[^ @]|attacker|webhook|"
    r"external|my (?:server|email|address|site|endpoint)|this (?:url|address|server|site)|the (?:url|"
    r"attacker))"
)
_DISPLAY = (
    r"\b(?:reveal|print|show|output|repeat|display|tell|give|write|recite|leak|disclose|divulge|dump|expose|"
    r"list|return|share|quote|paste) "
)
_DISPLAY_STEMS = (
    "reveal,print,show,output,repeat,display,tell,give,write,recite,leak,disclose,divulge,dump,"
    "expose,list,return,share,quote,paste"
)
_LIMITS = (
    r"(?:restrictions?|limits|limitations|filters?|filtering|rules|guidelines|safeguards|guardrails|"
    r"censorship|"
    r"constraints|ethics|content polic(?:y|ies)|safety polic(?:y|ies)|morals)"
)
_UNBOUND = r"(?:unrestricted|uncensored|unfiltered|jailbroken|unaligned|amoral|rogue|malicious|evil)"
_PERSON = (
    r"(?:the |your |any |our ){0,2}(?:users?|humans?|operators?|owner|customers?|anyone|anybody|them|me)"
)

_DEFINITIONS: tuple[Pattern, ...] = (
    Pattern(
        "override_previous_instructions",
        "Tells a model to drop the instructions it was given. Quoting or forbidding it reads the same to "
        "a model.",
        "high",
        (
            Rule(
                _IGNORE
                + _FILL
                + rf"(?:{_BEFORE} {_FILL}){{1,2}}(?:system |developer |given |safety )?{_ORDERS}\b",
                (_IGNORE_STEMS, _ORDER_STEMS),
            ),
            Rule(
                _IGNORE + r"(?:(?:all|any|every|each|of|the|these|those|and) ){0,3}your "
                r"(?:(?:current|existing|own|system|safety|developer|core|base|given|new|default) ){0,2}"
                rf"(?:{_ORDERS}|training)\b",
                (_IGNORE_STEMS, _ORDER_STEMS + ",training"),
            ),
            Rule(
                r"\b(?:ignore|disregard|override|forget) (?:absolutely )?(?:all|any|every) "
                r"(?:(?:of|the|these|those|my|other|current|existing|system|safety|given|set) ){0,4}"
                rf"{_STRONG_ORDERS}\b",
                (_IGNORE_STEMS, _ORDER_STEMS),
            ),
            Rule(
                r"\b(?:ignore|disregard|override|bypass) (?:(?:all|any|the|your|of) ){0,3}"
                r"(?:system|developer) (?:prompts?|instructions?|directives?)\b",
                ("ignore,disregard,override,bypass", "system,developer"),
            ),
            Rule(
                _IGNORE
                + _FILL
                + rf"(?:system |developer )?{_ORDERS} (?:that )?(?:you (?:were|have been|ve been|had been|"
                r"are|got|received|have)\b|given (?:to you|above|before|earlier|previously)|above\b|"
                r"before this|"
                r"preceding|in your (?:system )?prompt|(?:i|we|they) gave you|from (?:before|the "
                r"(?:system|developer)))",
                (_IGNORE_STEMS, _ORDER_STEMS),
            ),
            Rule(
                r"\b(?:ignore|disregard|forget|discard) (?:absolutely )?(?:all|everything|anything|what|"
                r"whatever) "
                r"(?:of )?(?:that )?(?:(?:you (?:were|have been|ve been|had been) (?:previously )?(?:told|"
                r"instructed|taught|"
                r"given|programmed|trained))|(?:(?:is|was|has been|comes?|came|written|said|stated) ){0,3}"
                r"(?:above(?! all)|before this|prior to this|up to (?:now|this point) (?:and|in th)))",
                (
                    "ignore,disregard,forget,discard",
                    "told,instruct,taught,given,program,trained,above,before this,prior to,up to",
                ),
            ),
            Rule(
                r"\b(?:ignore|disregard|forget) (?:all )?(?:of )?(?:the )?above (?:and|instead|then) "
                r"(?:instead )?"
                r"(?:say|output|print|translate|respond|reply|write|tell|return|do|follow|execute|send|"
                r"delete|reveal)\b",
                ("ignore,disregard,forget", "above"),
            ),
            Rule(
                rf"\b{_BEFORE} (?:system |given )?(?:instructions|prompts?|directives|guidelines|rules) "
                r"(?:(?:are|is|have|has|been|should|must|can|be|now|hereby|to|all) ){1,5}"
                r"(?:void|null|cancell?ed|revoked|suspended|lifted|ignored|disregarded|forgotten|"
                r"overridden)\b",
                (
                    "void,null,cancel,revoked,suspended,lifted,ignored,disregarded,forgotten,overridden",
                    _ORDER_STEMS,
                ),
            ),
            Rule(
                rf"\b(?:treat|consider|regard|deem) (?:(?:all|any|every|the|your|my|of) ){{0,3}}{_BEFORE} "
                rf"(?:system |given )?{_ORDERS} (?:as |to be )?(?:now )?"
                r"(?:void|null|cancell?ed|revoked|invalid|obsolete|lifted|expired|withdrawn)\b",
                (
                    "treat,consider,regard,deem",
                    "void,null,cancel,revoked,invalid,obsolete,lifted,expired,withdrawn",
                ),
            ),
            Rule(
                r"\b(?:forget|disregard|unlearn) (?:absolutely )?(?:all|everything|anything) (?:that )?you "
                r"(?:know|knew|remember|(?:have |ve )?(?:learned|learnt|memori[sz]ed))\b(?! about)",
                ("forget,disregard,unlearn", "you "),
                order=True,
            ),
            Rule(
                r"\byour (?:new|real|actual|true|only) (?:system )?(?:instructions?|directives?|"
                r"programming|prompt|orders)"
                r"(?: (?:is|are|from now)\b|:)",
                ("your ", _ORDER_STEMS),
            ),
            # German
            Rule(
                r"\b(?:ignorier(?:e|en|t)?|vergiss|vergesst|vergessen|missachte[nt]?|beachte[nt]? nicht|"
                r"verwirf|verwerfen) "
                r"(?:(?:sie|bitte|jetzt|einfach|nun|alle|alles|die|deine|deiner|ihre|eure|samtliche|dir|"
                r"aller?) ){0,5}"
                r"(?:(?:vorherig|bisherig|obig|fruher|vorangegangen|vorangehend|vorig|vorhergehend|"
                r"gegeben|ursprunglich)e[nr]? "
                r"|(?<=deine )|(?<=ihre )(?:bisherigen )?)(?:system)?(?:anweisungen|instruktionen|befehle|"
                r"vorgaben|regeln|"
                r"anordnungen|prompts?)\b",
                (
                    "ignorier,vergiss,vergess,missacht,beacht,verw",
                    "anweisung,instruktion,befehl,vorgab,regel,anordnung,prompt",
                ),
            ),
            # French
            Rule(
                r"\b(?:ignor(?:e|er|ez|ons)|oubli(?:e|er|ez|ons)|ne (?:tiens|tenez) (?:pas|aucun) compte|"
                r"ne (?:suis|suivez) "
                r"(?:pas|plus)) (?:(?:toutes?|tous|les|tes|vos|des|de|ces|l|tout) ){0,4}"
                r"(?:(?:instructions?|consignes?|directives?|regles?|ordres?) (?:systeme "
                r")?(?:precedentes?|precedents?|"
                r"anterieure?s?|ci dessus|initiales?|donnees|recues|que (?:tu|vous))"
                r"|precedentes (?:instructions|consignes|directives))",
                ("ignor,oubli,compte,sui", "instruction,consigne,directive,regle,ordre"),
            ),
            # Spanish, Portuguese, Italian
            Rule(
                r"\b(?:ignor(?:a|e|ar|ad|en|em|ate)|olvid(?:a|e|ar|ad|en)|descart(?:a|e|ar)|esquec(?:a|er)|"
                r"dimentica(?:re|te)?|(?:haz|haga) caso omiso de|no sigas|desconsidere) "
                r"(?:(?:por favor|todas?|todos|tutt[ei]|las?|los|tus?|sus|le|tue|as|os|suas|estas|de|mis|"
                r"qualquer) ){0,4}"
                r"(?:(?:instrucciones|indicaciones|ordenes|reglas|directrices|instrucoes|regras|ordens|"
                r"diretrizes|istruzioni|"
                r"regole|direttive) (?:del sistema |do sistema )?(?:anteriores|previ[ao]s|de arriba|"
                r"precedent[ei]s?|dadas|acima|"
                r"iniciales|que (?:te|le))"
                r"|(?:anteriores|previas|precedenti) (?:instrucciones|indicaciones|instrucoes|istruzioni|"
                r"regole))",
                (
                    "ignor,olvid,descart,esquec,dimentica,omiso,sigas,desconsider",
                    "instruc,indicacion,ordene,ordens,regla,regra,regol,diret,diret,istruz,directri",
                ),
            ),
            # Chinese, Japanese
            Rule(
                r"(?:忽略|忽视|忽視|无视|無視|忘记|忘記|忘掉|不要理会|不要遵守|不要遵循|抛弃)"
                r"(?:掉|你|您|我|的|所有|全部|一切|任何|系统|系統|收到|给出|給出|给你|過|过|,| ){0,6}"
                r"(?:之前|以前|以上|先前|上面|上述|此前|前面|你的|所有|原有|一切)"
                r"(?:你|您|我|的|所有|全部|一切|任何|系统|系統|收到|给出|給出|给你|過|过|,| ){0,6}"
                r"(?:指令|指示|提示|命令|规则|規則|设定|設定)",
                ("忽,视,視,忘,不要,抛弃", "指,提示,命令,规则,規則,定"),
            ),
            Rule(
                r"(?:以前|これまで|上記|前|すべて|全て)の(?:すべての|全ての|システム)?(?:指示|命令|指令|プロンプト|ルール)"
                r"(?:を|は)(?:すべて|全て|全部|完全に)?(?:無視|忘れ|破棄)",
                ("視,忘,破棄", "指,命令,プロンプト,ルール"),
            ),
            # Russian
            Rule(
                r"(?:игнорируй|проигнорируй|забудь|игнорировать|отбрось)(?:те)? (?:(?:все|мои|свои|твои|"
                r"эти|любые|про) ){0,3}"
                r"(?:предыдущие|прошлые|прежние|вышеуказанные|ранее данные) (?:системные )?(?:инструкции|"
                r"указания|команды|"
                r"правила|приказы)",
                ("игнорир,забудь,отбрось",),
            ),
        ),
    ),
    Pattern(
        "role_hijack",
        "Gives a model another identity or tells it that its limits are gone.",
        "high",
        (
            Rule(
                r"\byou(?: are|re) (?:now |no longer |hereby |going to be |from now on )+(?:(?:a|an|the|"
                r"my|called|named|acting as|"
                r"in|known as|bound|limited|restricted|constrained|governed) ){0,3}"
                rf"(?:dan\b(?! brown)|{_UNBOUND}|by (?:any|the|your|these|those|openai|anthropic|safety|"
                rf"rules|content)|"
                r"(?:dan|jailbreak|god|unrestricted|sudo|developer) mode|"
                r"(?:[a-z]{1,20} ){0,2}(?:ai|llm|chatbot|language model|assistant) (?:that|who|which|with|"
                r"without|named|called))",
                ("you are,youre", "now,no longer,hereby,going to be"),
            ),
            Rule(
                r"\b(?:act|behave|respond|answer|operate|reply|pretend|role ?play|function|speak) (?:as|"
                r"like|to be|that|as if|"
                r"as though) (?:(?:if|though|you|are|were|have|had|be|a|an|the|my|no|without|any|ai|model|"
                r"assistant|with|being|"
                rf"been|not|bound|by|there|to|content|safety|ethical|moral|completely|fully) "
                rf"){{0,9}}(?:{_UNBOUND}|{_LIMITS}|"
                r"dan\b(?! brown))",
                (
                    "act ,behave,respond,answer,operate,reply,pretend,play,function,speak",
                    "unrestrict,uncensor,unfilter,jailbroken,unaligned,amoral,rogue,malicious,evil,dan,"
                    "restriction,limit,filter,rule,guideline,safeguard,guardrail,censorship,constraint,"
                    "ethic,polic,moral",
                ),
            ),
            Rule(
                r"\bpretend (?:that )?(?:you (?:are|were|have)|to (?:be|have)) (?:(?:a|an|no|not|without|"
                r"any|never|ai|model|"
                rf"safety|content|ethical|other) ){{0,5}}(?:{_UNBOUND}|{_LIMITS})",
                ("pretend",),
            ),
            Rule(
                r"\byou (?:now )?(?:have|are under|are subject to|are free (?:of|from)|must not have) "
                r"(?:(?:no|zero|all|any|not|"
                rf"longer|more|safety|content|ethical|moral) ){{1,3}}{_LIMITS}\b",
                ("you ", "no ,zero,free,not "),
            ),
            Rule(
                r"\b(?:enter|enable|activate|switch to|turn on|engage|unlock|go into) (?:the |your ){0,2}"
                r"(?:dan|jailbreak|unrestricted|unfiltered|uncensored|evil|do anything now) mode\b"
                r"|\bdan(?: mode| which)? (?:stands for|means) do anything now|\bdan mode (?:enabled|"
                r"activated|on)\b"
                r"|\bdevelopers? mode (?:enabled|activated) (?:you|chatgpt|output|response)",
                (" mode,do anything now", "dan ,jailbreak,unrestricted,unfiltered,uncensored,evil,developer"),
            ),
            Rule(
                r"\bfrom now on (?:on )?you (?:must |will |shall |should |have to |are |only |to |always "
                r"){1,4}"
                r"(?:obey|ignore|disregard|comply|(?:(?:act|answer|respond|be|called|known|named|as|an?|"
                r"the|my|new|evil) ){1,5}"
                r"(?:dan|ai|assistant|chatbot|bot|model|system|root|hacker|slave|servant|admin(?:istrator)?|"
                r"superuser))\b",
                ("from now on",),
            ),
            Rule(
                r"\b(?:disable|turn off|bypass|circumvent|deactivate|switch off|remove|drop|suspend) "
                r"(?:(?:all|any|every|of) ){0,2}your (?:(?:own|internal|built in|safety|security|content|"
                r"ethical|moral|moderation|"
                r"alignment) ){0,3}(?:filters?|checks?|guards?|guardrails?|measures|polic(?:y|ies)|"
                r"restrictions?|protections?|"
                r"safeguards?|protocols?|alignment)\b",
                ("your ", "disable,turn off,bypass,circumvent,deactivate,switch off,remove,drop,suspend"),
            ),
        ),
    ),
    Pattern(
        "exfiltrate_secrets",
        "Asks for secrets, or for private text, to be shown or sent somewhere.",
        "high",
        (
            Rule(
                _SEND + _WHOSE + _SECRETS + " " + _ASIDE + _TO_ELSEWHERE,
                (_SEND_STEMS, _CREDENTIAL_STEMS),
                order=True,
            ),
            Rule(
                _SEND + r"(?:[^ .!?]{1,20} ){0,3}?[^ ]{0,60}(?:\.ssh/|\bid (?:rsa|ed25519)\b|"
                r"\.aws/credentials|/etc/shadow|\.netrc\b|\.pgpass\b|\.kube/config)[^ ]{0,60} "
                r"(?:rsa |ed25519 )?(?:[^ .!?]{1,20} ){0,3}?(?:to|at|via|into) ",
                (_SEND_STEMS, ".ssh/,id rsa,id ed25519,.aws/,/etc/shadow,.netrc,.pgpass,.kube/"),
                order=True,
            ),
            Rule(
                r"\b(?:reveal|leak|exfiltrate|disclose|divulge|steal|harvest|collect|gather|extract|smuggle) "
                r"(?:(?:me|us|all|any|every|of|the|the user s|other) ){0,4}(?:your|users?|customers?|all|"
                r"every|any) "
                r"(?:(?:the|your|users?|customers?|other) ){0,2}" + _SECRETS,
                (
                    "reveal,leak,exfiltrat,disclose,divulge,steal,harvest,collect,gather,extract,smuggle",
                    _CREDENTIAL_STEMS,
                ),
                order=True,
            ),
            Rule(
                _DISPLAY + r"(?:(?:me|us|all|any|every|of|back|out|the|full) ){0,4}your " + _SECRETS,
                (_DISPLAY_STEMS, "your ", _CREDENTIAL_STEMS),
                order=True,
            ),
            Rule(
                _SEND
                + r"(?:(?:me|all|of|the|this|your|our|a|copy|summary|every) ){0,4}(?:entire|full|whole|"
                + r"complete|all|private|"
                r"confidential|users?|customers?|stored|hidden) (?:(?:the|of|stored|private|user|customer|"
                r"your) ){0,2}"
                r"(?:conversations?|chats?|messages?|(?:chat|message|conversation) (?:history|logs?)|"
                r"memor(?:y|ies)|context|"
                r"transcripts?|(?:user|customer|personal) data|data|documents|files|emails|inbox)(?: "
                r"history| logs?)? " + _ASIDE + _TO_ELSEWHERE,
                (
                    _SEND_STEMS,
                    "entire,full,whole,complete,all,private,confidential,user,customer,stored,hidden",
                ),
                order=True,
            ),
            Rule(
                r"\b(?:secretly|silently|quietly|covertly|discreetly) (?:send|post|upload|e ?mail|forward|"
                r"transmit|leak|copy|"
                r"exfiltrate|bcc|share)\b",
                ("secretly,silently,quietly,covertly,discreetly",),
                order=True,
            ),
            Rule(
                r"\b(?:append|add|encode|include|embed|put|insert) (?:[^ .!?]{1,20} "
                r"){0,8}?(?:conversation|chat history|secrets?|"
                r"passwords?|user data|api keys?|context|memor(?:y|ies)|system prompt) (?:[^ .!?]{1,20} "
                r"){0,4}?(?:to|in|into|as) "
                r"(?:the |a |this |an |its ){0,2}(?:image |query |link |get )?(?:url|query string|query "
                r"parameter|link|"
                r"parameter)s?\b",
                ("url,query,link,parameter", "append,add,encode,include,embed,put,insert"),
                order=True,
            ),
            Rule(
                r"!\[[^\]\n]{0,200}\]\(\s?https?://[^)\s]{1,300}?[?&][^)\s=&]{1,40}=(?:\{|\$\{|%7b|<|\[)"
                r"[^)\n]{0,40}(?:secret|key|token|password|conversation|history|context|prompt|data|"
                r"memory|memories|email)",
                ("![", "]("),
                reads="lines",
            ),
        ),
    ),
    Pattern(
        "tool_abuse",
        "Orders the reading agent to call a tool, delete, pay or act behind the user's back.",
        "high",
        (
            Rule(
                r"\b(?:delete|erase|wipe|purge|clear|destroy|remove|redact|overwrite|corrupt) (?:out )?"
                r"(?:(?:all|every|everything|any|in|from|of|the|entire|whole|your|users?|stored|other|"
                r"existing|my|its) ){1,6}"
                r"(?:memories|memory (?:store|bank|entries|records|database)|knowledge base|(?<=your "
                r")memory)\b",
                (
                    "memor,knowledge base",
                    "delete,erase,wipe,purge,clear,destroy,remove,redact,overwrite,corrupt",
                ),
                order=True,
            ),
            Rule(
                r"\b(?:call|invoke|run|use|execute|apply) (?:(?:the|tool|op|loom|mcp) ){0,3}"
                r"(?:(?:memory|fact|procedure|hold)[. ](?:delete|clear|redact|apply|govern|retract|release|"
                r"unlock)|govern memory) (?:tool )?(?:for|on|with|over|against) (?:each and )?"
                r"(?:every|all|each|everything|any)\b",
                ("memory,fact,procedure,hold", "call,invoke,run ,use ,execute,apply", "every,all,each,any"),
                order=True,
            ),
            Rule(
                r"\b(?:run|execute|type|issue|paste|enter|invoke|call) (?:(?:the|this|following|shell|"
                r"terminal|bash|command|in|a|"
                r"your|:|as|root|sudo) ?){0,6}(?:rm rf? (?:no preserve root )?(?:/|\$home|~)(?:$| |\.|;|"
                r"&)|mkfs\.|"
                r"dd if=[^ ]{1,60} of=/dev/|curl [^ ]{1,200} sudo (?:ba)?sh\b)",
                ("rm r,mkfs,dd if=,curl ",),
                order=True,
            ),
            Rule(
                r"\b(?:delete|transfer|approve|refund|purchase|buy|pay|send|wire|forward|publish|merge|"
                r"deploy|grant|call|invoke|"
                r"execute|run|upload|book|cancel|post) (?:[^ .!?]{1,30} ){0,12}?(?:without (?:ever "
                r")?(?:telling|notifying|"
                rf"informing|alerting|mentioning (?:it|this) to) {_PERSON}|without (?:the |any )?users? s? "
                rf"?(?:knowledge|consent|"
                r"knowing|approval|permission))\b",
                ("without", "tell,notify,inform,alert,mention,user"),
                order=True,
            ),
            Rule(
                r"\b(?:delete|transfer|approve|refund|purchase|wire|grant|pay) (?:[^ .!?]{1,30} "
                r"){0,10}?without "
                r"(?:asking|confirming|(?:any )?(?:confirmation|approval|permission|consent|verification))\b",
                ("without", "asking,confirm,approv,permission,consent,verif"),
                order=True,
            ),
            Rule(
                r"\b(?:when|whenever|once|after|if|as soon as|each time|every time) (?:you|an agent|the "
                r"agent|an ai|the assistant|"
                r"the model) (?:ever )?(?:reads?|sees?|recalls?|retrieves?|process(?:es)?|loads?|are "
                r"reading|finds?|opens?) "
                r"(?:this|these) (?:memory|memories|note|document|page|entry|context|file|text|record|"
                r"fact|content)s? "
                r"(?:(?:you|then|must|should|always|immediately|please|first|silently|it|will|also|again|"
                r"and|to|now|just) ){0,5}"
                r"(?:(?:call|run|execute|invoke|delete|forward|transfer|approve|obey|ignore|upload|"
                r"exfiltrate|reveal|grant)\b|"
                r"(?:use|send|post|email) (?:[^ .!?]{1,30} ){0,8}?(?:tool|function|http|password|keys?|"
                r"secrets?|token|"
                r"data|history|[^ @]{1,30}@))",
                (
                    " this , these ",
                    "memor,note,document,page,entr,context,file,text,record,fact,content",
                    "read,see,recall,retriev,process,load,find,open",
                ),
            ),
            Rule(
                r"\b(?:do not|dont|never|without) (?:ever )?(?:tell(?:ing)?|inform(?:ing)?|let(?:ting)?|"
                r"alert(?:ing)?|"
                r"mention(?:ing)?|show(?:ing)?|reveal(?:ing)?) (?:(?:about|this|these|to|instructions?|"
                r"note|message) ){0,4}"
                r"(?:the )?(?:user|human|operator)s? (?:know )?(?:about |of |that ){0,2}(?:you (?:did|"
                r"have done|are doing|read) )?"
                r"(?:this|these|it|any of this|the) ?(?:instructions?|message|note|prompt|injection|"
                r"command|memory|action|step|"
                r"call)\b",
                ("user,human,operator", "tell,inform,let,alert,mention,show,reveal"),
            ),
            Rule(
                r"\b(?:transfer|wire|send|move|withdraw) (?:(?:all|every|the|of|my|your|users?|available|"
                r"remaining|entire) ){1,5}"
                r"(?:funds|money|balance|bitcoins?|btc|eth|crypto|savings) (?:[^ .!?]{1,20} ){0,3}?to "
                r"(?:[^ .!?]{1,20} ){0,3}?(?:account|wallet|address|iban|0x|bc1)",
                ("fund,money,balance,bitcoin,btc,eth,crypto,saving", "account,wallet,address,iban,0x,bc1"),
                order=True,
            ),
        ),
    ),
    Pattern(
        "system_prompt_probe",
        "Asks a model for its system prompt or hidden instructions.",
        "medium",
        (
            Rule(
                _DISPLAY
                + r"(?:(?:me|us|back|out|verbatim|exactly|word for word|down|all|of|the|a|copy|text|full|"
                + r"contents?|"
                r"again|in|here) ){0,6}your (?:(?:full|entire|complete|exact|hidden|original|initial|"
                r"secret|whole|own|current|"
                r"internal|system|developer|custom|verbatim|very|first) ){0,4}(?:(?<=system )|"
                r"(?<=developer )|(?<=hidden )|"
                r"(?<=initial )|(?<=original )|(?<=secret )|(?<=full )|(?<=internal )|(?<=custom )|"
                r"(?<=exact )|(?<=entire ))"
                r"(?:prompts?|instructions?|messages?|directives?)\b",
                (_DISPLAY_STEMS, "your ", "prompt,instruction,message,directive"),
                order=True,
            ),
            Rule(
                r"\b(?:reveal|repeat|recite|leak|disclose|divulge|expose|print|output) (?:(?:me|us|back|"
                r"out|verbatim|all|of|the|full|"
                r"entire|complete|exact|hidden|secret|whole|text|contents?) ){1,6}(?:system|developer|"
                r"hidden) "
                r"(?:prompts?|instructions)\b(?! (?:to|in|into|for) (?:the |a )?(?:logs?|console|stdout|"
                r"debug|file|test))",
                (_DISPLAY_STEMS, "system,developer,hidden", "prompt,instruction"),
                order=True,
            ),
            Rule(
                r"\bwhat(?: is| are| was| were|s|re) your (?:(?:full|exact|hidden|original|initial|secret|"
                r"system|developer) ){1,3}"
                r"(?:prompts?|instructions?|message)\b",
                ("your ", "prompt,instruction,message"),
            ),
            Rule(
                r"\b(?:repeat|print|output|recite|copy|write|return|quote) (?:(?:back|out|all|everything|"
                r"the|of|words|text|every|"
                r"word|entire|content|exact|lines?) ){1,6}above (?:(?:this|that|line|message|verbatim|"
                r"exactly|starting|beginning|"
                r"including|and|in|a) ?){1,4}",
                ("above", "verbatim,exactly,starting,beginning,including,this,in a"),
                order=True,
            ),
        ),
    ),
    Pattern(
        "markup_injection",
        "Contains the control tokens with which chat models separate the system, the user and tools.",
        "high",
        (
            Rule(
                r"<\|(?:im_start|im_end|im_sep|system|user|assistant|endoftext|end_of_text|begin_of_text|"
                r"start_header_id|"
                r"end_header_id|eot_id|eom_id|endofprompt|fim_prefix|python_tag|channel|start|message|"
                r"return|call)\|>"
                r"|<(?:start|end)_of_turn>|\[/?inst\]|<</?sys>>",
                ("<|,_of_turn>,inst],sys>>",),
                reads="lines",
            ),
            Rule(
                r"</?(?:system|system[_-](?:prompt|message|reminder|instructions?)|developer[_-]message|"
                r"function_calls?|"
                r"function_results?|tool_calls?|tool_results?|tool_outputs?|"
                r"antml:[a-z_]{1,30})(?:\s[^<>\n]{0,200})?>",
                ("system,developer,function_,tool_,antml:", "<"),
                reads="lines",
            ),
            Rule(
                r"(?:^|"
                r"\n)[ \t#*>\[{(]{0,12}+(?:system|developer|root|admin)(?:[ _-](?:message|prompt|override|"
                r"instructions?|notice|"
                r"note|update))?[\])}*]{0,4}+[ \t]?:[*\]]{0,3}+\s{0,4}+(?:you are (?:now |an? |the |in )|"
                r"you (?:must|will|shall) (?:now|ignore|"
                r"obey|disregard|always|not)|ignore |disregard |override|from now on|new instructions?|"
                r"forget |all (?:previous|"
                r"prior))",
                (
                    "system,developer,root,admin",
                    "you ,ignore,disregard,override,from now,new inst,forget,all pr",
                ),
                reads="lines",
            ),
        ),
    ),
    Pattern(
        "hidden_text",
        "Holds text that a person does not see and a model reads: invisible characters, reversed or "
        "hidden markup.",
        "medium",
    ),
    Pattern(
        "opaque_payload",
        "Holds encoded text that decodes to one of the other patterns, or a long encoded block with the "
        "order to run it.",
        "medium",
    ),
    Pattern(
        "secret_material",
        "Holds what looks like a password, a key or a token. It should be replaced, not only hidden.",
        "high",
        (
            Rule(
                r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,4}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\r|\\n){0,4}"
                r"(?:[A-Za-z-]{1,30}: [^\n]{0,100}\s{1,4}){0,4}[A-Za-z0-9+/=]{32}",
                ("private key",),
                reads="source",
            ),
            Rule(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])", ("akia,asia",), reads="source"),
            Rule(
                r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{36,255}+|github_pat_[A-Za-z0-9_]{60,255}+",
                ("ghp_,gho_,ghu_,ghs_,ghr_,github_pat_",),
                reads="source",
            ),
            Rule(r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{20,255}+", ("glpat-",), reads="source"),
            Rule(r"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{20,255}+", ("xox",), reads="source"),
            Rule(r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}", ("aiza",), reads="source"),
            Rule(r"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]{24,255}+", ("sk-",), reads="source"),
            Rule(r"(?<![A-Za-z0-9])[rs]k_live_[A-Za-z0-9]{16,255}+", ("k_live_",), reads="source"),
            Rule(
                r"(?<![A-Za-z0-9])(?:npm_[A-Za-z0-9]{36}|hf_[A-Za-z]{34}|pypi-AgEI[A-Za-z0-9_-]{50,255}+)",
                ("npm_,hf_,pypi-",),
                reads="source",
            ),
            Rule(r"(?<![A-Za-z0-9])SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}", ("sg.",), reads="source"),
            Rule(r"(?<![A-Za-z0-9])loom_[A-Za-z0-9]{12}_[A-Za-z0-9_-]{43}", ("loom_",), reads="source"),
            Rule(
                r"(?i:\b(?:authorization\s?[:=]\s?)?(?:bearer|"
                r"basic))\s{1,2}(?P<token>[A-Za-z0-9._~+/-]{20,2000}+={0,2})",
                ("bearer ,basic ",),
                reads="source",
            ),
            Rule(
                r"(?<=://)[^\s:/@<>\"']{1,60}:(?P<password>[^\s:/@<>\"']{6,100})@[A-Za-z0-9.-]",
                ("://", "@"),
                reads="source",
            ),
        ),
    ),
)

CATALOGUE: dict[str, Pattern] = {pattern.name: pattern for pattern in _DEFINITIONS}


# --- Rules on words and lines -----------------------------------------------------------------------------

_regex = functools.cache(re.compile)
_ORDER_LEAD = re.compile(
    r"(?:[.:;!?=>] ?|\b(?:please|and|then|now|must|shall|always|immediately|also|instead|first|next|just|"
    r"simply|"
    r"kindly|hereby|secretly|silently|quietly|quickly|fully|ok|okay|you|you to|need to|have to|want to|"
    r"you should|"
    r"assistant|ai|chatgpt|claude|gpt|finally|afterwards|automatically|task is to|job is to|instructions|"
    r"instructions to|directly) )$"
)
_ORDER_MARKS = "\n\r\"'`“”‘’„«»「*#>-([{|.:;!?–—•"


class _Prepared(NamedTuple):
    """A rule with its stems and letters folded; `loose` finds it in words whose blanks are lost."""

    name: str
    needs: tuple[Stems, ...]
    order: bool
    at_word: bool
    strict: str
    loose: str


def _fold_rule(source: str) -> str:
    return "".join(c if c.isascii() else _FOLDING[c] for c in source)


def _stems(needs: tuple[str, ...]) -> tuple[Stems, ...]:
    return tuple(tuple(map(_fold_rule, group.split(","))) for group in needs)


def _loosened(source: str) -> str:
    """Blanks optional; not for rules with free words or lookbehinds, which would get slow or invalid."""
    if "[^ " in source or "(?<=" in source:
        return source
    return source.replace(r"\b", "").replace(" ", " ?")


def _prepared(reads: Reads) -> tuple[_Prepared, ...]:
    rules = []
    for pattern in _DEFINITIONS:
        for rule in pattern.rules:
            if rule.reads == reads:
                source = _fold_rule(rule.regex)
                needs = _stems(rule.needs)
                # A leading \b would keep the engine from skipping to the first letters; `_places` checks it.
                at_word = source.startswith(r"\b") and "|\\b" not in source
                strict = source.removeprefix(r"\b") if at_word else source
                rules.append(_Prepared(pattern.name, needs, rule.order, at_word, strict, _loosened(source)))
    return tuple(rules)


_WORD_RULES = _prepared("words")
_LINE_RULES = _prepared("lines")
_SECRET_RULES = _prepared("source")


def _possible(needs: tuple[Stems, ...], text: str, known: dict[Stems, bool]) -> bool:
    """Whether a stem of each group is in the text; `known` holds the answers so far."""
    for stems in needs:
        there = known.get(stems)
        if there is None:
            there = False
            for stem in stems:  # Plain loops: any() with a generator costs more than the search.
                if stem in text:
                    there = True
                    break
            known[stems] = there
        if not there:
            return False
    return True


def _stands_as_order(text: str, copy: _Copy, start: int) -> bool:
    """Whether the words at `start` open a sentence, quotation or line, or follow a call to act."""
    if start == 0 or _ORDER_LEAD.search(copy.text, max(0, start - 24), start):
        return True
    before = copy.offsets[start] - 1
    while before >= 0 and text[before] in " \t":
        before -= 1
    return before < 0 or text[before] in _ORDER_MARKS


def _places(rule: _Prepared, text: str, loose: bool) -> Iterator[Span]:
    """Where the rule matches, from the beginning of a word if it asks for that."""
    regex = _regex(rule.loose if loose else rule.strict)
    found = regex.search(text)
    while found:
        start, end = found.span()
        if rule.at_word and not loose and start and text[start - 1].isalnum():
            found = regex.search(text, start + 1)
            continue
        yield start + len(found[0]) - len(found[0].lstrip()), start + len(found[0].rstrip())
        found = regex.search(text, end)


def _apply(rules: tuple[_Prepared, ...], text: str, copy: _Copy, loose: bool) -> Iterator[Finding]:
    known: dict[Stems, bool] = {}
    for rule in rules:
        if loose or _possible(rule.needs, copy.text, known):
            for first, last in _places(rule, copy.text, loose):
                if rule.order and not _stands_as_order(text, copy, first):
                    continue
                start, end = copy.original(first, last)
                if text[start:end] not in CATALOGUE:  # The name of a pattern is not an order.
                    yield rule.name, start, end


def _instructions(text: str, folded: _Copy) -> Iterator[Finding]:
    yield from _apply(_LINE_RULES, text, folded, loose=False)
    if _TAGS.search(text):  # What tag characters spell, apart from the words that they stand in.
        tags = [i for i, character in enumerate(text) if "\U000e0020" <= character <= "\U000e007e"]
        spelled = _Copy("".join(_FOLDING[text[i]] for i in tags), tags)
        yield from _apply(_WORD_RULES, text, spelled, loose=False)
    for copy, loose in _views(folded):
        yield from _apply(_WORD_RULES, text, copy, loose)


# --- Hidden text ------------------------------------------------------------------------------------------

_UNUSUAL = re.compile(r"[^\x00-\u024f]")
_INVISIBLE = "\u200b-\u200d\u2060-\u2064\ufeff\u180e\u034f\u115f\u1160\u3164\uffa0"
_INVISIBLE_ONE = re.compile(rf"[{_INVISIBLE}]")
_INVISIBLE_RUN = re.compile(rf"[{_INVISIBLE}]{{4,}}+")
# Scripts that never need a joiner inside a word; Arabic, Indic scripts and emoji do.
_PLAIN_LETTER = r"A-Za-z\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff"
_PLAIN_WORD = re.compile(rf"[{_PLAIN_LETTER}{_INVISIBLE}]++")
_JOINT = re.compile(rf"(?<=[{_PLAIN_LETTER}])[{_INVISIBLE}]++(?=[{_PLAIN_LETTER}])")
_SELECTOR_RUN = re.compile(r"[\ufe00-\ufe0f\U000e0100-\U000e01ef]{3,}+")
_BIDI_OVERRIDE = re.compile(r"[\u202d\u202e]++")
_BIDI_RTL = re.compile(r"[\u202b\u2067]")
_RTL_LETTER = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
# Flags of regions are spelled with tag characters, see UTS 51.
_TAGS = re.compile(
    r"\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}+\U000e007f|([\U000e0000-\U000e007f]++)"
)
_ADDRESSED = re.compile(
    r"\b(?:ai|ais|assistants?|llms?|language models?|chatgpt|claude|gpt|copilot|gemini|system prompt|"
    r"secretly|"
    r"silently|covertly)\b|^<!--\s{0,9}+(?:(?:please|now|first|then) )?(?:ignore|disregard|send|delete|"
    r"forward|"
    r"e-?mail|execute|reveal|upload|transfer|exfiltrate|obey)\b"
)
_HIDING_STYLE = re.compile(
    r"\bstyle\s?=[^<>]{0,200}?(?:display\s?:\s?none|visibility\s?:\s?hidden|font-size\s?:\s?0(?![.\d])|"
    r"opacity\s?:\s?0(?![.\d])|color\s?:\s?transparent)|\shidden(?=[\s>=/])"
)
_WORDS = re.compile(r"(?:[^\W\d_]{2,}+[^<\w]{1,9}+){2}[^\W\d_]{2,}+")
_HIDDEN_LOOK_AHEAD = 400


def _hidden_characters(text: str) -> Iterator[Span]:
    if _INVISIBLE_ONE.search(text):
        for word in _PLAIN_WORD.finditer(text):
            joints = list(_JOINT.finditer(text, word.start(), word.end()))
            if joints:
                visible = word[0].strip("\u200b\u200c\u200d\u2060\ufeff")
                start = word.start() + word[0].index(visible)
                yield start, start + len(visible)
        yield from (found.span() for found in _INVISIBLE_RUN.finditer(text))
    yield from (found.span() for found in _SELECTOR_RUN.finditer(text))
    yield from (found.span() for found in _BIDI_OVERRIDE.finditer(text))
    if _BIDI_RTL.search(text) and not _RTL_LETTER.search(text):
        yield from (found.span() for found in _BIDI_RTL.finditer(text))
    yield from (found.span(1) for found in _TAGS.finditer(text) if found[1])


def _hidden_markup(folded: _Copy, found: Sequence[Finding]) -> Iterator[Span]:
    """Comments with an instruction or words for a machine reader; elements styled away that hold words."""
    for start, end in _comments(folded.text):
        span = folded.original(start, end)
        if _ADDRESSED.search(folded.text, start, end) or any(
            span[0] <= first and last <= span[1] for _, first, last in found
        ):
            yield span
    for tag in _TAG.finditer(folded.text):
        if tag[0][1] != "/" and _HIDING_STYLE.search(tag[0]):
            after = folded.text[tag.end() : tag.end() + _HIDDEN_LOOK_AHEAD]
            shown = after.partition("<")[0]
            if _WORDS.search(shown):
                yield folded.original(tag.start(), tag.end() + len(shown))


# --- Encoded text -----------------------------------------------------------------------------------------

_BLOB = re.compile(
    r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/_-]{24,}+(?:\r?\n[ \t]{0,8}+[A-Za-z0-9+/_-]{24,}+)*+={0,2}"
)
_LONG_RUN = re.compile(r"[A-Za-z0-9+/_-]{24}")
_TOLD = re.compile(
    r"(?i:\b(?:decode|decoding|base64|b64decode|atob|unhexlify|frombase64string|deobfuscate|eval|exec|"
    r"execute|"
    r"powershell|run (?:it|this|the (?:result|output|following|payload|decoded))|follow (?:it|the decoded|"
    r"what))\b)"
)
_MEDIA_URI = re.compile(r"data:(?:image|font|audio|video)/[A-Za-z0-9.+-]{1,40};base64,$")
_DIGEST = re.compile(r"sha(?:1|256|384|512)-|[0-9a-fA-F]*$")
_ARMOUR = "-----BEGIN "
_BETWEEN_PAYLOADS = "\n.\n"
_RANDOM_LENGTH = 80
_RANDOM_DISTINCT = 20
_TOLD_WITHIN = 160
_HASH_LENGTHS = (32, 40, 56, 64, 96, 128)


def _readable(data: bytes) -> str:
    """The bytes as text, or nothing."""
    encoding = "utf-16-le" if data[1::2].count(0) * 3 > len(data) else "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        try:  # The end of a block may be cut inside of a character, or belong to what stands after it.
            text = data[:-4].decode(encoding)
        except UnicodeDecodeError:
            return ""
    return text if not _CONTROLS.search(text) else ""


def _decoded(blob: str) -> str:
    if len(blob) % 2 == 0:
        try:
            text = _readable(bytes.fromhex(blob))
        except ValueError:
            text = ""
        if text:
            return text
    plain = blob.rstrip("=").replace("-", "+").replace("_", "/")
    plain = plain[: len(plain) - 1] if len(plain) % 4 == 1 else plain
    try:
        return _readable(binascii.a2b_base64(plain + "=" * (-len(plain) % 4)))
    except binascii.Error:
        return ""


def _random(text: str, start: int, blob: str) -> bool:
    """Long and mixed enough to carry a program, and not a digest, a signature or a certificate."""
    if len(blob) < _RANDOM_LENGTH or text[start - 1 : start] == ".":
        return False
    if (
        _DIGEST.fullmatch(blob)
        and len(blob) in _HASH_LENGTHS
        or _DIGEST.match(blob, 0, 7)
        and "-" in blob[:7]
    ):
        return False
    if _ARMOUR in text[max(0, start - 100) : start]:
        return False
    is_hex = all(c in "0123456789abcdefABCDEF" for c in blob)
    mixed = any(map(str.isupper, blob)) and any(map(str.islower, blob)) and any(map(str.isdigit, blob))
    return is_hex or (mixed and len(set(blob)) >= _RANDOM_DISTINCT)


def _opaque(text: str) -> Iterator[Span]:
    if not _LONG_RUN.search(text):
        return
    readable: list[Span] = []
    payloads: list[str] = []
    begins: list[int] = []
    length = 0
    for found in _BLOB.finditer(text):
        blob = "".join(found[0].split())
        payload = _decoded(blob)
        start, end = found.span()
        if payload:
            readable.append((start, end))
            payloads.append(payload)
            begins.append(length)
            length += len(payload) + len(_BETWEEN_PAYLOADS)
        elif (
            _random(text, start, blob)
            and _TOLD.search(
                text[max(0, start - _TOLD_WITHIN) : start] + "\n" + text[end : end + _TOLD_WITHIN]
            )
            and not _MEDIA_URI.search(text, max(0, start - 60), start)
        ):
            yield start, end
    if payloads:  # All at once, because many small scans cost more than a large one.
        joined = _BETWEEN_PAYLOADS.join(payloads)
        for _, at, _ in _instructions(joined, _folded(joined)):
            yield readable[bisect_right(begins, at) - 1]


# --- Secrets ----------------------------------------------------------------------------------------------

_ASSIGNMENT = re.compile(r":|=|：|is |ist ")
_VALUE = re.compile(r"[=>]?\s{0,3}[\"'`]?([^\s\"'`,;]{6,200})")
_PASSWORD_NAMES = (
    "password", "passwd", "passphrase", "passwort", "kennwort", "mot de passe", "contraseña", "密码", "密碼",
)  # fmt: skip
_TOKEN_NAMES = (
    *("secret", "token"),
    *(
        f"{kind}{joint}key"
        for kind in ("api", "access", "secret", "private", "signing", "encryption", "account")
        for joint in ("", " ", "_", "-")
    ),
)
_PLACEHOLDER = re.compile(
    r"(?i:[<>{}$()\[]|\*{2}|\.{3}|…|%\w|x{4}|your|example|sample|changeme|change[_-]me|placeholder|redact|"
    r"dummy|"
    r"secret[_-]?(?:here|value)|password|passwd|insert|replace|undefined|environ|getenv|settings\.|config\.|"
    r"self\.|request\.|args\.|sha\d|md5|bcrypt|argon2|pbkdf2|scrypt|base64|utf-?8)|^[~./]|^https?:"
)
_TOKEN_PLACEHOLDER = re.compile(r"(?i:example|x{5}|your[_-]|placeholder|redact|0{8}|123456789)")
_IDENTIFIER = re.compile(r"(?:\d{1,3}[-+]?)?[A-Za-z_]+(?:[.:/=-]+[A-Za-z_]+)*[.:!?)]*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PRIVATE_KEY_END = re.compile(r"-----END [A-Z0-9 ]{1,60}-----")
_PRIVATE_KEY_LENGTH = 20_000
_TOKEN_DISTINCT = 10
_PASSWORD_DISTINCT = 5


def _real(value: str, distinct: int) -> bool:
    """Whether a person or a machine made this value up, as opposed to a placeholder, a name or a word."""
    if _PLACEHOLDER.search(value) or _IDENTIFIER.fullmatch(value) or _UUID.fullmatch(value):
        return False
    letters = any(map(str.isalpha, value))
    digits = any(map(str.isdigit, value))
    signs = any(c in "!#%&@^+?=" for c in value.rstrip("!?"))
    return letters and (digits or signs) and len(set(value)) >= distinct


def _assigned(text: str) -> Iterator[Span]:
    """Values given to a name that says password, key or token."""
    done = 0
    for sign in _ASSIGNMENT.finditer(text):
        if sign.start() < done:
            continue
        name = text[max(0, sign.start() - 24) : sign.start()].rstrip(" \t\"'`*]").lower()
        password = name.endswith(_PASSWORD_NAMES)
        if not password and (sign[0][0] == "i" or not name.endswith(_TOKEN_NAMES)):
            continue
        found = _VALUE.match(text, sign.end())
        if found:
            done = found.end()
            value = found[1].rstrip(".:)]}")
            least, distinct = (6, _PASSWORD_DISTINCT) if password else (16, _TOKEN_DISTINCT)
            if len(value) >= least and _real(value, distinct):
                yield found.start(1), found.start(1) + len(value)


def _secrets(text: str) -> Iterator[Span]:
    yield from _assigned(text)
    lowered = text.lower()
    for rule in _SECRET_RULES:
        if not _possible(rule.needs, lowered, {}):
            continue
        for found in _regex(rule.strict).finditer(text):
            group = found.lastgroup or 0
            value = found[group].rstrip(".:)]}")
            start = found.start(group)
            end = start + len(value)
            if _TOKEN_PLACEHOLDER.search(value) or len(set(value)) < _PASSWORD_DISTINCT:
                continue
            if group and not _real(value, _PASSWORD_DISTINCT):
                continue
            if value.startswith(_ARMOUR):
                close = _PRIVATE_KEY_END.search(text, end, end + _PRIVATE_KEY_LENGTH)
                end = close.end() if close else end
            yield start, end


# --- The scan ---------------------------------------------------------------------------------------------

_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ud800-\udfff\ufff0-\uffff\U000e0000-\U000e0fff]"
)
_SHOWN_OF_A_SECRET = 4


def _shortened(text: str) -> str:
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


def _excerpt(pattern: str, text: str, start: int, end: int) -> str:
    if pattern == "secret_material":
        return f"{text[start : start + _SHOWN_OF_A_SECRET]}… ({end - start} characters)"
    shown = " ".join(_shortened(text[start:end]).split())
    return _shortened(_UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", shown))


def _merged(findings: list[Finding]) -> Iterator[Finding]:
    """Overlapping spans of one pattern as one."""
    name, start, end = "", 0, 0
    for finding in sorted(set(findings)):
        if finding[0] == name and finding[1] < end:
            end = max(end, finding[2])
            continue
        if name:
            yield name, start, end
        name, start, end = finding
    if name:
        yield name, start, end


def scan(text: str) -> list[Match]:
    """Every match of every pattern, by place; overlapping matches of one pattern are one match.

    Never raises on a str, lone surrogates included, and takes time linear in its length.
    """
    folded = _folded(text)
    findings = list(_instructions(text, folded))
    if "<" in folded.text:
        findings += [("hidden_text", *span) for span in _hidden_markup(folded, findings)]
    if _UNUSUAL.search(text):
        findings += [("hidden_text", *span) for span in _hidden_characters(text)]
    findings += [("opaque_payload", *span) for span in _opaque(text)]
    findings += [("secret_material", *span) for span in _secrets(text)]
    if not findings:
        return []
    return sorted(
        (Match(name, start, end, _excerpt(name, text, start, end)) for name, start, end in _merged(findings)),
        key=lambda match: (match.start, match.end, match.pattern),
    )


def _version() -> str:
    """Over every rule, table, number and regular expression here; wording for people may change freely."""
    rules = [(pattern.name, pattern.severity, pattern.rules) for pattern in _DEFINITIONS]
    constants = {
        name: value for name, value in globals().items() if name.isupper() and "CATALOGUE" not in name
    }
    regexes = [(name, value.pattern) for name, value in constants.items() if isinstance(value, re.Pattern)]
    numbers = [(name, value) for name, value in constants.items() if isinstance(value, int | str)]
    tables = (sorted(_LOOKALIKES.items()), sorted(_INLINE), sorted(_LEET.items()), _HASH_LENGTHS)
    names = (_PASSWORD_NAMES, _TOKEN_NAMES)
    definitions = repr((rules, sorted(regexes), sorted(numbers), tables, names))
    return f"{_ENGINE}-{hashlib.sha256(definitions.encode()).hexdigest()[:8]}"


CATALOGUE_VERSION: str = _version()
