//! Reading of flight records: plain and gzip files and pipes, malformed lines, missing columns and
//! values, and truncated files.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

use crate::records::{FileError, Flight, Gaps, Input, Malformed, Problems, Record, Records};

const HEADER: &str = "year,dep_time,arr_delay,carrier,tailnum,origin,dest,distance";

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("a temporary file");
    file
}

fn open(path: &Path) -> Result<Records, FileError> {
    Input::open(path)?.records()
}

fn read(bytes: &[u8]) -> (Vec<Record>, Problems) {
    let file = file(bytes);
    let mut records = open(file.path()).expect("it has the columns");
    let all = records.by_ref().collect();
    (all, records.problems)
}

fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text.as_bytes()).expect("writes to memory");
    gzip.finish().expect("writes to memory")
}

fn flight(row: u64) -> Record {
    let (carrier, origin, dest) = ("UA".to_owned(), "EWR".to_owned(), "IAH".to_owned());
    let flight =
        Flight { row, carrier, origin, dest, miles: 1_400, cancelled: false, delay: Some(-11) };
    Record { tailnum: "N14228".to_owned(), flight }
}

#[test]
fn plain_and_gzip_give_the_same_flights() {
    let text = format!("{HEADER}\n2013,517,-11,UA,N14228,EWR,IAH,1400\n");
    let expected = (vec![flight(1)], Problems::default());
    assert_eq!(read(text.as_bytes()), expected);
    assert_eq!(read(&gzip(&text)), expected);
}

#[test]
fn quotes_spaces_and_line_ends_are_stripped_from_values() {
    let text = "\"year\",\"dep_time\",\"arr_delay\",\"carrier\",\"tailnum\",\"origin\",\"dest\",\
                \"distance\"\r\n2013,517,-11,\"UA\", N14228 ,\"EWR\",\"IAH\",1400\r\n";
    assert_eq!(read(text.as_bytes()), (vec![flight(1)], Problems::default()));
}

#[test]
fn malformed_lines_are_named_and_skipped() {
    let good = "2013,517,-11,UA,N14228,EWR,IAH,1400";
    let long = "N".repeat(65);
    let mut bytes = format!(
        "{HEADER}\n{good}\n2013,517\n2013,517,late,UA,N14228,EWR,IAH,1400\n{good}\n\
         2013,517,1,UA,N14228,EWR,IAH,-3\n2013,517,1,UA,{long},EWR,IAH,3\n\
         2013,517,1,\"UA,N14228,EWR,IAH,3,4\n"
    )
    .into_bytes();
    bytes.extend_from_slice(b"2013,517,1,UA,N\xff,EWR,IAH,3\n");
    bytes.extend_from_slice(good.as_bytes());
    let (flights, problems) = read(&bytes);
    assert_eq!(flights, [flight(1), flight(2), flight(3)]);
    let named = |line, why: &str| Malformed { line, why: why.to_owned() };
    let expected = [
        named(3, "2 fields, the header has 8"),
        named(4, "arr_delay is \"late\", no number that it can be"),
        named(6, "distance is \"-3\", no number that it can be"),
        named(7, "tailnum has 65 bytes"),
        named(8, "9 fields, the header has 8"),
        named(9, "tailnum is not UTF-8"),
    ];
    assert_eq!((problems.malformed, &problems.named[..]), (6, &expected[..]));
}

#[test]
fn ten_malformed_lines_are_named_and_all_counted() {
    let (flights, problems) = read(format!("{HEADER}\n{}", "x\n".repeat(25)).as_bytes());
    assert_eq!((flights.len(), problems.malformed, problems.named.len()), (0, 25, 10));
}

