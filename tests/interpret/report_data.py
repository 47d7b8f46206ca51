"""Read the data that a report page embeds."""

import base64
import json
import re
import zlib
from typing import Any


def embedded(page: str) -> dict[str, Any]:
    """The JSON object in the page's data element."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match[1])


def inflated(text: str) -> bytes:
    """Decompress a deflated, base64-encoded field of the data."""
    return zlib.decompress(base64.b64decode(text))
