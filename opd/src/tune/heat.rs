//! The heat map of costs: layers down, kinds of unit across, colour by the logarithm of D.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::unit::{Kind, Unit};

/// A unit with its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Which.
    pub unit: Unit,
    /// D in nats per token.
    pub d_nats: f64,
    /// Whether the recipe quantises it.
    pub chosen: bool,
}

const LEFT: i32 = 64;
const TOP: i32 = 58;
const CELL: (i32, i32) = (64, 16);
/// Width of everything right of the cells.
const LEGEND: i32 = 150;
/// Height of the colour scale.
const SCALE: i32 = 180;
/// Half decades that the colours tell apart; what lies below has the lightest.
const STEPS: i32 = 10;
/// From little to much: light yellow to dark red, darker throughout, so that it survives grey print.
const RAMP: [RGBColor; 6] = [
    RGBColor(255, 249, 219),
    RGBColor(254, 217, 118),
    RGBColor(253, 150, 65),
    RGBColor(236, 80, 40),
    RGBColor(180, 10, 35),
    RGBColor(90, 0, 40),
];
const NOTHING: RGBColor = RGBColor(232, 236, 240);
const INK: RGBColor = RGBColor(40, 40, 40);

/// Colours over half decades, of which the ends are numbers.
struct Colours {
    low: i32,
    high: i32,
}

impl Colours {
    fn of(cells: &[Cell]) -> Colours {
        let exponents = || cells.iter().filter(|cell| cell.d_nats > 0.0).map(|cell| 2.0 * cell.d_nats.log10());
        let (least, most) = (exponents().fold(f64::INFINITY, f64::min), exponents().fold(f64::NEG_INFINITY, f64::max));
        if !most.is_finite() {
            return Colours { low: -2, high: 0 };
        }
        let high = whole(most.ceil());
        Colours { low: whole(least.floor()).clamp(high - STEPS, high - 2), high }
    }

    /// Where a cost lies between the ends, 0 to 1.
    fn place(&self, d_nats: f64) -> f64 {
        ((2.0 * d_nats.log10() - f64::from(self.low)) / f64::from(self.high - self.low)).clamp(0.0, 1.0)
    }
}

#[allow(clippy::cast_possible_truncation)] // exponents of positive numbers lie within +-400
fn whole(x: f64) -> i32 {
    x as i32
}

