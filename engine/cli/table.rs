//! Plain tables: names left, numbers right.

/// Rows of cells under a heading.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this heading.
    pub fn new<const N: usize>(heading: [&str; N]) -> Table {
        Table { rows: vec![heading.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows[0].len();
        let width: Vec<usize> =
            (0..columns).map(|c| self.rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0)).collect();
        for (i, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let pad = " ".repeat(width[c] - cell.chars().count());
                line += &if c == 0 { format!("{cell}{pad}") } else { format!("  {pad}{cell}") };
            }
            writeln!(f, "{}", line.trim_end())?;
            if i == 0 {
                writeln!(f, "{}", "-".repeat(width.iter().sum::<usize>() + 2 * (columns - 1)))?;
            }
        }
        Ok(())
    }
}
