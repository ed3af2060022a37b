"""The report of peers and curves: an HTML page of plots, tables and conditions, and the parts of the documents.

``findings`` compares peers, ``svg`` draws, ``plots`` chooses lines and scales, ``tables`` has the figures beside the
plots, ``document`` joins the page, ``for_docs`` makes the parts of the documents, and ``run`` is the command.
"""
