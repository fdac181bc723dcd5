//! Benchmarks of the pool and of the wire layer: see `benches/`.
