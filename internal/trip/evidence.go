package trip

import "math"

const (
	// enoughEvidence is what a share must show, in nats. Windows give some 10^5
	// independent samples a month at any traffic, and sliding multiplies them by
	// 20 to 30: exp(-16), a chance of 10^-7, leaves less than one wrong trip.
	enoughEvidence = 16

	// enoughRun is the same for runs, which are tested at every call: 2.6e9 a
	// month at 1,000 a second.
	enoughRun = 23

	// longestRun is the cap of the adaptive limit. Beyond it are only
	// dependencies that fail half of the time.
	longestRun = 40
)

// normal is the sample that others are compared with. The zero normal is cold:
// nothing is over it.
type normal struct {
	n, f  float64
	line  float64 // the share that matters
	burst float64 // how many failures come together; 1: independent
	terms float64 // the part of the evidence that does not depend on the other sample
}

// share is that of failures; 0 while cold.
func (m *normal) share() float64 {
	if m.n == 0 {
		return 0
	}
	return m.f / m.n
}

// newNormal returns the sample of f in n. A multiple of 0 makes a line that is
// never reached.
func newNormal(n, f, burst, floor, multiple float64) normal {
	m := normal{n: n, f: f, burst: burst, terms: xlogx(f) + xlogx(n-f) - xlogx(n)}
	if multiple > 0 {
		m.line = line(m.share(), floor, multiple)
	} else {
		m.line = math.Inf(1)
	}
	return m
}

// over reports whether f in n is more than normal, by a size that matters and
// that chance does not explain. near and part loosen the two.
func (m *normal) over(n, f uint32, near, part float64) bool {
	if m.n == 0 || f < 2 {
		return false
	}
	share := float64(f) / float64(n)
	return share >= m.line/near && share > m.share() && m.evidence(float64(n), float64(f)) >= enoughEvidence*m.burst/part
}

// evidence is the log likelihood ratio, in nats (half of G in a G-test), between
// "f in n has a rate of its own" and "it has the rate of m". A small normal
// sample makes it small by itself, so no confidence bound is needed.
func (m *normal) evidence(n, f float64) float64 {
	return xlogx(f) + xlogx(n-f) - xlogx(n) + m.terms - xlogx(f+m.f) - xlogx(n-f+m.n-m.f) + xlogx(n+m.n)
}

func xlogx(x float64) float64 {
	if x <= 0 {
		return 0
	}
	return x * math.Log(x)
}

// line is at most half-way from the normal share to total failure.
func line(share, floor, multiple float64) float64 {
	return max(floor, min(multiple*share, (1+share)/2))
}

// burst compares the runs expected of independent failures with those observed,
// shrunk towards 1.5 by two runs.
func burst(n, f, runs float64) float64 {
	if n == 0 {
		return 1.5
	}
	return max(1, (f*(1-f/n)+3)/(runs+2))
}

// runLimit is the length of a run that chance does not explain where the share
// p fails.
func runLimit(p, burst float64) uint32 {
	if p <= 0 {
		return DefaultRun
	}
	k := math.Ceil(enoughRun * burst / math.Log(1/p))
	return uint32(min(max(k, DefaultRun), longestRun))
}
