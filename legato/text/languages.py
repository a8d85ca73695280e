"""ISO 639-1 codes of the languages of the official models. Requests may use `en` or `en-US` instead of `english`.

Pure functions. A region or script after the code is ignored.
"""

from __future__ import annotations

LANGUAGE_CODES = {
    "zh": "chinese",
    "en": "english",
    "ja": "japanese",
    "ko": "korean",
    "de": "german",
    "fr": "french",
    "ru": "russian",
    "pt": "portuguese",
    "es": "spanish",
    "it": "italian",
}
"""ISO 639-1 code -> the model's name of the language."""


def language_name(language: str) -> str:
    """The model's name for a language name or code (`en`, `en-US`, `zh_CN`), in lower case. Others are unchanged."""
    name = language.strip().lower()
    return LANGUAGE_CODES.get(name.replace("_", "-").partition("-")[0], name)


def language_code(name: str) -> str:
    """The code of a language, or its name if it has none."""
    return next((code for code, each in LANGUAGE_CODES.items() if each == name), name)
