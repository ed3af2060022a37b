"""The parts of README and docs/benchmarks.md that are made from stored results of peers and curves.

``stored`` finds the results, ``findings`` compares peers, ``svg`` draws, ``plots`` chooses lines and scales, ``tables``
makes the tables, and ``parts`` joins them for a document.
"""
