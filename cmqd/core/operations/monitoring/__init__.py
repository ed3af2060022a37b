"""Pages for operators: metrics, the holders of segments, and the audit trail."""
