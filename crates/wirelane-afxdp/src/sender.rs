//! Sending through an AF_XDP socket: frames are written into the shared memory, and handed over by their addresses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::rings::Descriptor;
use super::socket::{Mode, Purpose, XskSocket, is_no};
use super::umem::{FRAME, Umem};
use crate::ZeroCopy;
use crate::{Error, Result};

/// Frames of a sender, and entries of its rings.
const FRAMES: u32 = 1024;
/// As many again are the driver's, by zero copy: it receives into the memory of whoever has the queue, and without frames
/// the host stack would get nothing from that queue for as long as something is sent on it.
const ALL_FRAMES: u32 = 2 * FRAMES;
/// A sender's end waits so long for the card to be done with what was handed over.
const DRAIN: Duration = Duration::from_secs(1);

/// A socket that sends on one TX queue.
#[derive(Debug)]
pub struct Sender {
    socket: XskSocket,
    umem: Arc<Umem>,
    /// Frames that are ours to write.
    free: Vec<u64>,
    /// Frames that were given back.
    completed: u64,
    zero_copy: bool,
}

impl Sender {
    /// Opens a sender on this queue. `zero_copy` as for captures.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the queue is taken, or what the kernel said.
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

    /// Frames that were given back: sent, or thrown away where the kernel copies.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Calls `prepare` on every frame, before the first is sent.
    pub fn prepare(&mut self, mut prepare: impl FnMut(&mut [u8])) {
        for &frame in &self.free {
            // SAFETY: the frame is in no ring: it is free.
            if let Some(bytes) = unsafe { self.umem.frame(frame) } {
                prepare(bytes);
            }
        }
    }

    /// Hands over up to `at_most` frames: `write` is told how many came before in this call, and gives the length of
    /// what it wrote into a frame. Returns how many were handed over: as many as were free.
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
            // SAFETY: it was free, so it is in no ring, and goes into one below.
            let Some(bytes) = (unsafe { self.umem.frame(frame) }) else { break };
            let length = write(number, bytes) as u32;
            tx.write(position.wrapping_add(number as u32), Descriptor { address: frame, length, options: 0 });
        }
        tx.submit(position.wrapping_add(count as u32));
        self.kick()?;
        Ok(count)
    }

    /// Waits until the card is done with everything, for a second at most; what is not done then.
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

    /// Takes back frames that the card is done with.
    fn collect(&mut self) {
        let completion = &self.socket.completion;
        let (from, to) = (completion.consumer(), completion.producer());
        for at in 0..to.wrapping_sub(from).min(completion.entries()) {
            // The kernel gives back the addresses that it was given, and so often; another could not be written to.
            self.free.push(completion.read(from.wrapping_add(at)) & !(FRAME as u64 - 1));
        }
        self.completed += u64::from(to.wrapping_sub(from));
        completion.release(to);
    }
}
