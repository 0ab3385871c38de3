"""Prints the layers of the import contracts, and what each module says that it is for (`make modules`)."""

import sys
import tomllib
from collections.abc import Iterable, Iterator

from tests.house.rules import PACKAGES, ROOT, Source, first_sentence, project_files

CONTRACTS = "pyproject.toml"
_WIDTH = 100  # of the picture, in characters


def module_list(files: Iterable[Source]) -> Iterator[str]:
    """A line for each module of the packages, in the order of the layout, packages before their modules."""
    for source in sorted((each for each in files if each.is_python and each.top in PACKAGES), key=_order):
        yield f"{source.path.removesuffix('__init__.py')}  {first_sentence(source) or ''}"


def layers_picture(contracts: str) -> str:
    """The layers of each contract of pyproject.toml, drawn one below the other: a row imports only rows below it."""
    pictures = []
    for contract in tomllib.loads(contracts)["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            line = f"+{'-' * (_WIDTH - 2)}+"
            rows = [f"| {row:{_WIDTH - 4}} |" for row in map(_spaced, contract["layers"])]
            boxes = "\n".join([line, *(f"{row}\n{line}" for row in rows)])
            pictures.append(f"{contract['name']}:\n\n{boxes}")
    return "\n\n".join(pictures)


def _spaced(layer: str) -> str:
    """The rooms of one layer; `:` in a contract separates rooms that may import each other."""
    return "  |  ".join(room.strip() for room in layer.split("|")).replace(" : ", " <-> ")


def _order(source: Source) -> tuple[int, str, bool, str]:
    folder, _, name = source.path.rpartition("/")
    return PACKAGES.index(source.top), folder, name != "__init__.py", name


def main() -> int:
    """Prints both."""
    print(layers_picture((ROOT / CONTRACTS).read_text(encoding="utf-8")), end="\n\n")
    print(*module_list(project_files()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
