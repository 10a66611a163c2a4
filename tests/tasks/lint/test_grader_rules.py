"""Rules about the files of the tests: syntax, missing files and imports."""

import pytest

TEST = "#!/bin/bash\nif python3 /tests/grade.py; then echo 1 >/logs/verifier/reward.txt; fi\n"


def grade(rules, text, **parts):
    files = {"tests/grade.py": text, **parts.pop("files", {})}
    return rules(TEST, files=files, **parts)


@pytest.mark.parametrize(
    "text",
    [
        "import log_parsers\n",
        "from log_parsers.a import b\n",
        "import sys\nsys.path.insert(0, '/opt/parsers')\nimport log_parsers\n",
        "try:\n    import log_parsers\nexcept ImportError:\n    raise SystemExit(exit(1))\n",
        "import pytest\n",
    ],
)
def test_a_missing_module_is_an_error(rules, text):
    assert grade(rules, text)["grader-import-missing"] == "error"


@pytest.mark.parametrize(
    "text",
    [
        "import json, os.path\nfrom html.parser import HTMLParser\nimport tomllib\n",
        "import helpers\nfrom lib.tools import x\n",
        "from . import helpers\n",
        "import shop.cart\nimport work\n",
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from collections import abc\n",
        'CODE = """\nimport log_parsers\n"""\n',
        "# import log_parsers\n",
        "import hello\n",
    ],
)
def test_modules_of_python_the_tests_and_the_work_are_present(rules, text):
    files = {
        "tests/helpers.py": "",
        "tests/lib/tools.py": "",
        "environment/shop/cart.py": "",
        "solution/solve.sh": "#!/bin/bash\ncp /solution/work.py /app/work.py\n",
        "instruction.md": "Write `hello.py` to /app.\n",
    }
    assert "grader-import-missing" not in grade(rules, text, files=files)


@pytest.mark.parametrize(
    "dockerfile",
    [
        "FROM python:3.12-slim\nRUN pip install numpy pyyaml\n",
        "FROM python:3.12-slim\nRUN pip install --no-cache-dir 'numpy>=2' PyYAML==6.0.2\n",
        "FROM debian\nRUN apt-get update && apt-get install -y python3-numpy python3-yaml\n",
        "FROM python:3.12\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\n",
        "FROM jupyter/scipy-notebook\n",
        "FROM example.org/team/image:1\n",
        "FROM debian\nCOPY install.sh .\nRUN bash install.sh\n",
        "FROM debian\nRUN make install\n",
        "FROM debian AS a\nFROM a\nRUN pip install numpy pyyaml\n",
    ],
)
def test_modules_that_the_image_may_have_are_not_reported(rules, dockerfile):
    files = {
        "environment/requirements.txt": "numpy\npyyaml\n",
        "environment/install.sh": "pip install everything\n",
    }
    found = grade(rules, "import numpy\nimport yaml\n", dockerfile=dockerfile, files=files)
    assert found.get("grader-import-missing") != "error"


def test_a_module_from_a_cloned_folder_is_not_missing(rules):
    dockerfile = (
        "FROM debian\nRUN git clone https://example.org/p /opt/p && git -C /opt/p checkout v1\n"
    )
    text = "import sys\nsys.path.append('/opt/p/lib')\nimport log_parsers\n"
    assert "grader-import-missing" not in grade(rules, text, dockerfile=dockerfile)


def test_pytest_itself_is_a_module(rules):
    test = "#!/bin/bash\nif {} /tests; then echo 1 >/logs/verifier/reward.txt; fi\n"
    for runner in ("pytest", "python3 -m pytest", "python3 -B -S -m pytest"):
        assert rules(test.format(runner))["grader-import-missing"] == "error"
        installed = rules(test.format(runner), dockerfile="FROM debian\nRUN pip install pytest\n")
        assert "grader-import-missing" not in installed
        unknown = rules(test.format(runner), dockerfile="FROM example.org/image\n")
        assert "grader-import-missing" not in unknown
    assert "grader-import-missing" not in rules(test.format("pip install pytest\npytest"))


