"""Source statistics: how far a first pass is, and whether recovery, the change feed and the audit keep up.

`columns.py` has the row that each source reports and the rules of its sums. `verdict.py` judges two samples. Both are
pure. `persisted.py` keeps the figures in the changelog. `recovery_source.py` and `audit_source.py` fill them;
`recovery/feed/writer/source.py` fills those of the change feed. `reporting.py` is what both that go on for ever share.
Begin with `columns.py`. This folder knows no command and no page: they read `Document`, `SourceRow` and `Verdict`.
"""
