"""``cmq import-cmq``: copy definitions, and move messages, from an endpoint of CMQ's API 2.0."""
