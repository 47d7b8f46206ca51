"""Generated sequence-to-sequence tasks, each with its rule and without noise: pairs of source and target text.

    copy        letters to the same letters
    reverse     letters to the same letters in reverse order
    repeat      "cat 3 dog 2" to "cat cat cat dog dog": outputs of up to 10 times the input's length
    commands    "walk around left twice and jump" to a list of actions: outputs of up to 20 times the input's length
    addition    "123+4567" to "4690"
    sort        "34 7 90" to "7 34 90"
    count       letters to how often each occurs: "abca" to "a2 b1 c1"
    inflection  a stem and its features to the inflected word of an invented language with vowel harmony
    dates       dates in six formats to ISO 8601
    roman       numbers below 4000 to Roman numerals
    spoken      numbers below a million to English words
    initials    a list of words to their initials: outputs of a fifth of the input's length

Sources are drawn at random; `split` keeps training, validation and test sources apart.
"""

import random
from collections import Counter
from collections.abc import Callable
from itertools import islice

Pair = tuple[str, str]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [
    "apple",
    "bread",
    "chair",
    "cloud",
    "dance",
    "eagle",
    "field",
    "flame",
    "grape",
    "green",
    "horse",
    "house",
    "island",
    "juice",
    "knife",
    "lemon",
    "light",
    "money",
    "mouse",
    "music",
    "night",
    "ocean",
    "paper",
    "plant",
    "queen",
    "river",
    "salt",
    "shirt",
    "shoe",
    "snow",
    "spoon",
    "star",
    "stone",
    "sugar",
    "table",
    "tiger",
    "train",
    "tree",
    "violin",
    "water",
    "wheel",
    "window",
    "winter",
    "wolf",
    "yellow",
    "zebra",
]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def letters(draw: random.Random, shortest: int, longest: int) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(shortest, longest)))


def copy(draw: random.Random) -> Pair:
    text = letters(draw, 3, 16)
    return text, text


def reverse(draw: random.Random) -> Pair:
    text = letters(draw, 3, 16)
    return text, text[::-1]


def repeat(draw: random.Random) -> Pair:
    items = [(draw.choice(WORDS), draw.randint(1, 20)) for _ in range(draw.randint(1, 4))]
    return " ".join(f"{word} {times}" for word, times in items), " ".join(
        " ".join([word] * times) for word, times in items
    )


def commands(draw: random.Random) -> Pair:
    first, first_actions = _command(draw)
    if draw.random() < 0.3:
        return first, " ".join(first_actions)
    second, second_actions = _command(draw)
    if draw.random() < 0.5:
        return f"{first} and {second}", " ".join(first_actions + second_actions)
    return f"{first} after {second}", " ".join(second_actions + first_actions)


def _command(draw: random.Random) -> tuple[str, list[str]]:
    """One command with its direction and number of repetitions, and its actions."""
    verb, side = draw.choice(("walk", "run", "jump", "look", "turn")), draw.choice(("left", "right"))
    act, turn = ([] if verb == "turn" else [f"I_{verb.upper()}"]), [f"I_TURN_{side.upper()}"]
    manner = draw.choice(("plain", "side", "opposite", "around"))
    if manner == "plain" and verb != "turn":
        text, actions = verb, act
    elif manner in ("plain", "side"):
        text, actions = f"{verb} {side}", turn + act
    elif manner == "opposite":
        text, actions = f"{verb} opposite {side}", turn * 2 + act
    else:
        text, actions = f"{verb} around {side}", (turn + act) * 4
    word, times = draw.choice((("", 1), (" twice", 2), (" thrice", 3)))
    return text + word, actions * times


def addition(draw: random.Random) -> Pair:
    first, second = (draw.randrange(10 ** draw.randint(1, 5)) for _ in range(2))
    return f"{first}+{second}", str(first + second)


