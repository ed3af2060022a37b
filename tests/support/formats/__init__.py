"""Data folders of every released format: the maker, the content, and the questions whose answers must not change.

``python -m support.formats.make FORMAT TARGET`` (from ``tests/``) writes ``format-N.tar.xz`` with the code of the
version that runs it: the folder ``data``, and ``expected.json``. A release that raises ``MANIFEST_FORMAT`` runs it once
with the code *before* the raise and keeps the file in ``tests/formats``. See ``protocol/SEGMENTS.md``, section 8.
"""
