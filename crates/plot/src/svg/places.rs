//! Text placement among lines: a text is drawn only where it covers nothing.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Rect {
    fn overlaps(&self, other: &Rect) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn inside(&self, other: &Rect) -> bool {
        self.left >= other.left
            && self.right <= other.right
            && self.top >= other.top
            && self.bottom <= other.bottom
    }

    /// Whether a straight line crosses it (Liang and Barsky's clipping).
    fn crosses(&self, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> bool {
        let (dx, dy) = (x2 - x1, y2 - y1);
        let (mut from, mut to) = (0.0f64, 1.0f64);
        let sides = [
            (-dx, x1 - self.left),
            (dx, self.right - x1),
            (-dy, y1 - self.top),
            (dy, self.bottom - y1),
        ];
        for (step, room) in sides {
            if step == 0.0 {
                if room < 0.0 {
                    return false;
                }
            } else if step < 0.0 {
                from = from.max(room / step);
            } else {
                to = to.min(room / step);
            }
        }
        from <= to
    }
}

#[derive(Debug)]
pub(super) struct Places {
    frame: Rect,
    taken: Vec<Rect>,
    lines: Vec<((f64, f64), (f64, f64))>,
}

impl Places {
    pub(super) fn new(frame: Rect) -> Places {
        Places { frame, taken: Vec::new(), lines: Vec::new() }
    }

    /// Adds a line that text must not cover.
    pub(super) fn line(&mut self, points: &[(f64, f64)]) {
        self.lines.extend(points.windows(2).map(|pair| (pair[0], pair[1])));
    }

    /// Adds an area that text must not cover.
    pub(super) fn take(&mut self, rect: Rect) {
        self.taken.push(rect);
    }

    /// Occupies the first free candidate and returns its index.
    pub(super) fn first_free(&mut self, candidates: &[Rect]) -> Option<usize> {
        let free = |rect: &Rect| {
            rect.inside(&self.frame)
                && !self.taken.iter().any(|taken| taken.overlaps(rect))
                && !self.lines.iter().any(|(from, to)| rect.crosses(*from, *to))
        };
        let found = candidates.iter().position(free)?;
        self.taken.push(candidates[found]);
        Some(found)
    }
}

/// Positions near the wanted ones with at least `gap` between neighbors, within `top` and `bottom`
/// if possible, in the given order.
pub(super) fn spread(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut out = wanted.to_vec();
    let mut least = top;
    for index in &order {
        out[*index] = out[*index].max(least);
        least = out[*index] + gap;
    }
    let mut most = bottom;
    for index in order.iter().rev() {
        out[*index] = out[*index].min(most);
        most = out[*index] - gap;
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FRAME: Rect = Rect { left: 0.0, top: 0.0, right: 100.0, bottom: 100.0 };

    fn square(left: f64, top: f64) -> Rect {
        Rect { left, top, right: left + 10.0, bottom: top + 10.0 }
    }

    #[test]
    fn labels_avoid_lines_and_areas() {
        let mut places = Places::new(FRAME);
        places.line(&[(0.0, 0.0), (100.0, 100.0)]);
        places.take(square(50.0, 0.0));
        let of = |x, y| square(x, y);
        let candidates =
            [of(95.0, 0.0), of(20.0, 20.0), of(20.0, 29.0), of(45.0, 5.0), of(70.0, 10.0)];
        assert_eq!(places.first_free(&candidates), Some(4));
        assert_eq!(places.first_free(&candidates), None, "what was taken stays taken");
    }

    proptest! {
        #[test]
        fn spread_keeps_labels_apart(wanted in proptest::collection::vec(0.0f64..200.0, 1..8)) {
            let out = spread(&wanted, 10.0, 0.0, 200.0);
            let mut sorted = out.clone();
            sorted.sort_by(f64::total_cmp);
            prop_assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] > 10.0 - 1e-9));
            prop_assert!(sorted.iter().all(|y| (0.0..=200.0).contains(y)));
        }

        #[test]
        fn line_through_rectangle_crosses_it(
            from in (-50.0f64..150.0, -50.0f64..150.0),
            to in (-50.0f64..150.0, -50.0f64..150.0),
            part in 0.0f64..=1.0,
        ) {
            let (x, y) = (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part);
            let within = (0.01..99.99).contains(&x) && (0.01..99.99).contains(&y);
            prop_assert!(!within || FRAME.crosses(from, to));
        }
    }
}
