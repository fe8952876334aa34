"""Seeded worlds of the real code: what happens in them, how they are explored, and what was exercised."""
