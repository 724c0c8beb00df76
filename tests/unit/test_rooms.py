"""Who may import whom: the rooms of the code, and that dependencies go one way."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BESIDE = ("client_app", "conformance", "models", "server_app", "strategies")

# Lowest first; what stands on one line knows nothing of its neighbours.
FLOORS = [
    "core conformance",
    "bound colours imports manifest",
    "storage flower",
    "models",
    "data",
    "strategies",
    "stages",
    "checks",
    "settings",
    "probe continuing objects progress parts augmentation",
    "problem",
    "client_app server_app",
    "engines",
    "jobs",
    "comparison",
    "deploy sweeping",
    "rebuild report watch program",
    "reproduction",
    "api",
    "laboratory sweeps conforming",
    "testing",
    "cli",
    "__main__ __init__",
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms.split()}


def files() -> list[Path]:
    folders = [ROOT / "bouquet", *(ROOT / name for name in BESIDE)]
    # Links lead to folders that are listed themselves.
    found = [path for folder in folders for path in folder.rglob("*.py")]
    return sorted({path.resolve() for path in found})


def room_of(path: Path) -> str:
    first, *rest = path.relative_to(ROOT).with_suffix("").parts
    return rest[0] if first == "bouquet" else first


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports and the line, but for those that only type checkers see."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped |= {one for part in node.body for one in ast.walk(part)}
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "bouquet":
            yield from ((node.lineno, f"bouquet.{name.name}") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def upward(path: Path) -> list[str]:
    """The imports of a file from its own floor's other rooms, or from above."""
    here = room_of(path)
    wrong = []
    for line, module in imports(path):
        first, _, rest = module.partition(".")
        there = rest.partition(".")[0]
        if first == "bouquet" and there != here and FLOOR[there] >= FLOOR[here]:
            wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    return wrong


def test_every_module_has_a_room() -> None:
    assert {room_of(path) for path in files()} == FLOOR.keys()


def test_dependencies_go_one_way() -> None:
    assert [line for path in files() for line in upward(path)] == []


@pytest.mark.parametrize(
    "forbidden", ["flwr", "ray", "pathlib", "os", "io", "subprocess", "multiprocessing", "tempfile"]
)
def test_the_core_knows_no_flower_no_files_no_processes(forbidden: str) -> None:
    core = [path for path in files() if room_of(path) == "core"]
    found = {path.name for path in core for _, name in imports(path)}
    assert len(core) > 10
    assert found
    wrong = [
        f"{path.name}:{line}"
        for path in core
        for line, name in imports(path)
        if name.partition(".")[0] == forbidden
    ]
    assert wrong == []


def test_everything_is_imported_by_the_one_name_a_wheel_installs() -> None:
    tests = sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "benchmarks").glob("*.py"))
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in [*files(), *tests]
        for line, module in imports(path)
        if module.partition(".")[0] in (*BESIDE, "data")
    ]
    assert wrong == []
