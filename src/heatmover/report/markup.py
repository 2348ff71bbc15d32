"""Fill the templates of the report, and escape all values, so that no input can run in the page; for `report` only."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base import words
from heatmover._base.files import plain
from heatmover._base.types import Float64
from heatmover._base.validation import import_extra
from heatmover._base.words import counted

# Characters that HTML forbids even as escapes: controls other than white space, lone surrogates and noncharacters.
ILLEGAL = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)
# In a script element, "</script" ends the script, "<!--" hides its end, and old parsers read U+2028 as a line end.
IN_SCRIPTS = re.compile(f"[<>&\u2028\u2029]|{ILLEGAL.pattern}")
DIGITS = 5


def fill(template: str, **values: Any) -> str:
    """Fill a template of the report, with every value escaped.

    Parameters
    ----------
    template
        Name of a file in the folder ``templates`` of this package.
    **values
        Values of the variables in the template.

    Returns
    -------
    str
        HTML.

    Examples
    --------
    >>> fill("sentences.html", sentences=["1 < 2"])
    '<p>1 &lt; 2</p>'
    """
    return str(_environment().get_template(template).render(**values))


def fill_part(template: str, part: str, **values: Any) -> str:
    """Fill one macro of a template of the report, with every value escaped."""
    return str(getattr(_environment().get_template(template).module, part)(**values))


@cache
def _environment() -> Any:
    jinja2 = import_extra("jinja2", package="jinja2", extra="cohort")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("heatmover.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_legal,
    )
    environment.filters["shortened"] = shortened
    environment.filters["probability"] = probability
    environment.filters["count"] = lambda number: f"{number:,}"
    environment.filters["counted"] = counted
    return environment


def _legal(value: Any) -> Any:
    """Replace characters that HTML forbids by escape sequences; values that are already HTML are not changed."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return ILLEGAL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), value)


def static(name: str) -> str:
    """Return the text of a file in the folder ``static`` of this package."""
    return files("heatmover.report").joinpath("static", name).read_text(encoding="utf-8")


def legal_script(script: str) -> str:
    """Replace characters that HTML forbids in the strings of a script by escapes with the same value."""
    return _spelled_out(script, ILLEGAL)


def digest(script: str) -> str:
    """Return the hash of a script in the format of a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def shortened(text: object, longest: int = 60) -> str:
    """Return a text on one line, shortened if it is long."""
    line = " ".join(str(text).split())
    return words.shortened(line, longest, "\u2026")


def probability(value: float) -> str:
    """Return a probability with two significant digits."""
    return f"{value:.2g}"


def number(value: float) -> str:
    """Return a number with three significant digits and a typographic minus."""
    return f"{value:.3g}".replace("-", "\u2212")


def script_json(values: object) -> str:
    r"""Return values as JSON that is safe in a script element.

    Examples
    --------
    >>> print(script_json({"name": "</script>", "value": float("nan")}))
    {"name":"\u003c/script\u003e","value":null}
    """
    text = json.dumps(plain(values), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return _spelled_out(text, IN_SCRIPTS)


def _spelled_out(text: str, characters: re.Pattern[str]) -> str:
    """Replace the characters that a pattern matches by JSON escapes."""

    def as_json(match: re.Match[str]) -> str:
        units = match[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))

    return characters.sub(as_json, text)


def rounded(values: npt.ArrayLike) -> list[float]:
    """Round numbers to five significant digits, which is more than a screen shows; NaN and infinity do not change."""
    return [float(f"{value:.{DIGITS}g}") for value in np.asarray(values, dtype=np.float64).ravel()]


def packed(values: Float64) -> dict[str, Any]:
    """Return the upper triangle of a symmetric matrix of distances as text, with 16 bits per distance.

    The distances of 634 samples take 0.5 MB instead of 4 MB as JSON. The resolution is 1/65535 of the largest distance.
    """
    largest = float(values.max()) or 1.0
    upper = values[np.triu_indices(len(values), 1)]
    steps = np.round(upper / largest * 65535).astype("<u2")
    return {"size": len(values), "largest": largest, "steps": base64.b64encode(steps.tobytes()).decode()}
