"""Signs of failed fetches of the grader.

Only remote addresses count. A refused connection to localhost, or to a name without a dot, is
a service under test that is down: the work is at fault. The same holds for an address that the
instruction mentions. Warnings (`W:`, `WARNING:`) do not count, because the tool continued.
"""

import re
from dataclasses import dataclass

from plimsoll.trials.signs.deliverables import Deliverables
from plimsoll.trials.signs.output import Blame, Output, Sign, shorten
from plimsoll.trials.signs.tracebacks import Failure, Owner, PathOwners

__all__ = ["fetch_failed", "fetch_failed_in_python"]

_Q = "['\"`‘’]"


@dataclass(frozen=True, slots=True)
class _Rule:
    tool: str
    pattern: re.Pattern[str]
    """Group 1, if present, is the fetched item."""
    remote: bool = False
    """Group 1 is an address; it counts only if it is remote."""
    listed: bool = False
    """The item may be from a list that the agent writes, such as requirements.txt."""


def _rule(tool: str, pattern: str, *, remote: bool = False, listed: bool = False) -> _Rule:
    return _Rule(tool, re.compile(r"^[ \t]{0,8}" + pattern, re.M), remote, listed)


_RULES = (
    _rule("curl", r"curl: \((?:5|6)\) Could not resolve (?:host|proxy): (\S{1,300})", remote=True),
    _rule("curl", r"curl: \((?:7|28)\) Failed to connect to (\S{1,300}) port", remote=True),
    _rule("curl", r"curl: \(35\) [^\n]{0,200} connection to (\S{1,300})", remote=True),
    _rule("wget", rf"wget: unable to resolve host address {_Q}([^\s'’]{{1,300}})", remote=True),
    _rule("wget", rf"wget: bad address {_Q}([^\s'’]{{1,300}})", remote=True),
    _rule(
        "wget", r"(?:Resolving|Connecting to) (\S{1,300}) [^\n]{0,300}\.\.\. failed: ", remote=True
    ),
    _rule("git", r"fatal: unable to access '([^'\n]{1,500})'", remote=True),
    _rule("git", r"fatal: repository '(https?://[^'\n]{1,500})' not found", remote=True),
    _rule("git", r"ssh: Could not resolve hostname ([^\s:]{1,300})", remote=True),
    _rule("git", r"fatal: unable to (?:look up|connect to) ([^\s:]{1,300})", remote=True),
    _rule(
        "pip",
        r"ERROR: Could not find a version that satisfies the requirement (\S{1,200})",
        listed=True,
    ),
    _rule("pip", r"ERROR: No matching distribution found for (\S{1,200})", listed=True),
    _rule(
        "pip",
        r"ERROR: Could not install packages due to an OSError: HTTPS?ConnectionPool"
        r"\(host='([^']{1,300})'",
        remote=True,
    ),
    _rule(
        "uv",
        r"(?:error: |× |├─▶ |╰─▶ |Caused by: )?Failed to (?:fetch|download)"
        r"(?: distribution)?:? `([^`\n]{1,500})`",
    ),
    _rule("uv", r"(?:error: |× )Failed to download (https?://\S{1,500})", remote=True),
    _rule("uv", r"(?:error: |× )Request failed after \d{1,3} retries"),
    _rule("uv", r"(?:╰─▶ )?Because (\S{1,200}) was not found in the package registry", listed=True),
    _rule("uv", r"(?:Caused by: |╰─▶ )?Could not connect, are you offline\?"),
    _rule("npm", r"npm (?:ERR!|error) network request to (https?://\S{1,500}) failed", remote=True),
    _rule(
        "npm", r"npm (?:ERR!|error) code (?:ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|ECONNRESET)"
    ),
    _rule("yarn", r'error An unexpected error occurred: "(https?://[^\s"]{1,500}): '),
    _rule("pnpm", r"ERR_PNPM_META_FETCH_FAIL"),
    _rule("apt-get", r"E: Unable to locate package (\S{1,200})"),
    _rule("apt-get", r"E: Failed to fetch (\S{1,500})", remote=True),
    _rule("apt-get", r"E: Package '([^'\n]{1,200})' has no installation candidate"),
    _rule("apk", r"ERROR: unable to select packages:"),
    _rule("dnf", r"Error: Failed to download metadata for repo '([^'\n]{1,200})'"),
    _rule("yum", r"Cannot find a valid baseurl for repo: (\S{1,200})"),
    _rule("go", r'go: [^\n]{0,300}Get "(https?://[^"\n]{1,500})": dial tcp', remote=True),
    _rule(
        "go", r"[^\n]{0,300}: dial tcp: lookup (proxy\.golang\.org|sum\.golang\.org)", remote=True
    ),
    _rule("cargo", r"failed to download from `(https?://[^`\n]{1,500})`", remote=True),
    _rule("cargo", r"error: failed to (?:download|fetch) [^\n]{0,20}`([^`\n]{1,500})`"),
    _rule("rustup", r"error: could not download file from '(https?://[^'\n]{1,500})'", remote=True),
    _rule(
        "maven", r"\[ERROR\] [^\n]{0,500}(?:Could not transfer artifact|Unknown host) (\S{1,300})"
    ),
    _rule("gradle", r"(?:> )?Could not (?:GET|HEAD) '(https?://[^'\n]{1,500})'", remote=True),
    _rule(
        "gradle",
        r"Exception in thread \S{1,20} java\.net\.UnknownHostException: (services\.gradle\.org)",
    ),
    _rule(
        "gem",
        r"(?:ERROR: |Could not )[^\n]{0,200}fetch specs from (https?://\S{1,300})",
        remote=True,
    ),
    _rule("composer", r"curl error \d{1,3} while downloading (https?://\S{1,500})", remote=True),
    _rule(
        "conda",
        r"CondaHTTPError: HTTP 000 CONNECTION FAILED for url <([^>\n]{1,500})>",
        remote=True,
    ),
    _rule(
        "huggingface_hub",
        r"(?:OSError: )?We couldn't connect to '(https?://[^'\n]{1,300})'",
        remote=True,
    ),
)

