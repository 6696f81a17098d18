"""Parse and check single values before anything is sent.

Each ``parse_`` function takes the name of an argument and its value, which a template may have
rendered. It returns the value parsed, or raises an FsmInputError that names the argument and quotes
no record.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import wraps
from inspect import signature
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar
from unicodedata import normalize
from urllib.parse import unquote

from fsm_provider.api.errors import FsmInputError

ResultT = TypeVar("ResultT")
ParamsT = ParamSpec("ParamsT")
JsonObject = dict[str, Any]
"""JSON values by their names."""
Location = tuple[int | str, ...]
"""Where a value is in JSON or a model: names of fields, indices of lists, from the outermost."""

OTHER_NAMES = {
    "created_since": "since",
    "data": "json",
    "deferrable": "mode",
    "http_conn_id": "fsm_conn_id",
    "url": "target_url",
}
"""What arguments of other operators are called here, to hint at them."""
MAX_PDF_BYTES = 100 * 2**20
MAX_PDF_SECONDS = 600  # for all requests of a PDF: 175 kB/s for the largest
MISSING_AS_TEXT = ("None", "null", "nan", "NaN", "NaT", "<NA>", "undefined")
"""How Python, JSON, pandas and JavaScript write a missing value."""
FOUND_NOTHING = "is the text '{}': the template that it comes from found nothing"
_MISSING_AS_WORD = re.compile(rf"(?<![^\W_])({'|'.join(MISSING_AS_TEXT)})(?![^\W_])")
INTEGER_AS_FLOAT = re.compile(r"-?[0-9]+\.0+")  # as pandas writes an integer of a column with gaps
_DECIMAL = r"-?([0-9]+\.[0-9]+|[0-9.]+[eE][+-][0-9]+|inf|Infinity)"
_BLANKS = r"[\s\u2800\u3164\uffa0]"
_HYPHENS = "[\u02d7\u058a\u05be\u1806\u2010-\u2015\u2043\u2212\u30a0\ufe58\ufe63\uff0d]"
_INVISIBLE = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Control characters other than blanks, and what Unicode calls default ignorable."""
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OWN_HEADERS = frozenset(
    {"authorization", "connection", "content-length", "host", "transfer-encoding"}
)
"""Headers that the client sets, in lower case."""
SURROGATE = re.compile(r"[\ud800-\udfff]")
HALF_A_CHARACTER = "contains half a character (an unpaired surrogate)"
STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
"""A % that begins no encoded character: what is sent in its place depends on what sends it."""
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_RECORD_OR_LIST = re.compile(
    r"""\{.*\}|\[\s*(?:(?:['"{\[\d-]|None|null).*)?\]|\(\s*['"{\[].*\)""", re.DOTALL
)
"""A record or list that a template rendered as JSON or Python; not a name like ``[Draft] Gas``."""
_NOT_IN_IDENTIFIERS = re.compile(rf"""[\s{{}}\[\]()<>"'{_INVISIBLE}]""")
# What pydantic's messages say of Python or of its parsers, which a user does not need to know.
_PYDANTICS_WORDS = re.compile("^(Value error, |Input )|, unable to .*| or instance of .*")
_MESSAGES = {
    "missing": "is missing",
    "string_too_short": "is empty",
    "string_pattern_mismatch": "holds a character that is not allowed there",
    "extra_forbidden": "is not a setting",
}


def check_arguments(
    owner: str, known: Collection[str], given: Iterable[str], in_job: Collection[str] = ()
) -> None:
    """Check the names of arguments.

    :param in_job: the names of what belongs in the argument ``job``.
    :raises FsmInputError: names each argument that the owner does not have.
    """
    from difflib import get_close_matches

    problems = []
    for name in sorted(set(given).difference(known)):
        close = get_close_matches(OTHER_NAMES.get(name, name), known, n=1, cutoff=0.6)
        hint = f": did you mean {close[0]}?" if close else ""
        if name in in_job:
            hint = ": it belongs in job"
        problems.append(f"{name}: is not an argument of {owner}{hint}")
    if problems:
        raise FsmInputError("; ".join(problems))


