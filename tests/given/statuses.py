"""What `tiered status --json` prints: a store with a recovery that catches up, a stuck entry, and a change feed."""

from __future__ import annotations

from typing import Any

ROW: dict[str, Any] = {
    "snapshot_records_known": 40, "snapshot_known_estimated": True, "snapshot_progress": 30, "snapshot_committed": True,
    "outstanding_values": 90, "processed_values": 70, "messages_received": 100, "bytes_received": 9000, "updates_staged": 75,
    "updates_committed": 70,
}  # fmt: skip

STATUS: dict[str, Any] = {
    "at": "1970-01-01T00:00:00Z",
    "store": {"kind": "embedded", "name": "/var/lib/tiered"},
    "sources": {
        "recovery": {
            "total": ROW,
            "workers": {"recovery-1": ROW, "recovery-2": ROW | {"snapshot_records_known": None, "outstanding_values": None}},
            "verdict": {"kind": "catching up", "inflow_per_s": 1.0, "drain_per_s": 3.0, "caught_up_in_s": 10.0}, "regressions": 4,
        },
    },
    "entries": {"by_state": {"HELD": 3, "PARKED": 1}, "oldest_age_s": 77.5, "counted": 4, "complete": True},
    "stuck": {
        "count": 1,
        "entries": [{
            "id": "018bcfe5-6800-7000-8000-000000000001", "key": "~changelog/00/018bcfe5-6800-7000-8000-000000000001",
            "object": "attachments/objects/key", "error": "torn", "since": "2026-11-22T08:00:00Z", "attempt": 5,
            "type": "tiered log retry 018bcfe5-6800-7000-8000-000000000001",
        }],
    },
    "daemons": [
        {"instance": "recovery-1", "seen_s_ago": 2.0, "alive": True}, {"instance": "recovery-0", "seen_s_ago": 900.0, "alive": False}
    ],
    "feed": {
        "state": "behind", "frontier_age_s": 2.0, "epoch": 1, "live": 7, "gap": True,
        "kept": {"entries": 3, "age_s": 1.0, "hold_max_s": 86400.0},
        "sinks": [{"name": "/srv/feed", "known": True, "behind_records": 4, "behind_s": 60.0, "failing_since": "2026-11-22T08:00:00Z"}],
    },
    "audits": [
        {"complete": True, "scope": "", "lost": 1, "age_s": 3600.0, "findings": {"dangling": {"number": 1, "bytes": 0}}},
        {"complete": False, "scope": "media/", "lost": 2, "age_s": 60.0, "findings": {"dangling": {"number": 2, "bytes": 0}}},
    ],
    "disk": {"free_bytes": 10**9, "size_bytes": 10**10, "full": False, "read_only": True},
    "lost_reads": {"objects": [{"object": "a/objects/k", "blob": "a/objects/k/1", "found": None}], "not_looked_at": 0, "more": True},
    "problems": [], "level": "stuck",
}  # fmt: skip
