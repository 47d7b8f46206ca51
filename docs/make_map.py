"""Write docs/map.md: every file of heed with the first sentence of its docstring. `python docs/make_map.py`."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "heed"
MAP = ROOT / "docs" / "map.md"


def map_text() -> str:
    """The content of docs/map.md: a section for each package, a row for each file."""
    packages = sorted({file.parent for file in SOURCES.rglob("*.py")}, key=lambda path: path.relative_to(SOURCES).parts)
    return "\n".join(
        [
            "# Map of the source",
            "",
            "Every file with the first sentence of its docstring, written by `docs/make_map.py`; a test keeps it true.",
            *(line for package in packages for line in _section(package)),
            "",
        ]
    )


def _section(package: Path) -> list[str]:
    files = sorted(file for ending in ("py", "c", "h") for file in package.glob(f"*.{ending}") if _is_listed(file))
    rows = [f"| `{file.name}` | {_first_sentence(file)} |" for file in files]
    name = package.relative_to(ROOT / "src").as_posix()
    summary = _first_sentence(package / "__init__.py")
    return ["", f"## {name}/", "", summary, "", "| file | content |", "|---|---|", *rows] if rows else []


def _is_listed(file: Path) -> bool:
    return file.name != "__init__.py"


def _first_sentence(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        description = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"/\*(.*?)\*/", text, flags=re.DOTALL)
        description = "" if comment is None else re.sub(r"\n\s*\*?", "\n", comment[1])
    paragraph = " ".join(description.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z`])", paragraph)[0].rstrip(":").replace("|", "\\|")


if __name__ == "__main__":
    MAP.write_text(map_text(), encoding="utf-8")
