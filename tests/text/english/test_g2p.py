"""English G2P: lexicon, function words, possessives, acronyms, unknown words, and the phone inventory."""

from __future__ import annotations

import pytest

from legato.text.english import phones as ph
from legato.text.english.frontend import EnglishPhones, english_g2p, word_phones
from legato.text.english.words import LETTERS, WORDS

SPOKEN = {
    "world": "w ˈɜ ɹ l d",
    "champagne": "ʃ æ m p ˈA n",
    "WORLD": "w ˈɜ ɹ l d",
    "the": "ð ə",
    "dog's": "d ˈɔ ɡ z",
    "cat's": "k ˈæ t s",
    "boss's": "b ˈɔ s ɪ z",
    "dogs'": "d ˈɔ ɡ z",
    "butter": "b ˈʌ T ə ɹ",
    "button": "b ˈʌ t ə n",
    "attack": "ə t ˈæ k",
    "FBI": "ˌɛ f b ˌi ˈI",
    "US": "j ˌu ˈɛ s",
    "us": "ʌ s",
    "OpenAI": "ˈO p ə n ˌA ˈI",
    "pm.": "p ˌi ˈɛ m",
    "sooooo": "s O",
    "helllllo": "h ə l ˈO",
    "": "",
}


@pytest.mark.parametrize("word", SPOKEN)
def test_word_phones(word: str) -> None:
    assert " ".join(word_phones(english_g2p(), word)) == SPOKEN[word]


@pytest.mark.parametrize("word", ["kubernetes", "Zaporizhzhia", "brillig", "xkcd", "qqqqqqqq", "aaaaaaaah"])
def test_unknown_words_use_inventory_phones(word: str) -> None:
    phones = english_g2p().phones(word)
    assert phones
    assert set(phones) <= set(ph.INVENTORY)


FROM_PARTS = {
    "dunking": "d ˈʌ ŋ k ɪ ŋ",
    "blogged": "b l ˈɑ ɡ d",
    "podcasts": "p ˈɑ d k ˌæ s t s",
    "unbloggable": "ʌ n b l ˈɑ ɡ ə b ə l",
    "smartphonebook": "s m ˈɑ ɹ t f ˌO n b ˌʊ k",
}


@pytest.mark.parametrize("word", FROM_PARTS)
def test_words_built_from_known_parts(word: str) -> None:
    assert not english_g2p().has_entry(word)
    assert " ".join(english_g2p().phones(word)) == FROM_PARTS[word]


def test_predicted_word_has_one_primary_stress() -> None:
    for word in ("affability", "blorptastic", "zzyzxq", "kubernetes"):
        assert sum(ph.stress_of(p) == ph.PRIMARY for p in english_g2p().phones(word)) == 1, word


def test_word_phones_do_not_depend_on_context() -> None:
    expected = english_g2p().phones("record")
    front = EnglishPhones(english_g2p())
    units = front.push("a record to record with records ") + front.finish()
    record = [i for i, word in enumerate(front.spoken) if word.text == "record"]
    assert [tuple(u.phone for u in units if u.word == i) for i in record] == [expected, expected]


def test_inventory_is_unique_and_covers_tables() -> None:
    assert len(set(ph.INVENTORY)) == len(ph.INVENTORY) == 3 + 4 + 25 + 48
    for table in (WORDS, LETTERS):
        for word, phones in table.items():
            assert set(phones.split()) <= set(ph.INVENTORY), word


def test_unknown_ipa_symbol_raises() -> None:
    with pytest.raises(KeyError):
        ph.from_ipa(["ʘ"])
