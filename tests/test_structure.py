"""The shape of the repository: direction of imports, names and sizes of files, the way in."""

import ast
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
#: Folders of code that are not shipped.
UNSHIPPED = ["benchmarks", "demo"]
PURE = ["boards", "failover"]


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def named(paths: Iterator[Path] | list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(object, attribute) of each dotted name in the code, such as ("ray", "remote"); `from a import b` counts too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def test_imports_point_only_down_and_pure_packages_stay_pure() -> None:
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert command, "import-linter is not installed beside this interpreter: run `make test`"
    result = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_root_package_is_shipped_and_under_the_import_contracts() -> None:
    found = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in UNSHIPPED)
    assert found == sorted(PACKAGES)
    assert found == sorted(PROJECT["tool"]["importlinter"]["root_packages"])


def test_only_one_file_makes_ray_actors() -> None:
    users = [path for path in sources(*PACKAGES, *UNSHIPPED) if ("ray", "remote") in calls(parsed(path))]
    assert named(users) in ([], ["actors/remote.py"])


def test_pure_packages_ask_no_clock_through_datetime() -> None:
    clocks = {"now", "utcnow", "today"}
    users = [
        path for path in sources(*PURE) if any(owner in {"datetime", "date"} and name in clocks for owner, name in calls(parsed(path)))
    ]
    assert named(users) == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    vague = {"utils.py", "util.py", "common.py", "types.py", "helpers.py", "misc.py"}
    assert named([path for path in sources(*PACKAGES, *UNSHIPPED) if path.name in vague]) == []


def test_no_source_file_reaches_500_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): n for path in sources(*PACKAGES, *UNSHIPPED) if (n := len(path.read_text("utf-8").splitlines())) >= 500
    }
    assert long == {}


def test_test_files_are_no_package_and_have_names_of_their_own() -> None:
    files = list(sources("tests"))
    assert not [path for path in files if path.name == "__init__.py"]
    names = [path.name for path in files if path.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)


def test_first_screen_of_the_readme_holds_both_commands() -> None:
    screen = "\n".join((ROOT / "README.md").read_text("utf-8").splitlines()[:40])
    assert "make demo" in screen
    assert "make test" in screen


def test_constraints_pin_every_direct_dependency_and_name_no_place_of_one_machine() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 and "/" not in line for line in lines)
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["server"], *project["optional-dependencies"]["dev"]]
    names = {requirement.partition(">=")[0].partition("[")[0].lower() for requirement in wanted}
    assert names - pinned == set()


def test_unit_tests_cannot_open_sockets() -> None:
    with socket.socket() as unused, pytest.raises(pytest.fail.Exception, match=r"called socket\.bind"):
        _refused_bind(unused)


def _refused_bind(unused: socket.socket) -> None:
    """Call the fixture's refusal without leaving a mark for its last check."""
    refusal = vars(socket.socket)["bind"]
    tried = next(cell.cell_contents for cell in refusal.__closure__ if isinstance(cell.cell_contents, list))
    try:
        unused.bind(("127.0.0.1", 0))
    finally:
        tried.clear()


def test_every_test_file_that_the_field_cases_name_exists() -> None:
    """`docs/field-cases.md` is a map; a renamed file must not leave it pointing nowhere."""
    named = set(re.findall(r"`(test_\w+\.py)`", (ROOT / "docs" / "field-cases.md").read_text("utf-8")))
    assert named
    assert not {name for name in named if not (ROOT / "tests" / name).exists()}
