"""The figures of a run: latencies, the costs of a round, reports and the file of results."""