def with_hints(function: Callable[ParamsT, ResultT]) -> Callable[ParamsT, ResultT]:
    """Have a function name each argument that it does not have, and what may have been meant."""

    @wraps(function)
    def call(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        check_arguments(function.__name__, signature(function).parameters, kwargs)
        return function(*args, **kwargs)

    return call


def pluralize(number: int, noun: str) -> str:
    """Return a number of things, in words: ``1 form``, ``2 forms``."""
    ending = "" if number == 1 else "s"
    return f"{number} {noun}{ending}"


def check_found(name: str, value: object, *, as_word: bool = False) -> None:
    """Check that the template or task output that a value comes from has found something.

    :param as_word: refuse a text that holds nothing as a word, too, such as ``PM-None``.
    """
    if value is None:
        raise FsmInputError(
            f"{name}: is None: the template or task output that it comes from is empty"
        )
    if not isinstance(value, str):
        return
    text = value.strip()
    if text in MISSING_AS_TEXT:
        raise FsmInputError(f"{name}: {FOUND_NOTHING.format(text)}")
    word = _MISSING_AS_WORD.search(text)
    if as_word and word:
        raise FsmInputError(f"{name}: holds '{word[0]}': its template has found nothing")


def validate_with(
    validate: Callable[[Any], ResultT],
    values: Any,
    *,
    place_of: Callable[[Location], Iterable[Any]] = tuple,
    messages: Mapping[str, str] = MappingProxyType({}),
) -> ResultT:
    """Return what pydantic makes of ``values``.

    :param validate: a method of pydantic, such as ``model_validate``.
    :param place_of: makes the parts of the place that is shown of that in the model; empty parts
        are left out.
    :param messages: by the type of pydantic's error, in place of its own.
    :raises FsmInputError: names each invalid field, without its value.
    """
    from pydantic import ValidationError

    try:
        return validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
    our_messages = {**_MESSAGES, **messages}
    problems = []
    for detail in details:
        place = [str(part) for part in place_of(detail["loc"])]
        name = ".".join(_printable(part) for part in place if part)
        pydantics_message = _PYDANTICS_WORDS.sub("", detail["msg"]).removeprefix(": ")
        message = our_messages.get(detail["type"], pydantics_message)
        problems.append(f"{name}: {message}" if name else message)
    raise FsmInputError("; ".join(problems))  # not inside except: pydantic's error holds the values


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)


