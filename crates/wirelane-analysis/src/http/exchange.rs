//! Assignment of responses to requests in a connection: in order (RFC 9112, 9.3.2), and after a loss by the position
//! that was acknowledged when the request was sent.

use std::collections::VecDeque;

use super::transaction::{Mark, Marks, Message};

/// One half of an exchange.
#[derive(Debug)]
enum Slot {
    /// Expected.
    Awaited,
    /// Its head was read.
    Begun,
    /// Complete, or as complete as it will be.
    Done(Box<Message>),
    /// It will not arrive.
    Never,
}

impl Slot {
    fn is_decided(&self) -> bool {
        matches!(self, Slot::Done(_) | Slot::Never)
    }

    fn take(self) -> Option<Message> {
        match self {
            Slot::Done(message) => Some(*message),
            _ => None,
        }
    }
}

/// A request and its response, as far as they are known.
#[derive(Debug)]
struct Exchange {
    request: Slot,
    response: Slot,
    method: Box<[u8]>,
    /// For a request: position of the other direction that its sender had received, if known.
    acked: Option<u64>,
    /// For a response without a request: position of its first byte.
    begins: u64,
    informational: u32,
}

/// A finished exchange.
#[derive(Debug)]
pub struct Finished {
    /// The request.
    pub request: Option<Message>,
    /// The final response.
    pub response: Option<Message>,
    /// Number of 1xx responses before it.
    pub informational: u32,
    /// Marks of the exchange and of both messages.
    pub marks: Marks,
}

/// Unfinished exchanges of a connection.
#[derive(Debug, Default)]
pub struct Exchanges {
    /// Direction of the client; `None`: no head was seen.
    pub client: Option<usize>,
    /// Whether the connection is not HTTP any more after the current position.
    pub tunnel: bool,
    /// Whether bytes were missing, so that order alone does not assign responses to requests.
    pub lossy: bool,
    /// Whether only one direction was captured, so that no message waits for the other one.
    pub one_way: bool,
    /// Number of heads of requests, and of responses except 1xx.
    pub heads: (u64, u64),
    /// Number of 1xx responses.
    pub informational: u64,
    queue: VecDeque<Exchange>,
    /// Number of requests that were evicted before their response.
    skipped: u64,
    memory: usize,
    /// Number of 1xx responses before any request.
    early: u32,
    /// Number of responses without a request so far.
    orphans: usize,
}

impl Exchanges {
    /// Memory of messages, in bytes.
    pub fn memory(&self) -> usize {
        self.memory + self.queue.capacity() * size_of::<Exchange>()
    }

    /// Whether a message waits for the other direction.
    pub fn waits(&self) -> bool {
        self.queue.iter().any(|exchange| {
            matches!(exchange.request, Slot::Awaited) || matches!(exchange.response, Slot::Awaited)
        })
    }

    /// Adds the head of a request. `acked`: position of the other direction that its sender had received.
    pub fn request_begun(&mut self, method: &[u8], acked: Option<u64>) {
        self.heads.0 += 1;
        // The response may precede the request if the two directions were captured out of order. A response that the
        // client had received before belongs to another request.
        let mut queue = self.queue.iter_mut();
        while self.orphans > 0 {
            let Some(exchange) = queue.next() else { break };
            if matches!(exchange.request, Slot::Awaited) {
                self.orphans -= 1;
                if acked.is_some_and(|acked| acked > exchange.begins) {
                    exchange.request = Slot::Never;
                } else {
                    exchange.request = Slot::Begun;
                    return;
                }
            }
        }
        let informational = std::mem::take(&mut self.early);
        self.queue.push_back(Exchange {
            request: Slot::Begun,
            response: Slot::Awaited,
            method: method.into(),
            acked,
            begins: 0,
            informational,
        });
    }

    /// Completes the open request.
    pub fn request_done(&mut self, message: Message) {
        let open = self.queue.iter_mut().rev().find(|exchange| matches!(exchange.request, Slot::Begun));
        if let Some(exchange) = open {
            self.memory += message.memory();
            exchange.request = Slot::Done(Box::new(message));
            if self.one_way && matches!(exchange.response, Slot::Awaited) {
                exchange.response = Slot::Never;
            }
        }
    }

    /// Adds a 1xx response.
    pub fn interim(&mut self) {
        self.informational += 1;
        match self.queue.iter_mut().find(|exchange| matches!(exchange.response, Slot::Awaited)) {
            Some(exchange) => exchange.informational += 1,
            None => self.early += 1,
        }
    }

