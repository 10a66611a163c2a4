"""Lint rule about Python modules that the tests need and the image lacks."""

import re
import sys
from collections.abc import Iterator

from plimsoll.tasks.fetches.fetch import Kind
from plimsoll.tasks.grader.grader import python_module
from plimsoll.tasks.grader.python_file import PythonFile
from plimsoll.tasks.lint.image_contents import IMPORT_NAMES, package_name
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.text_files import files_below, read_text, texts_below

__all__ = ["GRADER_IMPORT_MISSING"]

# Modules of older Pythons, or installed with every Python.
ALWAYS_PRESENT = {
    *("asynchat", "asyncore", "distutils", "imp", "pip", "pkg_resources", "setuptools", "smtpd"),
    *("typing_extensions", "wheel", "__main__"),
}
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def _check(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        installed = _installed_by_tests(graded)
        if installed is None:
            continue
        own = _task_modules(parsed, graded)
        for source in graded.grader.pythons.values():
            if not _imports_fetched_modules(parsed, source):
                yield from _imports(graded, source, own | installed)
        yield from _commands(graded, installed)


def _imports(graded: GradedStep, source: PythonFile, available: set[str]) -> Iterator[Violation]:
    seen: set[str] = set()
    for found in source.imports:
        name = found.module
        if found.caught or name in seen or name in sys.stdlib_module_names or name in available:
            continue
        if name in ALWAYS_PRESENT or name.startswith("_"):
            continue
        seen.add(name)
        present = graded.image.has_module(name)
        if present is False:
            severity = Severity.ERROR if found.at_top else Severity.WARNING
            yield Violation(source.file, found.line, _message(name), severity)
        elif present is None and graded.image.bare and not graded.image.opaque and found.at_top:
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
    """Return the modules that the tests install themselves; None if unknown."""
    found: set[str] = set()
    for one in graded.fetches:
        if one.fetch.kind is not Kind.WHEELS:
            continue
        if not one.fetch.what or any(what.startswith("-r") for what in one.fetch.what):
            return None
        for what in one.fetch.what:
            package = package_name(re.split(r"[=<>~!@\[; ]", what)[0])
            found |= {package, package.replace("-", "_"), *IMPORT_NAMES.get(package, ())}
    # Their dependencies are unknown, so other modules cannot be checked.
    return found if not found or found == {"pytest"} else None


def _task_modules(parsed: ParsedTask, graded: GradedStep) -> set[str]:
    """Return modules of the work and of the tests: existing files and names in the texts."""
    names: set[str] = set()
    for file in graded.grader.files:
        parts = file.split("/")
        names |= {*parts[:-1], parts[-1].split(".")[0]}
    for path in files_below(parsed.task.environment_dir, "*"):
        parts = path.relative_to(parsed.task.environment_dir).parts
        names |= {*parts[:-1], parts[-1].split(".")[0]}
    texts = [read_text(step.step.folder / "instruction.md") for step in parsed.steps]
    for step in parsed.steps:
        if step.step.solution_dir is not None:
            texts += [text for _, text in texts_below(step.step.solution_dir, "*")]
    for text in texts:
        names |= set(IDENTIFIER.findall(text or ""))
    return names - {"pytest"}


def _imports_fetched_modules(parsed: ParsedTask, source: PythonFile) -> bool:
    """Whether `sys.path` has a folder that the build clones or downloads."""
    targets = [found.fetch.target for found in parsed.build_fetches if found.fetch.target]
    targets += [
        copied.target
        for build in parsed.builds
        for stage in build.chain
        for copied in stage.copies
        if copied.stage is not None
    ]
    return any(
        folder == target or folder.startswith(f"{target}/") or target.startswith(f"{folder}/")
        for folder in source.search_path
        for target in targets
    )


GRADER_IMPORT_MISSING = Rule(
    id="grader-import-missing",
    severity=Severity.WARNING,
    why=(
        "The tests cannot be imported, so nothing is tested. A script that treats this as a "
        "failed test writes 0."
    ),
    fix="Install the module in the Dockerfile, or add it to tests/.",
    check=_check,
)
