"""Groups of one anchor (a scan, a pool, a resample) and the elementwise operations around it."""
