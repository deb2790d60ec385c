//! Doubly linked lists through the entries of a slab: in order of arrival, with removal from the middle.

/// No entry.
pub const NONE: u32 = u32::MAX;

/// Neighbours of an entry in one list.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    before: u32,
    after: u32,
}

impl Default for Link {
    fn default() -> Link {
        Link { before: NONE, after: NONE }
    }
}

/// Ends of a list.
#[derive(Clone, Copy, Debug)]
pub struct List {
    first: u32,
    last: u32,
}

impl Default for List {
    fn default() -> List {
        List { first: NONE, last: NONE }
    }
}

/// Access to the links of a list.
pub trait Links {
    /// Link of this entry.
    fn link(&mut self, at: u32) -> &mut Link;
}

impl List {
    /// The first entry, or [`NONE`].
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The last entry, or [`NONE`].
    pub fn last(&self) -> u32 {
        self.last
    }

    /// The one before an entry, or [`NONE`].
    pub fn before(links: &mut impl Links, at: u32) -> u32 {
        links.link(at).before
    }

    /// The one behind an entry, or [`NONE`].
    pub fn after(links: &mut impl Links, at: u32) -> u32 {
        links.link(at).after
    }

    /// Puts an entry that is in no list at the end.
    pub fn push(&mut self, links: &mut impl Links, at: u32) {
        *links.link(at) = Link { before: self.last, after: NONE };
        match self.last {
            NONE => self.first = at,
            last => links.link(last).after = at,
        }
        self.last = at;
    }

    /// Takes out an entry that is in this list.
    pub fn remove(&mut self, links: &mut impl Links, at: u32) {
        let Link { before, after } = *links.link(at);
        match before {
            NONE => self.first = after,
            before => links.link(before).after = after,
        }
        match after {
            NONE => self.last = before,
            after => links.link(after).before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slab(Vec<Link>);

    impl Links for Slab {
        fn link(&mut self, at: u32) -> &mut Link {
            &mut self.0[at as usize]
        }
    }

    fn order(list: &List, slab: &mut Slab) -> Vec<u32> {
        let mut order = Vec::new();
        let mut at = list.first();
        while at != NONE {
            order.push(at);
            at = List::after(slab, at);
        }
        order
    }

    #[test]
    fn entries_leave_from_everywhere_and_come_back_at_the_end() {
        let mut slab = Slab(vec![Link::default(); 4]);
        let mut list = List::default();
        for at in 0..4 {
            list.push(&mut slab, at);
        }
        assert_eq!(order(&list, &mut slab), [0, 1, 2, 3]);
        for (at, left) in [(1, vec![0, 2, 3]), (3, vec![0, 2]), (0, vec![2]), (2, vec![])] {
            list.remove(&mut slab, at);
            assert_eq!(order(&list, &mut slab), left);
        }
        list.push(&mut slab, 3);
        list.push(&mut slab, 0);
        assert_eq!(order(&list, &mut slab), [3, 0]);
    }
}
