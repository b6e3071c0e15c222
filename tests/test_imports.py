"""The import table of CONTRIBUTING.md holds: data flows one way, reports and profiles cannot run anything."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "moeplan", "hardware_profiles", "traces", "simulator", "reference_runtime", "reports", "command_line", "benchmarks"
)  # fmt: skip

# package -> the packages, or the modules of one, that it may import
TABLE: dict[str, tuple[str, ...]] = {
    "moeplan": (),
    "hardware_profiles": ("moeplan",),
    "traces": ("moeplan",),
    "simulator": ("moeplan", "hardware_profiles", "traces"),
    "reference_runtime": (
        "moeplan",
        "traces",
        "simulator.policies",
        "simulator.model",
        "simulator.expert_layout",
        "simulator.memory",
        "simulator.kernel_calls",
        "hardware_profiles.kernel_table",
        "hardware_profiles.schema",
        "hardware_profiles.schema_base",
        "hardware_profiles.catalog",
    ),
    "reports": (
        "moeplan",
        "traces",
        "simulator.result",
        "simulator.plan_result",
        "simulator.validation.result",
        "simulator.validation.cell_result",
    ),
    "command_line": ("moeplan", "hardware_profiles", "traces", "simulator", "reference_runtime", "reports"),
    "benchmarks": (
        "moeplan",
        "hardware_profiles",
        "traces",
        "simulator",
        "reports.figure_style",
        "reference_runtime.conditions",
    ),
}


def imported_modules(path: Path) -> set[str]:
    """Every absolute module name that a file imports, wherever in the file it stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where things come from"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_allowed(module: str, allowed: tuple[str, ...]) -> bool:
    """Whether a module is one of the allowed ones or lies below one."""
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_the_table_allows(package: str) -> None:
    """No arrow points up."""
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for module in sorted(imported_modules(path))
        if module.split(".")[0] in PACKAGES
        and module.split(".")[0] != package
        and not is_allowed(module, TABLE[package])
    ]
    assert path_exists(package)
    assert not wrong


def path_exists(package: str) -> bool:
    """Guards against a renamed package that would make the check pass on nothing."""
    return any((ROOT / package).rglob("*.py"))


def test_the_table_in_the_document_is_the_one_tested() -> None:
    """CONTRIBUTING.md shows every row."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for package, allowed in TABLE.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{package}` |"))
        assert set(re.findall(r"`([a-z_.]+)`", row.split("|")[2])) == set(allowed), package


def test_the_command_starts_without_the_heavy_libraries() -> None:
    """`moeplan --help` imports no numpy, pandas, scipy, matplotlib, pydantic or simpy."""
    heavy = ("numpy", "pandas", "scipy", "matplotlib", "pydantic", "simpy", "pint", "pyarrow", "torch", "gguf")
    code = f"import sys, command_line.app; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_package_is_in_the_wheel() -> None:
    """A package that pyproject does not name works in the source tree and is missing where it is installed."""
    named = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"])
    found = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for init in (ROOT / package).rglob("__init__.py")
    }
    assert named == {name for name in found if name.split(".")[0] != "benchmarks"}