def parse_text(name: str, value: Any) -> str:
    """Return an integer or a text as text, without the blanks around it.

    :raises FsmInputError: if it is another type, or if a template has rendered it as nothing, as a
        missing value such as ``None``, or as a complete record.
    """
    check_found(name, value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise FsmInputError(f"{name}: should be an integer or text, not {type(value).__name__}")
    text = str(value).strip()
    if not text:
        raise FsmInputError(f"{name}: is empty")
    if SURROGATE.search(text):
        raise FsmInputError(f"{name}: {HALF_A_CHARACTER}")
    if _RECORD_OR_LIST.fullmatch(text):
        raise FsmInputError(
            f"{name}: is a complete record or list as text: take one value of it, such as ['id'], "
            "or give a list with | tojson where several values are meant"
        )
    return text


def visible_text(text: str) -> str:
    """Return a text in the spelling in which keys are compared.

    Texts that look the same are equal in it: as names of forms, it is in Unicode's form NFC,
    without blanks around it; besides, it has nothing that cannot be seen, and only the blank and
    the hyphen of ASCII.
    """
    with_blanks = re.sub(_BLANKS, " ", normalize("NFC", text))
    visible = re.sub(f"[{_INVISIBLE}]", "", with_blanks)
    return re.sub(_HYPHENS, "-", visible).strip()


def parse_key(name: str, value: Any) -> str:
    """Return a key as it was typed, without the blanks around it.

    :raises FsmInputError: if nothing of it can be seen, or if the template of a part of it has
        found nothing.
    """
    key = parse_text(name, value)
    if not visible_text(key):
        raise FsmInputError(f"{name}: is empty")
    check_found(name, key, as_word=True)
    return key


def parse_params(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return query parameters, whose values may be lists, but no mappings; None: there are none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FsmInputError(f"{name}: should map names to values, not {type(value).__name__}")
    for param, content in value.items():
        # Of a set, a trigger would get the text.
        if isinstance(content, Iterable) and not isinstance(content, str | list | tuple):
            raise FsmInputError(
                f"{name}: {param!r}: should be a value or a list of values, "
                f"not {type(content).__name__}"
            )
    return dict(value)


def parse_headers(name: str, value: Any) -> dict[str, str]:
    """Return headers of a request, other than those that the client sets; None: there are none."""
    headers = parse_params(name, value)
    for header, text in headers.items():
        if not isinstance(header, str) or not HEADER_NAME.fullmatch(header):
            raise FsmInputError(f"{name}: {header!r} is not a valid header name")
        if header.lower() in OWN_HEADERS:
            raise FsmInputError(f"{name}: {header.title()} is set by the client: leave it out")
        if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):
            raise FsmInputError(f"{name}: the value of {header} should be Latin-1 text of one line")
    return headers


def canonical_id(identifier: object) -> str:
    """Return an identifier in its canonical form, in which identifiers are compared.

    7, 7.0, ``" 7"``, ``"7.0"`` and ``"0007"`` are all ``7``.
    """
    text = str(identifier).strip()
    is_rounded = isinstance(identifier, float) and abs(identifier) >= 2**53
    if INTEGER_AS_FLOAT.fullmatch(text) and not is_rounded:
        text = text.partition(".")[0]
    is_number = text.isascii() and text.isdigit()
    if not is_number:
        return text
    return text.lstrip("0") or "0"


def to_integer(identifier: object) -> int:
    """Return the integer that an identifier of a record is.

    :raises ValueError: if it is none.
    """
    text = canonical_id(identifier)
    if not re.fullmatch("-?[0-9]+", text):
        raise ValueError("no integer")
    return int(text)


def parse_identifier(name: str, value: Any) -> int | str:
    """Return an identifier, which becomes a part of a path: an integer, or canonical text.

    7.0 is the text ``7``.

    :raises FsmInputError: if it is a decimal number such as 7.5, or a text that holds blanks,
        quotes or brackets, or is longer than 255 characters.
    """
    is_float = isinstance(value, float | Decimal)
    parse_text(name, str(value) if is_float else value)  # raises what is wrong with any text
    text = canonical_id(value)
    if re.fullmatch(_DECIMAL, text):
        raise FsmInputError(f"{name}: {shown(value)} is a decimal number: make it an integer")
    leads_elsewhere = text in (".", "..")
    if leads_elsewhere or len(text) > 255 or _NOT_IN_IDENTIFIERS.search(text):
        raise FsmInputError(
            f"{name}: {shown(value)} is not an identifier: "
            "an integer, or up to 255 characters without blanks, quotes and brackets"
        )
    return value if isinstance(value, int) else text


def parse_identifiers(name: str, value: int | str | list[int | str] | None) -> list[str]:
    """Return the identifiers of a filter in their canonical form, each once, sorted; None: any."""
    if value is None:
        return []
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise FsmInputError(f"{name}: is an empty list, which no form matches")
    identifiers = {canonical_id(parse_identifier(name, identifier)) for identifier in values}
    return sorted(identifiers)


def parse_time(name: str, value: Any) -> datetime:
    """Parse a time or ISO 8601 text; one without a zone is UTC, as everywhere in Airflow."""
    check_found(name, value)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise FsmInputError(
                f"{name}: {shown(value)} is no ISO 8601 time such as 2026-01-31T08:00Z"
            ) from None
    if not isinstance(value, datetime):
        raise FsmInputError(f"{name}: should be a time, not {type(value).__name__}")
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def parse_past(name: str, value: Any) -> datetime:
    """Parse a time since 1970 that is not in the future."""
    time = parse_time(name, value)
    if time.year < 1970:
        raise FsmInputError(f"{name}: {time} is before 1970")
    if time > datetime.now(UTC):
        raise FsmInputError(f"{name}: {time} is in the future")
    return time


def parse_count(name: str, value: Any, *, max_value: int | None = None) -> int:
    """Parse an integer of at least 1, which may be given as text."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch("0*[1-9][0-9]{0,17}", text):
        raise FsmInputError(f"{name}: {shown(value)} should be an integer of at least 1")
    if max_value is not None and int(text) > max_value:
        raise FsmInputError(f"{name}: {shown(value)} should be at most {max_value}")
    return int(text)


def parse_seconds(
    name: str, value: timedelta | float, at_least: float = 0.0, at_most: float = math.inf
) -> float:
    """Return the seconds of a duration from ``at_least`` to ``at_most`` seconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float)
    if not is_number or not at_least <= seconds <= at_most:
        end = "" if at_most == math.inf else f" to {at_most:g}"
        raise FsmInputError(
            f"{name}: should be a timedelta, or a number of seconds such as 60, "
            f"from {at_least:g}{end}"
        )
    return float(seconds)


