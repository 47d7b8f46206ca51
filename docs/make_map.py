"""Write docs/map.md: every file of heed with the first sentence of its docstring. `python docs/make_map.py`."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "heed"
MAP = ROOT / "docs" / "map.md"


def map_text() -> str:
    """The page."""
    rooms = sorted({file.parent for file in SOURCES.rglob("*.py")}, key=lambda room: room.relative_to(SOURCES).parts)
    return "\n".join(
        [
            "# Map of the source",
            "",
            "Every file with the first sentence of its docstring, written by `docs/make_map.py`; a test keeps it true.",
            *(line for room in rooms for line in _room(room)),
            "",
        ]
    )


def _room(room: Path) -> list[str]:
    files = sorted(file for ending in ("py", "c", "h") for file in room.glob(f"*.{ending}") if _says_something(file))
    rows = [f"| `{file.name}` | {_first_sentence(file)} |" for file in files]
    name = room.relative_to(ROOT / "src").as_posix()
    package = _first_sentence(room / "__init__.py")
    return ["", f"## {name}/", "", package, "", "| file | what it holds |", "|---|---|", *rows] if rows else []


def _says_something(file: Path) -> bool:
    return file.name != "__init__.py"


def _first_sentence(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"/\*(.*?)\*/", text, flags=re.DOTALL)
        said = "" if comment is None else re.sub(r"\n\s*\*?", "\n", comment[1])
    paragraph = " ".join(said.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z`])", paragraph)[0].rstrip(":").replace("|", "\\|")


if __name__ == "__main__":
    MAP.write_text(map_text(), encoding="utf-8")
