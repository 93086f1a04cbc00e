"""
Writes what is made from the code: reference pages, crds/, docs/conformance.md.

    python -m dev.reference                write all (make docs)
    python -m dev.reference conformance    write one of them
    python -m dev.reference --check        report what is stale, and change nothing
"""

import sys

from dev.reference import configuration, conformance, definitions, resources

MADE = {
    "configuration": configuration.files,
    "conformance": conformance.files,
    "definitions": definitions.files,
    "resources": resources.files,
}


def main(arguments: list[str]) -> int:
    names = [a for a in arguments if a != "--check"] or list(MADE)
    if unknown := [name for name in names if name not in MADE]:
        print(f"no such reference: {', '.join(unknown)}; there are {', '.join(MADE)}")
        return 2
    wanted = {path: text for name in names for path, text in MADE[name]().items()}
    stale = {p: t for p, t in wanted.items() if not p.exists() or p.read_text() != t}
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is stale: make docs", file=sys.stderr)
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
