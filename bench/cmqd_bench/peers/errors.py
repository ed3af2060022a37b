"""The errors of a comparison with peers. Their texts are complete sentences for the command line."""

from cmqd_bench.failures import BenchFailed


class CompilerMissing(BenchFailed):
    """This machine has no C compiler; the text names the command to install."""


class CompilationFailed(BenchFailed):
    """The compiler refused the source; the text is the compiler's own."""


class PeerFailed(BenchFailed):
    """A peer did not start, ended, or gave an unexpected answer; the text has the reason."""
