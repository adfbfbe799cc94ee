"""The page: every token, as text, with its provenance; no script, no other host."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from cases import each_of

from hybrid.cli.demo import report
from hybrid.lab.demo import HYBRIDS
from hybrid.record.answer import Token
from hybrid.report import LEGEND, AnswerTokens, Axis, Chart, Heading, Table, Text, Tokens, bar_chart
from hybrid.report.html import STYLE, page
from hybrid.report.markdown import markdown
from hybrid.types import Divergence

NASTY = '<script>alert("1")</script>&amp; \x1b[2J\x00\u202e é 中 \N{FULL BLOCK}'
RIGHT = {"small": "0" * 10, "kl": "1" * 10, "doubt": "1" * 9 + "0", "large": "1" * 10}
VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Reads a page strictly: what is opened is closed. Collects tokens, text, tags and everything that could fetch."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.tokens, self.text, self.attributes = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))
        if "title" in dict(attrs):
            self.tokens.append([dict(attrs)["class"], dict(attrs)["title"], ""])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and "title" in self.open[-1][1]:
            self.tokens[-1][2] += data


@pytest.fixture
def shown(compared, answer):
    """A page on which every token is a nasty one."""
    kl = Divergence(0.2, 0.1, float("inf"))
    tokens = (
        Token(1, NASTY, "local", "accepted", kl),
        Token(2, "two\nlines", "local", "unchecked"),
        Token(3, "", "cloud", "recovered", kl, why='KL "0.3" > 0.2 & more'),
        Token(4, " 4", "cloud", "written"),
    )
    found = compared(RIGHT, answers={arm.name: (answer(*tokens),) * 10 for arm in HYBRIDS})
    return Reader(page("hybrid demo", report.demonstration(found)))


def test_every_token_of_every_hybrid_answer_is_there_in_order(shown):
    visible = NASTY.replace("\x1b", "\\x1b").replace("\x00", "\\x00").replace("\u202e", "\\u202e")
    once = [
        ["checked", "local, accepted; KL(cloud || local) about 0.2 nats, between 0.1 and infinity", visible],
        ["local", "local, unchecked", "two\nlines"],
        [
            "cloud",
            'cloud, recovered; KL(cloud || local) about 0.2 nats, between 0.1 and infinity; KL "0.3" > 0.2 & more',
            "",
        ],
        ["cloud", 'cloud, written; KL "0.3" > 0.2 & more', " 4"],
    ]
    small = ["local", "local, unchecked", "yes"]
    # Five examples, each with the small model's answer and three others; then ten answers of each hybrid.
    assert shown.tokens == ([small] + once * 3) * 5 + once * 30


def test_what_a_model_wrote_is_text_and_never_markup(shown):
    assert "script" not in shown.tags
    assert not any(name.startswith("on") for name, _ in shown.attributes)
    assert not any(ord(char) < 32 and char not in "\n\t" for text in shown.text for char in text)


def test_nothing_is_fetched_and_the_browser_is_told_to_refuse_it(shown):
    assert not {"src", "href", "srcset", "action", "data"} & {name for name, _ in shown.attributes}
    assert not {"link", "img", "iframe", "base", "object", "svg"} & set(shown.tags)
    assert "url(" not in STYLE
    assert "@import" not in STYLE
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in shown.attributes


def test_all_answers_are_collapsed_and_the_figures_are_not(shown):
    assert shown.tags.count("details") == len(HYBRIDS)
    assert "open" not in {name for name, _ in shown.attributes}
    text = " ".join(shown.text)
    for words in (
        "9 of 10",
        "RPI of doubt (95 % interval) 0.90 (0.70 to 1.00)",
        report.about_settings(),
        *LEGEND.values(),
    ):
        assert words in text


def test_a_failing_cloud_is_told_before_anything_else(compared, answer):
    failed = answer(Token(1, "x", "local", "unchecked"), degraded="gone & <b>lost</b>")
    text = page("hybrid demo", report.demonstration(compared(RIGHT, answers={"kl": (failed,) * 10})))
    assert 'role="alert"' not in page("hybrid demo", report.demonstration(compared(RIGHT)))
    assert 0 < text.index('role="alert"') < text.index("<article>")
    assert "gone &amp; &lt;b&gt;lost&lt;/b&gt;" in text


def test_nothing_of_a_block_becomes_markup_whatever_it_is():
    """Names come from users, files and endpoints; answers' tokens have a test of their own above."""
    ticks = [(0.5, NASTY)]
    blocks = [
        Heading(NASTY),
        Text(NASTY, "strong"),
        Table(NASTY, ("", NASTY), ((NASTY, NASTY),), (NASTY,)),
        Chart(NASTY, Axis(NASTY, 0, 1, ticks), Axis(NASTY, 0, 1, ticks), [(NASTY, [(0, 1)])], [(NASTY, (1, 0))]),
        bar_chart(NASTY, NASTY, [(NASTY, 0.5)]),
    ]
    visible = NASTY.replace("\x1b", "\\x1b").replace("\x00", "\\x00").replace("\u202e", "\\u202e")
    for block, num in each_of(zip(blocks, (1, 1, 5, 7, 3), strict=True)):
        read = Reader(page(NASTY, [block]))
        assert "script" not in read.tags
        found = [*(text.strip() for text in read.text), *(value for _, value in read.attributes)]
        assert found.count(visible) == 1 + num, "the title's, and every value of the block"


