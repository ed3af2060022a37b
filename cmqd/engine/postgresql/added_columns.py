"""Columns that tables of older versions get from the next leader whose role owns the table.

An added column is nullable and has no default, so the change rewrites no table. A broker leads without the column too,
and an older broker goes on beside a newer broker. Statements name the column where the catalogue has it.
"""

from typing import Final, NamedTuple


class AddedColumn(NamedTuple):
    """A column that the first version of its table did not have; the properties are SQL."""

    table: str
    name: str
    type: str

    @property
    def exists(self) -> str:
        """Return a condition: the column is there."""
        return (
            f"EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('{self.table}')"
            f" AND attname = '{self.name}' AND NOT attisdropped)"
        )

    @property
    def may_add(self) -> str:
        """Return a condition: the role owns the table, and may run the block of ``add``. Some administrators take the
        language of the block away, and the block cannot catch the error of its own refusal.
        """
        return (
            f"EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('{self.table}') AND pg_has_role(relowner, 'USAGE'))"
            " AND EXISTS (SELECT FROM pg_language WHERE lanname = 'plpgsql' AND has_language_privilege(oid, 'USAGE'))"
        )

    @property
    def statement(self) -> str:
        """Return the statement that adds the column."""
        return f"ALTER TABLE {self.table} ADD COLUMN IF NOT EXISTS {self.name} {self.type}"

    @property
    def add(self) -> bytes:
        """Return a script with the statement. ``ALTER`` waits for all transactions with the table, and every later
        statement of all shards waits behind it: for a second at most. The block catches its own error: an uncaught
        error would cost the connection, and the lock of the shard.
        """
        return (
            "BEGIN; SET LOCAL lock_timeout = '1s';"
            f" DO $$ BEGIN {self.statement}; EXCEPTION WHEN OTHERS THEN NULL; END $$; COMMIT"
        ).encode()


STANDING_PINS: Final = AddedColumn("cmqd_shards", "standing_pins", "bytea")
"""The standing pins of backups, which the next leader must know before it drops a row (decision 0255)."""
