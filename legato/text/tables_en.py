"""What English abbreviations, units, currencies and symbols are read as: data alone.

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
"""Read with the name that follows: their full stop ends no sentence."""

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
"""Read as given when a full stop follows; that one ends a sentence only where a capital follows it."""

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
"""In the singular. A `~` marks where the plural ending stands, or what stands before the word that takes it."""

_INVARIANT = frozenset(("hertz", "percent"))
_IRREGULAR = {"foot": "feet"}


def unit_words(unit: str, *, one: bool) -> list[str]:
    """The words of a unit of `UNITS`, singular or plural."""
    name = UNITS[unit]
    head, _, rest = name.partition("~")
    if head in ("square", "cubic", "kilowatt", "milliamp"):
        head, rest = rest, ""
        before = name.split("~")[:1]
    else:
        before = []
    if not one and head not in _INVARIANT:
        head = _IRREGULAR.get(head, head + "s")
    return [*before, head, *rest.split()]


CURRENCIES: dict[str, tuple[str, str, str]] = {
    "$": ("dollar", "dollars", "cent"),
    "€": ("euro", "euros", "cent"),
    "£": ("pound", "pounds", "penny"),
    "¥": ("yen", "yen", ""),
    "₹": ("rupee", "rupees", "paisa"),
}
"""One, many, the hundredth."""

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
"""A symbol alone, or between words."""

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
"""Numerals that cannot be read as a letter or a word."""
COUNTED = frozenset("war chapter part act volume phase type section book title bowl stage level apollo class".split())
"""A numeral after one of these is a cardinal; after another capitalised word an ordinal (*Henry the eighth*)."""
LETTERED = frozenset(
    "plan vitamin type grade team class group hepatitis section part option point level exhibit".split()
)
"""After one of these, a capital A is the letter."""
