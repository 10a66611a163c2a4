"""Staged files of URLs."""

import hashlib
import re
import shutil
import string
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.asset import Asset
from plimsoll.tasks.assets.commands import is_disk_full
from plimsoll.tasks.assets.store import AssetStore
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["stage_url"]

ATTEMPTS = 3
TIMEOUT = 60.0
SCHEMES = ("http", "https", "ftp", "file")


def stage_url(store: AssetStore, url: str, local: Path | None) -> Asset:
    """Download a file, or copy its local replacement."""
    try:
        path = f"files/{_name(url)}"
    except ValueError as error:
        raise AssetError(f"not a valid URL: {error}") from None
    with store.partial() as folder:
        file = folder / "file"
        if local is not None:
            shutil.copyfile(local, file)
        else:
            _download(url, file)
        found = store.put(file, path)
    how = "curl and wget read it instead of its URL"
    return Asset(Kind.URL, url, found.digest, found.digest, found.size, path, None, how)


def _name(url: str) -> str:
    last = unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", last)[-80:]
    return f"{hashlib.sha256(url.encode()).hexdigest()[:12]}-{plain or 'index'}"


def _download(url: str, file: Path) -> None:
    if urlsplit(url).scheme not in SCHEMES:
        raise AssetError(f"not a URL of {', '.join(SCHEMES)}")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _download_once(url, file)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 or attempt == ATTEMPTS:
                raise AssetError(f"the server answered {error.code} {error.reason}") from None
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and is_disk_full(error):
                raise
            if attempt == ATTEMPTS:
                raise AssetError(_reason(error)) from None
        time.sleep(0.5 * attempt)


def _download_once(url: str, file: Path) -> None:
    # urllib accepts only ASCII; curl sends other characters as they are.
    url = quote(url, safe=string.punctuation)
    # Some servers reject Python's default user agent.
    request = urllib.request.Request(url, headers={"User-Agent": "plimsoll-stage curl/8"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, file.open("wb") as target:
        shutil.copyfileobj(answer, target)
        length = answer.headers.get("Content-Length")
        if length is not None and length.isdigit() and target.tell() != int(length):
            raise ConnectionError(
                f"connection closed after {target.tell():,} of {int(length):,} bytes"
            )


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", None)
    return str(inner or error) or type(error).__name__