# Words that every match of a tool contains; they make the search fast.
_WORDS = {
    "curl": ("curl: (",),
    "wget": ("wget: ", "... failed: "),
    "git": ("fatal: ", "ssh: "),
    "pip": ("ERROR: ",),
    "uv": ("Failed to ", "Request failed", "package registry", "are you offline"),
    "npm": ("npm ",),
    "apt-get": ("E: ",),
    "go": ("dial tcp",),
    "cargo": ("failed to ",),
    "gradle": ("Could not ", "UnknownHost"),
}

_NO_NETWORK = re.compile(
    r"Name or service not known|Temporary failure in name resolution|Network is unreachable"
    r"|Failed to establish a new connection|Could not resolve host|ENOTFOUND|EAI_AGAIN"
)
_HOST = re.compile(r"(?:\w{2,10}://)?(?:[^@/\s]{0,100}@)?\[?([\w.:-]{1,300})")
_LOCAL = re.compile(
    r"(?:.{0,200}\.(?:localhost|local|internal)|localhost|127\.[\d.]{5,11}|0\.0\.0\.0|::1?|10\.[\d.]{5,11}"
    r"|192\.168\.[\d.]{3,7}|172\.(?:1[6-9]|2\d|3[01])\.[\d.]{3,7})$"
)
_LISTS = ("requirements.txt", "pyproject.toml", "setup.py", "setup.cfg", "environment.yml")


def fetch_failed(output: Output, deliverables: Deliverables) -> Sign | None:
    """Return the sign of the first remote fetch that a tool reports as failed."""
    first: Sign | None = None
    at = len(output.text)
    for rule in _RULES:
        if not any(word in output.text for word in _WORDS.get(rule.tool, ("",))):
            continue
        for match in rule.pattern.finditer(output.text, 0, at):
            what = match[1] if rule.pattern.groups else ""
            if _counts(rule, what, output, deliverables):
                at = match.start()
                # Use the end of the match: it may begin with indentation.
                first = _sign(rule.tool, what, output, match.end())
                break
    return first


def _counts(rule: _Rule, what: str, output: Output, deliverables: Deliverables) -> bool:
    if rule.remote:
        host = _host(what)
        return _is_remote(host) and not deliverables.mentions_host(host)
    if rule.listed and any(deliverables.has_path(name) for name in _LISTS):
        return _NO_NETWORK.search(output.text) is not None
    return True


def _host(address: str) -> str:
    match = _HOST.match(address)
    host = match[1] if match else address
    return host if host.count(":") > 1 else host.split(":")[0].rstrip(".")


def _is_remote(host: str) -> bool:
    return "." in host and not _LOCAL.match(host)


def _sign(tool: str, what: str, output: Output, position: int) -> Sign:
    named = f"`{shorten(what.rstrip('.,;:'), 80)}`" if what else "what it needs"
    clause = f"the grader could not fetch {named} with {tool}"
    return Sign(Blame.GRADER, clause, output.evidence(position))


_PYTHON_KINDS = re.compile(
    r"(?:.*\.)?(?:URLError|ConnectionError|ConnectTimeout|ConnectError|MaxRetryError|gaierror"
    r"|NameResolutionError|LocalEntryNotFoundError|ClientConnectorError|ClientConnectorDNSError)$"
)
_PYTHON_HOST = re.compile(r"host='([^']{1,300})'|Cannot connect to host ([^\s:]{1,300})")
_UNRESOLVED = re.compile(
    r"\[Errno -[235]\]|Name or service not known|Temporary failure in name resolution"
    r"|\[Errno 101\]|LocalEntryNotFound|outgoing traffic"
)


def fetch_failed_in_python(
    output: Output, failure: Failure, owners: PathOwners, deliverables: Deliverables
) -> Sign | None:
    """Return the sign of a failed fetch of a remote address by Python code of the grader."""
    if not _PYTHON_KINDS.match(failure.kind) or owners.culprit(failure)[0] is not Owner.GRADER:
        return None
    match = _PYTHON_HOST.search(failure.message)
    host = (match[1] or match[2]) if match else ""
    if host and (not _is_remote(host) or deliverables.mentions_host(host)):
        return None
    if not host and not _UNRESOLVED.search(failure.message):
        return None
    return _sign("Python", host, output, failure.position)
