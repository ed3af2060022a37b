"""Several gateway processes on the same ports: parent, common limits and memories, and ways between processes."""
