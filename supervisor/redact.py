"""Take secrets out of texts before they are stored, shown or sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "[hidden]"

SECRET_NAME = re.compile(
    r"TOKEN(?!S|IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|WEBHOOK_URL"
    r"|^AUTH(?:ORIZATION)?$",
    re.IGNORECASE,
)
"""Finds names of variables and keys whose values are nobody's business; ``tokens`` and ``tokenizer`` are harmless."""

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_BARE_SECRET = re.compile(
    r"\b(?:hf_|api_org_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abeoprs]-|AIza|ya29\.|r8_|nvapi-"
    r"|npm_|pypi-|dckr_pat_|wandb_v1_)"
    r"[A-Za-z0-9_\-]{8,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{4,}(?:\.[A-Za-z0-9_\-]*)?"
    r"|(?<=://)[^\s/@:]{0,200}:[^\s/@]{1,500}(?=@)"
)
_HEADER = re.compile(
    r"((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:b[\"'])?(?:(?:bearer|basic|token"
    r"|apikey|aws4-hmac-sha256)\s+)?"
    r"|\bbearer\s+|\bbasic\s+(?=[A-Za-z0-9+/]{16})|\b(?:set-)?cookie[\"']?\s*:\s*[\"']?)"
    r"[^\s,;&\"']{4,}",
    re.IGNORECASE,
)
_SIGNED = re.compile(
    r"([?&](?:x-(?:amz|goog|oss)-[a-z\-]+|signature|sig|sign|token|access_token|auth|key"
    r"|api_?key|password|awsaccesskeyid"
    r"|ossaccesskeyid|googleaccessid|key-pair-id|policy|expires|se|sp|sv|st|skoid|sktid)=)[^\s&\"'<>#]+",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"((?<![\w\-])(?:[\w\-]{0,60}[_\-])?"
    r"(?:token|secret|password|passwd|passphrase|api_?key|access_?key(?:_?id)?|secret_?key"
    r"|private_?key|credentials?)[\"']?"
    r"\s*(?:=>|[=:])\s*(?:b?[\"'])?)"
    r"(?!None\b|null\b|True\b|False\b|true\b|false\b)[^\s,;&\"'<>]{8,}",
    re.IGNORECASE,
)
_VARIABLE = re.compile(
    r"(\b[A-Z][A-Z0-9_]{0,60}(?:TOKEN|SECRET|PASSWORD|PASSWD|KEY|KEY_ID|CREDENTIALS|PAT)[\"']?\s*[=:]\s*[\"']?)"
    r"(?!None\b|null\b)[^\s,;\"']{6,}"
)


def hide_secrets(value: Any) -> Any:
    """``value`` with tokens, passwords, keys and signed parts of addresses replaced in every text.

    Mappings and sequences are walked; a text under a key that names a secret is hidden whole.
    """
    if isinstance(value, str):
        return _scrub(value)
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if isinstance(below, str) and SECRET_NAME.search(str(key)) else hide_secrets(below)
            for key, below in value.items()
        }
    if isinstance(value, list | tuple):
        return [hide_secrets(item) for item in value]
    return value


def shown_value(key: str, value: Any) -> Any:
    """The value of a dotted configuration key as it may be shown: nothing of the trainer's environment, no secret."""
    if value is not None and key.startswith("launch.env"):
        return HIDDEN
    name = key.rpartition(".")[2]
    return hide_secrets({name: value})[name]


def _scrub(text: str) -> str:
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _BARE_SECRET.sub(HIDDEN, text)
    for pattern in (_HEADER, _SIGNED, _NAMED, _VARIABLE):
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text
