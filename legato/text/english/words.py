"""Pronunciations that override or extend the lexicon. Data only.

`WORDS` gives phones (see `phones.py`), separated by spaces. Function words are unstressed, as in connected speech. If a
spelling has two pronunciations (*read*, *live*), the more frequent one is used.
"""

from __future__ import annotations


def _entries(table: str) -> dict[str, str]:
    pairs = (line.split(maxsplit=1) for line in table.strip().splitlines())
    return {word: " ".join(_split(phones)) for word, phones in pairs}


def _split(phones: str) -> list[str]:
    """Split into phones: `ɪntˈu` -> `ɪ n t ˈu`. A stress mark stays with its vowel."""
    units: list[str] = []
    mark = ""
    for letter in phones.replace(" ", ""):
        if letter in "ˈˌ":
            mark = letter
            continue
        units.append(mark + letter)
        mark = ""
    return units


LETTERS: dict[str, str] = _entries(
    """
    a ˈA
    b bˈi
    c sˈi
    d dˈi
    e ˈi
    f ˈɛf
    g ʤˈi
    h ˈAʧ
    i ˈI
    j ʤˈA
    k kˈA
    l ˈɛl
    m ˈɛm
    n ˈɛn
    o ˈO
    p pˈi
    q kjˈu
    r ˈɑɹ
    s ˈɛs
    t tˈi
    u jˈu
    v vˈi
    w dˈʌbəljˌu
    x ˈɛks
    y wˈI
    z zˈi
    """
)

WORDS: dict[str, str] = _entries(
    """
    a ə
    an ən
    the ðə
    and ænd
    or ɔɹ
    but bʌt
    if ɪf
    than ðæn
    as æz
    at æt
    by bI
    for fɔɹ
    from fɹʌm
    in ɪn
    into ɪntu
    of ʌv
    on ɔn
    onto ɔntu
    to tu
    with wɪð
    is ɪz
    isn't ˈɪzənt
    am æm
    are ɑɹ
    was wʌz
    were wɜɹ
    be bi
    been bɪn
    has hæz
    have hæv
    had hæd
    do du
    does dʌz
    did dɪd
    can kæn
    could kʊd
    will wɪl
    would wʊd
    shall ʃæl
    should ʃʊd
    must mʌst
    may mA
    he hi
    she ʃi
    we wi
    you ju
    it ɪt
    its ɪts
    it's ɪts
    i I
    i'm Im
    i'll Il
    i've Iv
    i'd Id
    they ðA
    me mi
    him hɪm
    her hɜɹ
    his hɪz
    us ʌs
    them ðɛm
    my mI
    your jɔɹ
    our Wəɹ
    their ðɛɹ
    that ðæt
    so sO
    there's ðɛɹz
    he's hiz
    she's ʃiz
    we're wiɹ
    you're jɔɹ
    they're ðɛɹ
    yeah jˈæə
    hmm hˈʌm
    mm ˈʌm
    ok OkˈA
    okay OkˈA
    tis tɪz
    miz mˈɪz
    hello həlˈO
    tv tˌivˈi
    ai ˌAˈI
    vs vˈɜɹsəs
    wi-fi wˈIfI
    covid kˈOvɪd
    qwen kwˈɛn
    kokoro kOkˈɔɹO
    pytorch pˈItˌɔɹʧ
    python pˈIθˌɑn
    nvidia ɪnvˈɪdiə
    api ˌApiˈI
    url jˌuɑɹˈɛl
    emoji ɪmˈOʤi
    blog blˈɑɡ
    podcast pˈɑdkˌæst
    smartphone smˈɑɹtfˌOn
    youtube jˈutˌub
    google ɡˈuɡəl
    whatsapp wˈʌtsˌæp
    tiktok tˈɪktˌɑk
    bitcoin bˈɪtkˌYn
    close klˈOz
    email ˈimˌAl
    emails ˈimˌAlz
    """
)
