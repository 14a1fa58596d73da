//! A page of headings, text, tables and pictures, written as Markdown and as HTML.

use std::fmt::Write as _;

/// A part of a page. Text may have `code` and **strong** words.
pub enum Block {
    Heading(String),
    Text(String),
    List(Vec<String>),
    /// Rows of cells, the first the heading.
    Table(Vec<Vec<String>>),
    /// A name, what it shows, and an SVG.
    Picture(String, String, String),
}

/// A page.
pub struct Page {
    title: String,
    blocks: Vec<Block>,
}

const STYLE: &str = ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;\
padding:0 1rem;color:#222;background:#fff}h1,h2{line-height:1.2}h2{margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;margin:1rem 0}th,td{padding:.25rem .6rem;border-bottom:1px \
solid #ccc;text-align:left;vertical-align:top}.n{text-align:right}svg{max-width:100%;\
height:auto;background:#fff}code{background:#8882;padding:0 .2em;border-radius:3px}@media(prefers-color-scheme:dark){body{color:\
#ddd;background:#181818}}";

impl Page {
    pub fn new(title: &str) -> Page {
        Page { title: title.to_owned(), blocks: Vec::new() }
    }

    pub fn add(&mut self, block: Block) {
        self.blocks.push(block);
    }

    /// Names and texts of its pictures.
    pub fn pictures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Picture(name, _, svg) => Some((&name[..], &svg[..])),
            _ => None,
        })
    }

    /// The page as Markdown, pictures in `pictures/STEM-NAME.svg`.
    pub fn markdown(&self, stem: &str) -> String {
        let mut text = format!("# {}\n", self.title);
        for block in &self.blocks {
            text.push('\n');
            match block {
                Block::Heading(words) => text += &format!("## {words}\n"),
                Block::Text(words) => text += &format!("{words}\n"),
                Block::List(items) => items.iter().for_each(|item| text += &format!("* {item}\n")),
                Block::Table(rows) => text += &table(rows),
                Block::Picture(name, words, _) => text += &format!("![{words}](pictures/{stem}-{name}.svg)\n"),
            }
        }
        text
    }

    /// The page as one HTML file, pictures in it.
    pub fn html(&self) -> String {
        let mut text = format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>{0}</title><style>{STYLE}</style>\n<h1>{0}</h1>\n",
            escaped(&self.title)
        );
        for block in &self.blocks {
            match block {
                Block::Heading(words) => text += &format!("<h2>{}</h2>\n", marked(words)),
                Block::Text(words) => text += &format!("<p>{}</p>\n", marked(words)),
                Block::List(items) => {
                    text += "<ul>";
                    items.iter().for_each(|item| text += &format!("<li>{}</li>", marked(item)));
                    text += "</ul>\n";
                }
                Block::Table(rows) => {
                    text += "<div class=\"wide\"><table>";
                    // A column of numbers is aligned by its end, its heading too.
                    let number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c));
                    let numbers = |column: usize| {
                        column > 0 && rows.len() > 1 && rows[1..].iter().all(|row| row.get(column).is_none_or(number))
                    };
                    for (i, row) in rows.iter().enumerate() {
                        let tag = if i == 0 { "th" } else { "td" };
                        text += "<tr>";
                        for (column, cell) in row.iter().enumerate() {
                            let class = if numbers(column) { " class=\"n\"" } else { "" };
                            text += &format!("<{tag}{class}>{}</{tag}>", marked(cell));
                        }
                        text += "</tr>";
                    }
                    text += "</table></div>\n";
                }
                Block::Picture(_, words, svg) => {
                    text += &format!("<figure role=\"img\" aria-label=\"{}\">{svg}</figure>\n", escaped(words));
                }
            }
        }
        text + "</html>\n"
    }
}

fn table(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if i == 0 {
            let _ = writeln!(text, "|{}", " --- |".repeat(row.len()));
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// HTML of text with `code` and **strong** words; a mark without its end is a letter.
fn marked(text: &str) -> String {
    let mut rest = escaped(text);
    for (mark, tag) in [("`", "code"), ("**", "strong")] {
        let mut out = String::new();
        while let Some((before, inner, after)) =
            rest.split_once(mark).and_then(|(a, rest)| rest.split_once(mark).map(|(b, c)| (a, b, c)))
        {
            out += &format!("{before}<{tag}>{inner}</{tag}>");
            rest = after.to_owned();
        }
        rest = out + &rest;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_everything_and_markup_is_no_markup() {
        let mut page = Page::new("A <b>");
        page.add(Block::Heading("h".into()));
        page.add(Block::Text("**x** is `a<b`, 2 ** 3".into()));
        page.add(Block::Table(vec![vec!["k".into(), "v".into()], vec!["a|b".into(), "1".into()]]));
        page.add(Block::List(vec!["one".into()]));
        page.add(Block::Picture("p".into(), "dots".into(), "<svg/>".into()));
        let markdown = page.markdown("results");
        for part in ["# A <b>", "## h", "| a\\|b | 1 |", "* one", "![dots](pictures/results-p.svg)"] {
            assert!(markdown.contains(part), "{part}\n{markdown}");
        }
        let html = page.html();
        for part in [
            "<h1>A &lt;b&gt;</h1>",
            "<strong>x</strong> is <code>a&lt;b</code>, 2 ** 3",
            "<td>a|b</td>",
            "<li>one</li>",
            "<svg/>",
        ] {
            assert!(html.contains(part), "{part}\n{html}");
        }
    }
}
