"""Generate the training sentences: WordNet's example sentences mixed with generated ones.

Every seventh sentence is followed by a generated one: questions, exclamations, very short utterances, numbers and dates
in words, names. Some sentences are paired. Dictionary examples have few of these. Deterministic for one seed. Writes
`paths.SENTENCES`, one JSON object per line: `text` (letters, apostrophes, hyphens and . , ? ! only), `kind`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import paths

SEED = 1
MADE_TO_ORDER_EVERY = 7
LONGEST_CHARACTERS = 95
_PLAIN = re.compile(r"[A-Za-z' ,;:!?.\-]+")

_FIRST = """
Emma Oliver Sophia Liam Charlotte Noah Amelia James Isabella Lucas Mia Henry Harper Jack Evelyn Daniel Ella
Samuel Grace David Chloe Joseph Victoria Matthew Hannah Thomas Maria Peter Anna Robert Alice George Laura
Michael Julia Kevin Sarah Rachel Simon Naomi Martin Helen Oscar Rosa Felix Irene Hugo Nina Carlos Yuki Ahmed
Priya Wei Olga Pierre Ingrid Marco
""".split()
_LAST = """
Smith Johnson Williams Brown Jones Garcia Miller Davis Wilson Anderson Taylor Moore Jackson Martin Lee Thompson
White Harris Clark Lewis Robinson Walker Young Allen King Wright Scott Hill Green Adams Baker Nelson Carter
Mitchell Turner Parker Evans Edwards Collins Stewart Morris Murphy Cook Rogers Peterson Bailey Kelly Howard Ward
Cox Richardson Watson Brooks Bennett Gray Hughes
""".split()
_PLACES = """
London Paris Berlin Madrid Rome Vienna Tokyo Chicago Boston Seattle Toronto Sydney Dublin Oslo Stockholm Lisbon
Prague Geneva Munich Amsterdam Denver Atlanta Houston Dallas Miami Portland Austin California Texas Florida
Canada Mexico Brazil India China Japan Kenya Egypt Italy Spain France Germany Poland Norway Sweden Ireland
Scotland Australia
""".split()
_THINGS = (
    """
the report|the meeting|the new phone|dinner|the tickets|the garden|the train|the weather|the house|breakfast
the music|the children|the computer|your order|the package|the kitchen window|the front door|the letter
the library|the doctor|the car|the newspaper|the mountain|the river|the bridge|the museum|coffee
the bus stop|the schedule|the website|the answer|the photograph|the project|the budget|the airport
the message|the recipe|the battery|the screen|the keyboard
""".strip()
    .replace("\n", "|")
    .split("|")
)
_MONTHS = "January February March April May June July August September October November December".split()
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_UNITS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen
""".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = """
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth
fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third
twenty-fourth twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth thirtieth thirty-first
""".split()
_SHORT = (
    """
Yes.|No.|Hello!|Hello.|Hi there.|Good morning.|Good evening.|Good night.|Thank you.|Thanks a lot!
You're welcome.|Sorry.|Excuse me.|Of course.|Not yet.|Right now.|Maybe later.|Please wait.|Come in.
Sit down.|Why not?|Really?|What?|Who is it?|How much?|Where?|When?|Are you sure?|Wait!|Stop!|Look!|Help!
Well done!|Great!|Perfect.|All right.|Okay.|See you soon.|Goodbye.|Bye.|Never mind.|No problem.|Let's go!
Got it.|I see.|I don't know.|Exactly.|Not at all.|What a day!|Be careful!|Come on!|Tomorrow.|Today.
Once more.|Welcome back.|Nice work!|One moment.|Just a second.|That's it.|Go ahead.|After you.|Cheers!
Happy birthday!|Good luck!|Sounds good.|Try again.|How are you?|What time is it?|Is it raining?|Too late.
Almost there.
""".strip()
    .replace("\n", "|")
    .split("|")
)


def number_in_words(value: int) -> str:
    """0..999,999 in American English words."""
    if value < 20:
        return _UNITS[value]
    if value < 100:
        tens, unit = divmod(value, 10)
        return _TENS[tens - 2] + (f"-{_UNITS[unit]}" if unit else "")
    base, name = (100, "hundred") if value < 1000 else (1000, "thousand")
    many, rest = divmod(value, base)
    return f"{number_in_words(many)} {name}" + (f" {number_in_words(rest)}" if rest else "")


def _year_in_words(year: int) -> str:
    if 2000 <= year < 2010:
        return "two thousand" + (f" {_UNITS[year - 2000]}" if year > 2000 else "")
    century, rest = divmod(year, 100)
    tail = "hundred" if rest == 0 else f"oh {_UNITS[rest]}" if rest < 10 else number_in_words(rest)
    return f"{number_in_words(century)} {tail}"


def _time_in_words(rng: random.Random) -> str:
    minute = rng.choice(("", " fifteen", " thirty", " forty-five", " oh five", " twenty", " ten", " fifty"))
    return (
        f"{_UNITS[rng.randint(1, 12)]}{minute}{rng.choice(('', ' in the morning', ' in the evening', ' p m', ' a m'))}"
    )


def _amount(rng: random.Random) -> str:
    size = rng.choice((20, 100, 100, 1000, 10_000, 900_000))
    return number_in_words(rng.randint(2, size))