def sort(draw: random.Random) -> Pair:
    numbers = [draw.randrange(100) for _ in range(draw.randint(2, 10))]
    return " ".join(map(str, numbers)), " ".join(map(str, sorted(numbers)))


def count(draw: random.Random) -> Pair:
    text = "".join(draw.choices("abcdef", k=draw.randint(3, 14)))
    return text, " ".join(f"{letter}{times}" for letter, times in sorted(Counter(text).items()))


def inflection(draw: random.Random) -> Pair:
    """Plural, possession and case as suffixes whose vowels follow the last vowel of the stem."""
    stem = "".join(
        draw.choice("bdgklmnprstvz") + draw.choice("aeiou") + draw.choice(("", "", "l", "n", "r", "s", "t"))
        for _ in range(draw.randint(1, 4))
    )
    number, owner, case = (
        draw.choice(("SG", "PL")),
        draw.choice(("", "1", "2", "3")),
        draw.choice(("NOM", "DAT", "ABL")),
    )
    is_front = [letter for letter in stem if letter in "aeiou"][-1] in "ei"
    low, high = ("e", "i") if is_front else ("a", "u")
    word = stem + (f"l{low}r" if number == "PL" else "")
    if owner:
        word += ("" if word[-1] in "aeiou" else high) + {"1": "m", "2": "n", "3": f"s{high}"}[owner]
    suffix = {"NOM": "", "DAT": low, "ABL": f"d{low}n"}[case]
    word += ("y" if case == "DAT" and word[-1] in "aeiou" else "") + suffix
    return f"{stem} {number}{owner} {case}", word


def dates(draw: random.Random) -> Pair:
    year, month, day = draw.randint(1900, 2099), draw.randint(1, 12), draw.randint(1, 28)
    name = MONTHS[month - 1]
    text = draw.choice(
        (
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
            f"{day}.{month}.{year}",
            f"{month:02}/{day:02}/{year}",
            f"{name[:3]} {day} {year}",
            f"the {day}th of {name}, {year}",
        )
    )
    return text, f"{year}-{month:02}-{day:02}"


def roman(draw: random.Random) -> Pair:
    number = rest = draw.randint(1, 3999)
    numeral = ""
    values = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
    for value, symbol in zip(
        values, ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"], strict=True
    ):
        numeral += symbol * (rest // value)
        rest %= value
    return str(number), numeral


def spoken(draw: random.Random) -> Pair:
    number = draw.randrange(10 ** draw.randint(1, 6))
    return str(number), _read_aloud(number)


def _read_aloud(number: int) -> str:
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    rest = f" {_read_aloud(number % size)}" if number % size else ""
    return f"{_read_aloud(number // size)} {name}{rest}"


def initials(draw: random.Random) -> Pair:
    words = [letters(draw, 3, 8) for _ in range(draw.randint(2, 8))]
    return " ".join(words), "".join(word[0] for word in words)


TASKS: dict[str, Callable[[random.Random], Pair]] = {
    task.__name__: task
    for task in (copy, reverse, repeat, commands, addition, sort, count, inflection, dates, roman, spoken, initials)
}
TRAINING_PAIRS = {"roman": 3000, "commands": 16_000}  # of 3,999 and 20,910 pairs; of all other tasks 20,000


def split(task: str) -> dict[str, list[Pair]]:
    """Training, validation and test pairs of a task; no source is in two of them.

    The pairs are shuffled before they are divided: sources that are drawn often, such as short ones, come first.
    """
    sizes = {"test": 500, "valid": 490, "train": TRAINING_PAIRS.get(task, 20_000)}
    draw, pairs = random.Random(task), dict[str, str]()
    while len(pairs) < sum(sizes.values()):
        source, target = TASKS[task](draw)
        pairs[source] = target
    shuffled = list(pairs.items())
    draw.shuffle(shuffled)
    remaining = iter(shuffled)
    return {name: list(islice(remaining, size)) for name, size in sizes.items()}
