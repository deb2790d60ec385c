//! Words of messages.

/// A number with its noun and verb: `1 record is`, `2 records are`.
pub fn counted(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun} is") } else { format!("{n} {noun}s are") }
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|n| super::counted(n, "row")), ["0 rows are", "1 row is", "2 rows are"]);
    }
}
