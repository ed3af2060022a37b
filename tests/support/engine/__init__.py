"""Engines in memory, and brokers over an engine step by step: every interleaving and every missing guard."""
