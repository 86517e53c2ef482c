"""Find, keep and reuse the fastest GEMM configuration for each problem on each GPU."""