fn colour(place: f64) -> RGBColor {
    let steps = RAMP.len() - 1;
    #[allow(clippy::cast_precision_loss)] // six colours
    let at = place * steps as f64;
    let below = usize::try_from(whole(at)).expect("a place is not negative").min(steps - 1);
    let share = at - f64::from(u32::try_from(below).expect("six colours"));
    let mix = |a: u8, b: u8| {
        let x = f64::from(a) + share * (f64::from(b) - f64::from(a));
        u8::try_from(whole(x.round())).expect("between two bytes")
    };
    let (a, b) = (RAMP[below], RAMP[below + 1]);
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// The picture as SVG; a dot marks what the recipe quantises. `title` stands above it.
pub fn draw(cells: &[Cell], title: &str) -> Result<String, String> {
    let kinds: Vec<&str> = Kind::ALL
        .into_iter()
        .map(Kind::name)
        .filter(|name| cells.iter().any(|c| c.unit.kind_name() == *name))
        .collect();
    let int = |n: usize| i32::try_from(n).expect("layers and kinds are few");
    let layers = int(cells.iter().filter_map(|cell| cell.unit.layer()).max().map_or(0, |most| most + 1));
    let head = cells.iter().any(|cell| cell.unit == Unit::Head);
    // The head's row stands apart.
    let row_top = |row: i32| TOP + row * CELL.1 + if row == layers { 6 } else { 0 };
    let (width, height) =
        (LEFT + int(kinds.len().max(1)) * CELL.0 + LEGEND, row_top(layers) + i32::from(head) * CELL.1 + 16);
    let height = height.max(TOP + SCALE + 84);
    let colours = Colours::of(cells);
    let mut svg = String::new();
    {
        let size = [width, height].map(|x| u32::try_from(x).expect("sizes are positive"));
        let root = SVGBackend::with_string(&mut svg, (size[0], size[1])).into_drawing_area();
        let fault = |e: DrawingAreaErrorKind<std::io::Error>| e.to_string();
        let text = |words: String, x: i32, y: i32, size: i32, h: HPos| {
            let style = ("sans-serif", size).into_font().color(&INK).pos(Pos::new(h, VPos::Center));
            root.draw(&Text::new(words, (x, y), style)).map_err(fault)
        };
        root.fill(&WHITE).map_err(fault)?;
        text(title.to_owned(), 12, 16, 15, HPos::Left)?;
        for (column, name) in kinds.iter().enumerate() {
            let name = name.strip_suffix("_proj").map_or(format!("{name} cache"), str::to_owned);
            text(name, LEFT + int(column) * CELL.0 + CELL.0 / 2, TOP - 12, 12, HPos::Center)?;
        }
        let every = if layers > 48 { 2 } else { 1 };
        for layer in (0..layers).step_by(every) {
            text(layer.to_string(), LEFT - 8, row_top(layer) + CELL.1 / 2, 11, HPos::Right)?;
        }
        text("layer".into(), LEFT - 8, TOP - 12, 12, HPos::Right)?;
        if head {
            text("head".into(), LEFT - 8, row_top(layers) + CELL.1 / 2, 12, HPos::Right)?;
        }
        for cell in cells {
            let (row, column) = match cell.unit.layer() {
                Some(layer) => (int(layer), kinds.iter().position(|name| *name == cell.unit.kind_name())),
                None => (layers, Some(0)),
            };
            let (x, y) = (LEFT + int(column.expect("its kind is a column")) * CELL.0, row_top(row));
            let fill = if cell.d_nats > 0.0 { colour(colours.place(cell.d_nats)) } else { NOTHING };
            root.draw(&Rectangle::new([(x, y), (x + CELL.0 - 1, y + CELL.1 - 1)], fill.filled())).map_err(fault)?;
            if cell.chosen {
                let dark = cell.d_nats > 0.0 && colours.place(cell.d_nats) > 0.55;
                let ink = if dark { WHITE } else { INK };
                let centre = (x + CELL.0 / 2, y + CELL.1 / 2);
                root.draw(&Circle::new(centre, 3, ink.filled())).map_err(fault)?;
            }
        }
        let x = width - LEGEND + 24;
        text("D alone, nats per token".into(), x, TOP - 12, 12, HPos::Left)?;
        for step in 0..SCALE {
            let place = 1.0 - f64::from(step) / f64::from(SCALE - 1);
            let y = TOP + step;
            root.draw(&Rectangle::new([(x, y), (x + 16, y + 1)], colour(place).filled())).map_err(fault)?;
        }
        for step in colours.low..=colours.high {
            let y = TOP + SCALE * (colours.high - step) / (colours.high - colours.low);
            root.draw(&PathElement::new([(x + 16, y), (x + 21, y)], INK)).map_err(fault)?;
            let lead = if step % 2 == 0 { 1 } else { 3 };
            text(format!("{lead}e{}", step.div_euclid(2)), x + 26, y, 12, HPos::Left)?;
        }
        let y = TOP + SCALE + 24;
        root.draw(&Rectangle::new([(x, y), (x + 16, y + CELL.1 - 1)], NOTHING.filled())).map_err(fault)?;
        text("exactly 0".into(), x + 26, y + CELL.1 / 2, 12, HPos::Left)?;
        root.draw(&Circle::new((x + 8, y + 32), 3, INK.filled())).map_err(fault)?;
        text("8 bits in the recipe".into(), x + 26, y + 32, 12, HPos::Left)?;
        root.present().map_err(fault)?;
    }
    Ok(svg)
}
