"""What a token's text says, whatever its case, space, quotes and dashes; and which texts never say the same.

The law (``tests/partitions/test_normal_form.py``): digits, single letters, brackets, operators, negations and bytes
that are no text have no normal form, so that they are never merged with anything. What has one is a list of what may,
not of what may not: a character that nobody thought of is never merged either.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache

__all__ = [
    "NEGATIONS",
    "NormalForm",
    "TokenKind",
    "is_negation",
    "is_turned",
    "normal_form",
    "on_two_sides",
    "sides_of",
]


# Words that stand in the same places and say another thing. Embeddings take them for the nearest of all.
#
# A line of ``_CONTRASTS`` is a set of sides, parted by ``|``; words of two sides are never merged. A word that ends in
# ``*`` stands for all that begin so. On SmolLM2's rows each of these sets was merged without it, or lies as near
# (cos .7 to .9) as words that are. The law (``tests/partitions/test_opposites.py``): no group holds two sides of a set,
# nor a word and the same word with a prefix that turns it round.

# A word that says no changes what is said more than any other, so that it is never merged with anything.
_NEGATIONS = """
no not nope nor none never neither nothing nobody nowhere nought naught non without cannot unless except barely hardly
scarcely cant dont doesnt didnt wont isnt arent wasnt werent hasnt havent hadnt wouldnt couldnt shouldnt mustnt aint
isn aren wasn weren hasn haven hadn didn doesn couldn wouldn shouldn mustn needn ain
nicht nichts nie niemals kein keine keinen keiner ohne nein pas jamais rien sans aucun aucune nunca nada sin ninguno
ninguna nessuno niente mai senza nao nem nenhum niet geen nooit zonder inte ingen aldrig
"""
NEGATIONS = frozenset(_NEGATIONS.split())
_CONTRASTS = """
zero | one | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve | thirteen | fourteen \
| fifteen | sixteen | seventeen | eighteen | nineteen | twenty | thirty | forty | fifty | sixty | seventy | eighty \
| ninety | hundred* | thousand* | million* | billion* | trillion* | dozen*
first* | second secondly seconds | third* | fourth* | fifth* | sixth* | seventh* | eighth* | ninth* | tenth* \
| eleventh* | twelfth* | thirteenth* | fourteenth* | fifteenth* | sixteenth* | seventeenth* | eighteenth* \
| nineteenth* | twentieth* | last*
once single singly | twice double* dual | thrice triple* | quadruple* | half halves halv* | quarter*
monday* | tuesday* | wednesday* | thursday* | friday* | saturday* | sunday*
january | february | march | april | may | june | july | august | september | october | november | december
spring | summer* | autumn* fall | winter*
second seconds | minute minutes | hour* | day days daily | week* | month* | year* annual* | decade* | centur* \
| millenni*
today | yesterday | tomorrow
morning* | noon midday | afternoon* | evening* | night* midnight
north* | south* | east* | west*
left | right*
i me my mine myself | you your yours yourself | he him his himself | she her hers herself | it its itself \
| we us our ours ourselves | they them their theirs themselves
this these here | that those there
yes true truth* | no false*
all every* each | some | any | none | few fewer | many | most mostly | least
more greater increas* rise rises rising rose grow* gain* raise* rais* | less lesser fewer decreas* decre reduc* \
diminish* lessen* declin* fall falls falling fell shrink* drop* lower*
maxim* max highest | minim* min lowest
big bigger biggest large larger largest huge giant* gigantic enormous immense massive colossal siz* great* \
| small smaller smallest little tiny minuscule miniature minor
high higher highest tall* | low lower lowest short*
long longer longest | short shorter shortest brief*
up upward* above over upper | down downward* below under beneath lower
in into inside within inner | out outside outer outward* outwards
before earlier prior previous* pre | after later afterward* next following subsequent* post
early earlier earliest | late later latest
start* begin* began begun open* | end ends ended ending finish* stop* clos* cease*
good better best well nice* great excellent | bad badly worse worst poor*
correct* right accurat* proper* | incorrect* wrong* inaccur* errone* false* improper* mistak*
enough sufficient* adequate* | insufficient* inadequate* lack*
hot hotter warm* heat* | cold* cool* chill*
light lighter lightest bright* | dark* dim* | heavy heavier heaviest
fast faster quick* rapid* swift* | slow*
old older oldest | new newer newest young*
rich* wealth* | poor* poverty
strong* | weak*
hard harder hardest difficult* | easy easi* soft* simple*
full fully | empty | partial* part partly
open opened | closed shut
same equal* identical* alike | different* differ* unlike other* unequal*
always | often frequent* usual* | sometimes occasional* | rare* seldom*
certain* definite* sure* undoubted* obvious* evident* doubtless | likely probabl* presumabl* | possibl* perhaps maybe \
potential* | alleged* reported* supposed* purported* apparent* ostensib*
must | should ought | can could able | may might | will would shall
is are am be being | was were been | do does | did done | has have having | had
the | a an | and | or | but however yet | of | to | for | by | at | on onto upon | in into inside within | from | with \
| as | if | than | so | then | when | where | who whom | what | which | why | how
because since | although though despite
push* | pull* | lift*
buy buys buying bought purchas* | sell* sold | rent*
give gives giving gave given | take takes taking took taken | receiv*
send* sent | receiv*
come comes coming came arriv* | go goes going went leav* left depart*
win wins winning won victor* | lose loses losing lost los* defeat*
love* like* | hate* dislike* despis*
allow* permit* enabl* | forbid* prohibit* prevent* ban* disabl*
accept* agree* approv* | reject* refus* disagree* disapprov* declin*
add* plus sum* | subtract* minus | multipl* times product* | divid* quotient*
odd | even
male* man men boy* father* son sons brother* husband* king* uncle* | female* woman women girl* mother* daughter* \
sister* wife wives queen* aunt*
mother* | father* | son sons | daughter* | brother* | sister* | uncle* | aunt* | husband* | wife wives | child* \
| parent*
alive live lives living life born birth* | dead* die dies died dying death*
black* | white* | red* | blue* | green* | yellow* | orange* | purple* | pink* | brown* | gray grey
dog* | cat cats | horse* | cow cows cattle | pig* | sheep | goat* | bird* | fish*
teaspoon* tsp | tablespoon* tbsp | cup cups | pint* | quart quarts | gallon* | ounce* oz | pound* lb lbs
inch* | foot feet | yard* | mile* | met* | kilomet* km | centimet* cm | millimet* mm
gram grams | kilogram* kg | milligram* mg | ton tons tonne*
import* | export*
internal* | external*
input* | output*
http | https
private* | public*
ancient* | modern* | medieval
question* ask* | answer* repl*
teacher* instruct* educator* | student* pupil*
doctor* physician* | nurse* | patient*
buyer* customer* client* | seller* vendor*
employer* | employee* worker*
ally allies friend* | enem* foe*
war wars | peace*
asset* | liabilit* | debt* | credit* | profit* | loss losses
ability abilities capabilit* capable able | inabilit* incapable unable
breakfast* | lunch* | dinner* supper
earth* | moon* | sun sunn* | mars | venus | jupiter | saturn
europe* | asia* | africa* | america*
primary | secondary | tertiary
daytime | nighttime
springtime | summertime | wintertime
dry drier driest dryer | wet wetter wettest
highs | lows
positiv* | negativ*
kitten* | pupp*
basketball | football* | soccer | baseball | tennis | hockey
alpha | beta | gamma | delta
duo | trio | quartet
overest* | underest*
eldest oldest | youngest
downstream | upstream
feminin* | masculin*
hundreds | tens | dozens | thousands
grandson* | granddaughter* | nephew* | niece*
horizontal* horiz | vertical* | diagonal*
acre acres | hectare*
kilowatt | kwh | watt watts | volt*
optimis* | pessimis*
anterior | posterior
distal | proximal
ascend* | descend*
inward* | outward*
anime | manga
conservativ* republican* | liberal* democrat*
stdin | stdout | stderr
whitish | yellowish | bluish | greenish | reddish
emigra* | immigra*
ipad* | iphone*
bilingual* | multilingual*
indoor* | outdoor*
national* nationwide | statewide | worldwide global*
obes* | overweight
any | anybody anyone | anything
nargs | metavar
english | french | german | spanish | italian | russian | chinese | japanese
"""
# A word and the same word behind one of these are no wordings of each other; nor are those of "-ful" and "-less".
_TURNING = ("un", "in", "im", "il", "ir", "non", "dis", "mis", "anti", "counter", "under", "over", "de", "a", "ab")
_LEAST_STEM = 3


@cache
def _sides() -> tuple[dict[str, list[tuple[int, int]]], dict[str, list[tuple[int, int]]]]:
    """Return the sides of whole words and of beginnings: the number of the set, and that of the side in it."""
    whole: dict[str, list[tuple[int, int]]] = {}
    begun: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(_CONTRASTS.strip().splitlines()):
        for side, words in enumerate(line.split("|")):
            for word in words.split():
                table = begun if word.endswith("*") else whole
                table.setdefault(word.removesuffix("*"), []).append((number, side))
    return whole, begun


def sides_of(form: str) -> frozenset[tuple[int, int]]:
    """Return which side of which sets a word is on."""
    whole, begun = _sides()
    found = [*whole.get(form, ())]
    for length in range(1, len(form) + 1):
        found += begun.get(form[:length], ())
    return frozenset(found)


def on_two_sides(one: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> bool:
    """Whether words on some sides contradict words on others.

    >>> on_two_sides(sides_of("increases"), sides_of("decrease")), on_two_sides(sides_of("big"), sides_of("larger"))
    (True, False)
    """
    side_of = dict(one)
    return any(number in side_of and side_of[number] != side for number, side in other)


def is_turned(one: str, other: str) -> bool:
    """Whether one of two words is the other, or begins as it does, with a prefix or an ending that turns it round.

    >>> is_turned("possible", "impossibly"), is_turned("hopeful", "hopeless"), is_turned("come", "become")
    (True, True, False)
    """
    pairs = ((one, other), (other, one))
    return any(_has_turning(plain, turned) or _has_less(plain, turned) for plain, turned in pairs)


def _has_turning(plain: str, turned: str) -> bool:
    stem = plain[: max(_LEAST_STEM, min(len(plain), 5) - 1)] if len(plain) >= _LEAST_STEM else plain
    return len(stem) >= _LEAST_STEM and any(turned.startswith(prefix + stem) for prefix in _TURNING)


def _has_less(plain: str, turned: str) -> bool:
    stem = turned.removesuffix("less")
    return _LEAST_STEM <= len(stem) < len(turned) and plain.startswith(stem) and not plain.startswith(turned)


# Straight marks for curved ones, and one dash for those that are no hyphen: a hyphen may be a minus.
_UNIFIED = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2012\u2013\u2014\u2015", "\u2014")
)
_MARKS = frozenset("\"'\u2014.,;:?")
_APOSTROPHE = "'"
# The mark of a leading space that a vocabulary may show in its texts (SentencePiece; byte-level BPE).
_SPACES = " \u2581\u0120"


class TokenKind(Enum):
    """What a text consists of. Tokens of two classes are never merged."""

    WORD = "word"
    MARK = "mark"
    SPACE = "space"


@dataclass(frozen=True)
class NormalForm:
    """``form``: the text without its differences of spelling. ``script``: of its first letter, empty for others.

    ``starts_word``: whether the text begins with a space; ``is_name``: whether the first letter is a capital.
    """

    form: str
    token_class: TokenKind
    script: str = ""
    starts_word: bool = False
    is_name: bool = False


def normal_form(piece: bytes) -> NormalForm | None:
    """Return the normal form of a token's bytes; None for a token that says nothing but itself.

    >>> normal_form(b" The").form, normal_form(b"7"), normal_form(b" never")
    ('the', None, None)
    """
    try:
        raw = piece.decode()
    except UnicodeDecodeError:  # part of a character
        return None
    if not raw:
        return None
    if raw.isspace():
        return _space(raw)
    text = raw.strip(_SPACES)
    form = unicodedata.normalize("NFKC", text.translate(_UNIFIED)).casefold()
    if form and not set(form) - _MARKS:
        return NormalForm(form, TokenKind.MARK)
    if not _is_word(text.translate(_UNIFIED)) or not _is_word(form) or is_negation(form):
        return None
    letter = next(each for each in text if each not in _APOSTROPHE)
    script = unicodedata.name(letter, "").partition(" ")[0]
    return NormalForm(form, TokenKind.WORD, script, raw[0] in _SPACES, letter.isupper() or letter.istitle())


def _space(raw: str) -> NormalForm | None:
    """Return what white space says: a line's end or a space. A page break, or a separator of records, is neither."""
    if any(each not in "\t\r\n" and unicodedata.category(each) != "Zs" for each in raw):
        return None
    return NormalForm("\n" if "\n" in raw or "\r" in raw else " ", TokenKind.SPACE)


def is_negation(form: str) -> bool:
    """Whether a form says no, or ends in what does.

    >>> [is_negation(form) for form in ("not", "isn't", "'t", "note")]
    [True, True, True, False]
    """
    return form in NEGATIONS or form.endswith(("n't", "'t", "n'"))


def _is_word(text: str) -> bool:
    """Whether a text is letters and apostrophes. A letter alone is none: it is a label, a unit or a variable."""
    letters = [each for each in text if each != _APOSTROPHE]
    return len(text) > 1 and bool(letters) and all(unicodedata.category(each)[0] in "LM" for each in letters)
