"""
A release: all that users need, in dist/, with checksums; the same from the same commit, every time.

    make release VERSION=1.2.3

`tree` decides whether there may be one, `chart`, `distributions` and `sbom` make its parts,
`archives` writes them so that only their content counts; `__main__` puts them together. No registry
is needed.
"""
