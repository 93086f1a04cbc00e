"""
Headers and parts of a message as bytes, for `messages`.

Pure. Python's email package is not used for writing: it interprets the values that it is given,
decodes the words in them that look encoded (`=?utf-8?b?...?=`), and writes a line break found there
as one. Here a value is never interpreted. What is not plain is encoded as a whole, so it reads back
as it was given; and every written header is compared with what a header may look like.
"""

import binascii
import re
from base64 import b64encode, encodebytes
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from outbox_relay.publishers.smtp.payload import Mailbox, Unfit

LINE_CHARS: Final = 78
LONGEST_LINE_CHARS: Final = 998
"""A server may refuse or break longer ones."""
_PLAIN: Final = re.compile(r"(?!.*=\?)[\x20-\x7e]*")
_BARE_NAME: Final = re.compile(r"[A-Za-z0-9 !#$%&'*+/^_`{|}~-]{1,60}")
_QUOTABLE: Final = re.compile(r'(?!.*=\?)[^"\\\x00-\x1f\x7f-\U0010ffff]{1,60}')
_FOLD: Final = re.compile(r"(?<=[\x21-\x7e]) (?=[\x21-\x7e])")
"""Not within a run of spaces: a line of spaces alone ends the headers for some readers."""
_FIELD: Final = re.compile(rb"[A-Za-z0-9-]+: [\x20-\x7e]*(\r\n [\x21-\x7e][\x20-\x7e]*)*\r\n")
_LINES: Final = re.compile(rb"(?:[\t\x20-\x7e]{0,%d}\n)*" % LONGEST_LINE_CHARS)
_BREAK: Final = re.compile(r"\r\n|\r|\n")
BOUNDARY_BEGINS: Final = "=_"
"""Which neither base64 nor quoted-printable can contain; `text_part` sees to the rest."""


class Field(NamedTuple):
    name: str
    written: bytes
    """The whole header, with its end of line."""


class Part(NamedTuple):
    """Of a message, or the message itself."""

    fields: Sequence[Field]
    body: bytes

    @property
    def content(self) -> bytes:
        return b"".join(field.written for field in self.fields) + b"\r\n" + self.body


def make_field(name: str, *tokens: str) -> Field:
    """One header, folded between its tokens."""
    lines = [f"{name}:"]
    for token in tokens or ("",):
        if len(lines) == 1 and lines[0].endswith(":"):
            lines[0] += f" {token}"  # there are readers that take an empty first line for the value
        elif len(lines[-1]) + 1 + len(token) > LINE_CHARS:
            lines.append(f" {token}")
        else:
            lines[-1] += f" {token}"
    written = "".join(f"{line}\r\n" for line in lines).encode("ascii", "replace")
    if not _FIELD.fullmatch(written) or max(map(len, lines)) > LONGEST_LINE_CHARS:
        raise Unfit("HEADER_INJECTION", f"the header {name} would not be one header")
    return Field(name, written)


def text_field(name: str, value: str) -> Field:
    value = value.strip(" ")
    tokens = _FOLD.split(value)
    longest = LONGEST_LINE_CHARS - len(name) - 2
    if _PLAIN.fullmatch(value) and all(len(token) <= longest for token in tokens):
        return make_field(name, *tokens)
    return make_field(name, *encoded_words(value))


def address_field(name: str, mailboxes: Sequence[Mailbox]) -> Field:
    tokens: list[str] = []
    for number, mailbox in enumerate(mailboxes, 1):
        comma = "," if number < len(mailboxes) else ""
        if mailbox.name:
            tokens += _phrase(mailbox.name)
            tokens.append(f"<{mailbox.address}>{comma}")
        else:
            tokens.append(f"{mailbox.address}{comma}")
    return make_field(name, *tokens)


def encoded_words(text: str) -> list[str]:
    """As RFC 2047 has it; readers join them without the spaces between."""
    return [f"=?utf-8?b?{b64encode(piece).decode()}?=" for piece in _pieces(text, 30)]


def text_part(text: str, subtype: str) -> Part:
    """In the shortest encoding, or in none if it needs none."""
    lines = _BREAK.sub("\n", text).encode()
    lines = lines if lines.endswith(b"\n") else lines + b"\n"
    if _LINES.fullmatch(lines) and BOUNDARY_BEGINS.encode() not in lines:
        how, body = "7bit", lines
    else:
        printable = binascii.b2a_qp(lines, istext=True)
        base64 = encodebytes(lines.replace(b"\n", b"\r\n"))
        is_shorter = len(printable) <= len(base64)
        how, body = ("quoted-printable", printable) if is_shorter else ("base64", base64)
    fields = (
        make_field("Content-Type", f"text/{subtype};", 'charset="utf-8"'),
        make_field("Content-Transfer-Encoding", how),
    )
    return Part(fields, body.replace(b"\n", b"\r\n"))


def file_part(filename: str, content_type: str, content: bytes) -> Part:
    fields = (
        make_field("Content-Type", content_type),
        make_field("Content-Transfer-Encoding", "base64"),
        make_field("Content-Disposition", "attachment;", *_filename(filename)),
    )
    return Part(fields, encodebytes(content).replace(b"\n", b"\r\n"))


def multipart(subtype: str, boundary: str, parts: Sequence[Part]) -> Part:
    boundary = f"{BOUNDARY_BEGINS}{boundary}"
    kind = make_field("Content-Type", f"multipart/{subtype};", f'boundary="{boundary}"')
    between = f"\r\n--{boundary}\r\n".encode()
    body = between.join((b"", *(part.content for part in parts)))
    return Part((kind,), body.removeprefix(b"\r\n") + f"\r\n--{boundary}--\r\n".encode())


def finished(message: Part) -> bytes:
    """Raises Unfit if there is an unintended header, or a line end that servers read differently:
    the last check of what is sent, whatever went wrong before."""
    content = message.content
    ends = content.count(b"\r\n")
    if not content.isascii() or not content.count(b"\r") == content.count(b"\n") == ends:
        raise Unfit(
            "HEADER_INJECTION", "the message has a stray line break, or a byte that is not ASCII"
        )
    head = content.partition(b"\r\n\r\n")[0].decode("ascii")
    found = [line.partition(":")[0] for line in head.split("\r\n") if not line.startswith(" ")]
    if found != [field.name for field in message.fields]:
        raise Unfit("HEADER_INJECTION", "the message has an unintended header")
    return content


def _phrase(name: str) -> list[str]:
    if _BARE_NAME.fullmatch(name) and "  " not in name:
        return name.split()
    return [f'"{name}"'] if _QUOTABLE.fullmatch(name) else encoded_words(name)


def _filename(name: str) -> Iterator[str]:
    """As RFC 2231 has it, where it is not plain."""
    if _QUOTABLE.fullmatch(name):
        yield f'filename="{name}"'
        return
    pieces = [quote(piece, safe="") for piece in _pieces(name, 15)]
    if len(pieces) < 2:
        yield f"filename*=utf-8''{''.join(pieces)}"
        return
    for number, piece in enumerate(pieces):
        end = ";" if number < len(pieces) - 1 else ""
        charset = "" if number else "utf-8''"
        yield f"filename*{number}*={charset}{piece}{end}"


def _pieces(text: str, longest: int) -> Iterator[bytes]:
    """Of whole characters."""
    piece = b""
    for character in text:
        encoded = character.encode()
        if len(piece) + len(encoded) > longest:
            yield piece
            piece = b""
        piece += encoded
    if piece:
        yield piece