def parse_flag(name: str, value: Any) -> bool:
    """Parse a boolean, or its name as a template renders it."""
    flag = {"true": True, "false": False}.get(str(value).lower())
    if flag is None:
        raise FsmInputError(f"{name}: {value!r} should be true or false")
    return flag


def parse_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise FsmInputError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return str(value)


def parse_json(name: str, value: Any) -> Any:
    """Parse a value that a template gives as JSON text; other values are returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        raise FsmInputError(
            f"{name}: is text, but no JSON: end its template with | tojson, or give a task's output"
        ) from None


def parse_names(name: str, value: Any) -> tuple[str, ...]:
    """Parse a name or a list of names, which may be JSON text; other text is one name."""
    names = _names_in_text(value) if isinstance(value, str) else value
    is_list = isinstance(names, list | tuple)
    if not is_list or not all(isinstance(text, str) for text in names):
        raise FsmInputError(
            f"{name}: should be a name or a list of names, which a template gives with | tojson"
        )
    if not names:
        raise FsmInputError(f"{name}: is an empty list: leave it out")
    for text in names:
        parse_text(name, text)
    return tuple(names)


def _names_in_text(text: str) -> list[Any]:
    """Return the list or the name that a text is as JSON, or else the text as the only name."""
    try:
        parsed = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return [text]
    if isinstance(parsed, list):
        return parsed
    return [parsed if isinstance(parsed, str) else text]


def checked_path(path: Any) -> str:
    """Check a path that is appended to the base URL: it leads nowhere else, and has no query."""
    if not isinstance(path, str) or not path.startswith("/") or path.startswith("//"):
        raise FsmInputError(f"path: {path!r} should start with one /: it is appended to the host")
    if "?" in path or "#" in path:
        raise FsmInputError("path: should contain no ? and no #: pass query parameters separately")
    decoded = unquote(path)
    is_relative = not {".", ".."}.isdisjoint(decoded.split("/"))
    if not decoded.isprintable() or " " in path or "\\" in decoded or is_relative:
        raise FsmInputError(f"path: {path!r} should contain no blank, no backslash, no . and no ..")
    is_part_empty = "" in path[1:].split("/") and path != "/"
    if is_part_empty:
        raise FsmInputError(f"path: {path!r} has an empty part: has its template found nothing?")
    check_found("path", decoded, as_word=True)
    if STRAY_PERCENT.search(path):
        raise FsmInputError(
            f"path: {path!r} has a % that begins no encoded character: write it as %25"
        )
    return path


def shown(value: object) -> str:
    """Return the start of a value's repr: a record in its place may contain a signed URL."""
    text = repr(value)
    return text if len(text) <= 30 else f"{text[:20]}..."
