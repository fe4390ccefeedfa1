"""The main job (`make demo`) and the benchmarks (`make bench-NAME`), each a module to run."""
