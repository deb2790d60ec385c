//! The questions of a report, and the sections made of their answers.

use std::path::Path;

use super::columns::{
    ALARMS, APPLICATIONS, CALLS, EVENTS, HOSTS, ITEMS, KEYS, MEASUREMENTS, Named, PORTS, Row, SLOWEST,
    STATUSES, TALKERS, WORST_CALLS, count, list_title, named, number, string, table,
};
use super::period::Period;
use super::{Cell, Chart, Line, Report, Section, Table};
use crate::query::{Asker, Form, Question};
use crate::{Error, Result, Table as Stored};

/// Maximum number of measurements, and of lists of them: anybody who can write to a store can add any number of them.
const MOST_MEASUREMENTS: usize = 64;
/// Maximum lines of a chart.
const MOST_LINES: usize = 8;
/// Maximum number of alarms that are drawn or listed one by one.
const MOST_MARKS: u64 = 500;

/// Settings of a report.
#[derive(Clone, Debug)]
pub struct ReportSettings {
    /// The store's folder, for the header of the report.
    pub store: String,
    /// Start of the requested time span, in nanoseconds since 1970; `None`: the start of the stored data.
    pub from_ns: Option<i64>,
    /// End of the requested time span; `None`: the end of the stored data.
    pub to_ns: Option<i64>,
    /// Seconds of a step of charts; `None`: chosen by the length of the time span.
    pub step_s: Option<u64>,
    /// Maximum rows of a list.
    pub limit: u64,
}

/// Called after each question with the number of answered questions, the total known so far, and the name of the next.
pub type Progress<'p> = dyn FnMut(usize, usize, &str) + 'p;

/// Asks a store for all data of a report.
///
/// # Errors
/// As [`Asker::ask`].
pub fn gather(
    asker: &mut Asker,
    settings: &ReportSettings,
    named: &mut dyn FnMut(&Path, &str),
    progress: &mut Progress<'_>,
) -> Result<Report> {
    // First the time span of each table, then the questions about it.
    let mut gather = Gather { asker, named, progress, done: 0, all: SPANS.len(), period: Period::default() };
    let mut spans = Vec::new();
    for table in SPANS {
        spans.push((table, gather.span(table)?));
    }
    let has = |table: Stored| spans.iter().any(|(of, span)| *of == table && span.is_some());
    let known = spans.iter().filter_map(|(_, span)| *span);
    let whole = known.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1), a.2.max(b.2)));
    let Some((first_ns, last_ns, longest_ns)) = whole else {
        return Ok(empty(settings));
    };
    // An interval that ends within the requested time may have begun before; it is reported as a whole.
    let measured = spans.iter().find(|(of, _)| *of == Stored::Measurements).and_then(|(_, span)| *span);
    let from_ns = settings.from_ns.map_or(first_ns, |from| from.max(first_ns));
    let from_ns = measured.map_or(from_ns, |(start_ns, ..)| from_ns.min(start_ns)).min(last_ns);
    let to_ns = settings.to_ns.map_or(last_ns, |to| to.min(last_ns)).max(from_ns);
    gather.period = Period::new(from_ns, to_ns, settings.step_s, longest_ns);
    let limit = settings.limit;
    let mut sections = Vec::new();
    if has(Stored::Measurements) {
        gather.measurements(limit, has(Stored::Alarms), &mut sections)?;
    }
    if has(Stored::Flows) {
        gather.all += 4;
        sections.push(gather.flows_over_time()?);
        for (title, question, names) in [
            ("Top talkers, by the bytes of their flows", Question::Talkers, TALKERS),
            ("Top ports of services, by the bytes of flows", Question::Ports, PORTS),
            ("Applications, by the bytes of flows", Question::Applications, APPLICATIONS),
        ] {
            sections.push(gather.listed(title, Asked::Ready(&question, limit), names)?);
        }
    }
    if has(Stored::Transactions) {
        gather.all += 4;
        sections.push(gather.over_time(&WEB)?);
        for (title, question, names) in [
            ("Web: hosts, by transactions", Question::Hosts, HOSTS),
            ("Web: status of responses", Question::HttpStatus, STATUSES),
            ("Web: the slowest transactions", Question::Slowest, SLOWEST),
        ] {
            sections.push(gather.listed(title, Asked::Ready(&question, limit), names)?);
        }
    }
    if has(Stored::Calls) {
        gather.all += 3;
        sections.push(gather.over_time(&OF_CALLS)?);
        for (title, question, names) in [
            ("Calls: how they ended, with means", Question::CallStatus, CALLS),
            ("Calls: those with the worst quality", Question::WorstCalls, WORST_CALLS),
        ] {
            sections.push(gather.listed(title, Asked::Ready(&question, limit), names)?);
        }
    }
    if has(Stored::Alarms) {
        sections.extend(gather.alarms(limit)?);
    } else {
        sections.push(noted("Alarms", "No alarm is stored for this time span."));
    }
    sections.push(if has(Stored::Ledgers) {
        gather.ledger()?
    } else {
        noted(
            "Where packets went",
            "No ledger is stored for this time span: 'wirelane probe --store' stores one.",
        )
    });
    let step_s = gather.period.step_s as u64;
    let damaged: Vec<String> =
        asker.damaged().map(|(path, why)| format!("{}: {why}", path.display())).collect();
    if !damaged.is_empty() {
        let title = "Files that cannot be read and are missing from this report".to_owned();
        sections.push(Section { title, notes: damaged, ..Section::default() });
    }
    Ok(Report { store: settings.store.clone(), from_ns, to_ns, step_s, sections })
}

