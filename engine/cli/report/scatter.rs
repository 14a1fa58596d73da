//! Loss of quality by D, a dot a configuration.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A configuration.
pub struct Dot {
    pub arm: String,
    pub group: String,
    /// D in training, nats per token.
    pub nats: f64,
    /// How much worse it ends than the baseline.
    pub worse: f64,
    /// Half of the 95% interval of that.
    pub half: f64,
}

/// Flat, then rising with ln D.
pub struct Curve {
    knee: f64,
    level: f64,
    slope: f64,
}

impl Curve {
    pub fn at(&self, nats: f64) -> f64 {
        self.level + self.slope * (nats / self.knee).ln().max(0.0)
    }
}

/// The curve of least squares, its knee at one of the points.
#[allow(clippy::cast_precision_loss)] // counts
pub fn curve(points: &[(f64, f64)]) -> Curve {
    let n = points.len() as f64;
    let fit = |knee: f64| {
        let x: Vec<f64> = points.iter().map(|p| (p.0 / knee).ln().max(0.0)).collect();
        let (mx, my) = (x.iter().sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
        let xx: f64 = x.iter().map(|x| (x - mx).powi(2)).sum();
        let xy: f64 = x.iter().zip(points).map(|(x, p)| (x - mx) * (p.1 - my)).sum();
        let slope = if xx > 0.0 { xy / xx } else { 0.0 };
        let curve = Curve { knee, level: my - slope * mx, slope };
        let rss: f64 = points.iter().map(|p| (p.1 - curve.at(p.0)).powi(2)).sum();
        (rss, curve)
    };
    let knees = points.iter().map(|p| p.0).filter(|&d| d > 0.0);
    let best = knees.map(fit).min_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or(Curve { knee: 1.0, level: 0.0, slope: 0.0 }, |(_, curve)| curve)
}

const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 110, 20),
    RGBColor(44, 140, 60),
    RGBColor(170, 50, 120),
    RGBColor(120, 90, 60),
    RGBColor(90, 90, 90),
];
const INK: RGBColor = RGBColor(45, 45, 45);
const FAINT: RGBColor = RGBColor(225, 225, 225);
const MARGIN: RGBColor = RGBColor(200, 60, 40);

/// # Errors
/// When the drawing library cannot, in its words.
pub fn draw(dots: &[Dot], margin: f64, curve: Option<&Curve>) -> Result<String, String> {
    let text = |e: DrawingAreaErrorKind<std::io::Error>| e.to_string();
    let mut groups: Vec<&str> = dots.iter().map(|dot| &dot.group[..]).collect();
    groups.sort_unstable();
    groups.dedup();
    let of = |group: &str| COLOURS[groups.iter().position(|g| *g == group).unwrap_or(0) % COLOURS.len()];
    let seen: Vec<&Dot> = dots.iter().filter(|dot| dot.nats > 0.0).collect();
    let ends = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)))
    };
    let x = ends(&mut seen.iter().map(|dot| dot.nats));
    let y = ends(&mut seen.iter().flat_map(|dot| [dot.worse - dot.half, dot.worse + dot.half]).chain([0.0, margin]));
    let (x, room) = ((x.0 / 1.6, x.1 * 1.6), 0.06 * (y.1 - y.0));
    let y = (y.0 - room, y.1 + room);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (820, 440)).into_drawing_area();
        root.fill(&WHITE).map_err(text)?;
        let mut chart = ChartBuilder::on(&root)
            .margin(14)
            .margin_top(34)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d((x.0..x.1).log_scale(), y.0..y.1)
            .map_err(text)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .x_desc("mismatch D in training, nats per token")
            .y_desc("worse than the baseline by")
            .x_label_formatter(&|d| format!("{d}"))
            .y_label_formatter(&|y| format!("{y:.2}"))
            .label_style(("sans-serif", 13))
            .draw()
            .map_err(text)?;
        let across = [(x.0, margin), (x.1, margin)];
        chart.draw_series(DashedLineSeries::new(across, 6, 4, MARGIN.stroke_width(1))).map_err(text)?;
        chart.draw_series(LineSeries::new([(x.0, 0.0), (x.1, 0.0)], INK.mix(0.4).stroke_width(1))).map_err(text)?;
        if let Some(curve) = curve {
            let at = |i: i32| x.0 * (x.1 / x.0).powf(f64::from(i) / 200.0);
            let line = (0..=200).map(at).map(|d| (d, curve.at(d)));
            chart.draw_series(LineSeries::new(line, INK.stroke_width(2))).map_err(text)?;
        }
        for dot in &seen {
            let colour = of(&dot.group);
            let bar = [(dot.nats, dot.worse - dot.half), (dot.nats, dot.worse + dot.half)];
            chart.draw_series([PathElement::new(bar, colour.mix(0.4).stroke_width(1))]).map_err(text)?;
            chart.draw_series([Circle::new((dot.nats, dot.worse), 4, colour.filled())]).map_err(text)?;
        }
        let mut left = 80;
        for group in &groups {
            let colour = of(group);
            root.draw(&Circle::new((left, 18), 4, colour.filled())).map_err(text)?;
            let style =
                TextStyle::from(("sans-serif", 13).into_font()).color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw_text(group, &style, (left + 9, 18)).map_err(text)?;
            left += 30 + 8 * i32::try_from(group.chars().count()).unwrap_or(10);
        }
        root.present().map_err(text)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_finds_its_knee_and_every_dot_is_drawn() {
        let truth = |d: f64| 0.1 + 0.5 * (d / 0.1_f64).ln().max(0.0);
        let points: Vec<(f64, f64)> = [0.001, 0.01, 0.1, 1.0, 3.0].map(|d| (d, truth(d))).to_vec();
        let found = curve(&points);
        assert!((found.knee - 0.1).abs() < 1e-12 && (found.slope - 0.5).abs() < 1e-9, "{} {}", found.knee, found.slope);
        let dot = |(nats, worse)| Dot { arm: "a".into(), group: "g".into(), nats, worse, half: 0.1 };
        let dots: Vec<Dot> = points.into_iter().map(dot).collect();
        let svg = draw(&dots, 0.1, Some(&found)).unwrap();
        assert_eq!(svg.matches("<circle").count(), dots.len() + 1);
    }
}
