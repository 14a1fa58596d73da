//! The dose-response picture: what final quality lost at each D, drawn from the certificate alone.

use budget::certificate::{Certificate, Family, Kind, Metric};
use budget::ladder::Verdict;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Area<'a, 'b> = DrawingArea<SVGBackend<'a>, Shift>;

const INK: RGBColor = RGBColor(45, 45, 45);
const FAINT: RGBColor = RGBColor(225, 225, 225);
const ZERO: RGBColor = RGBColor(150, 150, 150);
const MARGIN: RGBColor = RGBColor(200, 60, 40);
const BLUE: RGBColor = RGBColor(31, 119, 180);
const ORANGE: RGBColor = RGBColor(214, 110, 20);

/// Draws all families, one below the other, with the same axes.
///
/// # Errors
/// When the drawing library cannot, in its words.
pub fn draw(certificate: &Certificate) -> Result<String, String> {
    let mut svg = String::new();
    {
        let panels = certificate.families.len();
        let height = u32::try_from(panels).expect("two families") * 340 + 20;
        let root = SVGBackend::with_string(&mut svg, (820, height)).into_drawing_area();
        let text = |e: DrawingAreaErrorKind<std::io::Error>| e.to_string();
        root.fill(&WHITE).map_err(text)?;
        let frame = Frame::of(certificate);
        for (area, family) in root.split_evenly((panels, 1)).iter().zip(&certificate.families) {
            panel(area, certificate, family, frame).map_err(text)?;
        }
        root.present().map_err(text)?;
    }
    Ok(svg)
}

/// The axes that panels share: D in nats, difference in the unit shown.
#[derive(Clone, Copy)]
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn of(certificate: &Certificate) -> Frame {
        let factor = factor(certificate.metric);
        let all: Vec<(f64, f64)> = certificate.families.iter().flat_map(|family| dots(certificate, family)).collect();
        let intervals = certificate.families.iter().flat_map(|family| &family.rungs);
        let ends = intervals.flat_map(|rung| [rung.difference.ci95.low, rung.difference.ci95.high]).map(|y| y * factor);
        let ys: Vec<f64> = all.iter().map(|p| p.1).chain(ends).chain([0.0, -certificate.margin * factor]).collect();
        let least = |it: &mut dyn Iterator<Item = f64>| it.fold(f64::INFINITY, f64::min);
        let most = |it: &mut dyn Iterator<Item = f64>| it.fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = (least(&mut ys.iter().copied()), most(&mut ys.iter().copied()));
        let room = 0.08 * (high - low).max(1e-9);
        let xs = || all.iter().map(|p| p.0).filter(|&d| d > 0.0);
        let x = (least(&mut xs()), most(&mut xs()));
        let x = if x.0.is_finite() { (x.0 / 1.6, x.1 * 1.6) } else { (1e-3, 1.0) };
        // Room above for a line of words.
        Frame { x, y: (low - room, high + 3.0 * room) }
    }
}

/// What a difference is multiplied by to be shown: accuracies in points.
fn factor(metric: Metric) -> f64 {
    match metric {
        Metric::Accuracy => 100.0,
        Metric::KlTeacher => 1.0,
    }
}

/// Every run: measured D and its difference from its baseline, as shown.
fn dots(certificate: &Certificate, family: &Family) -> Vec<(f64, f64)> {
    let (metric, baseline) = (certificate.metric, &certificate.baseline.after);
    let of = |&(d, (after, before)): &(f64, (f64, f64))| {
        (d, (metric.quality(after) - metric.quality(before)) * factor(metric))
    };
    let runs = family.rungs.iter().flat_map(|rung| {
        let pairs = rung.after.iter().copied().zip(baseline.iter().copied());
        rung.d_nats_by_seed.iter().copied().zip(pairs)
    });
    runs.map(|run| of(&run)).collect()
}