@pytest.mark.parametrize(
    "text", ["def f(:\n", "print 'hello'\n", "class A:\ndef f(): pass\n", "x = (1,\n"]
)
def test_python_that_does_not_parse_is_an_error(rules, text):
    assert grade(rules, text)["tests-do-not-parse"] == "error"


@pytest.mark.parametrize(
    "text", ["x = f'{a!r}'\n", "type X = int\n", "def f[T](x: T) -> T: ...\n", "r'\\d' '\\d'\n", ""]
)
def test_valid_or_newer_python_is_not_reported(rules, text):
    assert "tests-do-not-parse" not in grade(rules, text)


def test_broken_python_in_test_data_is_not_reported(rules):
    files = {"tests/data/broken.py": "def f(:\n"}
    assert "tests-do-not-parse" not in rules(files=files)


@pytest.mark.parametrize(
    "text", ["if true; then\n  echo 1\n", "echo 'a\n", "for x in a; do echo; fi\n", "foo() {\n"]
)
def test_a_script_that_does_not_parse_is_an_error(rules, text):
    assert rules(f"#!/bin/bash\n{text}")["tests-do-not-parse"] == "error"


@pytest.mark.parametrize(
    "text",
    [
        "[[ $a =~ ^[0-9]+(\\.[0-9]+)?$ ]] && echo x",
        "cat <<-END\n\tx\n\tEND",
        "a=(1 2 [5]=3); echo ${a[@]:1} ${#a[@]} ${b//x/y}",
        "coproc cat; select x in a b; do break; done",
        "echo $(( (1 + 2) * 3 )) $'a\\tb' {1..3}",
        "while read -r l; do :; done < <(ls)",
        "function x-y { :; }; x-y",
        "echo ${x:?} ${!x} ${x^^} ${x@Q}",
    ],
)
def test_odd_but_valid_scripts_parse(rules, text):
    assert "tests-do-not-parse" not in rules(f"#!/bin/bash\n{text}\n")


def test_a_missing_test_script_is_an_error(rules):
    assert rules(None)["missing-test-script"] == "error"
    assert "missing-test-script" not in rules()
    toml = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    files = {f"steps/{name}/instruction.md": "x" for name in ("one", "two")}
    files["steps/one/tests/test.sh"] = "#!/bin/bash\necho 1 >/logs/verifier/reward.txt\n"
    assert rules(None, toml=toml, files=files)["missing-test-script"] == "error"
    assert "missing-test-script" not in rules(toml=toml, files=files)


def test_a_missing_test_file_is_an_error(rules):
    test = "#!/bin/bash\n{}\ngrep -q x /app/a && echo 1 >/logs/verifier/reward.txt\n"
    for text in ("cat /tests/expected.txt", "python3 /tests/grade.py", "diff a /tests/data/b"):
        assert rules(test.format(text))["missing-test-file"] == "error"
    for text in (
        "echo x >/tests/expected.txt; cat /tests/expected.txt",
        "cp /app/a /tests/expected.txt; cat /tests/expected.txt",
        "[ -f /tests/expected.txt ] && echo there",
        "cat /tests/expected.txt || true",
        "cat /tests/*.txt",
        "cat $X/expected.txt",
        "cat /tests/test.sh",
        "unzip /app/a.zip -d /tests/data; cat /tests/data/b",
    ):
        assert "missing-test-file" not in rules(test.format(text)), text


def test_a_test_file_among_hundreds_of_others_is_found(rules):
    files = {f"tests/data/{number}.txt": "" for number in range(500)}
    files["tests/test_z.py"] = "def test_z(): pass\n"
    test = "#!/bin/bash\ncat /tests/test_z.py\nif python3 -m unittest discover -s /tests; then "
    test += "echo 1 >/logs/verifier/reward.txt; fi\n"
    found = rules(test, files=files)
    assert not {"missing-test-file", "no-tests-collected"}.intersection(found)


def test_a_pattern_without_matching_tests_is_an_error(rules):
    test = "#!/bin/bash\nif python3 -m unittest discover -s /tests -p '{}'; then "
    test += "echo 1 >/logs/verifier/reward.txt; fi\n"
    files = {"tests/test_a.py": ""}
    assert rules(test.format("check_*.py"), files=files)["no-tests-collected"] == "error"
    assert "no-tests-collected" not in rules(test.format("test_*.py"), files=files)
