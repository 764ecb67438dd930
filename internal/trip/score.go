package trip

import "math"

const (
	closeAt  = 2  // bits, unless so many successes in a row are asked for
	reopenAt = -3 // bits
	savedAt  = 10 // bits that a recovery saves at most

	// mostUsual is the largest share that a score takes for normal. The cost of
	// a failure goes to 0 as the share goes to 1, and a breaker whose probes all
	// fail must re-open all the same: after 14 of them at most.
	mostUsual = 0.75
)

// Score weighs the probes of a half-open breaker: a sequential probability
// ratio test (A. Wald, 1945), in bits, of "fails as usual" against "fails
// half-way to total failure". Between these two a success is worth exactly one
// bit, and a failure the less the more usual it is, up to mostUsual. For a
// spotless dependency, or where a number in a row was written, any failure
// re-opens.
type Score struct {
	bits, target  float64
	failure, slow float64 // what they cost; slow is 0 where a slow success is a success
}

// Step is what a score says so far.
type Step uint8

// Steps of a score.
const (
	Undecided Step = iota
	Close
	Reopen
)

// Score returns the score that starts now, for probes after the last trip.
func (l *Law) Score() Score {
	exact := l.config.ProbeSuccesses > 0 || l.config.Multiple == 0
	s := Score{target: closeAt, failure: math.Inf(1)}
	if n := l.config.ProbeSuccesses; n > 0 {
		s.target = float64(n)
	}
	if l.warm && !exact {
		s.failure = cost(l.failures.share())
	}
	switch l.cause.Rule {
	case SlowThreshold:
		s.slow = math.Inf(1)
	case SlowRate:
		s.slow = cost(l.slows.share())
		if exact {
			s.slow = math.Inf(1)
		}
	}
	return s
}

// Succeed counts a probe that succeeded; slow means by the measure of the last
// trip, and matters only if a slow rule tripped.
func (s *Score) Succeed(slow bool) Step {
	if slow && s.slow > 0 {
		return s.lose(s.slow)
	}
	s.bits++
	if s.bits >= s.target {
		return Close
	}
	return Undecided
}

// Fail counts a probe that failed.
func (s *Score) Fail() Step { return s.lose(s.failure) }

// Save counts a success after the score has closed. The test goes on, from where
// it was, but a long run of successes does not hide what comes after it.
func (s *Score) Save() { s.bits = min(s.bits+1, savedAt) }

func (s *Score) lose(bits float64) Step {
	s.bits -= bits
	if s.bits <= reopenAt {
		return Reopen
	}
	return Undecided
}

// cost is how many bits an event that normally has the share p takes away.
func cost(p float64) float64 {
	if p <= 0 {
		return math.Inf(1)
	}
	p = min(p, mostUsual)
	return math.Log2((1 + p) / (2 * p))
}