    /// Adds the head of a final response that begins at this position of its direction; returns the method of its
    /// request, if known.
    pub fn response_begun(&mut self, begins: u64) -> Option<Box<[u8]>> {
        self.heads.1 += 1;
        let mut alone = self.skipped > 0;
        self.skipped -= u64::from(alone);
        if self.lossy && !alone {
            self.realign(begins);
        }
        let lossy = self.lossy;
        let first = self.queue.iter_mut().find(|exchange| matches!(exchange.response, Slot::Awaited));
        match first {
            // The client had this response when it sent the request: the response belongs to a request that was lost.
            Some(exchange) if lossy && exchange.acked.is_some_and(|acked| acked > begins) => alone = true,
            Some(exchange) if !alone => {
                exchange.response = Slot::Begun;
                return Some(exchange.method.clone());
            }
            _ => {}
        }
        let orphan = Exchange {
            request: if alone || self.one_way { Slot::Never } else { Slot::Awaited },
            response: Slot::Begun,
            method: Box::default(),
            acked: None,
            begins,
            informational: std::mem::take(&mut self.early),
        };
        self.orphans += usize::from(matches!(orphan.request, Slot::Awaited));
        // Before the requests that it does not answer.
        let at = self.queue.iter().position(|exchange| matches!(exchange.response, Slot::Awaited));
        self.queue.insert(at.filter(|_| alone).unwrap_or(self.queue.len()), orphan);
        None
    }

    /// After a loss: if a later request acknowledged more, and that request is not newer than this response, then the
    /// response to an earlier request is missing.
    fn realign(&mut self, begins: u64) {
        let awaits = |exchange: &&mut Exchange| matches!(exchange.response, Slot::Awaited);
        let acked = |exchange: &Exchange| exchange.acked.filter(|acked| *acked <= begins);
        let most = self.queue.iter_mut().filter(awaits).filter_map(|exchange| acked(exchange)).max();
        let Some(most) = most else { return };
        for exchange in self.queue.iter_mut().filter(awaits) {
            if exchange.acked.is_some_and(|acked| acked < most) {
                exchange.response = Slot::Never;
            }
        }
    }

    /// Completes the open response.
    pub fn response_done(&mut self, message: Message) {
        let open = self.queue.iter_mut().find(|exchange| matches!(exchange.response, Slot::Begun));
        if let Some(exchange) = open {
            self.memory += message.memory();
            exchange.response = Slot::Done(Box::new(message));
        }
    }

    /// Stops waiting for the server (`requests`), or for the client (`responses`).
    pub fn give_up(&mut self, requests: bool, responses: bool) {
        for exchange in &mut self.queue {
            if requests && matches!(exchange.response, Slot::Awaited) {
                exchange.response = Slot::Never;
            }
            if responses && matches!(exchange.request, Slot::Awaited) {
                exchange.request = Slot::Never;
                self.orphans -= 1;
            }
        }
    }

    /// Evicts the oldest request without a response: if its response arrives, it has no request. False: there are no
    /// such requests.
    pub fn evict(&mut self) -> bool {
        let oldest = self.queue.iter_mut().find(|exchange| {
            matches!((&exchange.request, &exchange.response), (Slot::Done(_), Slot::Awaited))
        });
        let Some(exchange) = oldest else { return false };
        exchange.response = Slot::Never;
        self.skipped += 1;
        if let Slot::Done(message) = &mut exchange.request {
            self.memory = self.memory.saturating_sub(message.memory());
            message.marks.set(Mark::Evicted);
        }
        true
    }

    /// Removes the next finished exchange, in order.
    pub fn pop(&mut self) -> Option<Finished> {
        let front = self.queue.front()?;
        if !front.request.is_decided() || !front.response.is_decided() {
            return None;
        }
        let Exchange { request, response, informational, .. } = self.queue.pop_front()?;
        if self.queue.is_empty() {
            // Memory of a formerly long queue.
            self.queue.shrink_to(8);
        }
        let (request, response) = (request.take(), response.take());
        let mut marks = Marks::default();
        for message in [&request, &response].into_iter().flatten() {
            // The memory of an evicted message was subtracted when it was evicted.
            if !message.marks.has(Mark::Evicted) {
                self.memory = self.memory.saturating_sub(message.memory());
            }
            marks = marks.and(message.marks);
        }
        if request.is_none() {
            marks.set(Mark::NoRequest);
        }
        if response.is_none() {
            marks.set(Mark::NoResponse);
        }
        Some(Finished { request, response, informational, marks })
    }
}
