"""The documentation: its links, commands, make targets and configs exist, and the site builds."""

import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from pydantic import BaseModel, ValidationError

from parts import need
from plimsoll.cli.main import plimsoll
from plimsoll.config.file import Config
from plimsoll.gateway.upstreams.scripted.script import load_script
from plimsoll.runs.breaker import rules as breaker_rules
from plimsoll.runs.breaker.limits import BreakerLimits
from plimsoll.tasks.lint.linter import ALL_RULES
from plimsoll.tasks.task_file import TaskConfig
from plimsoll.trials.verdicts import CAUSES

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *(
            ROOT / name
            for name in ("README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
        ),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "examples/README.md",
    ]
)
LANGUAGES = {"console", "json", "python", "sh", "text", "toml", "yaml"}
"""Languages of code blocks. Commands stand in `sh` blocks, and after `$` in `console` blocks."""


@dataclass(frozen=True)
class Block:
    """A fenced code block of a page."""

    language: str
    text: str
    line: int


def blocks_of(text: str) -> Iterator[Block]:
    """The code blocks of a page, those inside lists included."""
    pattern = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```", re.M | re.S)
    for found in pattern.finditer(text):
        indent = len(found[1])
        body = "".join(line[indent:] or "\n" for line in found[3].splitlines(keepends=True))
        yield Block(found[2], body, text[: found.start()].count("\n") + 1)


def prose_of(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.M | re.S)


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, by the rule of code hosts."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose_of(text), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchors.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return anchors


def lines_of(block: Block) -> Iterator[str]:
    """The shell lines of a block: continued lines joined, prompts and comments removed."""
    text = re.sub(r"\\\n *", " ", block.text)
    for line in text.splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        yield re.sub(r"(^|\s)#.*", "", line).strip()


def commands_of(text: str) -> Iterator[str]:
    """Every shell command that a page shows, in its code blocks and in its sentences."""
    shown: list[str] = []
    for block in blocks_of(text):
        if block.language in ("sh", "console"):
            shown += lines_of(block)
    shown += [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", prose_of(text))]
    for line in shown:
        for command in re.split(r"&&|\|\||[|;&]\s|\bthen\b|\bdo\b", line):
            yield command.strip()


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=named)


@each_page
def test_links_lead_to_files_and_headings_that_exist(page: Path):
    text = page.read_text()
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors_of(file.read_text())):
            broken.append(target)
    assert broken == []


@each_page
def test_code_blocks_name_their_language(page: Path):
    unknown = [
        f"{named(page)}:{block.line}: {block.language or 'none'}"
        for block in blocks_of(page.read_text())
        if block.language not in LANGUAGES
    ]
    assert unknown == []


def words_of(command: str) -> list[str]:
    """The words after `plimsoll` of a command; empty for other commands."""
    plain = re.sub(r"[\[\]…]|\.\.\.", " ", command)
    try:
        words = shlex.split(plain)
    except ValueError:
        words = plain.split()
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if words and words[0] == "torchrun" and "plimsoll" in words:
        words = words[words.index("plimsoll") :]
    if not words or Path(words[0]).name != "plimsoll":
        return []
    return words[1:]


def problem_of(words: list[str]) -> str | None:
    """The reason that the words after `plimsoll` are not a valid command, or None."""
    command: click.Command = plimsoll
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            if command is plimsoll:
                return f"no command {rest[0]}"
            break
        command = found
        rest.pop(0)
    known = {"--help", "-h"}
    for parameter in command.params:
        known.update(parameter.opts, parameter.secondary_opts)
    for word in rest:
        option = word.partition("=")[0]
        if option.startswith("--") and option not in known:
            return f"no option {option} of {command.name}"
    return None


@each_page
def test_plimsoll_commands_and_their_options_exist(page: Path):
    problems: list[str] = []
    for command in commands_of(page.read_text()):
        words = words_of(command)
        if words and (problem := problem_of(words)):
            problems.append(f"{command}: {problem}")
    assert problems == []


def test_a_missing_command_or_option_is_found():
    assert problem_of(["evaluate", "tasks"]) is not None
    assert problem_of(["eval", "tasks", "--nowhere"]) is not None
    assert problem_of(["gateway", "probe", "URL", "--nowhere"]) is not None
    assert problem_of(["eval", "tasks", "--attempts", "8"]) is None
    assert words_of("KEY=1 .venv/bin/plimsoll ps [--json]") == ["ps", "--json"]


def test_pages_show_every_command():
    shown: set[str] = set()
    for page in PAGES:
        for command in commands_of(page.read_text()):
            shown.update(words_of(command)[:1])
    assert set(plimsoll.list_commands(click.Context(plimsoll))) - shown == set()


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("clean", "clean.md"),
        ("eval", "eval.md"),
        ("lint", "lint.md"),
        ("run", "runs.md"),
        ("stage", "stage.md"),
        ("validate", "validate.md"),
    ],
)
def test_a_page_has_the_exit_statuses_of_the_help(name: str, page: str):
    command = plimsoll.get_command(click.Context(plimsoll), name)
    assert command is not None and command.epilog is not None
    offered = re.findall(r"^ +(\d+) {2,}|\((\d+): ", command.epilog, re.M)
    text = (ROOT / "docs" / page).read_text()
    table = re.search(r"^\| exit status.*\n\|.*\n((?:\|.*\n)+)", text, re.M)
    assert table is not None
    shown = re.findall(r"^\| ([\d, ]+) \|", table[1], re.M)
    assert {number for row in shown for number in row.split(", ")} == {a or b for a, b in offered}


@pytest.mark.parametrize("start", ["README.md", "docs/index.md"])
def test_a_start_page_links_to_every_page(start: str):
    page = ROOT / start
    linked = re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", page.read_text())
    found = {(page.parent / target).resolve() for target in linked}
    pages = {path for path in (ROOT / "docs").glob("*.md") if path.name != "index.md"}
    assert pages - found == set()


@each_page
def test_make_targets_exist(page: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    missing: list[str] = []
    for command in commands_of(page.read_text()):
        words = command.split()
        if words[:1] == ["make"]:
            named = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
            missing += [word for word in named if word not in targets]
    assert missing == []


TABLES = [
    pytest.param(block.text, id=f"{named(page)}:{block.line}")
    for page in PAGES
    for block in blocks_of(page.read_text())
    if block.language == "toml"
]


@pytest.mark.parametrize("text", TABLES)
def test_configs_have_known_keys_and_possible_values(text: str, tmp_path: Path):
    """A first line `# task.toml` or `# script.toml` marks a block that is no config."""
    if text.startswith("# task.toml"):
        assert unknown_keys(TaskConfig.model_validate(tomllib.loads(text))) == []
    elif text.startswith("# script.toml"):
        file = tmp_path / "script.toml"
        file.write_text(text)
        load_script(file)
    else:
        Config.model_validate(tomllib.loads(text))


