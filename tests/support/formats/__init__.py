"""Data folders of every released format: the maker, the content, and the questions with unchanging answers.

``python -m support.formats.make FORMAT TARGET`` (from ``tests/``) writes ``format-N.tar.xz`` with the running version
of the code: the folder ``data``, and ``expected.json``. A release that raises ``MANIFEST_FORMAT`` runs the maker once
with the code *before* the raise and keeps the file in ``tests/formats``. See ``protocol/SEGMENTS.md``, section 8.
"""
