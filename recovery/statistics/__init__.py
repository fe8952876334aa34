"""Source statistics: how far a first pass is, and whether recovery, the change feed and the audit keep up.

    columns.py          begin here: the row that each source reports, and the rules of its sums (pure)
    verdict.py          judges two samples (pure)
    persisted.py        keeps the figures in the changelog; counting.py counts its entries
    recovery_source.py, audit_source.py     fill them; `recovery/feed/writer/source.py` fills those of the change feed
    reporting.py        what they have in common

This folder knows no command and no page: they read `Document`, `SourceRow` and `SourceVerdict`.
"""
