"""Readings of English abbreviations, units, currencies and symbols. Data only.

A word that ends in a full stop is spelled letter by letter (`"pm."`: P M).
"""

from __future__ import annotations


def _table(text: str) -> dict[str, str]:
    pairs = (line.split(maxsplit=1) for line in text.strip().splitlines())
    return {pair[0]: pair[1] for pair in pairs}


MONTHS = tuple("january february march april may june july august september october november december".split())
MONTH_SHORT: dict[str, str] = {
    **{month[:3]: month for month in MONTHS if month != "may"},
    "sept": "september",
}

TITLES = _table(
    """
    mr mister
    mrs misses
    ms miz
    dr doctor
    prof professor
    st saint
    gen general
    sen senator
    rep representative
    gov governor
    capt captain
    lt lieutenant
    sgt sergeant
    col colonel
    rev reverend
    hon honorable
    mt mount
    fr father
    """
)
"""Titles before a name. Their full stop does not end a sentence."""

DOTTED = _table(
    """
    e.g for example
    i.e that is
    a.m am.
    p.m pm.
    etc et cetera
    vs versus
    approx approximately
    inc incorporated
    ltd limited
    corp corporation
    co company
    bros brothers
    jr junior
    sr senior
    dept department
    est established
    ave avenue
    blvd boulevard
    rd road
    hwy highway
    apt apartment
    fig figure
    vol volume
    ch chapter
    pp pages
    ed edition
    cf compare
    al al
    misc miscellaneous
    tel telephone
    mon monday
    tue tuesday
    tues tuesday
    wed wednesday
    thu thursday
    thurs thursday
    fri friday
    sat saturday
    ph.d phd.
    """
)
"""Abbreviations before a full stop, which ends a sentence only if a capital letter follows."""

BEFORE_NUMBER = _table(
    """
    no number
    nr number
    nos numbers
    p page
    pg page
    sec section
    eq equation
    """
)

UNITS = _table(
    """
    km kilometer
    m meter
    cm centimeter
    mm millimeter
    mi mile
    ft foot
    yd yard
    kg kilogram
    g gram
    mg milligram
    lb pound
    lbs pound
    oz ounce
    l liter
    L liter
    ml milliliter
    mL milliliter
    gal gallon
    s second
    sec second
    ms millisecond
    min minute
    mins minute
    h hour
    hr hour
    hrs hour
    Hz hertz
    kHz kilohertz
    MHz megahertz
    GHz gigahertz
    KB kilobyte
    kB kilobyte
    MB megabyte
    GB gigabyte
    TB terabyte
    Mbps megabit~per second
    Gbps gigabit~per second
    W watt
    kW kilowatt
    MW megawatt
    GW gigawatt
    kWh kilowatt~hour
    V volt
    mAh milliamp~hour
    dB decibel
    mph mile~per hour
    km/h kilometer~per hour
    kph kilometer~per hour
    m/s meter~per second
    m² square~meter
    km² square~kilometer
    m³ cubic~meter
    ha hectare
    cal calorie
    kcal kilocalorie
    % percent
    °C degree~Celsius
    °F degree~Fahrenheit
    ° degree
    """
)
"""Singular forms. A `~` separates the word with the plural ending from the rest (see `unit_words`)."""

_PREFIXES = frozenset(("square", "cubic", "kilowatt", "milliamp"))
_INVARIANT = frozenset(("hertz", "percent"))
_IRREGULAR = {"foot": "feet"}


def unit_words(unit: str, *, one: bool) -> list[str]:
    """Words of a unit of `UNITS`, singular if `one`."""
    first, _, rest = UNITS[unit].partition("~")
    if first in _PREFIXES:  # "square~meter": the second word is inflected
        before, head, after = [first], rest, []
    else:  # "degree~Celsius": the first word is inflected
        before, head, after = [], first, rest.split()
    if not one and head not in _INVARIANT:
        head = _IRREGULAR.get(head, head + "s")
    return [*before, head, *after]


CURRENCIES: dict[str, tuple[str, str, str]] = {
    "$": ("dollar", "dollars", "cent"),
    "€": ("euro", "euros", "cent"),
    "£": ("pound", "pounds", "penny"),
    "¥": ("yen", "yen", ""),
    "₹": ("rupee", "rupees", "paisa"),
}
"""Symbol -> (singular, plural, hundredth part)."""

SCALES = {"k": "thousand", "K": "thousand", "M": "million", "m": "million", "B": "billion", "bn": "billion"}
SCALE_WORDS = frozenset(("hundred", "thousand", "million", "billion", "trillion"))

SYMBOLS: dict[str, str] = {
    "&": "and",
    "+": "plus",
    "=": "equals",
    "%": "percent",
    "@": "at",
    "<": "less than",
    ">": "greater than",
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "°": "degrees",
    "§": "section",
    "²": "squared",
    "³": "cubed",
    "½": "one half",
    "¼": "one quarter",
    "¾": "three quarters",
    "⅓": "one third",
    "⅔": "two thirds",
    "→": "to",
    "$": "dollars",
    "€": "euros",
    "£": "pounds",
    "¥": "yen",
    "₹": "rupees",
}
"""Symbols that no rule matches: isolated or between words."""

ADDRESS_SYMBOLS: dict[str, str] = {
    ".": "dot",
    "@": "at",
    "/": "slash",
    "-": "dash",
    "_": "underscore",
    "+": "plus",
    "=": "equals",
    "&": "and",
    "?": "question mark",
    "#": "hash",
    "%": "percent",
    ":": "colon",
    "~": "tilde",
}
TOP_DOMAINS = "com|org|net|edu|gov|io|ai|dev|app|info|biz|co|us|uk|de|fr|eu|ca|au|jp|cn|tv|me"

ROMAN = {
    "II": 2, "III": 3, "IV": 4, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "XI": 11, "XII": 12, "XIII": 13, "XIV": 14,
    "XV": 15, "XVI": 16, "XVII": 17, "XVIII": 18, "XIX": 19, "XX": 20, "XXI": 21,
}  # fmt: skip
"""Roman numerals that are neither a letter nor a word."""
COUNTED = frozenset("war chapter part act volume phase type section book title bowl stage level apollo class".split())
"""A Roman numeral after one of these is a cardinal, after another capitalized word an ordinal (*Henry the eighth*)."""
LETTERED = frozenset(
    "plan vitamin type grade team class group hepatitis section part option point level exhibit".split()
)
"""After one of these, a capital A is read as the letter."""
