"""Objects of a bucket: requests, names, uploads."""
