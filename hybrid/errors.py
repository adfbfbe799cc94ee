"""The tree of errors: what can go wrong, and whose fault it is.

    HybridError
    ├── UsageError            the question or the settings: mend them and ask again
    │   ├── ContextOverflow   the text does not fit the local model's context
    │   └── LedgerError       the file that says what was spent cannot be used; an answer goes on without the cloud
    ├── EngineError           the local model cannot be used
    ├── QueueError            too much is asked at once: ask again later
    │   ├── QueueFull         as many as may wait are waiting
    │   └── QueueTimeout      the wait took longer than it may
    └── CloudError
        ├── CloudRefusal      settings the cloud will never accept: an answer is not begun on them
        │   ├── AccessDenied, ModelNotFound, NotAnApi, TlsFailure
        │   └── VocabularyMismatch, MissingCapability
        └── CloudFailure      the cloud's bad day: the local model answers
            ├── Unreachable   no (whole) reply came
            └── BadReply      a reply came that cannot be believed

Every message is one sentence for the person who can act on it, and none holds a key. Whatever it quotes, it holds
nothing that a terminal would obey (``tests/test_errors.py``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from hybrid.types import NO_USAGE, CloudUsage

FailureKind: TypeAlias = Literal["connect", "silent", "cut", "busy", "malformed", "learned"]
"""The kinds of failure that a retry may end: no connection, no first byte, a connection cut in a reply, a server that
is busy or has failed (408, 409, 425, 429, 5xx), a reply that is no JSON, and a request that is then sent in another
form."""


# Characters that move a cursor or reverse the order of letters: control characters, Unicode's two line separators and
# the twelve characters of its property Bidi_Control (UAX #9). With these, text can be shown as another text
# (Boucher and Anderson 2021, "Trojan Source", arXiv:2111.00169). Joiners stay: scripts and emoji are made with them.
_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}
_BIDI = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS} | {
    code: f"\\u{code:04x}" for code in {0x2028, 0x2029, *_BIDI}
}


def escape_controls(text: str) -> str:
    """Return text for a terminal or a page: control characters are written as in Python's literals.

    Line breaks and tabs stay.
    """
    return text.translate(_ESCAPES)


def spelled(name: str) -> str:
    r"""Return a file's name for a sentence: whatever is not printed, a line break too, is written as in a literal.

    >>> spelled("two\nlines")
    'two\\nlines'
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)


def to_one_line(text: object) -> str:
    """Return a foreign message as one short line that is safe on a terminal and in a JSON file."""
    words = escape_controls(" ".join(str(text)[:300].split()))
    return "".join(char if char.isprintable() else " " for char in words).strip()


class HybridError(Exception):
    """Anything this package raises on purpose."""

    def __str__(self) -> str:
        """Return the message as a terminal may show it."""
        return escape_controls(super().__str__())


class UsageError(HybridError):
    """The question or the settings cannot be honoured."""


class ContextOverflow(UsageError):
    """The text does not fit the local model's context."""


class LedgerError(UsageError):
    """The ledger's file cannot be read or written, so that nothing can be spent."""


class EngineError(HybridError):
    """The local model cannot be used: it is missing, damaged or unsuitable."""


class QueueError(HybridError):
    """Every context of the local model is busy."""


class QueueFull(QueueError):
    """As many questions as may wait are waiting."""


class QueueTimeout(QueueError):
    """No context became free in time."""


class CloudError(HybridError):
    """The remote side.

    ``sent`` is False if the request cannot have been sent or was rejected unread, so that nothing was charged for it.
    ``charged`` is a charge that is certain nevertheless: of earlier requests of the same question, or of the part of an
    answer that was received. ``trouble``: the kind of failure, if a retry may end it (``run.retrying`` decides).
    ``retry_after_s``: the wait that the server asks for. ``status``: the HTTP status that it is, if it is one.
    """

    status: int | None = None

    def __init__(
        self,
        message: str,
        *,
        sent: bool = True,
        charged: CloudUsage | None = None,
        trouble: FailureKind | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Take the sentence, whether the request may have been charged, and what speaks for asking again."""
        super().__init__(message)
        self.sent = sent
        self.charged = charged or NO_USAGE
        self.trouble = trouble
        self.retry_after_s = retry_after_s


class CloudRefusal(CloudError):
    """Nothing will change by trying again: the settings are wrong for this endpoint."""


class AccessDenied(CloudRefusal):
    """401, or 403 where no flag of the server's is named."""


class ModelNotFound(CloudRefusal):
    """The endpoint does not serve that model."""


class NotAnApi(CloudRefusal):
    """A page or something else that is not JSON came back, or there is no such route."""


class TlsFailure(CloudRefusal):
    """The endpoint's certificate could not be verified."""


class VocabularyMismatch(CloudRefusal):
    """The two models do not number their tokens alike."""


class MissingCapability(CloudRefusal):
    """The endpoint cannot do what the policy needs."""


class CloudFailure(CloudError):
    """The cloud failed now; the answer goes on locally."""


class Unreachable(CloudFailure):
    """No reply, or half of one."""


class BadReply(CloudFailure):
    """A reply that cannot be believed: null rows, NaN, too few rows, probabilities above one."""
