//! Sending through an AF_XDP socket.
