//! NVMe over Fabrics target and host over TCP.
