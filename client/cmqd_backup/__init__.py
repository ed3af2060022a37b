"""Backups of a data folder, and clones: ``cmqd backup``, ``cmqd backup list``, ``cmqd restore`` and ``cmqd clone``.

    BACKUP/
      runs/00000007.<time>.json                 a run: what the folder held at its last row; written last (``runs``)
      parts/00000007.<sha256>.json              entries of segments that runs share (``parts``)
      segments/00000017.<sha256>.db             sealed segments, each once for all runs
      checkpoints/00000004.<sha256>.ckpt
      accounts/00000001.<sha256>.json           accounts and secrets, unless ``--without-secrets``
      lock                                      held by the run under way, in a folder

A program beside the server: ``cmqd`` starts it. The program reads the files of the data folder where they are, and asks
the broker for no data. A segment is immutable and named by its checksum, so a repeated run copies new segments alone,
and a file that a killed run left is either whole or not used.
"""
