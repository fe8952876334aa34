"""The store as an fsspec file system, `tiered://`, for pandas, pyarrow, dask and others. Needs the extra `fsspec`.

    pandas.read_parquet("tiered://photos/objects/table.parquet", storage_options={"settings": "tiered.yaml"})

    implementation.py     begin here: `TieredFileSystem`, paths, listing, copies
    names.py              names as fsspec passes them
    file.py               one open file: reading by ranges, writing on close

Built on the blocking API (`tiered/sync`). Nothing else of the store knows of it. fsspec finds it by an entry point.
"""

from changelog.base.errors import ConfigurationError
from changelog.base.extras import installing

try:
    import fsspec  # noqa: F401
except ImportError:
    raise ConfigurationError(f"tiered:// needs fsspec, which is not installed: {installing('fsspec')}") from None