def unknown_keys(table: BaseModel) -> list[str]:
    """The keys of a task.toml that the format does not have."""
    found = list(table.model_extra or {})
    for name in type(table).model_fields:
        value = getattr(table, name)
        if isinstance(value, BaseModel):
            found += [f"{name}.{key}" for key in unknown_keys(value)]
    return found


def test_an_unknown_key_is_found():
    with pytest.raises(ValidationError, match="nowhere"):
        Config.model_validate({"run": {"nowhere": 1}})
    assert unknown_keys(TaskConfig.model_validate({"agent": {"nowhere": 1}})) == ["agent.nowhere"]


def is_module(name: str) -> bool:
    """True if a dotted name, or the part before its last dot, is a module of the package."""
    file = ROOT / "src" / name.replace(".", "/")
    paths = (file / "__init__.py", file.with_suffix(".py"), file.parent.with_suffix(".py"))
    return any(path.is_file() for path in paths)


@each_page
def test_modules_that_a_page_names_exist(page: Path):
    text = page.read_text().replace("plimsoll.toml", "")
    names = re.findall(r"(?:from |-m |`)(plimsoll\.[a-z_.]+)", text)
    assert [name for name in names if not is_module(name)] == []


def test_a_sample_takes_at_most_sixty_modules():
    text = (ROOT / "docs/architecture.md").read_text()
    way = text[text.index("## The way of a sample") : text.index("## The packages")]
    modules = re.findall(r"`([a-z_/]+\.py)`", way)
    assert [module for module in modules if not (ROOT / "src/plimsoll" / module).is_file()] == []
    assert len(modules) == len(set(modules))
    assert 30 <= len(modules) <= 60


