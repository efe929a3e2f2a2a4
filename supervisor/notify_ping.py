"""``python -m supervisor.notify_ping``: a sign of life to dead man's switches. Standard input: JSON with ``urls``."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from http.client import HTTPException

SECONDS = 15.0


def main() -> int:
    failed = []
    for place, url in enumerate(json.load(sys.stdin)["urls"], 1):
        if (why := _call(url)) is not None:
            failed.append(f"address {place}: {why}")
    sys.stderr.write("; ".join(failed))
    return 1 if failed else 0


def _call(url: str) -> str | None:
    """None when it answered well, else why not, without the address."""
    if not url.startswith(("https://", "http://")):
        return "it is no http(s) address"
    request = urllib.request.Request(url, method="GET", headers={"User-Agent": "mens-supervisor"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"HTTP status {error.code}"
    except urllib.error.URLError as error:
        return f"no connection ({type(error.reason).__name__})"
    except (OSError, ValueError, HTTPException) as error:
        return type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
