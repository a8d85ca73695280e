"""Words to phones: lexicon, function words, possessives, acronyms, unknown words; and the inventory itself."""

from __future__ import annotations

import pytest

from legato.text import phones as ph
from legato.text.english import EnglishPhones, english_words, word_phones
from legato.text.words_en import LETTERS, WORDS

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
def test_word(word: str) -> None:
    assert " ".join(word_phones(english_words(), word)) == SPOKEN[word]


@pytest.mark.parametrize("word", ["kubernetes", "Zaporizhzhia", "brillig", "xkcd", "qqqqqqqq", "aaaaaaaah"])
def test_unknown_words_get_phones_of_the_inventory(word: str) -> None:
    phones = english_words().phones(word)
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
def test_words_of_known_parts(word: str) -> None:
    assert not english_words().knows(word)
    assert " ".join(english_words().phones(word)) == FROM_PARTS[word]


def test_a_guess_has_one_main_stress() -> None:
    for word in ("affability", "blorptastic", "zzyzxq", "kubernetes"):
        assert sum(ph.stress_of(p) == ph.PRIMARY for p in english_words().phones(word)) == 1, word


def test_the_same_word_has_the_same_phones_whatever_stands_around() -> None:
    alone = english_words().phones("record")
    front = EnglishPhones(english_words())
    units = front.push("a record to record with records ") + front.finish()
    record = [i for i, word in enumerate(front.spoken) if word.text == "record"]
    assert [tuple(u.phone for u in units if u.word == i) for i in record] == [alone, alone]


def test_inventory_is_a_set_and_tables_are_in_it() -> None:
    assert len(set(ph.INVENTORY)) == len(ph.INVENTORY) == 3 + 4 + 25 + 48
    for table in (WORDS, LETTERS):
        for word, phones in table.items():
            assert set(phones.split()) <= set(ph.INVENTORY), word


def test_ipa_outside_the_inventory_is_refused() -> None:
    with pytest.raises(KeyError):
        ph.from_ipa(["ʘ"])
