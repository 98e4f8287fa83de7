//! NVMe and NVMe/TCP wire formats: types and codecs, no I/O.
