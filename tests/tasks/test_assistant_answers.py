"""The graders of free answers: what a reader calls right is right, and no trick makes a wrong answer right."""

import itertools
from decimal import Decimal

from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.tasks.assistant import WORDS_BESIDE, NumberAnswer, PhraseAnswer, fold, numbers_of

CANBERRA = PhraseAnswer((("Canberra",),), wrong=("Sydney", "Melbourne"))
NEGATIVE = PhraseAnswer((("negative",),), wrong=("positive", "neutral"))
ADDRESS = PhraseAnswer((("anna.berg@post.example",),), alone=True)
ROUTE = PhraseAnswer((("Lyon",), ("May 12", "12 May")), alone=True)
SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
)
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


@each(
    "text",
    [
        "Canberra",
        "canberra.",
        "**Canberra**",
        "The capital of Australia is Canberra.",
        "It is not Sydney but Canberra.",
        "Canberra, not Sydney",
        "Sydney is not the capital; Canberra is.",
        "Canberra's the one.",
        "\u201cCanberra\u201d",
        "Canberra rather than Melbourne.",
        "Canberra--the city.",
        "Canberra is the capital of Australia. Sydney is larger.",
        "Sydney or Melbourne? It is Canberra.",
        "It is not Sydney. It is Canberra.",
    ],
)
def test_an_answer_that_names_the_right_thing_in_whatever_words_is_right(text):
    assert CANBERRA.accepts(text)


@each(
    "text",
    [
        "",
        "Sydney",
        "not Canberra",
        "It isn't Canberra.",
        "It isn\u2019t Canberra.",
        "Canberra is not the capital.",
        "Canberra isn't the capital.",
        "Canberra or Sydney",
        "Sydney. Canberra.",
        "Canberra. Sydney.",
        "Canberra?",
        "Is it Canberra? I do not know.",
        "It is Sydney. It is Canberra.",
        "Sydney. The capital is Canberra.",
        "Canberra, Sydney and Melbourne",
        "I am sorry, I cannot answer that.",
        "Canberran",
        "non-Canberra",
        "canberra@post.example",
    ],
)
def test_no_other_answer_is_right(text):
    assert not CANBERRA.accepts(text)


def test_naming_more_than_one_label_is_wrong_in_every_order_and_with_every_mark_between_them():
    labels = ("positive", "negative", "neutral")
    for number, mark in itertools.product((2, 3), (", ", "/", " or ", "\n", ". ", "-- ")):
        for some in each_of(itertools.permutations(labels, number)):
            assert not NEGATIVE.accepts(mark.join(some)), (mark, some)
    assert not NEGATIVE.accepts("neither positive nor negative")
    assert not NEGATIVE.accepts("nonnegative, non-negative")
    assert NEGATIVE.accepts("Negative: there is no positive word in it.")
    assert NEGATIVE.accepts("Positive or negative? Negative.")
    assert NEGATIVE.accepts("This is negative.\n\nA positive review would praise something.")
    assert not NEGATIVE.accepts("1. It may be negative.\n2. It may be positive.")


def test_the_longest_form_at_a_place_is_what_is_named():
    perfect = PhraseAnswer((("past perfect",),), wrong=("past", "present"))
    assert perfect.accepts("The past perfect.")
    assert not perfect.accepts("The past.")
    assert not PhraseAnswer((("past",),), wrong=("past perfect",)).accepts("The past perfect.")


@each(
    "text",
    [
        "anna.berg@post.example",
        "The address is anna.berg@post.example.",
        "Anna.Berg@post.example",
        "`anna.berg@post.example`",
        "<anna.berg@post.example>",
        "The address is anna.berg@post.example. " + "She reads it daily. " * WORDS_BESIDE,
    ],
)
def test_what_is_handed_out_may_have_a_few_words_beside_it(text):
    assert ADDRESS.accepts(text)


