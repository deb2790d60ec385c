//! The translator and the interpreter against libpcap.