/// Numbers of a table over time, at the end of each row.
struct OverTime {
    title: &'static str,
    table: &'static str,
    unit: &'static str,
    /// Units per second.
    factor: f64,
    /// Conditions of the rows of each line, and its name.
    lines: [(&'static str, &'static str); 2],
}

const WEB: OverTime = OverTime {
    title: "Web: transactions over time, by when they ended",
    table: "transactions",
    unit: "transactions/s",
    factor: 1.0,
    lines: [
        ("true", "all"),
        ("status IS NULL OR status >= 400", "without a response, or with an error status"),
    ],
};
const OF_CALLS: OverTime = OverTime {
    title: "Calls over time, by when they ended",
    table: "calls",
    unit: "calls/min",
    factor: 60.0,
    lines: [("true", "all"), ("answer_ns IS NOT NULL", "answered")],
};

/// The tables whose time spans are asked for.
const SPANS: [Stored; 6] = [
    Stored::Measurements,
    Stored::Flows,
    Stored::Transactions,
    Stored::Calls,
    Stored::Alarms,
    Stored::Ledgers,
];

/// A quoted text in SQL. Anybody who can write to a store chooses names in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn noted(title: &str, note: &str) -> Section {
    Section { title: title.to_owned(), notes: vec![note.to_owned()], ..Section::default() }
}

/// Report for a time span without stored data.
fn empty(settings: &ReportSettings) -> Report {
    let (from_ns, to_ns) = (settings.from_ns.unwrap_or(0), settings.to_ns.unwrap_or(0));
    let section = noted("Nothing", "Nothing is stored for this time span.");
    Report {
        store: settings.store.clone(),
        from_ns,
        to_ns: to_ns.max(from_ns),
        step_s: settings.step_s.unwrap_or(1),
        sections: vec![section],
    }
}