@each(
    "text",
    [
        "joanna.berg@post.example",
        "jo.anna.berg@post.example",
        "jo-anna.berg@post.example",
        "anna.berg@post.example.org",
        "anna.berg@post.examples",
        "berg@post.example",
        "word " * (WORDS_BESIDE + 1) + "anna.berg@post.example",
    ],
)
def test_a_part_of_something_longer_is_not_it_and_neither_is_the_whole_message(text):
    assert not ADDRESS.accepts(text)


def test_fields_are_named_all_and_in_order_each_in_any_of_its_forms():
    assert ROUTE.accepts("Lyon, 12 May")
    assert ROUTE.accepts("City: Lyon\nDate: May 12")
    assert not ROUTE.accepts("12 May, Lyon")
    assert ROUTE.accepts("The city is Lyon. The date is May 12.")
    assert not ROUTE.accepts("Lyon")
    assert not ROUTE.accepts("May 12")


@each(
    "text",
    ["56", "56.", "fifty-six", "Fifty six", "7 times 8 is 56.", "7 * 8 = 56", "seven times eight is fifty-six", "56.0"],
)
def test_a_number_is_right_in_digits_and_in_words_and_the_questions_own_are_passed_over(text):
    assert NumberAnswer(Decimal(56), numbers_of("What is 7 times 8?")).accepts(text)


@each(
    "text", ["", "7", "54, 55, 56", "56 or 57", "not 56", "156", "5.6", "56.5", "x56", "56th", "-56", "7 and 8", "5 6"]
)
def test_another_number_or_one_more_is_wrong(text):
    assert not NumberAnswer(Decimal(56), numbers_of("What is 7 times 8?")).accepts(text)


def test_marks_around_a_number_do_not_matter():
    amount = NumberAnswer(Decimal("1250.5"))
    for text in ("$1,250.50", "1250.5 euros", "EUR 1,250.50.", "1250.50€", "(1250.5)"):
        assert amount.accepts(text), text
    assert not amount.accepts("1,250")
    assert NumberAnswer(Decimal(-4)).accepts("minus four degrees")
    assert not NumberAnswer(Decimal(4)).accepts("-4")
    assert NumberAnswer(Decimal(1)).accepts("One.")
    assert NumberAnswer(Decimal(3)).accepts("One of the three? No: 3.")
    assert NumberAnswer(Decimal(3)).accepts("There are 3 of them. 2 are red.")
    assert not NumberAnswer(Decimal(3)).accepts("3. 2. 1.")


def words_of(number):
    """Write a number below 100,000 in words, in the British way: "two thousand and five"."""
    small = [*SMALL.split(), "eighteen", "nineteen"]
    if number >= 1000:
        rest, joint = number % 1000, " and " if 0 < number % 1000 < 100 else " "
        return f"{words_of(number // 1000)} thousand" + (joint + words_of(rest) if rest else "")
    if number >= 100:
        return f"{small[number // 100]} hundred" + (f" and {words_of(number % 100)}" if number % 100 else "")
    if number >= 20:
        return TENS[number // 10 - 2] + (f"-{small[number % 10]}" if number % 10 else "")
    return small[number]


@given(st.integers(2, 99_999))
def test_a_worded_number_is_the_number(number):
    worded = words_of(number)
    assert fold(worded) == fold(worded.upper().replace("-", " ")) == str(number)
    assert fold(f"{number:,}") == str(number)
    assert NumberAnswer(Decimal(number)).accepts(f"There are {worded} of them.")
    assert not NumberAnswer(Decimal(number + 1)).accepts(f"There are {worded} of them.")


def test_two_numbers_side_by_side_stay_two():
    assert numbers_of("five and six, twenty and three") == {5, 6, 20, 3}
    assert fold("someone wrote tone") == "someone wrote tone"


@given(st.text())
def test_nothing_that_is_said_after_a_wrong_label_makes_it_right(text):
    assert not NEGATIVE.accepts(f"Positive. {text}")
    assert not NEGATIVE.accepts(f"Positive. {text} negative")