def test_the_table_of_packages_is_the_contract_of_imports():
    text = (ROOT / "docs/architecture.md").read_text()
    table = text[text.index("## The packages") : text.index("### The layering rule")]
    listed = re.findall(r"^\| `([a-z]+)` \|", table, re.M)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    layers = [
        package
        for layer in contract["layers"]
        for package in layer.split(" | ")
        if not layer.startswith("(")
    ]
    assert listed == layers
    folders = {path.parent.name for path in (ROOT / "src/plimsoll").glob("*/__init__.py")}
    assert set(listed) == folders


def rows_of(page: str, heads: str) -> list[list[str]]:
    """The rows of the table of a page with these heads, as cells."""
    lines = iter((ROOT / "docs" / page).read_text().splitlines())
    assert any(line == heads for line in lines), f"{page} has no table {heads}"
    next(lines)
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in rows]


def test_the_table_of_causes_is_that_of_the_code():
    shown: dict[str, int] = {}
    for causes, retries, _ in rows_of("verdicts.md", "| cause | retries | meaning |"):
        shown |= dict.fromkeys(re.findall(r"`(\w+)`", causes), int(retries))
    assert shown == {cause.value: rule.retries for cause, rule in CAUSES.items()}


def test_the_table_of_lint_rules_is_that_of_the_code():
    rows = rows_of("lint.md", "| rule | severity | fires when |")
    shown = {name.strip("`"): severities.split(", ") for name, severities, _ in rows}
    assert len(shown) == len(rows)
    assert shown.keys() == {rule.id for rule in ALL_RULES}
    wrong = [rule.id for rule in ALL_RULES if rule.severity.value not in shown[rule.id]]
    assert wrong == []


def test_the_table_of_breaker_rules_is_that_of_the_code():
    shown = {name.strip("`"): when for name, when in rows_of("breaker.md", "| rule | trips when |")}
    source = Path(str(breaker_rules.__file__)).read_text()
    assert shown.keys() == set(re.findall(r'^ +rule="([a-z-]+)",$', source, re.M))
    limits = BreakerLimits()
    assert f"first {limits.start} trials" in shown["dead-start"]
    assert limits.void_share == 0.5 and "more than half" in shown["void-share"]
    assert f"{limits.equal_batches} batches in a row" in shown["equal-rewards"]
    assert f"at least {limits.flat_share:.0%}".replace("%", " %") in shown["flat-groups"]
    assert f"the last {limits.flat_batches} batches" in shown["flat-groups"]
    assert f"{limits.batch} finished trials in a row" in (ROOT / "docs/breaker.md").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    absent = importlib.util.find_spec("material") is None
    need("docs", "mkdocs-material is not installed: the extra `docs` has it" if absent else None)
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_has_every_page_and_a_search_index(site: Path):
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / page.with_suffix(".html").name).is_file()
    assert (site / "search/search_index.json").is_file()


def test_the_site_loads_nothing_from_another_host(site: Path):
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*")
    outside = [found for page in site.glob("*.html") for found in loaded.findall(page.read_text())]
    assert outside == []
