"""How subjects and attributes match: NFC, trimmed, case-folded."""

from __future__ import annotations

import hashlib
import unicodedata


def folded(text: str) -> str:
    """The form in which two spellings of a subject or attribute are the same.

    Unicode full case folding (The Unicode Standard, 3.13, D145) between two NFC normalisations, as folding
    may leave a text that is not normalised.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).strip().casefold())


def sha_of_word(text: str) -> bytes:
    """SHA-256 of the folded text: what is stored and looked up, whatever the length."""
    return hashlib.sha256(folded(text).encode()).digest()
