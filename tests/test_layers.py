"""Tests of the layers: a module imports only its own layer and those above."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bitta

ROOT = Path(bitta.__file__).parent
LAYERS = [
    {"malloc", "types", "errors", "seeding", "config_base", "statefile", "version"},
    {"losses", "nn", "memory", "augment", "benefit"},
    {"source_statistics"},
    {"methods"},
    {"selection", "feedback", "metrics", "streams", "corruptions", "models"},
    {"session", "results", "records", "speed_records"},
    {"bench", "client", "report", "server", "testing"},
    {"cli"},
]
INDEPENDENT_PARTS = LAYERS[4] | LAYERS[6]
CORE = {"torch", "numpy", "safetensors", "PIL", "bitta"}
SERVED_BY = {
    "alembic", "fastapi", "itsdangerous", "prometheus_client", "psycopg", "pydantic",
    "pydantic_settings", "sqlalchemy", "sse_starlette", "starlette", "structlog", "uvicorn",
}  # fmt: skip
EXTRAS = {
    "nn": {"triton"},
    "methods": {"sklearn"},
    "report": {"jinja2", "markupsafe", "matplotlib"},
    "server": SERVED_BY,
    "client": {"httpx"},
    "cli": {"rich"},
}
MODULES = sorted(ROOT.rglob("*.py"))


def part_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def level(part):
    return next(index for index, layer in enumerate(LAYERS) if part in layer)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_its_layer_and_those_above(path):
    part = part_of(path)
    if part == "__init__":
        return
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top != "bitta":
            known = CORE | EXTRAS.get(part, set()) | sys.stdlib_module_names
            assert top in known, f"{part} imports {top}"
            continue
        other = rest.partition(".")[0]
        if other == part:
            continue
        assert level(other) <= level(part), f"{part} imports {other}, which is below it"
        assert not (part in INDEPENDENT_PARTS and level(other) == level(part)), (
            f"{part} imports {other}, but the parts of their layer are independent"
        )


def test_every_part_has_a_layer():
    assert {part_of(path) for path in MODULES} - {"__init__"} <= set().union(*LAYERS)


def test_import_has_no_effect_and_needs_core_dependencies_only():
    code = (
        "import sys, torch; before = torch.get_rng_state(); import bitta, bitta.cli.main;"
        "assert torch.equal(before, torch.get_rng_state());"
        "extras = {'fastapi', 'httpx', 'matplotlib', 'rich', 'sqlalchemy', 'transformers'};"
        "print(sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"
