//! Sending through an AF_XDP socket: frames are written into the shared memory and passed to the kernel by address.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::rings::Descriptor;
use super::socket::{Mode, Purpose, XskSocket, is_no};
use super::umem::{FRAME, Umem};
use crate::ZeroCopy;
use crate::{Error, Result};

/// Number of frames of a sender, and of entries of its rings.
const FRAMES: u32 = 1024;
/// In zero-copy mode the driver gets as many frames again: it receives into the memory of the socket that is bound to
/// the queue, and without frames the host stack would get nothing from that queue as long as the sender is open.
const ALL_FRAMES: u32 = 2 * FRAMES;
/// Time limit for the card to complete the submitted frames when a sender ends.
const DRAIN: Duration = Duration::from_secs(1);

/// A socket that sends on one TX queue.
#[derive(Debug)]
pub struct Sender {
    socket: XskSocket,
    umem: Arc<Umem>,
    /// Addresses of frames that we may write.
    free: Vec<u64>,
    /// Number of frames that the kernel has returned.
    completed: u64,
    zero_copy: bool,
}

impl Sender {
    /// Opens a sender on this queue. `zero_copy` has the same meaning as for captures.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the queue is in use, otherwise the kernel's error.
    pub fn open(device: &str, ifindex: u32, queue: u32, zero_copy: ZeroCopy) -> Result<Sender> {
        let umem = Arc::new(Umem::new(ALL_FRAMES as usize)?);
        let purpose = Purpose { device, ifindex, queue, rx: 0, tx: FRAMES, frames: FRAMES, shares: None };
        let mut refused = None;
        for mode in Mode::to_try(zero_copy) {
            match XskSocket::open(purpose, &umem, mode) {
                Ok(socket) => {
                    let free = (0..u64::from(FRAMES)).map(|frame| frame * FRAME as u64).collect();
                    let zero_copy = socket.is_zero_copy()?;
                    if zero_copy {
                        for frame in 0..FRAMES {
                            socket.fill.write(frame, u64::from(FRAMES + frame) * FRAME as u64);
                        }
                        socket.fill.submit(FRAMES);
                        socket.wake();
                    }
                    return Ok(Sender { socket, umem, free, completed: 0, zero_copy });
                }
                Err(e) if is_no(&e) => refused = refused.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
        Err(refused.unwrap_or_else(|| Error::kernel("binding", std::io::ErrorKind::Unsupported.into())))
    }

    /// Whether the driver reads our memory itself.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Number of frames that the kernel has returned: sent, or dropped in copy mode.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Calls `prepare` on every frame, before the first is sent.
    pub fn prepare(&mut self, mut prepare: impl FnMut(&mut [u8])) {
        for &frame in &self.free {
            // SAFETY: the frame is free, so it is in no ring.
            if let Some(bytes) = unsafe { self.umem.frame(frame) } {
                prepare(bytes);
            }
        }
    }

    /// Submits up to `at_most` frames. `write` gets the number of frames before this one in this call, and returns the
    /// length of the packet that it wrote. Returns the number of submitted frames, which the number of free frames
    /// limits.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the kernel refuses to send.
    pub fn send(&mut self, at_most: u64, mut write: impl FnMut(u64, &mut [u8]) -> usize) -> Result<u64> {
        self.collect();
        let Some(tx) = &self.socket.tx else { return Ok(0) };
        let position = tx.producer();
        let room = tx.entries() - position.wrapping_sub(tx.consumer());
        let count = at_most.min(u64::from(room)).min(self.free.len() as u64);
        for number in 0..count {
            let Some(frame) = self.free.pop() else { break };
            // SAFETY: it was free, so it is in no ring; it is put into one below.
            let Some(bytes) = (unsafe { self.umem.frame(frame) }) else { break };
            let length = write(number, bytes) as u32;
            tx.write(position.wrapping_add(number as u32), Descriptor { address: frame, length, options: 0 });
        }
        tx.submit(position.wrapping_add(count as u32));
        self.kick()?;
        Ok(count)
    }

    /// Waits until the card has completed all frames, for a second at most; returns the number of incomplete ones.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn drain(&mut self) -> Result<u64> {
        let deadline = Instant::now() + DRAIN;
        loop {
            self.collect();
            let left = u64::from(FRAMES) - self.free.len() as u64;
            if left == 0 || Instant::now() >= deadline {
                return Ok(left);
            }
            self.kick()?;
            std::thread::yield_now();
        }
    }

    fn kick(&self) -> Result<()> {
        if self.socket.tx.as_ref().is_some_and(|tx| tx.needs_wakeup()) {
            self.socket.kick_tx().map_err(|e| Error::kernel("sending through an AF_XDP socket", e))?;
        }
        Ok(())
    }

    /// Takes back frames that the card has completed.
    fn collect(&mut self) {
        let completion = &self.socket.completion;
        let (from, to) = (completion.consumer(), completion.producer());
        for at in 0..to.wrapping_sub(from).min(completion.entries()) {
            // The kernel returns each address that it was given once; any other address is rejected before it is
            // written to.
            self.free.push(completion.read(from.wrapping_add(at)) & !(FRAME as u64 - 1));
        }
        self.completed += u64::from(to.wrapping_sub(from));
        completion.release(to);
    }
}
