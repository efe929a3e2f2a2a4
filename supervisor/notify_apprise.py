"""``python -m supervisor.notify_apprise``: one message to services, through apprise.

Standard input: JSON with ``urls``, ``title``, ``body``, ``what``. Only this process imports apprise. It says nothing of
the addresses: what failed is named by its place in the file and its scheme.
"""

from __future__ import annotations

import json
import logging
import sys

_TYPES = {"completed": "success", "gave_up": "failure", "stopped": "info", "gate": "info"}


def main() -> int:
    try:
        import apprise
    except ImportError:
        sys.stderr.write("apprise is not installed; pip install apprise\n")
        return 1
    logging.disable(logging.CRITICAL)  # its log holds addresses
    given = json.load(sys.stdin)
    failed = []
    for place, url in enumerate(given["urls"], 1):
        scheme = url.partition("://")[0] if "://" in url else "?"
        sender = apprise.Apprise()
        if not sender.add(url):
            failed.append(f"address {place} ({scheme}) is none that apprise knows")
            continue
        kind = apprise.NotifyType(_TYPES.get(given["what"], "warning"))
        if not sender.notify(title=given["title"], body=given["body"], notify_type=kind, body_format="text"):
            failed.append(f"address {place} ({scheme}) did not take it")
    sys.stderr.write("; ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
