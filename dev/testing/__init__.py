"""
`make test`: all suites, several side by side, each in a pytest process of its own.

`__main__` reads what was asked for; `suites` knows which suites there are; `lanes` gives each place
beside the others a cluster of its own; `running` runs them; `results` reads what became of them and
prints the table. What a suite needs (servers, clusters, namespaces) is left to its fixtures.
"""
