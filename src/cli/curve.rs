//! An SVG plot of convergence: the share of the replicas that have a change, over time.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use plotters::prelude::*;

/// A group of lines in one colour: for each change, the times at which replicas received it.
pub(crate) struct PropagationCurves<'a> {
    /// Name in the legend; `None`, or no line: no entry.
    pub(crate) name: Option<String>,
    /// One line per change: the times since the change, ascending, one for each replica that
    /// received it.
    pub(crate) seen: &'a [Vec<Duration>],
}

/// Width and height of the plot, in pixels.
const SIZE: (u32, u32) = (800, 480);

/// Draws curves into an SVG file, which is overwritten. Each group has a colour of its own, up to
/// the 21 of the palette, which then repeat. Without curves the axes are drawn alone.
///
/// The time axis ends 5 % after the last time of all curves, or at 1.05 ms if there is none. The
/// legend is left out if no group has a name. Missing directories are not created. An error of the
/// final write names the file; an earlier error leaves an incomplete plot there.
pub(crate) fn draw(
    file: &Path,
    title: &str,
    curves: &[PropagationCurves<'_>],
) -> Result<(), Box<dyn Error>> {
    let millis = |span: &Duration| span.as_secs_f64() * 1e3;
    let last = curves.iter().flat_map(|curve| curve.seen).flatten().max();
    let end = last.map_or(1.0, millis).max(0.001) * 1.05;
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("milliseconds since the change")
        .y_desc("replicas that have it, %")
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (number, curve) in curves.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        for (line, seen) in curve.seen.iter().enumerate() {
            let drawn = chart.draw_series(LineSeries::new(steps(seen, end), color.mix(0.7)))?;
            if let (0, Some(name)) = (line, &curve.name) {
                let sample = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color);
                drawn.label(name).legend(sample);
            }
        }
    }
    if curves.iter().any(|curve| curve.name.is_some()) {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    let told = |error| format!("the plot {} can't be written: {error}", file.display());
    root.present().map_err(told)?;
    Ok(())
}

/// Returns the corners of a step function that rises by one replica at each time, in milliseconds
/// and percent, and continues to `end`. 100 % are the replicas in `seen`, so a line with any rises
/// to 100 %; that of an empty list stays at 0.
#[expect(clippy::cast_precision_loss, reason = "shares for a picture")]
fn steps(seen: &[Duration], end: f64) -> Vec<(f64, f64)> {
    let all = seen.len().max(1) as f64;
    let share = |replicas: usize| replicas as f64 / all * 100.0;
    let mut corners = vec![(0.0, 0.0)];
    for (before, at) in seen.iter().enumerate() {
        let x = at.as_secs_f64() * 1e3;
        corners.push((x, share(before)));
        corners.push((x, share(before + 1)));
    }
    corners.push((end, share(seen.len())));
    corners
}

#[cfg(test)]
mod tests {
    /// Regression: the line of a change that no replica has rose to 100 %.
    #[test]
    fn line_ends_at_the_share_that_was_reached() {
        use super::{Duration, steps}; // unused in a bench, which has no test harness
        assert_eq!(steps(&[], 3.0), [(0.0, 0.0), (3.0, 0.0)]);
        let seen = [1, 2].map(Duration::from_millis);
        let both = [(0.0, 0.0), (1.0, 0.0), (1.0, 50.0), (2.0, 50.0), (2.0, 100.0), (3.0, 100.0)];
        assert_eq!(steps(&seen, 3.0), both);
    }
}
