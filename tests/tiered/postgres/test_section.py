"""The section `postgres` of the settings: what it takes, and what it never shows."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tiered.settings import PostgresSettings

DSN = "postgresql://me:s3cret@db-1:5432,db-2:5433/shop?sslmode=verify-full&sslrootcert=system"


def test_the_address_has_no_user_no_password_and_no_options() -> None:
    settings = PostgresSettings.model_validate({"dsn": DSN, "schema_name": "photos"})
    assert settings.address == "db-1:5432,db-2:5433/shop/photos"
    assert "s3cret" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()


@pytest.mark.parametrize("wrong", [
    {"dsn": "mysql://me:s3cret@db/shop"}, {"dsn": "postgresql:///shop"}, {"dsn": "postgresql://me:s3cret@/shop"},
    {"dsn": "postgresql://me:s3cret@db"}, {"dsn": DSN, "schema_name": "pg_mine"}, {"dsn": DSN, "schema_name": 'a"b'},
    {"dsn": DSN, "schema_name": ""}, {"dsn": DSN, "schema_name": "x" * 64}, {"dsn": DSN, "connections_max": 0},
    {"dsn": DSN, "timeout_s": 0}, {"dsn": DSN, "shard": 1},
    *({"dsn": f"postgresql://me:{secret}@db/shop"} for secret in ("s3cret/", "12/s3cret", "s3cret#", "s3cret?", "s3cret\u2100", "[s3cret")),
    *({"dsn": f"postgresql://me:s3cret@{hosts}/shop"} for hosts in ("db:port", "db,", "db:0", "db:65536", "[::1", "a b", "::1")),
])  # fmt: skip
def test_what_is_wrong_is_refused_and_no_error_shows_the_password(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as failed:
        PostgresSettings.model_validate(wrong)
    assert "s3cret" not in str(failed.value)


@pytest.mark.parametrize(("dsn", "address"), [
    ("postgresql://me:s3cret@[::1]:5432/shop", "[::1]:5432/shop/tiered"),
    ("postgresql://me:s%2F3cret%40@db/shop", "db/shop/tiered"),
    ("postgres://me@%2Frun%2Fpostgresql/shop?password=s3cret@", "%2Frun%2Fpostgresql/shop/tiered"),
])  # fmt: skip
def test_addresses_of_every_kind_are_taken(dsn: str, address: str) -> None:
    assert PostgresSettings.model_validate({"dsn": dsn}).address == address
