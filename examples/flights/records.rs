//! Reads flight records from a CSV file, plain or gzip, in the schema of nycflights13. Malformed
//! lines are counted, reported with their number, and skipped.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use csv::ByteRecord;
use flate2::bufread::MultiGzDecoder;
use serde::{Deserialize, Serialize};

/// Maximum number of lines that are reported for each problem; further ones are only counted.
const NAMED_MAX: usize = 10;

/// Maximum length of the name of an aircraft, airline or airport, in bytes; real ones have 2 to 6.
const NAME_BYTES_MAX: usize = 64;

/// Text for a missing value, and for an unknown aircraft.
pub(crate) const NOT_AVAILABLE: &str = "NA";

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The columns that are read, in the order of [`Column`].
const COLUMNS: [&str; 7] =
    ["dep_time", "arr_delay", "carrier", "tailnum", "origin", "dest", "distance"];

#[derive(Clone, Copy)]
enum Column {
    DepTime,
    ArrDelay,
    Carrier,
    Tailnum,
    Origin,
    Dest,
    Distance,
}

/// A flight, as it is sent from entity to entity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Flight {
    /// Number of the flight in the file, from 1.
    pub(crate) row: u64,
    pub(crate) carrier: String,
    pub(crate) origin: String,
    pub(crate) dest: String,
    pub(crate) miles: u32,
    pub(crate) cancelled: bool,
    /// Delay at arrival in minutes, negative if early; `None` if it is not known.
    pub(crate) delay: Option<i32>,
}

/// A flight and its aircraft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) tailnum: String,
    pub(crate) flight: Flight,
}

/// Problems found in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Problems {
    /// Columns that the file lacks; their values count as not available.
    pub(crate) missing_columns: Vec<&'static str>, // ≤ COLUMNS
    /// Number of malformed lines, which are skipped.
    pub(crate) malformed: u64,
    /// The first malformed lines, with the reasons.
    pub(crate) named: Vec<Malformed>, // ≤ NAMED_MAX
    /// Values that are `NA` or empty, by column.
    pub(crate) not_available: BTreeMap<&'static str, Gaps>, // ≤ COLUMNS
    /// Reason why the rest of the file cannot be read; `None` if all was read.
    pub(crate) cut_short: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Malformed {
    pub(crate) line: u64,
    pub(crate) why: String,
}

/// Missing values of one column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Gaps {
    pub(crate) count: u64,
    pub(crate) first_lines: Vec<u64>, // ≤ NAMED_MAX
}

impl Problems {
    /// Whether flights of the file may be missing: it is cut short or corrupt, a column is missing,
    /// or no line is a flight.
    pub(crate) fn is_incomplete(&self, flights: u64) -> bool {
        self.cut_short.is_some() || !self.missing_columns.is_empty() || flights == 0
    }
}

/// A file of flight records, opened once. A pipe, which can be read only once, is copied to a
/// temporary file first, because the flights are read twice.
pub(crate) struct Input {
    path: PathBuf,
    file: File,
}

impl Input {
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            let mut copy = tempfile::tempfile().map_err(unreadable)?;
            io::copy(&mut file, &mut copy).map_err(unreadable)?;
            file = copy;
        }
        Ok(Self { path: path.to_owned(), file })
    }

    /// Reads the flights from the beginning. Only one pass at a time is possible, because passes
    /// share the position in the file.
    pub(crate) fn records(&self) -> Result<Records, FileError> {
        let unreadable = |source| FileError::Unreadable { path: self.path.clone(), source };
        let mut file = self.file.try_clone().map_err(unreadable)?;
        file.rewind().map_err(unreadable)?;
        Records::of(file, &self.path)
    }
}

/// Why a file cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("{path} can't be read: name a CSV file, plain or gzip, with --csv")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "{path} has none of the columns {}: is it in the schema of nycflights13?",
        COLUMNS.join(", ")
    )]
    OtherSchema { path: PathBuf },
}

/// Iterator over the flights of a file.
pub(crate) struct Records {
    lines: csv::Reader<Box<dyn Read + Send>>,
    places: [Option<usize>; COLUMNS.len()],
    width: usize,
    line: ByteRecord,
    flights: u64,
    pub(crate) problems: Problems,
}

