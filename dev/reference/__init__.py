"""The pages and definitions that are made from the code: `make docs`, `make conformance`."""