fn panel(
    area: &Area<'_, '_>,
    certificate: &Certificate,
    family: &Family,
    frame: Frame,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let (factor, color) = (factor(certificate.metric), colour(family.family));
    let (x, y) = (frame.x, frame.y);
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .margin_top(30)
        .x_label_area_size(40)
        .y_label_area_size(78)
        .build_cartesian_2d((x.0..x.1).log_scale(), y.0..y.1)?;
    let unit = match certificate.metric {
        Metric::Accuracy => "accuracy less the baseline's, points",
        Metric::KlTeacher => "baseline's KL to teacher less its own, nats",
    };
    let digits = if y.1 - y.0 < 0.1 {
        3
    } else if y.1 - y.0 < 5.0 {
        2
    } else {
        0
    };
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .x_desc("mismatch D, nats per token")
        .y_desc(unit)
        .x_label_formatter(&|d| format!("{d}"))
        .y_label_formatter(&|&y| label(y, digits))
        .label_style(("sans-serif", 13))
        .draw()?;
    chart.draw_series(LineSeries::new([(x.0, 0.0), (x.1, 0.0)], ZERO.stroke_width(1)))?;
    let margin = -certificate.margin * factor;
    chart.draw_series(DashedLineSeries::new([(x.0, margin), (x.1, margin)], 6, 4, MARGIN.stroke_width(1)))?;
    // A fall is drawn where the budget rests on it.
    if let Some(hinge) = family.fits.and_then(|fits| fits.hinge).filter(|hinge| hinge.knee.is_some()) {
        let steps = 200;
        let at = |i: i32| x.0 * (x.1 / x.0).powf(f64::from(i) / f64::from(steps));
        let line = (0..=steps).map(at).map(|d| (d, -hinge.at.loss(d) * factor)).take_while(|p| p.1 >= y.0);
        chart.draw_series(LineSeries::new(line, INK.stroke_width(2)))?;
    }
    for (name, d, width) in [("budget", family.budget_nats, 2), ("lower limit", family.lower_nats, 1)] {
        if d > x.0 && d < x.1 && !family.at_least && (name == "budget" || family.lower_nats < family.budget_nats) {
            chart.draw_series(DashedLineSeries::new([(d, y.0), (d, y.1)], 3, 3, color.stroke_width(width)))?;
            let (place, (left, top)) = (chart.backend_coord(&(d, y.0)), area.get_base_pixel());
            // The lower limit is to the left of the budget, and so are its words.
            let (side, gap) = if name == "budget" { (HPos::Left, 5) } else { (HPos::Right, -5) };
            area.draw_text(name, &style(12, &color, side), (place.0 - left + gap, place.1 - top - 18))?;
        }
    }
    let cloud = dots(certificate, family);
    chart.draw_series(cloud.iter().map(|&p| Circle::new(p, 3, color.mix(0.45).filled())))?;
    for rung in &family.rungs {
        let (d, mean) = (rung.d_nats, rung.difference.mean * factor);
        let (low, high) = (rung.difference.ci95.low * factor, rung.difference.ci95.high * factor);
        chart.draw_series([PathElement::new([(d, low), (d, high)], INK.stroke_width(2))])?;
        chart.draw_series([Circle::new((d, mean), 5, INK.filled()), Circle::new((d, mean), 3, WHITE.filled())])?;
    }
    area.draw_text(&title(certificate, family), &style(15, &color, HPos::Left), (92, 8))?;
    let place = chart.backend_coord(&(x.1, margin));
    let (left, top) = area.get_base_pixel();
    let words = style(12, &MARGIN, HPos::Right);
    area.draw_text("margin", &words, (place.0 - left - 4, place.1 - top + 3))?;
    Ok(())
}

/// A number on the axis; zero has no sign, however it came about.
fn label(y: f64, digits: usize) -> String {
    let text = format!("{y:.digits$}");
    if text.trim_start_matches(['-', '0', '.']).is_empty() { text.replace('-', "") } else { text }
}

fn style(size: i32, color: &RGBColor, horizontal: HPos) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", size).into_font()).color(color).pos(Pos::new(horizontal, VPos::Top))
}

fn colour(kind: Kind) -> RGBColor {
    match kind {
        Kind::ZeroMean => BLUE,
        Kind::Coherent => ORANGE,
    }
}

fn title(certificate: &Certificate, family: &Family) -> String {
    let kind = match family.family {
        Kind::ZeroMean => "zero-mean",
        Kind::Coherent => "coherent",
    };
    let budget = match family.verdict {
        _ if family.budget_nats == 0.0 => "no rung passed".to_owned(),
        Verdict::AtLeast => format!("budget at least {:.3} nats per token, no rung failed", family.budget_nats),
        Verdict::Knee => {
            format!("budget {:.3} nats per token, lower limit {:.3}", family.budget_nats, family.lower_nats)
        }
        Verdict::Unclear => {
            format!("budget {:.3} nats per token, beyond it scatter is too large to tell", family.budget_nats)
        }
    };
    format!("{kind} mismatch, {} seeds: {budget}", certificate.seeds.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every run is a dot, every rung has a mean, and every family says what its budget is.
    #[test]
    fn every_run_is_drawn() {
        let text = include_str!("../../../tests/fixtures/certificate.json");
        let certificate = Certificate::parse(text, "certificate.json").unwrap();
        let svg = draw(&certificate).unwrap();
        let rungs: usize = certificate.families.iter().map(|family| family.rungs.len()).sum();
        assert_eq!(svg.matches("<circle").count(), rungs * (certificate.seeds.len() + 2), "dots and two rings a rung");
        for words in ["zero-mean mismatch, ", "coherent mismatch, ", "margin", "mismatch D, nats per token", "at least"]
        {
            assert!(svg.contains(words), "{words}");
        }
        assert_eq!(svg, draw(&certificate).unwrap());
    }
}
