//! The table of HTTP transactions. Differences from JSON: times are in nanoseconds, and requested header fields
//! (`--fields`) are not stored, as they may be secrets.

use wirelane_analysis::http::{Mark, Message, Transaction, fields};
use wirelane_export::http::plain;

use super::{Described, Put, Row, Storable, Table, Type};

/// Columns of `transactions`.
pub(super) const COLUMNS: &[Described] = &[
    ("start_time", Type::Time, false),
    ("end_time", Type::Time, false),
    ("start_ns", Type::Long, false),
    ("duration_ns", Type::Long, false),
    ("client", Type::Text, false),
    ("client_port", Type::Int, false),
    ("server", Type::Text, false),
    ("server_port", Type::Int, false),
    ("vlan", Type::Int, true),
    ("number", Type::Long, false),
    ("method", Type::Text, true),
    ("uri", Type::Text, true),
    ("version", Type::Text, true),
    ("host", Type::Text, true),
    ("referer", Type::Text, true),
    ("user_agent", Type::Text, true),
    ("request_line", Type::Text, true),
    ("request_ns", Type::Long, true),
    ("status", Type::Int, true),
    ("content_type", Type::Text, true),
    ("request_length", Type::Long, true),
    ("request_body", Type::Long, true),
    ("request_bytes", Type::Long, true),
    ("request_head", Type::Long, true),
    ("request_missing", Type::Long, true),
    ("request_chunked", Type::Flag, false),
    ("response_length", Type::Long, true),
    ("response_body", Type::Long, true),
    ("response_bytes", Type::Long, true),
    ("response_head", Type::Long, true),
    ("response_missing", Type::Long, true),
    ("response_chunked", Type::Flag, false),
    ("informational", Type::Long, false),
    ("ttfb_ns", Type::Long, true),
    ("marks", Type::Text, false),
];

impl Row<'_> {
    fn bytes(&mut self, value: Option<&[u8]>) {
        self.text(value.map(plain).as_deref());
    }

    fn message(&mut self, message: Option<&Message>) {
        self.wide(message.and_then(|message| message.stated));
        self.wide(message.map(|message| message.body));
        self.wide(message.map(|message| message.bytes));
        self.wide(message.map(|message| message.head));
        self.wide(message.map(|message| message.missing));
        self.flag(message.is_some_and(|message| message.chunked));
    }
}

impl Storable for Transaction {
    const TABLES: &'static [Table] = &[Table::Transactions];
    type Naming = ();
    type Names = ();

    fn rows(&self, table: Table) -> u64 {
        u64::from(table == Table::Transactions)
    }

    fn put(&self, (): &mut (), put: &mut Put<'_>) {
        let (first_ns, last_ns) = (self.start_ns(), self.end_ns().max(self.start_ns()));
        let (request, response) = (self.request.as_ref(), self.response.as_ref());
        put(Table::Transactions, last_ns, &mut |row| {
            row.span(first_ns, last_ns);
            for (address, port) in [self.client, self.server] {
                row.address(Some(address));
                row.int(Some(port));
            }
            row.int(self.vlan);
            row.wide(Some(self.number));
            row.bytes(request.map(|request| &*request.method));
            row.bytes(request.map(|request| &*request.target));
            let version = request.filter(|request| request.minor < 10);
            row.text(version.map(|request| format!("1.{}", request.minor)).as_deref());
            for field in [fields::HOST, fields::REFERER, fields::USER_AGENT] {
                row.bytes(request.and_then(|request| request.field(field)));
            }
            row.bytes(request.filter(|of| of.marks.has(Mark::Malformed)).map(|request| &*request.line));
            row.wide(request.map(|request| request.end_ns.saturating_sub(request.start_ns)));
            row.int(response.map(|response| response.status));
            row.bytes(response.and_then(|response| response.field(fields::CONTENT_TYPE)));
            row.message(request);
            row.message(response);
            row.long(Some(self.informational));
            row.wide(self.first_byte_ns());
            row.text(Some(&self.marks.names().collect::<Vec<_>>().join(" ")));
        });
    }
}
