//! Which response answers which request, of one connection: in order (RFC 9112, 9.3.2), and after a loss by what had been
//! acknowledged when the request was sent.

use std::collections::VecDeque;

use super::transaction::{Mark, Marks, Message};

/// One half of an exchange.
#[derive(Debug)]
enum Slot {
    /// It may still come.
    Awaited,
    /// Its head has been read.
    Begun,
    /// It is whole, or as much of it as there will be.
    Done(Box<Message>),
    /// It will not come.
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

/// A request and its response, as far as they are there.
#[derive(Debug)]
struct Exchange {
    request: Slot,
    response: Slot,
    method: Box<[u8]>,
    /// Of the request: how much of the other direction its sender had when it was sent, where that is known.
    acked: Option<u64>,
    /// Of a response without a request: where it begins.
    begins: u64,
    informational: u32,
}

/// An exchange that is over.
#[derive(Debug)]
pub struct Finished {
    /// The request.
    pub request: Option<Message>,
    /// The final response.
    pub response: Option<Message>,
    /// Responses of status 1xx before it.
    pub informational: u32,
    /// What is to be known of it, or of one of the two.
    pub marks: Marks,
}

/// The exchanges of a connection that are not over.
#[derive(Debug, Default)]
pub struct Exchanges {
    /// Which direction is the client's; `None`: no head has been seen.
    pub client: Option<usize>,
    /// Behind what has been read, the connection is no HTTP any more.
    pub tunnel: bool,
    /// Bytes were missing: order alone does not say any more what answers what.
    pub lossy: bool,
    /// Only one direction is there: nothing waits for the other one.
    pub one_way: bool,
    /// Requests whose heads have been read, and responses but those of status 1xx.
    pub heads: (u64, u64),
    /// Responses of status 1xx.
    pub informational: u64,
    queue: VecDeque<Exchange>,
    /// Requests that had to go before they were answered.
    skipped: u64,
    memory: usize,
    /// Responses of status 1xx before any request.
    early: u32,
    /// Responses that await a request.
    orphans: usize,
}

impl Exchanges {
    /// Memory that messages take, in bytes.
    pub fn memory(&self) -> usize {
        self.memory + self.queue.capacity() * size_of::<Exchange>()
    }

    /// Whether something waits for the other direction.
    pub fn waits(&self) -> bool {
        self.queue.iter().any(|exchange| {
            matches!(exchange.request, Slot::Awaited) || matches!(exchange.response, Slot::Awaited)
        })
    }

    /// The head of a request. `acked`: how much of the other direction its sender had.
    pub fn request_begun(&mut self, method: &[u8], acked: Option<u64>) {
        self.heads.0 += 1;
        // A response may have come before, where the two directions were captured out of order. One that the
        // client had when it asked, answers something else.
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

    /// The request that has begun is over.
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

    /// A response of status 1xx.
    pub fn interim(&mut self) {
        self.informational += 1;
        match self.queue.iter_mut().find(|exchange| matches!(exchange.response, Slot::Awaited)) {
            Some(exchange) => exchange.informational += 1,
            None => self.early += 1,
        }
    }

    /// The head of a final response that begins at this place of its direction: the method that was asked for, where it
    /// is known.
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
            // Sent by somebody who had this response already: it answers something that was lost.
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
        // In front of what it does not answer.
        let at = self.queue.iter().position(|exchange| matches!(exchange.response, Slot::Awaited));
        self.queue.insert(at.filter(|_| alone).unwrap_or(self.queue.len()), orphan);
        None
    }

    /// After a loss: a request that was sent before another one, whose sender had more, was answered in what is missing, if
    /// that other one is not younger than this response.
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

    /// The response that has begun is over.
    pub fn response_done(&mut self, message: Message) {
        let open = self.queue.iter_mut().find(|exchange| matches!(exchange.response, Slot::Begun));
        if let Some(exchange) = open {
            self.memory += message.memory();
            exchange.response = Slot::Done(Box::new(message));
        }
    }

    /// Nothing more comes from the server (`requests`), or from the client (`responses`).
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

    /// The oldest request without an answer has to go: its response, if it comes, is one without a request. False: there is
    /// none.
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

    /// The next exchange that is over, in order.
    pub fn pop(&mut self) -> Option<Finished> {
        let front = self.queue.front()?;
        if !front.request.is_decided() || !front.response.is_decided() {
            return None;
        }
        let Exchange { request, response, informational, .. } = self.queue.pop_front()?;
        if self.queue.is_empty() {
            // What once was a long queue.
            self.queue.shrink_to(8);
        }
        let (request, response) = (request.take(), response.take());
        let mut marks = Marks::default();
        for message in [&request, &response].into_iter().flatten() {
            // That of one that had to go was given back then.
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