def _numbers(rng: random.Random) -> str:
    thing, name = rng.choice(_THINGS), rng.choice(_FIRST)
    year = _year_in_words(rng.randint(1700, 2040))
    return rng.choice(
        (
            f"The train to {rng.choice(_PLACES)} leaves at {_time_in_words(rng)}.",
            f"On {rng.choice(_MONTHS)} {rng.choice(_ORDINALS)}, {year}, {name} saw {thing}.",
            f"It costs {_amount(rng)} dollars and {number_in_words(rng.randint(5, 99))} cents.",
            f"{name} bought {_amount(rng)} books for {_amount(rng)} dollars.",
            f"Page {_amount(rng)}, line {number_in_words(rng.randint(1, 40))}.",
            f"My number is {', '.join(' '.join(rng.choice(_UNITS[:10]) for _ in range(3)) for _ in range(3))}.",
            f"About {number_in_words(rng.randint(2, 99))} percent of the people in {rng.choice(_PLACES)} agree.",
            f"We will meet on {rng.choice(_WEEKDAYS)} at {_time_in_words(rng)}.",
            f"The temperature is {number_in_words(rng.randint(1, 99))} point {rng.choice(_UNITS[:10])} degrees.",
            f"It was built in {_year_in_words(rng.randint(1500, 2030))}.",
            f"There are {_amount(rng)} seats, and {_amount(rng)} of them are taken.",
        )
    )


def _names(rng: random.Random) -> str:
    first, last, other = rng.choice(_FIRST), rng.choice(_LAST), rng.choice(_FIRST)
    return rng.choice(
        (
            f"{first} {last} moved from {rng.choice(_PLACES)} to {rng.choice(_PLACES)}.",
            f"Doctor {last} will see you now, {first}.",
            f"{first} and {other} are flying to {rng.choice(_PLACES)} on {rng.choice(_WEEKDAYS)}.",
            f"Mister {last}, this is {other} from {rng.choice(_PLACES)}.",
            f"Please tell {first} {last} about {rng.choice(_THINGS)}.",
        )
    )


def _questions(rng: random.Random) -> str:
    thing, name = rng.choice(_THINGS), rng.choice(_FIRST)
    return rng.choice(
        (
            f"Where did you put {thing}?",
            f"Have you seen {thing}, {name}?",
            f"Could you please tell me more about {thing}?",
            f"Is {thing} ready, or should we wait until {rng.choice(_WEEKDAYS)}?",
            f"What do you think about {thing}?",
            f"Why is {name} so late today?",
            f"Do you like {thing}?",
            f"How long does it take to get to {rng.choice(_PLACES)}?",
            f"Who called {name} about {thing}?",
            f"When will {thing} be here?",
            f"Can you hear me, {name}?",
        )
    )


def _exclamations(rng: random.Random) -> str:
    thing, name = rng.choice(_THINGS), rng.choice(_FIRST)
    return rng.choice(
        (
            f"Look at {thing}!",
            f"What a wonderful idea, {name}!",
            f"I can't believe {thing} is gone!",
            f"Hurry up, {name}, we are late!",
            f"Don't forget {thing}!",
            "That is fantastic news!",
            f"Watch out for {thing}!",
            f"Congratulations, {name}, you did it!",
        )
    )


def _short(rng: random.Random) -> str:
    return rng.choice((*_SHORT, f"{rng.choice(_FIRST)}!", f"{rng.choice(_FIRST)}?", f"{_amount(rng)}.".capitalize()))


_MAKERS: tuple[tuple[str, Callable[[random.Random], str]], ...] = (
    ("numbers", _numbers),
    ("question", _questions),
    ("exclamation", _exclamations),
    ("names", _names),
    ("short", _short),
)


def wordnet_sentences(folder: Path) -> list[str]:
    """Quoted examples in WordNet's glosses that are plain sentences, in a fixed random order."""
    found: set[str] = set()
    for path in sorted(folder.glob("**/wordnet/data.*")):
        for line in path.read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue
            for quote in re.findall(r'"([^"]+)"', line.split("|", 1)[1]):
                text = quote.strip().rstrip(";").strip()
                if _PLAIN.fullmatch(text) and 3 <= len(text.split()) <= 16 and len(text) <= LONGEST_CHARACTERS:
                    found.add(text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else "."))
    ordered = sorted(found)
    random.Random(SEED).shuffle(ordered)
    return ordered


def mixture(plain: list[str], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield (kind, text): dictionary sentences, generated sentences and pairs."""
    short = [text for text in plain if len(text) <= 40]
    for count, text in enumerate(plain):
        if count % MADE_TO_ORDER_EVERY == 0:
            kind, make = _MAKERS[rng.randrange(len(_MAKERS))]
            yield kind, make(rng)
        if count % 11 == 5 and text[-1] == "." and len(text) <= 50:
            yield "pair", f"{text} {rng.choice((rng.choice(short), _questions(rng), _short(rng)))}"
        else:
            yield "plain", text


def main() -> None:
    plain = wordnet_sentences(paths.WORDNET)
    seen: set[str] = set()
    with paths.SENTENCES.open("w") as sink:
        for kind, text in mixture(plain, random.Random(SEED)):
            if text not in seen or kind == "short":
                seen.add(text)
                sink.write(json.dumps({"kind": kind, "text": text}) + "\n")
    print(f"{len(plain)} dictionary sentences, {len(seen)} texts in total")


if __name__ == "__main__":
    main()
