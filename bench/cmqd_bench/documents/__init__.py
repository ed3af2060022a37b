"""The parts of README and docs/benchmarks.md that are made from stored results of peers and curves.

``stored`` finds the results, ``findings`` compares peers, ``tables`` makes the tables, and ``parts`` joins them for a
document. The pictures of docs are files that no program makes; their captions name the commit of the figures.
"""