/// A question of a report.
#[derive(Clone, Copy)]
enum Asked<'q> {
    Sql(&'q str),
    /// With the maximum number of rows.
    Ready(&'q Question, u64),
}

struct Gather<'a, 'p> {
    asker: &'a mut Asker,
    named: &'a mut dyn FnMut(&Path, &str),
    progress: &'a mut Progress<'p>,
    done: usize,
    all: usize,
    period: Period,
}

impl Gather<'_, '_> {
    fn ask(&mut self, what: &str, asked: Asked<'_>) -> Result<Vec<Row>> {
        (self.progress)(self.done, self.all.max(self.done), what);
        let mut lines = Vec::new();
        let mut sink = |text: &[u8]| {
            lines.extend_from_slice(text);
            Ok(())
        };
        match asked {
            Asked::Sql(sql) => self.asker.ask(sql, Form::Json, &mut sink, &mut *self.named)?,
            Asked::Ready(question, limit) => {
                self.asker.answer(question, limit, Form::Json, &mut sink, &mut *self.named)?;
            }
        }
        self.done += 1;
        (self.progress)(self.done, self.all.max(self.done), what);
        let rows = serde_json::Deserializer::from_slice(&lines).into_iter::<Row>();
        rows.collect::<std::result::Result<_, _>>().map_err(|error| Error::Engine(error.to_string()))
    }

    /// Start and end of the stored data, and the longest row; `None`: no rows.
    fn span(&mut self, table: Stored) -> Result<Option<(i64, i64, i64)>> {
        let what = table.name();
        (self.progress)(self.done, self.all.max(self.done), what);
        let span = self.asker.span(table, &mut *self.named)?;
        self.done += 1;
        (self.progress)(self.done, self.all.max(self.done), what);
        // Intervals of measurements are reported as a whole.
        let is_measured = matches!(table, Stored::Measurements);
        Ok(span
            .map(|[_, first, last, longest]| (first, last.max(first), if is_measured { longest } else { 0 })))
    }

    fn listed(&mut self, title: &str, asked: Asked<'_>, columns: &[Named]) -> Result<Section> {
        let rows = self.ask(title, asked)?;
        let bar = ["bytes", "sent_bytes", "transactions", "calls", "lost"];
        if rows.is_empty() {
            return Ok(noted(title, "None is stored for this time span."));
        }
        let bar = bar.into_iter().find(|bar| columns.iter().any(|(name, _)| name == bar));
        let table = Some(table(&rows, columns, bar));
        Ok(Section { title: title.to_owned(), table, ..Section::default() })
    }

    /// Rate of a value in each step.
    fn rates(
        &self,
        rows: &[Row],
        value: &str,
        factor: f64,
        step: fn(&Period, i64) -> (i64, f64),
    ) -> Vec<(i64, f64)> {
        let point = |row: &Row| {
            let (start, seconds) = step(&self.period, number(row, "step"));
            (start, number(row, value) as f64 * factor / seconds)
        };
        rows.iter().map(point).collect()
    }

    fn measurements(&mut self, limit: u64, alarms: bool, sections: &mut Vec<Section>) -> Result<()> {
        let step_ns = self.period.step_ns();
        self.all += 3 + usize::from(alarms);
        let sql = format!(
            "SELECT measurement, count(*) AS intervals, sum(packets) AS packets, sum(bytes) AS bytes, \
             sum(bytes) * 8e9 / nullif(sum(duration_ns), 0) AS mean_bps, \
             max(bytes * 8e9 / nullif(duration_ns, 0)) AS highest_bps, \
             max(packets * 1e9 / nullif(duration_ns, 0)) AS highest_pps, max(keys) AS keys \
             FROM measurements WHERE kind = 'all' GROUP BY 1 ORDER BY packets DESC, 1 LIMIT {}",
            MOST_MEASUREMENTS + 1
        );
        let mut known = self.ask("measurements", Asked::Sql(&sql))?;
        let mut notes = Vec::new();
        if known.len() > MOST_MEASUREMENTS {
            known.truncate(MOST_MEASUREMENTS);
            notes.push(format!("Only the {MOST_MEASUREMENTS} measurements with most packets are listed."));
        }
        if known.len() > MOST_LINES {
            notes.push(format!("The chart has the {MOST_LINES} measurements with most packets."));
        }
        let names: Vec<String> = known.iter().map(|row| string(row, "measurement").to_owned()).collect();
        let drawn: Vec<String> = names.iter().take(MOST_LINES).map(|name| quoted(name)).collect();
        let sql = format!(
            "SELECT measurement, start_ns / {step_ns} AS step, sum(bytes) AS bytes FROM measurements \
             WHERE kind = 'all' AND measurement IN ({}) GROUP BY 1, 2 ORDER BY 1, 2",
            drawn.join(", ")
        );
        let steps = self.ask("traffic over time", Asked::Sql(&sql))?;
        let line = |name: &String| {
            let its: Vec<Row> =
                steps.iter().filter(|row| string(row, "measurement") == name).cloned().collect();
            Line { name: name.clone(), points: self.rates(&its, "bytes", 8.0, Period::step) }
        };
        let lines = names.iter().take(MOST_LINES).map(line).collect();
        let marks = if alarms { self.marks()? } else { Vec::new() };
        sections.push(Section {
            title: "Traffic over time, as it was measured".to_owned(),
            notes,
            chart: Some(Chart { unit: "bit/s", lines, marks }),
            table: Some(table(&known, MEASUREMENTS, Some("bytes"))),
        });
        let keyed = known.iter().filter(|row| row.contains_key("keys")).map(|row| string(row, "measurement"));
        for name in keyed.map(str::to_owned).collect::<Vec<_>>() {
            self.all += 1;
            let sql = format!(
                "SELECT key, sum(packets) AS packets, sum(bytes) AS bytes, count(*) AS intervals FROM measurements \
                 WHERE kind = 'key' AND measurement = {} GROUP BY 1 ORDER BY bytes DESC, 1 LIMIT {limit}",
                quoted(&name)
            );
            let mut section =
                self.listed(&format!("Keys with most bytes: {name}"), Asked::Sql(&sql), KEYS)?;
            let note =
                "Of the keys that were shown in each interval, as many as the configuration's 'show' says.";
            section.notes.push(note.to_owned());
            sections.push(section);
        }
        let sql = format!(
            "SELECT measurement, list FROM measurements WHERE kind = 'list' GROUP BY 1, 2 ORDER BY 1, 2 LIMIT {MOST_MEASUREMENTS}"
        );
        for row in self.ask("lists", Asked::Sql(&sql))? {
            self.all += 1;
            let (name, list) = (string(&row, "measurement"), string(&row, "list"));
            // Classes are listed in their order, as `32-63`, and there are few.
            let order = if matches!(list, "lengths" | "gaps") {
                "CAST(item AS INTEGER)".to_owned()
            } else {
                format!("packets DESC, 1 LIMIT {limit}")
            };
            let sql = format!(
                "SELECT item, sum(packets) AS packets, sum(error) AS error FROM measurements WHERE kind = 'list' AND \
                 measurement = {} AND list = {} GROUP BY 1 ORDER BY {order}",
                quoted(name),
                quoted(list)
            );
            let rows = self.ask(list, Asked::Sql(&sql))?;
            let mut section = Section { title: list_title(list, name), ..Section::default() };
            // Length classes have no error.
            let columns = if rows.iter().any(|row| row.contains_key("error")) { ITEMS } else { &ITEMS[..2] };
            section.table = Some(table(&rows, columns, Some("packets")));
            sections.push(section);
        }
        Ok(())
    }

    fn flows_over_time(&mut self) -> Result<Section> {
        let what = "flows over time";
        (self.progress)(self.done, self.all.max(self.done), what);
        let steps = self.asker.steps(self.period.step_ns(), &mut *self.named)?;
        self.done += 1;
        (self.progress)(self.done, self.all.max(self.done), what);
        let point = |[step, _, bytes]: [i64; 3]| {
            let (start, seconds) = self.period.whole_step(step);
            (start, bytes as f64 * 8.0 / seconds)
        };
        let line = Line { name: "flows".to_owned(), points: steps.into_iter().map(point).collect() };
        Ok(Section {
            title: "Traffic over time, by when flows have ended".to_owned(),
            notes: vec!["All bytes of a flow are counted at its end.".to_owned()],
            chart: Some(Chart { unit: "bit/s", lines: vec![line], marks: Vec::new() }),
            table: None,
        })
    }

    fn over_time(&mut self, of: &OverTime) -> Result<Section> {
        let step_ns = self.period.step_ns();
        let [(one, _), (other, _)] = of.lines;
        let sql = format!(
            "SELECT max(start_ns + duration_ns - 1, 0) / {step_ns} AS step, count(*) FILTER (WHERE {one}) AS one, \
             count(*) FILTER (WHERE {other}) AS other FROM {} GROUP BY 1 ORDER BY 1",
            of.table
        );
        let rows = self.ask(of.title, Asked::Sql(&sql))?;
        let line = |(value, name): (&str, &str)| Line {
            name: name.to_owned(),
            points: self.rates(&rows, value, of.factor, Period::whole_step),
        };
        let lines = [("one", of.lines[0].1), ("other", of.lines[1].1)].map(line).into();
        Ok(Section {
            title: of.title.to_owned(),
            chart: Some(Chart { unit: of.unit, lines, marks: Vec::new() }),
            ..Section::default()
        })
    }

    fn marks(&mut self) -> Result<Vec<i64>> {
        let sql = format!(
            "SELECT start_ns AS time FROM alarms WHERE state = 'raised' GROUP BY 1 ORDER BY 1 LIMIT {MOST_MARKS}"
        );
        let rows = self.ask("alarms over time", Asked::Sql(&sql))?;
        Ok(rows.iter().map(|row| number(row, "time")).collect())
    }

    fn alarms(&mut self, limit: u64) -> Result<[Section; 2]> {
        self.all += 2;
        let sql = format!(
            "SELECT alarm, measurement, count(*) FILTER (WHERE state = 'raised') AS raised, \
             count(*) FILTER (WHERE state = 'cleared') AS cleared, \
             max(value) FILTER (WHERE state = 'raised') AS highest, min(start_ns) AS first, max(start_ns) AS last \
             FROM alarms GROUP BY 1, 2 ORDER BY raised DESC, 1, 2 LIMIT {limit}"
        );
        let rows = self.ask("alarms", Asked::Sql(&sql))?;
        let sql = format!(
            "SELECT start_ns AS time, alarm, state, key, value_name, value, recording FROM alarms \
             ORDER BY 1 DESC, 2, 4 LIMIT {}",
            limit.saturating_mul(2).min(MOST_MARKS)
        );
        let events = self.ask("the last alarms", Asked::Sql(&sql))?;
        let has_files = events.iter().any(|row| row.contains_key("recording"));
        let columns = if has_files { EVENTS } else { &EVENTS[..EVENTS.len() - 1] };
        let section = |title: &str, table| Section {
            title: title.to_owned(),
            table: Some(table),
            ..Section::default()
        };
        Ok([
            section("Alarms", table(&rows, ALARMS, Some("raised"))),
            section("The last alarms, the newest first", table(&events, columns, None)),
        ])
    }

    fn ledger(&mut self) -> Result<Section> {
        const COLUMNS: [&str; 7] = ["seen", "filtered", "absorbed", "shed", "lost", "delivered", "analysed"];
        self.all += 2;
        let sums = COLUMNS.map(|column| format!("sum({column}) AS {column}")).join(", ");
        let sql = format!("SELECT {sums}, sum(bytes) AS bytes, sum(nic_missed) AS nic_missed FROM ledgers");
        let rows = self.ask("ledgers", Asked::Sql(&sql))?;
        let sum = rows.into_iter().next().unwrap_or_default();
        let step_ns = self.period.step_ns();
        // A partial ledger is placed at its end: it may have begun long before, if no packets came.
        let sql = format!(
            "SELECT max(start_ns + duration_ns - 1, 0) / {step_ns} AS step, sum(seen) AS seen, \
             sum(analysed) AS analysed, sum(lost + shed + coalesce(nic_missed, 0)) AS missing \
             FROM ledgers GROUP BY 1 ORDER BY 1"
        );
        let steps = self.ask("ledgers over time", Asked::Sql(&sql))?;
        let line = |(column, name): (&str, &str)| Line {
            name: name.to_owned(),
            points: self.rates(&steps, column, 1.0, Period::whole_step),
        };
        let lines =
            [("seen", "seen"), ("analysed", "analysed"), ("missing", "lost, shed or missed by the card")];
        let seen = number(&sum, "seen");
        let share = |packets: i64| {
            if seen > 0 { Cell::Percent(100.0 * packets as f64 / seen as f64) } else { Cell::Unknown }
        };
        let mut rows: Vec<Vec<Cell>> = COLUMNS
            .iter()
            .map(|column| {
                let packets = number(&sum, column);
                vec![named(column), Cell::Count(packets), share(packets)]
            })
            .collect();
        let missed = count(&sum, "nic_missed");
        rows.push(vec![named("nic_missed"), missed, Cell::Unknown]);
        let parts: i64 = COLUMNS[1..6].iter().map(|column| number(&sum, column)).sum();
        let holds = if seen == parts {
            "Every packet that was seen is in one column: seen = filtered + absorbed + shed + lost + delivered.".to_owned()
        } else {
            format!(
                "The columns sum to {parts} packets, and {seen} were seen: parts of this ledger are missing, because the time span begins or ends during a capture."
            )
        };
        Ok(Section {
            title: "Where packets went".to_owned(),
            notes: vec![holds],
            // A file has one ledger, for all of its time.
            chart: (steps.len() > 1).then(|| Chart {
                unit: "packets/s",
                lines: lines.map(line).into(),
                marks: Vec::new(),
            }),
            table: Some(Table { columns: vec!["column", "packets", "of seen"], rows, bar: Some(1) }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a'; DROP TABLE flows"), "'a''; DROP TABLE flows'");
    }
}
