//! The picture of a run: loss, distance to the teacher and mismatch by update, drawn from its `metrics.jsonl`.

use std::fs;
use std::path::{Path, PathBuf};

use plotters::prelude::*;
use serde_json::Value;

/// Why a curve cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CurveError {
    /// The metrics cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The picture cannot be written.
    #[error("{path}: {what}", path = path.display())]
    Draw {
        /// The file.
        path: PathBuf,
        /// Why.
        what: String,
    },
}

/// One line of a panel.
struct Series {
    name: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

const BLUE: RGBColor = RGBColor(31, 119, 180);
const ORANGE: RGBColor = RGBColor(214, 110, 20);
const GREEN: RGBColor = RGBColor(40, 140, 60);

/// Draws `curve.svg` in the run's folder and returns its path.
pub fn write(out: &Path) -> Result<PathBuf, CurveError> {
    let path = out.join("metrics.jsonl");
    let text = fs::read_to_string(&path).map_err(|source| CurveError::Read { path, source })?;
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let by_update = |key: &str| -> Vec<(f64, f64)> {
        lines.iter().filter_map(|l| Some((l["update"].as_f64()?, l[key].as_f64()?))).collect()
    };
    let by_eval = |key: &str, factor: f64| -> Vec<(f64, f64)> {
        lines.iter().filter_map(|l| Some((l["eval"]["update"].as_f64()?, l["eval"][key].as_f64()? * factor))).collect()
    };
    let file = out.join("curve.svg");
    let svg = draw(&[
        (
            "nats per token",
            vec![
                Series { name: "KL to teacher, rollouts", color: BLUE, points: by_update("kl_teacher") },
                Series { name: "KL to teacher, evaluation", color: ORANGE, points: by_eval("kl_teacher", 1.0) },
            ],
        ),
        ("accuracy, %", vec![Series { name: "evaluation", color: GREEN, points: by_eval("accuracy", 100.0) }]),
        (
            "mismatch, nats per token",
            vec![
                Series { name: "D, exact", color: BLUE, points: by_update("mismatch_nats") },
                Series { name: "k3, sampled", color: ORANGE, points: by_update("k3") },
            ],
        ),
    ])
    .map_err(|what| CurveError::Draw { path: file.clone(), what })?;
    fs::write(&file, svg).map_err(|source| CurveError::Read { path: file.clone(), source })?;
    Ok(file)
}

fn draw(panels: &[(&str, Vec<Series>)]) -> Result<String, String> {
    let panels: Vec<_> = panels.iter().filter(|(_, s)| s.iter().any(|s| !s.points.is_empty())).collect();
    let mut svg = String::new();
    {
        let height = u32::try_from(panels.len()).expect("three panels") * 240 + 20;
        let root = SVGBackend::with_string(&mut svg, (760, height.max(60))).into_drawing_area();
        let text = |e: DrawingAreaErrorKind<std::io::Error>| e.to_string();
        root.fill(&WHITE).map_err(text)?;
        for (area, (unit, series)) in root.split_evenly((panels.len().max(1), 1)).iter().zip(&panels) {
            let points = || series.iter().flat_map(|s| &s.points);
            let x_max = points().map(|p| p.0).fold(1.0, f64::max);
            let y_max = points().map(|p| p.1).fold(0.0, f64::max);
            let y_max = if y_max > 0.0 { y_max * 1.05 } else { 1.0 };
            let mut chart = ChartBuilder::on(area)
                .margin(12)
                .margin_top(30)
                .x_label_area_size(34)
                .y_label_area_size(70)
                .build_cartesian_2d(0.0..x_max, 0.0..y_max)
                .map_err(text)?;
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(RGBColor(225, 225, 225))
                .x_desc("update")
                .y_desc(*unit)
                .x_labels(whole_steps(x_max))
                .x_label_formatter(&|x| format!("{x:.0}"))
                .y_label_formatter(&|&y| label(y, y_max))
                .label_style(("sans-serif", 13))
                .draw()
                .map_err(text)?;
            // Names stand above the axes, where no line is.
            for (at, s) in (0..).zip(series.iter().filter(|s| !s.points.is_empty())) {
                let color = s.color;
                chart.draw_series(LineSeries::new(s.points.iter().copied(), color.stroke_width(2))).map_err(text)?;
                if let [only] = s.points[..] {
                    chart.draw_series([Circle::new(only, 3, color.filled())]).map_err(text)?;
                }
                let (x, y) = (84 + 240 * at, 16);
                area.draw(&PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))).map_err(text)?;
                area.draw(&Text::new(s.name, (x + 24, y - 6), ("sans-serif", 13))).map_err(text)?;
            }
        }
        root.present().map_err(text)?;
    }
    Ok(svg)
}

/// Labels of an axis of updates, of which none falls between two whole numbers.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // updates
fn whole_steps(x_max: f64) -> usize {
    (x_max as usize + 1).min(11)
}

/// As many digits as the axis needs.
fn label(y: f64, y_max: f64) -> String {
    match y_max {
        m if m < 0.01 => format!("{y:.1e}"),
        m if m < 0.1 => format!("{y:.3}"),
        m if m < 1.0 => format!("{y:.2}"),
        m if m < 10.0 => format!("{y:.1}"),
        _ => format!("{y:.0}"),
    }
}