impl Records {
    fn of(file: File, path: &Path) -> Result<Self, FileError> {
        let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
        let mut file = BufReader::with_capacity(1 << 16, file);
        let begins = file.fill_buf().map_err(unreadable)?;
        let bytes: Box<dyn Read + Send> = match begins.starts_with(&GZIP) {
            true => Box::new(MultiGzDecoder::new(file)),
            false => Box::new(file),
        };
        // No value of this schema contains a comma, and an unbalanced quote must not join lines.
        let mut lines = csv::ReaderBuilder::new().flexible(true).quoting(false).from_reader(bytes);
        let header = lines.byte_headers().map_err(|why| unreadable(why.into()))?;
        let place = |name: &str| header.iter().position(|field| bare(field) == name.as_bytes());
        let (places, width) = (COLUMNS.map(place), header.len());
        let missing = COLUMNS.into_iter().zip(places).filter(|(_, place)| place.is_none());
        let missing_columns: Vec<_> = missing.map(|(name, _)| name).collect();
        if missing_columns.len() == COLUMNS.len() {
            return Err(FileError::OtherSchema { path: path.to_owned() });
        }
        let problems = Problems { missing_columns, ..Problems::default() };
        Ok(Self { lines, places, width, line: ByteRecord::new(), flights: 0, problems })
    }

    fn record(&mut self) -> Result<Record, String> {
        if self.line.len() != self.width {
            return Err(format!("{} fields, the header has {}", self.line.len(), self.width));
        }
        let (tailnum, carrier) = (self.name(Column::Tailnum)?, self.name(Column::Carrier)?);
        let (origin, dest) = (self.name(Column::Origin)?, self.name(Column::Dest)?);
        let (delay, miles) = (self.number(Column::ArrDelay)?, self.number(Column::Distance)?);
        let has_times = self.places[Column::DepTime as usize].is_some();
        let cancelled = has_times && self.value(Column::DepTime).is_none();
        self.note_gaps();
        self.flights += 1;
        let (row, miles) = (self.flights, miles.unwrap_or(0));
        let flight = Flight { row, carrier, origin, dest, miles, cancelled, delay };
        Ok(Record { tailnum, flight })
    }

    /// Value of a column in the present line; `None` if it is not available.
    fn value(&self, column: Column) -> Option<&[u8]> {
        let field = self.line.get(self.places[column as usize]?)?;
        Some(bare(field)).filter(|value| !value.is_empty() && *value != NOT_AVAILABLE.as_bytes())
    }

    fn text(&self, column: Column) -> Result<Option<&str>, String> {
        let Some(value) = self.value(column) else { return Ok(None) };
        let name = COLUMNS[column as usize];
        if value.len() > NAME_BYTES_MAX {
            return Err(format!("{name} has {} bytes", value.len()));
        }
        let text = std::str::from_utf8(value).map_err(|_| format!("{name} is not UTF-8"))?;
        Ok(Some(text))
    }

    fn name(&self, column: Column) -> Result<String, String> {
        Ok(self.text(column)?.unwrap_or(NOT_AVAILABLE).to_owned())
    }

    fn number<N: std::str::FromStr>(&self, column: Column) -> Result<Option<N>, String> {
        let Some(text) = self.text(column)? else { return Ok(None) };
        let name = COLUMNS[column as usize];
        text.parse().map(Some).map_err(|_| format!("{name} is {text:?}, no number that it can be"))
    }

    fn note_gaps(&mut self) {
        let line = self.line.position().map_or(0, csv::Position::line);
        for (name, place) in COLUMNS.into_iter().zip(self.places) {
            let Some(field) = place.and_then(|place| self.line.get(place)) else { continue };
            if !matches!(bare(field), b"" | b"NA") {
                continue;
            }
            let gaps = self.problems.not_available.entry(name).or_default();
            gaps.count += 1;
            if gaps.first_lines.len() < NAMED_MAX {
                gaps.first_lines.push(line);
            }
        }
    }

    fn malformed(&mut self, why: String) {
        self.problems.malformed += 1;
        if self.problems.named.len() < NAMED_MAX {
            let line = self.line.position().map_or(0, csv::Position::line);
            self.problems.named.push(Malformed { line, why });
        }
    }
}

impl Iterator for Records {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            match self.lines.read_byte_record(&mut self.line) {
                Ok(true) => match self.record() {
                    Ok(record) => return Some(record),
                    Err(why) => self.malformed(why),
                },
                Ok(false) => return None,
                Err(why) => {
                    let line = self.lines.position().line();
                    self.problems.cut_short = Some(format!("at line {line}: {why}"));
                    return None;
                }
            }
        }
    }
}

/// Removes surrounding spaces and quotes.
fn bare(field: &[u8]) -> &[u8] {
    let field = field.trim_ascii();
    field.strip_prefix(b"\"").and_then(|field| field.strip_suffix(b"\"")).unwrap_or(field)
}
