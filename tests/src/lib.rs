//! End-to-end tests: real processes, kernels and clients.
