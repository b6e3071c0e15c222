"""What was observed: routing traces and op records, their Parquet store, importers, statistics and samples."""
