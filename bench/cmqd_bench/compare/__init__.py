"""The micro benchmarks of two commits in one run, with a verdict per benchmark: ``make bench-compare BASE=REVISION``.

`tree` checks the base out, `child` runs the benchmarks of a tree, `turns` alternates the processes of both trees, and
`verdict` judges the ratios.
"""
