//! Text tables for the output of commands.

use super::printable::one_line;

/// Formats a line of heads and a line per row, as aligned columns. Columns that are empty in all
/// rows are left out with their head; without rows only an empty line remains. Escapes harmful
/// characters of cells, line ends included. Lines have no trailing spaces. Widths are counted in
/// characters, so characters of double width shift the columns behind them.
pub(super) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let printable = |row: &[String; N]| row.each_ref().map(|cell| one_line(cell).into_owned());
    let rows: Vec<[String; N]> = rows.iter().map(printable).collect();
    let width = |at: usize| {
        let longest = rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        if longest == 0 { None } else { Some(longest.max(heads[at].len())) }
    };
    let widths: Vec<Option<usize>> = (0..N).map(width).collect();
    let line = |cells: &[String; N]| {
        let shown = cells.iter().zip(&widths).filter_map(|(cell, width)| {
            let width = (*width)?;
            Some(format!("{cell:width$}"))
        });
        shown.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let head = line(&heads.map(str::to_owned));
    let rows: String = rows.iter().map(line).collect();
    head + &rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_ones_omitted() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [row(["ä", "", "10"]), row(["longer", "", ""])];
        assert_eq!(table(["NAME", "ROLES", "N"], &rows), "NAME    N\nä       10\nlonger\n");
        let forged = [row(["a\nb", "", ""])];
        assert_eq!(table(["NAME", "ROLES", "N"], &forged), "NAME\na\\u{a}b\n", "it stays one row");
    }
}
