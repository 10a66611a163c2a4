"""A Python module that the tests need and the image does not have."""

import re
import sys
from collections.abc import Iterator

from plimsoll.tasks.fetches.fetch import Kind
from plimsoll.tasks.grader.python_file import PythonFile
from plimsoll.tasks.grader.test_runners import python_module
from plimsoll.tasks.lint.image_contents import IMPORT_NAMES, package_name
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.text_files import files_below, read_text

__all__ = ["RULE"]

# Of older Pythons, or always there beside the standard library.
ALSO_KNOWN = {
    *("asynchat", "asyncore", "distutils", "imp", "pip", "pkg_resources", "setuptools", "smtpd"),
    *("typing_extensions", "wheel", "__main__"),
}
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        installed = _installed_by_tests(graded)
        if installed is None:
            continue
        own = _own_modules(subject, graded)
        for source in graded.grader.pythons.values():
            if not _looks_elsewhere(subject, source):
                yield from _imports(graded, source, own | installed)
        yield from _commands(graded, installed)


def _imports(graded: GradedStep, source: PythonFile, known: set[str]) -> Iterator[Violation]:
    seen: set[str] = set()
    for found in source.imports:
        name = found.module
        if found.caught or name in seen or name in sys.stdlib_module_names or name in known:
            continue
        if name in ALSO_KNOWN or name.startswith("_"):
            continue
        seen.add(name)
        there = graded.image.has_module(name)
        if there is False:
            severity = Severity.ERROR if found.at_top else Severity.WARNING
            yield Violation(source.file, found.line, _message(name), severity)
        elif there is None and graded.image.bare and not graded.image.opaque and found.at_top:
            yield Violation(source.file, found.line, f"{_message(name)} by name", Severity.WARNING)


def _commands(graded: GradedStep, installed: set[str]) -> Iterator[Violation]:
    for source in graded.grader.scripts.values():
        for command in source.script.commands:
            plain = command.unwrapped()
            name = "pytest" if plain.name in ("pytest", "py.test") else python_module(plain)
            if name == "pytest" and name not in installed and not graded.image.has_module(name):
                if graded.image.has_module(name) is None:
                    continue
                yield Violation(source.file, command.line, _message(name), Severity.ERROR)


def _message(name: str) -> str:
    return f"nothing in the image installs the Python module {name}"


def _installed_by_tests(graded: GradedStep) -> set[str] | None:
    """Modules that the tests install themselves; None where those cannot be told."""
    found: set[str] = set()
    for one in graded.fetches:
        if one.fetch.kind is not Kind.WHEELS:
            continue
        if not one.fetch.what or any(what.startswith("-r") for what in one.fetch.what):
            return None
        for what in one.fetch.what:
            package = package_name(re.split(r"[=<>~!@\[; ]", what)[0])
            found |= {package, package.replace("-", "_"), *IMPORT_NAMES.get(package, ())}
    # What they bring along is not known, so nothing is said about other modules.
    return found if not found or found == {"pytest"} else None


def _own_modules(subject: ParsedTask, graded: GradedStep) -> set[str]:
    """Modules of the work itself and of the tests: files that are there, or that are spoken of."""
    names: set[str] = set()
    for file in graded.grader.files:
        parts = file.split("/")
        names |= {*parts[:-1], parts[-1].split(".")[0]}
    for path in files_below(subject.task.environment_dir, "*"):
        parts = path.relative_to(subject.task.environment_dir).parts
        names |= {*parts[:-1], parts[-1].split(".")[0]}
    texts = [read_text(step.step.folder / "instruction.md") for step in subject.steps]
    for step in subject.steps:
        if step.step.solution_dir is not None:
            texts += [read_text(path) for path in files_below(step.step.solution_dir, "*")]
    for text in texts:
        names |= set(IDENTIFIER.findall(text or ""))
    return names - {"pytest"}


def _looks_elsewhere(subject: ParsedTask, source: PythonFile) -> bool:
    """Its `sys.path` leads to something that the build clones or downloads."""
    targets = [found.fetch.target for found in subject.build_fetches if found.fetch.target]
    targets += [
        copied.target
        for build in subject.builds
        for stage in build.chain
        for copied in stage.copies
        if copied.stage is not None
    ]
    return any(
        folder == target or folder.startswith(f"{target}/") or target.startswith(f"{folder}/")
        for folder in source.search_path
        for target in targets
    )


RULE = Rule(
    id="grader-import-missing",
    severity=Severity.WARNING,
    why=(
        "The tests cannot be imported, so nothing is tested. A script that takes that for a "
        "failed test writes 0."
    ),
    fix="Install the module in the Dockerfile, or put it beside the tests.",
    check=_check,
)