#[test]
fn missing_values_are_counted_by_column_and_line() {
    let (flights, problems) = read(
        format!("{HEADER}\n2013,NA,NA,UA,NA,EWR,IAH,\n2013,NA,3,UA,N1,EWR,IAH,7\n").as_bytes(),
    );
    assert!(flights[0].flight.cancelled && flights[1].flight.cancelled);
    assert_eq!((flights[0].tailnum.as_str(), flights[0].flight.miles), ("NA", 0));
    let gaps = |lines: &[u64]| Gaps { count: lines.len() as u64, first_lines: lines.to_vec() };
    let expected = [
        ("arr_delay", gaps(&[2])),
        ("dep_time", gaps(&[2, 3])),
        ("distance", gaps(&[2])),
        ("tailnum", gaps(&[2])),
    ];
    assert_eq!(problems.not_available, expected.into_iter().collect());
}

#[test]
fn missing_column_is_named_and_its_values_are_unknown() {
    let (flights, problems) = read(b"carrier,tailnum,origin,dest\nUA,N1,EWR,IAH\n");
    assert_eq!(problems.missing_columns, ["dep_time", "arr_delay", "distance"]);
    let Flight { cancelled, delay, miles, .. } = &flights[0].flight;
    assert_eq!((*cancelled, *delay, *miles), (false, None, 0));
}

#[test]
fn truncated_file_yields_its_readable_part() {
    let text = format!("{HEADER}\n{}", "2013,517,-11,UA,N14228,EWR,IAH,1400\n".repeat(20_000));
    let bytes = gzip(&text);
    let (flights, problems) = read(&bytes[..bytes.len() / 2]);
    assert!(!flights.is_empty() && flights.len() < 20_000, "{}", flights.len());
    assert!(problems.cut_short.is_some());
}

#[test]
fn file_of_another_kind_is_refused_with_advice() {
    let other = file(b"name,price\ntea,3\n");
    let Err(error) = open(other.path()) else { panic!("opened a file of another kind") };
    assert!(matches!(error, FileError::OtherSchema { .. }), "{error}");
    let Err(error) = open("no/such/file".as_ref()) else {
        panic!("opened a file that does not exist")
    };
    assert!(error.to_string().contains("--csv"), "{error}");
}

#[test]
fn pipe_is_read_once_and_gives_two_equal_passes() {
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .expect("a pipe");
    let text = format!("{HEADER}\n{}", "2013,517,-11,UA,N14228,EWR,IAH,1400\n".repeat(10_000));
    let bytes = gzip(&text);
    let writer = {
        let pipe = pipe.clone();
        std::thread::spawn(move || std::fs::write(pipe, bytes))
    };
    let input = Input::open(&pipe).expect("it is read");
    writer.join().expect("it ends").expect("all of it is read");
    for pass in 1..=2 {
        let flights = input.records().expect("it has the columns").count();
        assert_eq!(flights, 10_000, "pass {pass}");
    }
}

#[test]
fn input_that_may_lack_flights_is_incomplete() {
    let line = "2013,517,-11,UA,N14228,EWR,IAH,1400\n";
    let full = format!("{HEADER}\n{}", line.repeat(20_000));
    let half = &gzip(&full)[..1_000];
    let mut flipped = gzip(&full);
    let at = flipped.len() / 2;
    flipped[at] ^= 1;
    let without = HEADER.replace(",distance", "");
    let incomplete: [&[u8]; 5] = [
        half,
        &flipped,
        format!("{HEADER}\n{}", "x\n".repeat(100)).as_bytes(),
        format!("{without}\n2013,517,-11,UA,N14228,EWR,IAH\n").as_bytes(),
        format!("{HEADER}\n").as_bytes(),
    ]
    .map(|bytes| -> &[u8] { Box::leak(bytes.to_vec().into_boxed_slice()) });
    for bytes in incomplete {
        let (flights, problems) = read(bytes);
        assert!(problems.is_incomplete(flights.len() as u64), "{problems:?}");
    }
    let (flights, problems) = read(format!("{HEADER}\n{line}x\n").as_bytes());
    assert!(!problems.is_incomplete(flights.len() as u64), "one bad line is only named");
}