def test_nothing_of_a_block_becomes_markup_in_markdown_either():
    """Every mark of Markdown in a value is escaped, so what is left without the escapes is the value."""
    nasty = NASTY + " *a* _b_ [c](http://d.e) `f` | # g ~~h~~ www.i.j k@l.m"
    visible = nasty.replace("\x1b", "\\x1b").replace("\x00", "\\x00").replace("\u202e", "\\u202e")
    tokens = AnswerTokens(nasty, nasty, ((nasty, "local", ""),), (nasty,))
    blocks = (Heading(nasty), Text(nasty), Table(nasty, (nasty, ""), ((nasty, ""),), (nasty,)), Tokens("", (tokens,)))
    for block, num in zip(blocks, (1, 1, 4, 4), strict=True):
        text = markdown("", [block])
        assert re.sub(r"\\(.)", r"\1", text).count(visible) == num
        left = re.sub(r"\\.", "", text)
        assert not re.search(r"[<>&*_`~@\[\]]|://|www\.", left), left
    for start in ("# x", "- x", "+ x", "1. x", "=== x"):
        assert f"\n{start}" not in markdown("", [Text(start)])
    chart = bar_chart("what it shows", "", [("a", 0.2)])
    assert "what it shows\n\n|  |  |\n| --- | ---: |\n| a | 20 % |" in markdown("T", [chart])
    by_both = AnswerTokens("kl", "right", ((" It", "local", ""), (" is", "cloud", ""), (" 3", "cloud", "")))
    twice = markdown("", [Tokens("", (by_both,))] * 2)
    assert twice.count("It\u27e6 is 3\u27e7") == 2
    assert twice.count("was written by the cloud") == 1
    assert markdown("", [Table("", (), (("a", "b"),))]).splitlines()[2:5] == ["|  |  |", "| --- | ---: |", "| a | b |"]


def test_a_figure_is_not_escaped_in_a_cell_and_a_chart_is_a_table_of_its_points():
    assert "| 1.00 | -0.24 |" in markdown("", [Table("", ("a", "b"), (("1.00", "-0.24"),))])
    axes = Axis("bill", 0.0, 2.0), Axis("recovered", 0.0, 1.0)
    many = [(each / 20, 0.5) for each in range(40)]
    chart = Chart("told", *axes, [("kl", [(0.25, 0.5), (1.5, 1.0)]), ("long", many)], [("dot", (1.0, 0.75))])
    rows = ["told", "", "|  | recovered of bill |", "| --- | ---: |", "| kl | 0.25: 0.5; 1.5: 1 |"]
    rows += ["| long | 40 points, drawn on the page |", "| dot | 1: 0.75 |"]
    assert markdown("T", [chart]).splitlines()[2:] == [*rows, ""][: len(rows)]


def test_the_points_of_a_short_line_are_marked_and_one_alone_is_seen():
    axes = Axis("x", 0.0, 100.0), Axis("y", 0.0, 1.0)
    for num, marks in each_of(((1, 1), (24, 24), (25, 0))):
        line = [(float(each), 0.5) for each in range(num)]
        assert page("", [Chart("told", *axes, [("line", line)])]).count("<circle") == marks


def test_a_chart_stays_inside_its_frame_and_says_what_it_shows():
    """What is beyond an axis stands at its end."""
    up, across = Axis("up", 0.0, 1.0), Axis("across", 0.0, 1.0, ((0.0, "none"), (1.0, "all")))
    far = [(-3.0, -3.0), (0.5, 0.5), (9.0, 9.0)]
    text = page(
        "", [Chart("told", across, up, [("line", far)], [("dot", far[2])]), bar_chart("bars", "", [("a", 0.2)])]
    )
    assert re.findall(r'aria-label="(\w+)"', text) == ["told", "bars"]
    assert 'points="56.0,256.0 244.0,141.0 432.0,26.0"' in text
    assert text.count('viewBox="0 0 640 300"') == 2
    for x, y in each_of(re.findall(r'x="([\d.-]+)" c?y="([\d.-]+)"(?! text-anchor="middle" tr)', text)):
        assert 0 <= float(x) <= 640
        assert 0 <= float(y) <= 300


def test_values_that_are_all_one_stand_where_their_range_begins():
    flat = Axis("flat", 2.0, 2.0)
    drawn = page("flat", [Chart("a point", flat, flat, dots=[("only", (2.0, 2.0))])])
    assert len(re.findall(r"<circle", drawn)) == 1
    assert "nan" not in drawn


def test_who_wrote_a_token_is_told_by_more_than_colour():
    """For those who see colours otherwise: another line, another weight."""
    rules = dict(re.findall(r"^\.(checked|cloud) \{(.*)\}$", STYLE, re.MULTILINE))
    assert "underline dotted" in rules["checked"]
    assert "underline solid" in rules["cloud"]
    assert "font-weight: 700" in rules["cloud"]


def luminance(colour):
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_colour_can_be_read_on_its_paper_in_light_and_in_dark():
    """WCAG 2.2, 1.4.3: at least 4.5 to 1, on the page and on a card."""
    light, dark = STYLE.split("prefers-color-scheme: dark")
    for part in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#\w{6})", part))
        for paper in ("paper", "card"):
            for name in ("ink", "faint", "checked", "cloud", "alarm"):
                one, other = sorted((luminance(colours[name]), luminance(colours[paper])))
                assert (other + 0.05) / (one + 0.05) >= 4.5, (name, paper)
