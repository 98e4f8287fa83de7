//! One executor a core over io_uring, threads or a simulated world.
