"""Transactions: half messages, their producers, and the checks that the server asks of producers."""
