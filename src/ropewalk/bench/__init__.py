"""The benchmarks of rotation: cases, a float64 gate, the peers, interleaved timing, and the bounds that must hold."""
